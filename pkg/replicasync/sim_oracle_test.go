package replicasync

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
)

// oracle records which replica has heard of which step, whatever the way. A step
// counts as long as a running replica knows it: what only one replica has heard is
// lost when that one ends. It shares no code with the ledger or the core.
type oracle struct {
	w            *simWorld
	reservations []*simReservation
	steps        []simStep
	byOrigin     map[reservations.Origin]*simReservation
	byName       map[string]*simReservation // those without number, by scope and id
	byNumber     map[simNumber]int
	know         []knowledge // by node
	maybe        knowledge   // heard of in part
	// disputed are the processes whose numbers some replica has forgotten, deceived those
	// for which one has believed the hostile peer.
	disputed, deceived map[uint64]bool
}

// knowledge is a set of steps, by index.
type knowledge []bool

func (k knowledge) has(step int) bool { return step < len(k) && k[step] }

func (k *knowledge) add(step int) {
	for len(*k) <= step {
		*k = append(*k, false)
	}
	(*k)[step] = true
}

type simStep struct {
	kind        kind
	reservation *simReservation
	by          uint64    // the process at which it was taken
	renewal     time.Time // of a renewal: the latest that the node knew
}

// simNumber is the number of an event in one of its sender's two series.
type simNumber struct {
	process, sequence uint64
	renewal           bool
}

type simReservation struct {
	origin   reservations.Origin
	scope    catalog.Scope
	id       string
	rank     catalog.Rank
	hashes   []uint64
	tokens   uint64
	accepted time.Time
	removed  bool // its worker was removed
	steps    []int

	lease   time.Duration // 0: none
	touches map[simLife]time.Time
	// lag is how much too young a replica may think the reservation, heard when a
	// renewal came anywhere last.
	lag   time.Duration
	heard time.Time
}

// simLife is one life of a node.
type simLife struct{ node, life int }

func (s *simReservation) String() string {
	return fmt.Sprintf("%s/%s of %x:%d on %d.%d", s.scope.Model, s.id, s.origin.Process, s.origin.Sequence, s.rank.Worker, s.rank.DP)
}

func newOracle(w *simWorld, nodes int) *oracle {
	return &oracle{
		w: w, know: make([]knowledge, nodes),
		byOrigin: make(map[reservations.Origin]*simReservation),
		byName:   make(map[string]*simReservation),
		byNumber: make(map[simNumber]int), disputed: make(map[uint64]bool), deceived: make(map[uint64]bool),
	}
}

func name(sc catalog.Scope, id string) string { return sc.Model + "/" + id }

func (o *oracle) find(origin reservations.Origin, sc catalog.Scope, id string) *simReservation {
	if origin.Sequence == 0 {
		return o.byName[name(sc, id)]
	}
	return o.byOrigin[origin]
}

// step enters a step in the life of a reservation.
func (o *oracle) step(k kind, b *simReservation) int {
	o.steps = append(o.steps, simStep{kind: k, reservation: b})
	b.steps = append(b.steps, len(o.steps)-1)
	return len(o.steps) - 1
}

func (o *oracle) enter(b *simReservation) *simReservation {
	b.accepted = o.w.now
	o.reservations = append(o.reservations, b)
	if b.origin.Sequence == 0 {
		o.byName[name(b.scope, b.id)] = b
	} else {
		o.byOrigin[b.origin] = b
	}
	return b
}

// local is a step that node n took.
func (o *oracle) local(n *simNode, k kind, e reservations.Event, number uint64) {
	o.w.tracef("node %d: %v %s/%s of %x:%d, number %d", n.index, k, e.Scope.Model, e.ID, e.Origin.Process, e.Origin.Sequence, number)
	b := o.find(e.Origin, e.Scope, e.ID)
	if k == booked {
		b = o.enter(&simReservation{origin: e.Origin, scope: e.Scope, id: e.ID, rank: e.Rank, hashes: e.Hashes, tokens: e.PrefillTokens, lease: e.Lease})
	}
	switch {
	case b == nil:
		o.w.failf("node %d: a step of a reservation that no node made: %+v", n.index, e)
		return
	case b.origin.Sequence != 0 && o.status(b, o.know[n.index]).ended:
		o.w.failf("node %d: %v of %v, of whose end it knew", n.index, k, b)
	}
	step := o.step(k, b)
	o.steps[step].by = n.process
	o.steps[step].renewal = b.touches[simLife{n.index, n.life}]
	o.know[n.index].add(step)
	o.byNumber[simNumber{n.process, number, k == renewed}] = step
}

// takes: who has these ranks can take the reservation of that step.
func (o *oracle) takes(ranks map[simRank]bool, step int) bool {
	s := o.steps[step]
	if s.kind != booked {
		return true
	}
	for r, has := range ranks {
		if has && r.scope == s.reservation.scope && r.rank == s.reservation.rank {
			return true
		}
	}
	return false
}

