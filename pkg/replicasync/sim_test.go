package replicasync

import (
	"errors"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/test/helpers/length"
)

// settleWithin is how long after the network is healed all replicas must agree.
const settleWithin = 5 * time.Second

// operate does one random thing.
func (w *simWorld) operate() {
	if w.deaths != nil {
		w.liveOrDie()
	}
	n := w.nodes[w.rnd.IntN(len(w.nodes))]
	for n.dead {
		n = w.nodes[(n.index+1)%len(w.nodes)]
	}
	if w.hostile && w.rnd.IntN(4) == 0 {
		w.attack(n)
	}
	switch x := w.rnd.IntN(100); {
	case x < 38:
		w.book(n)
	case x < 46:
		w.lifecycle(n, prefillCompleted)
	case x < 55:
		w.keep(n)
	case x < 68:
		w.lifecycle(n, freed)
	case x < 70:
		w.changeWorker()
	case x < 74 && !w.calm:
		w.toggleCut()
	case x < 77 && !w.calm:
		w.restart(n)
	case x < 79 && !w.calm:
		w.jump()
	case x < 83:
		n.stalled = !n.stalled
		n.flush()
	case x < 91:
		w.dynamoBooks()
	default:
		w.advance(w.upTo(2 * time.Second))
	}
	if w.rnd.IntN(3) > 0 { // else the next one follows at once
		w.advance(w.upTo(300 * time.Millisecond))
	}
}

// book books at n, under a fresh id or one that others may use at the same time.
func (w *simWorld) book(n *simNode) {
	at := simRanks[w.rnd.IntN(len(simRanks))]
	if !n.has[at] || n.dead {
		return
	}
	w.ids++
	id := "r" + strconv.Itoa(w.ids)
	if w.rnd.IntN(3) == 0 {
		id = "c" + strconv.Itoa(w.rnd.IntN(3))
	}
	hashes := make([]uint64, []int{0, 1, 2, 16, 17, 20, 33}[w.rnd.IntN(7)]) // a prefix has 16 blocks at least
	chain, fork := w.rnd.Uint64N(3), 16*w.rnd.IntN(3)
	for i := range hashes {
		hashes[i] = 100*chain + uint64(i) + 1
		if i >= fork {
			hashes[i] += 1000 * uint64(fork+1)
		}
	}
	req := reservations.Request{ID: id, PerScope: w.rnd.IntN(3) == 0, Hashes: hashes, TrackPrefill: true, Lease: simLeases[w.rnd.IntN(len(simLeases))]}
	tokens := 1 + w.rnd.Uint64N(50)
	_, err := n.l.Book(at.scope, req, func(*reservations.View) (reservations.Placement, error) {
		return reservations.Placement{Slot: at.slot, Rank: at.rank, PrefillTokens: tokens}, nil
	})
	var exists *reservations.ExistsError
	if err != nil && !errors.As(err, &exists) {
		w.failf("book: %v", err)
	}
	n.flush()
}

// simLeases are those of reservations; half of them have none.
var simLeases = []time.Duration{0, 0, 0, 0, 10 * time.Second, 20 * time.Second, 45 * time.Second, 120 * time.Second}

// lifecycle completes, renews or ends a recent reservation at n, which any replica
// may have accepted.
func (w *simWorld) lifecycle(n *simNode, k kind) {
	if len(w.oracle.reservations) == 0 {
		return
	}
	recent := min(len(w.oracle.reservations), 1+w.rnd.IntN(12))
	b := w.oracle.reservations[len(w.oracle.reservations)-1-w.rnd.IntN(recent)]
	if b.origin.Sequence == 0 {
		w.advance(400 * time.Millisecond) // all have heard of it: see docs/how-it-works/replica-sync.md
		if k != renewed && w.rnd.IntN(2) == 0 {
			w.dynamoSteps(b, k)
			return
		}
	}
	var err error
	n.freeing = k == freed
	switch inScope := w.rnd.IntN(2) == 0; {
	case k == renewed:
		err = w.renew(n, b.id)
	case inScope && k == freed:
		err = n.l.FreeIn(b.scope, b.id)
	case inScope:
		err = n.l.PrefillCompleteIn(b.scope, b.id)
	case k == freed:
		err = n.l.Free(b.id)
	default:
		err = n.l.PrefillComplete(b.id)
	}
	n.freeing = false
	if err != nil && !errors.Is(err, reservations.ErrNotFound) {
		w.failf("%v: %v", k, err)
	}
	n.flush()
}

