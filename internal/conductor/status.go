package conductor

import (
	"slices"
	"strings"
	"sync/atomic"

	"github.com/select-service/select-service/internal/selection/diagnose"
	"github.com/select-service/select-service/pkg/kvevents"
)

// The counters of each publisher.
const (
	gaps = iota
	missed
	late
	restarts
	baseMismatches
	fromTokens
	confirmed
	resolved
	unverified
	unresolved  // engine blocks by hashes never announced with tokens
	undecodable // messages
	numCounts
)

// counts only grow. The stream's goroutine writes them, any goroutine may read them.
type counts [numCounts]atomic.Uint64

func (c *counts) add(what int, n uint64) {
	if n > 0 {
		c[what].Add(n)
	}
}

// totals are sums of counts.
type totals [numCounts]uint64

func (t *totals) add(c *counts) {
	for i := range c {
		t[i] += c[i].Load()
	}
}

// Status has the results of a publisher's events so far.
type Status struct {
	Blocks []MediumBlocks // GPU, CPU and DISK, then further media by name

	LastEventID uint64 // event_id of the last event, if HasEventID
	HasEventID  bool
	Streams     int // number of event-id streams

	EventGaps      uint64 // jumps in the event_id numbers
	EventsMissed   uint64 // numbers missing in those jumps
	LateEvents     uint64 // events with numbers that their stream had passed; not applied
	Restarts       uint64 // restarts of the numbers of a stream
	BaseMismatches uint64 // events whose base_block_idx contradicts the known depth of the block
	Stale          bool   // a stream has missed events since its last clear

	// Hashes is the origin of the publisher's hashes. The counters below are of blocks with
	// tokens, and of envelope blocks without tokens.
	Hashes      diagnose.HashSource
	TokenBlocks uint64
	Confirmed   uint64 // blocks confirmed by blocks known from tokens
	Resolved    uint64 // blocks whose engine hash is that of a block known from tokens
	Unverified  uint64

	Unused      []UnusedEvents // unused events by reason, including late ones
	Undecodable uint64         // messages that could not be decoded
}

// MediumBlocks is the number of blocks of a publisher's owners in a medium.
type MediumBlocks struct {
	Medium string
	Blocks int
}

// Status returns the results so far. It does not wait for a batch that is being applied.
func (p *Publisher) Status() Status {
	p.confirmHashes()
	c := &p.counts
	st := Status{
		Blocks:      p.blocks(),
		LastEventID: p.lastEventID.Load(), HasEventID: p.hasEventID.Load(),
		Streams: int(p.streams.Load()), Stale: p.stale.Load() > 0,
		EventGaps: c[gaps].Load(), EventsMissed: c[missed].Load(), LateEvents: c[late].Load(),
		Restarts: c[restarts].Load(), BaseMismatches: c[baseMismatches].Load(),
		Hashes:      p.hashSource(),
		TokenBlocks: c[fromTokens].Load(), Confirmed: c[confirmed].Load(),
		Resolved: c[resolved].Load(), Unverified: c[unverified].Load(),
		Unused: p.unused.list(), Undecodable: c[undecodable].Load(),
	}
	return st
}

func (p *Publisher) blocks() []MediumBlocks {
	p.registry.mu.RLock()
	defer p.registry.mu.RUnlock()
	var sum []MediumBlocks
	for _, name := range naturalMedia {
		sum = append(sum, MediumBlocks{Medium: name})
	}
	for _, o := range p.owners {
		for _, s := range o.mediumSlots {
			i := slices.IndexFunc(sum, func(m MediumBlocks) bool { return m.Medium == s.Medium })
			if i < 0 {
				i = len(sum)
				sum = append(sum, MediumBlocks{Medium: s.Medium})
			}
			sum[i].Blocks += o.space.index.Held(s.Slot)[s.Tier]
		}
	}
	slices.SortFunc(sum[len(naturalMedia):], func(a, b MediumBlocks) int { return strings.Compare(a.Medium, b.Medium) })
	return sum
}

// UnusedEvents is the number of a publisher's events that were not used for one reason.
type UnusedEvents struct {
	Reason kvevents.Reason
	Events uint64
}

// unused counts the unused events of a publisher. The stream's goroutine writes it, any
// goroutine may read it.
type unused struct {
	byReason [kvevents.NumReasons]atomic.Uint64
	// Values of the last events that did not match the registration, if byReason has any:
	blockSize atomic.Int64  // tokens
	rank      atomic.Uint32 // data-parallel rank
}

// add counts the unused events of a batch.
func (u *unused) add(events *[kvevents.NumReasons]uint64, b *kvevents.Batch, reg *Registration) {
	u.note(events, b, reg)
	for r, n := range events {
		if n > 0 {
			u.byReason[r].Add(n)
		}
	}
}

// note remembers the values of a batch's events that did not match the registration.
func (u *unused) note(more *[kvevents.NumReasons]uint64, b *kvevents.Batch, reg *Registration) {
	if more[kvevents.UnknownRank] > 0 {
		u.rank.Store(b.RankOr(reg.Rank))
	}
	if more[kvevents.BlockSizeMismatch] == 0 {
		return
	}
	for i := range b.Events {
		ev := &b.Events[i]
		if ev.Envelope == nil && ev.Kind == kvevents.Stored && ev.BlockSize != int(reg.BlockSize) {
			u.blockSize.Store(int64(ev.BlockSize))
		}
	}
}

// list returns the counts that are not 0.
func (u *unused) list() []UnusedEvents {
	var found []UnusedEvents
	for r := range u.byReason {
		if n := u.byReason[r].Load(); n > 0 {
			found = append(found, UnusedEvents{kvevents.Reason(r), n})
		}
	}
	return found
}