// delivered is an event that reached node n.
func (o *oracle) delivered(n *simNode, e *event) {
	step, ok := -1, false
	if e.sequence != 0 {
		step, ok = o.byNumber[simNumber{e.sender, e.sequence, e.kind == renewed}]
	} else if b := o.byName[name(e.scope, e.id)]; b != nil {
		for _, i := range b.steps {
			if o.steps[i].kind == e.kind && (e.kind == booked || !ok) {
				step, ok = i, true
			}
		}
	}
	if !ok {
		o.w.failf("node %d: an event that no node sent: %+v", n.index, e)
		return
	}
	o.w.tracef("node %d hears %v %v", n.index, e.kind, o.steps[step].reservation)
	b := o.steps[step].reservation
	switch e.kind {
	case booked:
		b.lag = max(b.lag, o.age(b))
	case renewed:
		b.heard = o.w.now
		if !o.status(b, o.know[n.index]).live { // nothing to renew: the sender's snapshot is read
			return
		}
	}
	if o.takes(n.has, step) {
		o.know[n.index].add(step)
	}
}

// merged: who has read a snapshot has all that its process knew, but for ranks that it
// did not have all the time. Ends of reservations without number are in no snapshot, and
// neither is what has ended, nor what happened to a reservation that is not there.
func (o *oracle) merged(f *simFetch) {
	n := f.n
	for step, ok := range f.known {
		if !ok || !o.takes(n.has, step) || !o.takes(f.had, step) || !o.believes(f, step) {
			continue
		}
		b, k := o.steps[step].reservation, o.steps[step].kind
		switch s := o.status(b, f.known); {
		case (k == prefillCompleted || k == renewed) && !s.live: // of no reservation that is there
			continue
		case b.origin.Sequence == 0 && (k == freed || s.ended):
			continue
		}
		if !o.know[n.index].has(step) {
			o.w.tracef("node %d knows %v %v from a snapshot", n.index, o.steps[step].kind, b)
		}
		o.know[n.index].add(step)
	}
}

// believes: n takes that step from the snapshot for certain. A process says everything
// of its own reservations, while it is not disputed who that is, and of what its callers
// freed; of others' it says what they had when they are gone, and what happens to those
// that n has.
func (o *oracle) believes(f *simFetch, step int) bool {
	s, n, from := o.steps[step], f.n, f.m.request.process
	of := s.reservation.origin
	switch {
	case of.Sequence == 0, of.Process == from && (f.own || s.kind != freed):
		return true
	case s.kind == freed:
		return s.by == from
	case s.kind == booked:
		return !f.spoke[of.Process] && of.Process != n.process
	}
	return o.status(s.reservation, o.know[n.index]).live
}

// perhaps: n has some of what another replica knew.
func (o *oracle) perhaps(_ *simNode, known knowledge) {
	for step, ok := range known {
		if ok {
			o.maybe.add(step)
		}
	}
}

// status of a reservation for who knows these steps.
type status struct{ live, done, ended bool }

func (o *oracle) status(b *simReservation, k knowledge) status {
	var s status
	var made bool
	for _, i := range b.steps {
		if !k.has(i) {
			continue
		}
		switch o.steps[i].kind {
		case booked:
			made = true
		case prefillCompleted:
			s.done = true
		case freed:
			s.ended = true
		}
	}
	s.live = made && !s.ended && !b.removed && o.w.now.Before(o.ends(b, k))
	s.done = s.live && s.done
	return s
}

const (
	lifetime = 300 * time.Second
	// Replicas that heard of a reservation late end it late, those that fetched it
	// slowly end it early.
	early, tardy = 10 * time.Second, 30 * time.Second
)

func (o *oracle) age(b *simReservation) time.Duration { return o.w.now.Sub(b.accepted) }

// unsettled: a reservation is about to expire on some replica and not on others.
func (o *oracle) unsettled() bool {
	all := o.all()
	return slices.ContainsFunc(o.reservations, func(b *simReservation) bool {
		ends := o.ends(b, all)
		last := ends.Add(tardy)
		if b.lease > 0 {
			if heard := b.heard.Add(b.lease + tardy); heard.After(last) {
				last = heard
			}
			if !o.runs(b.origin.Process) { // no process decides: each waits for itself
				last = last.Add(max(5*time.Second, b.lease/2))
			}
			ends = ends.Add(-b.lag)
		}
		return o.w.now.After(ends.Add(-early)) && o.w.now.Before(last)
	})
}

// runs: the process is that of a running replica.
func (o *oracle) runs(process uint64) bool {
	return slices.ContainsFunc(o.w.nodes, func(n *simNode) bool { return n.process == process && !n.dead })
}