// keep renews a leased reservation at n, mostly one whose lease has begun to run out.
func (w *simWorld) keep(n *simNode) {
	if w.rnd.IntN(3) == 0 {
		w.lifecycle(n, renewed)
		return
	}
	all := w.oracle.all()
	for _, i := range w.rnd.Perm(len(w.oracle.reservations)) {
		b := w.oracle.reservations[i]
		if b.lease == 0 || !w.oracle.status(b, all).live || w.oracle.ends(b, all).Sub(w.now) > b.lease*3/4 {
			continue
		}
		if err := w.renew(n, b.id); err != nil && !errors.Is(err, reservations.ErrNotFound) {
			w.failf("renew: %v", err)
		}
		n.flush()
		return
	}
}

// renew renews what the id means at n, if it has a lease.
func (w *simWorld) renew(n *simNode, id string) error {
	h, ok := n.l.Find(id)
	if !ok || h.Lease == 0 {
		return nil
	}
	w.oracle.touch(n, h.Origin)
	return n.l.Renew(id)
}

func (w *simWorld) toggleCut() {
	a, b := w.rnd.IntN(len(w.nodes)), w.rnd.IntN(len(w.nodes))
	cut := !w.cut[a][b]
	w.cut[a][b] = cut
	if w.rnd.IntN(4) > 0 { // else one way only
		w.cut[b][a] = cut
	}
	w.tracef("cut %d-%d: %v", a, b, cut)
}

func (w *simWorld) restart(n *simNode) {
	n.start()
	n.look()
}

// changeWorker takes a worker out of every replica's catalog, one after the
// other, and brings it back: when nothing is under way any more, or at once over
// a network that works.
func (w *simWorld) changeWorker() {
	worker := 1 + w.rnd.Uint64N(3)
	quick, loss := w.rnd.IntN(4) == 0, w.loss
	if quick {
		w.loss = 0
		w.mend()
		w.unstall()
		w.advance(2500 * time.Millisecond) // nothing of an absent process is under way
	}
	each := func(f func(n *simNode, r simRank)) {
		for _, i := range w.rnd.Perm(len(w.nodes)) {
			for _, r := range simRanks {
				if r.rank.Worker == worker {
					f(w.nodes[i], r)
				}
			}
			w.advance(w.upTo(300 * time.Millisecond))
			for range w.rnd.IntN(4) {
				w.book(w.nodes[w.rnd.IntN(len(w.nodes))])
			}
		}
	}
	w.tracef("worker %d goes", worker)
	each(func(n *simNode, r simRank) {
		n.has[r] = false
		if dropped := n.l.RemoveRank(r.scope, r.slot); dropped > 0 {
			n.r.ReservationsDropped(dropped)
		}
		n.look()
	})
	for _, b := range w.oracle.reservations {
		b.removed = b.removed || b.rank.Worker == worker
	}
	w.unstall()
	if !quick {
		w.advance(2500 * time.Millisecond) // no old reservation is under way any more
	}
	w.jumps++
	w.tracef("worker %d comes back", worker)
	each(func(n *simNode, r simRank) {
		n.has[r] = true
		n.l.PutRank(r.scope, r.slot, r.rank)
		if !w.mutant.ranksUnseen {
			n.r.RanksAdded()
		}
		n.look()
	})
	if quick {
		w.advance(6 * time.Second) // they agree before anything else happens
		w.loss = loss
	}
}

// jump lets much time pass in which no message comes.
func (w *simWorld) jump() {
	w.unstall()
	w.advance(3 * time.Second)
	w.now = w.now.Add(time.Duration(60+w.rnd.IntN(260)) * time.Second)
	w.jumps++
	w.tracef("much later")
	w.advance(100 * time.Millisecond)
}

