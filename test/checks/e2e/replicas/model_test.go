package replicas_test

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// rank names a rank of a worker.
type rank struct {
	Worker uint64 `json:"worker_id"`
	DPRank uint32 `json:"dp_rank"`
}

// blockSize of all workers, in tokens.
const blockSize = 4

// booking is what a replica answered to: the truth that all have to agree on.
type booking struct {
	id, model string
	replica   int // that accepted it
	life      int // which one of that replica's lives
	rank      rank
	tokens    []uint32
	prefill   uint64 // tokens booked

	prefilled, ended bool
	// home: another live booking may have the same id, so that only the replica
	// that accepted it knows which one is meant.
	home bool
	// made is when it was accepted.
	made time.Time
	// touched is when a replica last accepted a call for it since all agreed.
	touched [fleetSize]time.Time
	// doubt: one of these was killed. What it had not told yet is lost, and the
	// call may or may not have had its effect.
	doubt bool
}

// blocks is how many complete blocks the prompt has.
func (b *booking) blocks() int { return len(b.tokens) / blockSize }

// waiting is the prefill still to do.
func (b *booking) waiting() uint64 {
	if b.prefilled {
		return 0
	}
	return b.prefill
}

// known is what a replica should know of the booking.
func (b *booking) known() known { return known{b.model, b.id, b.rank, b.blocks(), b.waiting()} }

func (b *booking) touch(replica int) { b.touched[replica] = time.Now() }

// changed reports whether a call for it was accepted since then.
func (b *booking) changed(since time.Time) bool {
	return b.made.After(since) || slices.ContainsFunc(b.touched[:], func(at time.Time) bool { return at.After(since) })
}

// ledger is all bookings of a run.
type ledger struct {
	mu       sync.Mutex // guards bookings, but not what they point to
	bookings []*booking
}

func (l *ledger) add(b *booking) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bookings = append(l.bookings, b)
}

// live are the bookings that nobody has freed, doubtful ones included.
func (l *ledger) live() []*booking {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(l.bookings), func(b *booking) bool { return b.ended && !b.doubt })
}

// killed doubts what the replica may have kept to itself: what it answered to
// since all agreed.
func (l *ledger) killed(replica int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range l.bookings {
		if !b.touched[replica].IsZero() {
			b.doubt = true
		}
	}
}

// removed ends the bookings of a worker.
func (l *ledger) removed(worker uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range l.bookings {
		if b.rank.Worker == worker {
			b.ended, b.doubt = true, false
		}
	}
}

// agreed says that all replicas believe the same: what was in doubt is what
// they believe.
func (l *ledger) agreed(s state) {
	seen := l.doubts(s)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range l.bookings {
		if b.doubt {
			k, live := seen[b]
			b.ended, b.prefilled, b.doubt = !live, live && k.waiting == 0, false
		}
		b.touched = [fleetSize]time.Time{}
	}
}

// doubts finds the doubtful bookings among what is not beyond doubt.
func (l *ledger) doubts(s state) map[*booking]known {
	rest := slices.Collect(maps.Values(s))
	take := func(match func(known) bool) (k known, found bool) {
		i := slices.IndexFunc(rest, match)
		if i < 0 {
			return known{}, false
		}
		k = rest[i]
		rest = slices.Delete(rest, i, i+1)
		return k, true
	}
	live := l.live()
	for _, b := range live {
		if !b.doubt {
			take(func(k known) bool { return k == b.known() })
		}
	}
	seen := make(map[*booking]known)
	for _, b := range live {
		if !b.doubt {
			continue
		}
		want := b.known()
		if k, found := take(func(k known) bool { want.waiting = k.waiting; return k == want }); found {
			seen[b] = k
		}
	}
	return seen
}

// load is what a rank carries.
type load struct{ Prefill, Blocks, Requests uint64 }

// place is a rank of a model.
type place struct {
	model string
	rank  rank
}

// state is the live bookings that a replica knows, by identity.
type state map[string]known

// known is a live booking.
type known struct {
	model, id string
	rank      rank
	blocks    int
	waiting   uint64 // prefill tokens still to do
}

// differs tells how two replicas' states differ, "" if they do not.
func (s state) differs(other state) string {
	var only, theirs []string
	for id, k := range s {
		if o, ok := other[id]; !ok || o != k {
			only = append(only, fmt.Sprintf("%s %v", id, k))
		}
	}
	for id, k := range other {
		if o, ok := s[id]; !ok || o != k {
			theirs = append(theirs, fmt.Sprintf("%s %v", id, k))
		}
	}
	return contrast("first", only, "second", theirs)
}

// compare compares what the replicas agree on with what they answered, and
// returns the loads that follow.
func (l *ledger) compare(s state) (loads map[place]load, difference string) {
	var want, got []string
	expected := newTally()
	doubts := l.doubts(s)
	for _, b := range l.live() {
		k := b.known()
		if b.doubt {
			var live bool
			if k, live = doubts[b]; !live {
				continue
			}
		}
		want = append(want, fmt.Sprint(k))
		expected.add(b, k.waiting)
	}
	for _, k := range s {
		got = append(got, fmt.Sprint(k))
	}
	slices.Sort(want)
	slices.Sort(got)
	return expected.loads, contrast("answered only", without(want, got), "believed only", without(got, want))
}

// without returns the entries of a sorted list that are not in another.
func without(list, other []string) (rest []string) {
	for _, s := range list {
		for len(other) > 0 && other[0] < s {
			other = other[1:]
		}
		if len(other) > 0 && other[0] == s {
			other = other[1:]
			continue
		}
		rest = append(rest, s)
	}
	return rest
}

func contrast(a string, as []string, b string, bs []string) string {
	if len(as) == 0 && len(bs) == 0 {
		return ""
	}
	slices.Sort(as)
	slices.Sort(bs)
	return fmt.Sprintf("%s %d: %v; %s %d: %v", a, len(as), as[:min(5, len(as))], b, len(bs), bs[:min(5, len(bs))])
}

// tally adds bookings up: a block counts once for each rank, however many
// prompts have it.
type tally struct {
	loads  map[place]load
	blocks map[place]map[string]struct{} // by the tokens up to the block's end
}

func newTally() *tally {
	return &tally{loads: make(map[place]load), blocks: make(map[place]map[string]struct{})}
}

func (t *tally) add(b *booking, waiting uint64) {
	p := place{b.model, b.rank}
	distinct := t.blocks[p]
	if distinct == nil {
		distinct = make(map[string]struct{})
		t.blocks[p] = distinct
	}
	for n := range b.blocks() {
		distinct[fmt.Sprint(b.tokens[:(n+1)*blockSize])] = struct{}{}
	}
	sum := t.loads[p]
	t.loads[p] = load{sum.Prefill + waiting, uint64(len(distinct)), sum.Requests + 1}
}