// all is what any replica knows.
func (o *oracle) all() (all knowledge) {
	for _, k := range o.know {
		for step, ok := range k {
			if ok {
				all.add(step)
			}
		}
	}
	return all
}

// check compares every replica with what the oracle says; nil if all agree.
func (o *oracle) check() error {
	all := o.all()
	first := make(map[*simReservation]status)
	for _, n := range o.w.nodes {
		if n.dead {
			continue
		}
		n.l.Expire()
		have, err := o.listed(n)
		if err != nil {
			return err
		}
		loads := make(map[simRank]*simLoad)
		for _, b := range o.reservations {
			want, got := o.status(b, all), have[b]
			switch {
			case b.origin.Sequence == 0: // only what reached it itself
				want = o.status(b, o.know[n.index])
				if got != want && o.inDoubt(b, want, got) {
					want = got
				}
			case o.contested(b):
				want = got // see docs/how-it-works/replica-sync.md
			case !b.removed && o.inPart(b, all):
				if _, known := first[b]; !known {
					first[b] = got
				}
				want = first[b] // one thing or the other, but all the same
			}
			want.ended = false
			if got != want {
				return fmt.Errorf("node %d has %v as %+v, want %+v; known: %s", n.index, b, got, want, o.knownOf(b))
			}
			if got.live {
				count(loads, b, got.done)
			}
		}
		if err := compareLoads(n, loads); err != nil {
			return err
		}
	}
	return nil
}

// contested: a replica may lack the reservation, because an impostor was believed and its
// process does not run any more, or still have it, because numbers alone tell that it
// went with its worker.
func (o *oracle) contested(b *simReservation) bool {
	p := b.origin.Process
	return o.deceived[p] && !o.runs(p) || b.removed && (o.deceived[p] || o.disputed[p])
}

// knownOf says which nodes know what of a reservation.
func (o *oracle) knownOf(b *simReservation) string {
	var text strings.Builder
	for node, k := range o.know {
		for _, i := range b.steps {
			if k.has(i) {
				fmt.Fprintf(&text, "%d:%v ", node, o.steps[i].kind)
			}
		}
	}
	return text.String()
}

// inDoubt: a reservation without number may have been on a page of a fetch that
// broke, or was read after its end or completed prefill was heard, or have ended
// between two pages.
func (o *oracle) inDoubt(b *simReservation, want, got status) bool {
	maybe := slices.ContainsFunc(b.steps, o.maybe.has)
	return maybe && (!want.live || got.live || o.status(b, o.maybe).ended)
}

// inPart: some of what is not known for certain may be known.
func (o *oracle) inPart(b *simReservation, all knowledge) bool {
	return slices.ContainsFunc(b.steps, func(i int) bool { return o.maybe.has(i) && !all.has(i) })
}

// listed is what a replica has.
func (o *oracle) listed(n *simNode) (map[*simReservation]status, error) {
	have := make(map[*simReservation]status)
	var at reservations.Cursor
	for more := true; more; {
		var page []reservations.Reservation
		page, at, more = n.l.Reservations(at, 100)
		for i := range page {
			b := o.find(page[i].Origin, page[i].Scope, page[i].ID)
			if b == nil {
				return nil, fmt.Errorf("node %d has a reservation that no node made: %+v", n.index, page[i])
			}
			if _, twice := have[b]; twice {
				return nil, fmt.Errorf("node %d has %v twice", n.index, b)
			}
			have[b] = status{live: true, done: page[i].PrefillDone}
		}
	}
	return have, nil
}

// simLoad is counted in the plainest way.
type simLoad struct {
	blocks   map[uint64]bool
	tokens   uint64
	requests uint32
}

func count(loads map[simRank]*simLoad, b *simReservation, done bool) {
	for _, r := range simRanks {
		if r.scope != b.scope || r.rank != b.rank {
			continue
		}
		l := loads[r]
		if l == nil {
			l = &simLoad{blocks: make(map[uint64]bool)}
			loads[r] = l
		}
		l.requests++
		if !done {
			l.tokens += b.tokens
		}
		for _, h := range b.hashes {
			l.blocks[h] = true
		}
	}
}

func compareLoads(n *simNode, loads map[simRank]*simLoad) error {
	for _, sc := range []catalog.Scope{simA, simB} {
		for _, row := range n.l.Loads(sc) {
			want := &simLoad{}
			for r, l := range loads {
				if r.scope == sc && r.rank == row.Rank {
					want = l
				}
			}
			if row.PrefillTokens != want.tokens || row.Blocks != uint64(len(want.blocks)) || row.Requests != want.requests {
				return fmt.Errorf("node %d, %s: loads %+v, want %d tokens, %d blocks, %d requests",
					n.index, sc.Model, row, want.tokens, len(want.blocks), want.requests)
			}
		}
	}
	return nil
}