// dynamoBooks is a reservation by a service that does not number its events. Ids of
// its own: what it does with an id that is in use elsewhere is its affair.
func (w *simWorld) dynamoBooks() {
	at := simRanks[w.rnd.IntN(len(simRanks))]
	w.ids++
	e := &event{
		kind: booked, sender: w.dynamo, origin: reservations.Origin{Process: w.dynamo},
		scope: at.scope, blockSize: simBlockSize, id: "d" + strconv.Itoa(w.ids), rank: at.rank,
		hashes: []uint64{7, 8}, track: true, hinted: true, prefillTokens: 5,
	}
	b := w.oracle.enter(&simReservation{origin: e.origin, scope: e.scope, id: e.id, rank: e.rank, hashes: e.hashes, tokens: 5})
	w.oracle.step(booked, b)
	w.tracef("dynamo: %v", b)
	w.sendDynamo(e, func() time.Duration { return w.upTo(300 * time.Millisecond) })
}

func (w *simWorld) dynamoSteps(b *simReservation, k kind) {
	w.oracle.step(k, b)
	w.tracef("dynamo: %v %v", k, b)
	e := &event{
		kind: k, sender: w.dynamo, origin: b.origin,
		scope: b.scope, blockSize: simBlockSize, id: b.id, rank: b.rank,
	}
	w.sendDynamo(e, func() time.Duration { return w.upTo(300 * time.Millisecond) })
}

// heal makes the network perfect.
func (w *simWorld) heal() {
	w.tracef("healed")
	w.loss, w.twice, w.slow = 0, 0, 0
	w.mend()
	w.unstall()
}

// mend ends all cuts.
func (w *simWorld) mend() {
	for i := range w.cut {
		clear(w.cut[i])
	}
}

func (w *simWorld) unstall() {
	for _, n := range w.nodes {
		n.stalled = false
		n.flush()
	}
}

// simulate runs one history; took is how long after the healing it took until
// all agreed.
func simulate(seed uint64, m *mutant, log *strings.Builder) (took time.Duration, err error) {
	w := newWorld(seed, m, log)
	for range 50 + w.rnd.IntN(20) {
		w.operate()
		if w.fault != nil {
			return 0, w.fault
		}
	}
	w.heal()
	if w.hostile || w.deaths != nil {
		w.advance(silentAfter + time.Second) // an impostor, or who died, was silent for so long
	}
	for w.oracle.unsettled() {
		w.advance(5 * time.Second)
	}
	const step = 250 * time.Millisecond
	for err = w.oracle.check(); err != nil && took < settleWithin && w.fault == nil; err = w.oracle.check() {
		w.advance(step)
		took += step
	}
	if err != nil {
		return took, err
	}
	// And it stays so.
	w.advance(7 * time.Second)
	for w.oracle.unsettled() {
		w.advance(5 * time.Second)
	}
	if w.fault != nil {
		return took, w.fault
	}
	return took, w.oracle.check()
}

const simRunsByDefault = 1_000

// simRuns is how many histories a test runs.
func simRuns(t *testing.T) int {
	if s := os.Getenv("SIM_RUNS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatalf("SIM_RUNS: %v", err)
		}
		return n
	}
	return length.Of(simRunsByDefault, simRunsByDefault/20, simRunsByDefault/50)
}

// TestSimulation proves that replicas agree with each other and with the oracle
// within 5 s of healing, whatever happened before. SIM_RUNS sets the number of
// histories, SIM_SEED shows one of them.
func TestSimulation(t *testing.T) {
	if s := os.Getenv("SIM_SEED"); s != "" {
		seed, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		var log strings.Builder
		took, err := simulate(seed, &mutant{}, &log)
		t.Logf("%s\nagreed after %v, %v", log.String(), took, err)
		if err != nil {
			t.Fail()
		}
		return
	}
	defer debug.SetGCPercent(debug.SetGCPercent(800)) // much garbage, little to keep
	var next, failed atomic.Int64
	var slowest atomic.Int64
	runs := int64(simRuns(t))
	var group sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		group.Go(func() {
			for seed := next.Add(1); seed <= runs && failed.Load() < 5; seed = next.Add(1) {
				took, err := simulate(uint64(seed), &mutant{}, nil)
				if err != nil {
					failed.Add(1)
					t.Errorf("SIM_SEED=%d: %v", seed, err)
				}
				for old := slowest.Load(); int64(took) > old && !slowest.CompareAndSwap(old, int64(took)); old = slowest.Load() {
				}
			}
		})
	}
	group.Wait()
	t.Logf("%d histories; the slowest agreed after %v", runs, time.Duration(slowest.Load()))
}
