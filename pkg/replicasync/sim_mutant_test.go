package replicasync

import (
	"regexp"
	"testing"

	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/pkg/reservations/history"
	"github.com/select-service/select-service/test/helpers/length"
)

// mutant is a planted bug; the zero mutant is none.
type mutant struct {
	name         string
	rare         bool // it takes many histories
	sameProcess  bool // a restart keeps the process id
	ranksUnseen  bool // RanksAdded is not called
	lateSequence bool // a snapshot's number is read after its reservations
	silentExpiry bool // who lets a lease expire does not tell
	ledger       func(ledger, *simNode) ledger
	event        func(*simNode, *event) bool // of a received event; false: ignored
	announcement func(*announcement)         // before it is sent
	page         func([]byte) []byte         // of a snapshot
}

func (m *mutant) wrap(l ledger, n *simNode) ledger {
	if m.ledger == nil {
		return l
	}
	return m.ledger(l, n)
}

// changedLedger is a ledger with other methods in front.
type changedLedger struct {
	ledger
	booked     func(reservations.Reservation) (reservations.ApplyResult, bool) // false: as usual
	merge      func(*reservations.Reservation)
	freed      func(reservations.Ref) bool                             // false: ignored
	renewed    func(reservations.Ref) (reservations.ApplyResult, bool) // false: as usual
	mergeEnded func(uint64, history.EndedSet) int
}

func (c *changedLedger) ApplyRenewed(r reservations.Ref) reservations.ApplyResult {
	if c.renewed != nil {
		if v, decided := c.renewed(r); decided {
			return v
		}
	}
	return c.ledger.ApplyRenewed(r)
}

func (c *changedLedger) ApplyBooked(b reservations.Reservation) reservations.ApplyResult {
	if c.booked != nil {
		if v, decided := c.booked(b); decided {
			return v
		}
	}
	return c.ledger.ApplyBooked(b)
}

func (c *changedLedger) MergeReservation(b reservations.Reservation) reservations.ApplyResult {
	if c.booked != nil {
		if v, decided := c.booked(b); decided {
			return v
		}
	}
	if c.merge != nil {
		c.merge(&b)
	}
	return c.ledger.MergeReservation(b)
}

func (c *changedLedger) ApplyFreed(r reservations.Ref) reservations.ApplyResult {
	if c.freed != nil && !c.freed(r) {
		return reservations.UnknownID
	}
	return c.ledger.ApplyFreed(r)
}

func (c *changedLedger) MergeEnded(process uint64, ended history.EndedSet) int {
	if c.mergeEnded != nil {
		return c.mergeEnded(process, ended)
	}
	return c.ledger.MergeEnded(process, ended)
}

// find returns the first live reservation that fits.
func find(l ledger, fits func(*reservations.Reservation) bool) *reservations.Reservation {
	page, _, _ := l.Reservations(reservations.Cursor{}, 10_000)
	for i := range page {
		if fits(&page[i]) {
			return &page[i]
		}
	}
	return nil
}

// isLive: the reservation of that origin is live.
func isLive(l ledger, o reservations.Origin) bool {
	return o.Sequence == 0 || find(l, func(b *reservations.Reservation) bool { return b.Origin == o }) != nil
}

func changed(change func(*changedLedger, *simNode)) func(ledger, *simNode) ledger {
	return func(l ledger, n *simNode) ledger {
		c := &changedLedger{ledger: l}
		change(c, n)
		return c
	}
}

var (
	nextCursor = regexp.MustCompile(`"next":"[^"]*"`)
	likeBlocks = regexp.MustCompile(`"like_blocks":[0-9]+`)
)

