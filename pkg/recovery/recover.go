package recovery

import (
	"context"
	"io"
	"strings"
)

// RecoveringHeader is a header of the HTTP answer with a dump. It is "true" if the
// replica is itself recovering: its dump may be incomplete, so that the next peer
// is asked as well.
const RecoveringHeader = "X-Select-Service-Recovering"

// Fetcher gets the dump of a peer.
type Fetcher interface {
	// GetDump gets the dump at a URL. recovering: the answer has RecoveringHeader.
	// Reading the body fails when it stalls or ctx ends; the total time is not
	// limited.
	GetDump(ctx context.Context, url string) (body io.ReadCloser, recovering bool, err error)
}

// Observer is told of the progress of a recovery.
type Observer interface {
	// Asking: the dump of a peer is requested.
	Asking(peer string)
	// Read reports the progress of reading a peer's dump: every few thousand events
	// and at its end.
	Read(peer string, report *Report)
	// Answered reports the result of a peer's dump; err says why it failed or broke
	// off.
	Answered(peer string, answer Answer, err error)
}

// Answer is the result of asking one peer.
type Answer struct {
	Report
	// Started: the peer sent something that looks like a dump.
	Started    bool
	Recovering bool // the peer is recovering itself
}

// Sufficient reports whether no other peer needs to be asked.
func (a *Answer) Sufficient() bool { return a.Started && !a.Recovering && !a.Incomplete() }

// Summary is the result of a recovery.
type Summary struct {
	Report        // of all peers together
	Answered int  // peers that sent a dump, or a part of one
	Complete bool // the last peer's answer was sufficient
}

// Recover reads the dumps of peers, given by their base URLs, in order, until
// one is complete. The next peer is asked if the one before failed, broke off,
// had anything to skip, or is recovering itself. The blocks of each dump
// stay.
func Recover(ctx context.Context, peers []string, fetch Fetcher, target Target, opt Options, obs Observer) Summary {
	var sum Summary
	for _, peer := range peers {
		if ctx.Err() != nil {
			break
		}
		obs.Asking(peer)
		answer, err := ask(ctx, peer, fetch, target, opt, obs)
		obs.Answered(peer, answer, err)
		sum.Add(&answer.Report)
		if answer.Started {
			sum.Answered++
		}
		if sum.Complete = answer.Sufficient(); sum.Complete {
			break
		}
	}
	return sum
}

func ask(ctx context.Context, peer string, fetch Fetcher, target Target, opt Options, obs Observer) (Answer, error) {
	body, recovering, err := fetch.GetDump(ctx, strings.TrimRight(peer, "/")+"/dump")
	if err != nil {
		return Answer{}, err
	}
	defer body.Close() // it was only read: an error says nothing
	opt.Progress = func(r *Report) { obs.Read(peer, r) }
	report, err := Read(ctx, body, target, opt)
	obs.Read(peer, &report)
	return Answer{Report: report, Started: report.Events > 0 || err == nil, Recovering: recovering}, err
}

// Reason says why a part of a dump was not used.
type Reason uint8

// Reasons. Up to OtherBlockSize they concern whole entries and are counted once per
// entry; MissingParent and NoRoom are counted per block; all others per event. The last
// three are not faults of the dump.
const (
	ErrorEntry     Reason = iota // the peer's own index has failed
	BadKey                       // no colon between model and tenant
	BadEntry                     // not an object with a block size and events
	LateBlockSize                // the block size came after more events than the window keeps
	OtherBlockSize               // the workers here have another block size
	BadEvent                     // not of the known form
	UnknownTier                  // the index has no such tier
	RepeatedHash                 // a block twice in one event, or its own parent
	TooLarge                     // an event of more than 16 MiB
	MissingParent                // blocks whose parent never came
	NoRoom                       // blocks beyond the limit of those that wait for their parent
	LiveRemovals                 // too many live removals for the rank's dump to be merged

	NoSlot   // the worker has no such rank, or no further rank can have a slot
	RankLeft // the worker has been deleted
	Obsolete // live events replace the rank's blocks

	// NumReasons counts the reasons.
	NumReasons = int(Obsolete) + 1
)

// String gives the reason's name as a label of counters.
func (r Reason) String() string {
	if int(r) < len(reasonNames) {
		return reasonNames[r]
	}
	return "unknown"
}

var reasonNames = [NumReasons]string{
	ErrorEntry: "error_entry", BadKey: "bad_key", BadEntry: "bad_entry", LateBlockSize: "late_block_size",
	OtherBlockSize: "other_block_size", BadEvent: "bad_event", UnknownTier: "unknown_tier",
	RepeatedHash: "repeated_hash", TooLarge: "too_large", MissingParent: "missing_parent", NoRoom: "no_room",
	LiveRemovals: "live_removals", NoSlot: "no_slot", RankLeft: "rank_left", Obsolete: "obsolete",
}

// Report counts the contents of a dump.
type Report struct {
	Scopes  int    // entries whose events were read
	Events  uint64 // events that were read, used or not
	Blocks  uint64 // blocks that are new in the index
	Skipped [NumReasons]uint64
	// EndedEarly: the dump broke off, or is malformed from some point on.
	EndedEarly bool
}

// Incomplete reports whether the dump may have more than was taken from it.
func (r *Report) Incomplete() bool { return r.EndedEarly || r.Faults() > 0 }

// Faults counts what was skipped because of a fault of the dump, or for lack of
// room: all reasons before NoSlot.
func (r *Report) Faults() (n uint64) {
	for _, skipped := range r.Skipped[:NoSlot] {
		n += skipped
	}
	return n
}

// Add joins the reports of two dumps.
func (r *Report) Add(more *Report) {
	r.Scopes += more.Scopes
	r.Events += more.Events
	r.Blocks += more.Blocks
	for i, n := range more.Skipped {
		r.Skipped[i] += n
	}
	r.EndedEarly = r.EndedEarly || more.EndedEarly
}
