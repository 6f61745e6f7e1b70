package conductor

import (
	"slices"
	"strings"
	"sync/atomic"

	"github.com/select-service/select-service/pkg/kvevents"
)

// What is counted for each publisher.
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
	unresolved  // blocks of engines by names that were never announced with tokens
	undecodable // messages
	numCounts
)

// counts only grow. They are written by the stream's goroutine and read by any.
type counts [numCounts]atomic.Uint64

func (c *counts) add(what int, n uint64) {
	if n > 0 {
		c[what].Add(n)
	}
}

// totals are counts that were added up.
type totals [numCounts]uint64

func (t *totals) add(c *counts) {
	for i := range c {
		t[i] += c[i].Load()
	}
}

// Status is what a publisher's events came to so far.
type Status struct {
	Blocks []MediumBlocks // GPU, CPU and DISK, then further media by name

	LastEventID uint64 // of the event that came last, if HasEventID
	HasEventID  bool
	Streams     int // event-id streams

	EventGaps      uint64 // jumps in the event_id numbers
	EventsMissed   uint64 // numbers left out in those
	LateEvents     uint64 // numbers that their stream had passed: not applied
	Restarts       uint64 // streams that counted from the beginning again
	BaseMismatches uint64 // a base_block_idx that contradicts what is known of the block
	Stale          bool   // a stream has missed events since its last clear

	// Hashes says what the publisher's hashes are known to be; the counts of
	// blocks behind it are of blocks with tokens, and of envelope blocks without.
	Hashes      HashSource
	TokenBlocks uint64
	Confirmed   uint64 // by blocks known from tokens
	Resolved    uint64 // as an engine's own names of blocks known from tokens
	Unverified  uint64

	Unused      []UnusedEvents // events that were not used, by reason; late ones are among them
	Undecodable uint64         // messages of which nothing could be read
}

// MediumBlocks is how many blocks a publisher's owners hold in a medium.
type MediumBlocks struct {
	Medium string
	Blocks int
}

// Status returns what the publisher's events came to so far. It does not wait for
// a batch that is being applied.
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

// UnusedEvents is how many events of a publisher were not used for one reason.
type UnusedEvents struct {
	Reason kvevents.Reason
	Events uint64
}

// unused counts the events of a publisher that were not used. It is written by
// the stream's goroutine and read by any.
type unused struct {
	byReason [kvevents.NumReasons]atomic.Uint64
	// Of the last events that stated something else than is registered, where
	// byReason has any:
	blockSize atomic.Int64  // tokens
	rank      atomic.Uint32 // data-parallel rank
}

// add adds the events of a batch that were not applied.
func (u *unused) add(events *[kvevents.NumReasons]uint64, b *kvevents.Batch, reg *Registration) {
	u.note(events, b, reg)
	for r, n := range events {
		if n > 0 {
			u.byReason[r].Add(n)
		}
	}
}

// note remembers what the events of a batch stated instead of what is registered.
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