var mutants = []mutant{
	{name: "what a snapshot says has ended is ignored", rare: true, ledger: changed(func(c *changedLedger, _ *simNode) {
		c.mergeEnded = func(uint64, history.EndedSet) int { return 0 }
	})},
	{name: "a free that comes before its reservation is forgotten", rare: true, ledger: changed(func(c *changedLedger, _ *simNode) {
		c.freed = func(r reservations.Ref) bool { return isLive(c.ledger, r.Origin) }
	})},
	{name: "a free takes the sender's or the oldest reservation of the id", event: func(_ *simNode, e *event) bool {
		if e.kind == freed {
			e.origin = reservations.Origin{Process: e.sender}
		}
		return true
	}},
	{name: "an id is booked once, whoever accepted it", rare: true, ledger: changed(func(c *changedLedger, _ *simNode) {
		c.booked = func(b reservations.Reservation) (reservations.ApplyResult, bool) {
			other := find(c.ledger, func(o *reservations.Reservation) bool {
				return o.Scope == b.Scope && o.ID == b.ID && o.Origin != b.Origin
			})
			return reservations.Known, other != nil
		}
	})},
	{name: "a completed prefill in a snapshot is ignored", ledger: changed(func(c *changedLedger, _ *simNode) {
		c.merge = func(b *reservations.Reservation) { b.PrefillDone = false }
	})},
	{name: "ages in a snapshot are ignored", rare: true, ledger: changed(func(c *changedLedger, _ *simNode) {
		c.merge = func(b *reservations.Reservation) { b.Age = 0 }
	})},
	{name: "own reservations of a former life are not merged", ledger: changed(func(c *changedLedger, n *simNode) {
		c.booked = func(b reservations.Reservation) (reservations.ApplyResult, bool) {
			return reservations.Ended, n.wasOwn(b.Origin.Process)
		}
	})},
	{name: "a restarted replica keeps its process id", sameProcess: true},
	{name: "nothing is requested after new ranks", rare: true, ranksUnseen: true},
	{name: "the snapshot's number is read after its reservations", rare: true, lateSequence: true},
	{name: "only the first page of a snapshot is read", page: func(page []byte) []byte {
		return nextCursor.ReplaceAll(page, []byte(`"next":null`))
	}},
	{name: "announcements do not tell how far the sender is", rare: true, announcement: func(a *announcement) { a.sequence = 0 }},
	{name: "announcements do not tell of what was merged", rare: true, announcement: func(a *announcement) { a.merged = 0 }},
	{name: "a lease runs out although a renewal came", ledger: changed(func(c *changedLedger, _ *simNode) {
		c.renewed = func(reservations.Ref) (reservations.ApplyResult, bool) { return reservations.Applied, true }
	})},
	{name: "who lets a lease expire does not tell", rare: true, silentExpiry: true},
	{name: "a reservation whose prefix is not known counts as heard", rare: true, ledger: changed(func(c *changedLedger, _ *simNode) {
		c.booked = func(b reservations.Reservation) (reservations.ApplyResult, bool) {
			return reservations.Known, b.Prefix.Blocks > 0 && !isLive(c.ledger, b.Prefix.Origin)
		}
	})},
	{name: "the blocks of a prefix are not taken", ledger: changed(func(c *changedLedger, _ *simNode) {
		c.booked = func(b reservations.Reservation) (reservations.ApplyResult, bool) {
			if b.Prefix.Blocks == 0 {
				return 0, false
			}
			b.Prefix = reservations.Prefix{}
			return c.ApplyBooked(b), true
		}
	})},
	{name: "common beginnings on a page are cut off", page: func(page []byte) []byte {
		return likeBlocks.ReplaceAll(page, []byte(`"like_blocks":1`))
	}},
	{name: "renewals in a snapshot are ignored", rare: true, ledger: changed(func(c *changedLedger, _ *simNode) {
		c.merge = func(b *reservations.Reservation) { b.Renewed = 0 }
	})},
}

// TestSimulationFindsMutants proves that the simulation is worth something: it
// finds every planted bug within its usual number of histories, or four times as
// many; with -short only the common ones are looked for, and none with the race
// detector.
func TestSimulationFindsMutants(t *testing.T) {
	length.Sequential(t)
	for i := range mutants {
		m := &mutants[i]
		t.Run(m.name, func(t *testing.T) {
			if m.rare && testing.Short() {
				t.Skip("takes hundreds of histories, or thousands")
			}
			t.Parallel()
			runs := uint64(simRunsByDefault)
			if m.rare {
				runs *= 4
			}
			for seed := range runs {
				if _, err := simulate(seed+1, m, nil); err != nil {
					t.Logf("seed %d: %v", seed+1, err)
					return
				}
			}
			t.Errorf("not found in %d histories", runs)
		})
	}
}
