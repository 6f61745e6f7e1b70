package selection_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/length"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// known is what the model knows of a live reservation.
type known struct {
	rank   catalog.Rank
	prompt uint32
	lease  time.Duration // 0: none
	ends   time.Time
}

// retries plays random reservations, retries, steps and pauses, and keeps what has
// to be alive. Steps are a quarter of a second behind the sweeps and every
// reservation ends half a second later than a step, so that its end is never in
// doubt.
type retries struct {
	*servicetest.World
	rnd  *rand.Rand
	live map[string]known
	kept map[string]known
	step int
}

const lifetime = 20*time.Second + time.Second/2

// TestRandomRetries: in a random history a request gets a reservation, the first
// answer again or a conflict as a naive model says; what lives is what was neither
// freed nor too old nor on a worker that left, and in the end nothing does.
func TestRandomRetries(t *testing.T) {
	for seed := range uint64(length.Of(30, 30, 9)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				change := func(c *node.Config) { c.ReservationLifetime = lifetime }
				if seed%3 == 0 {
					change = func(c *node.Config) { c.ReservationLifetime = lifetime; servicetest.Queueing(1 << 20)(c) }
				}
				r := &retries{
					World: servicetest.Start(t, servicetest.EventsOff, keeping, change), rnd: rand.New(rand.NewPCG(seed, 7)),
					live: map[string]known{}, kept: map[string]known{},
				}
				for id := range uint64(3) {
					r.Put(servicetest.Record(id, 1))
				}
				time.Sleep(time.Second / 4)
				steps := []func(){r.choose, r.choose, r.choose, r.reserveOn, r.reserveOn, r.keepOne, r.bookOne, r.bookOne, r.end, r.touch, r.touch, r.pause, r.pause, r.leave}
				for range 400 {
					r.step++
					steps[r.rnd.IntN(len(steps))]()
					r.check()
					if t.Failed() {
						return
					}
				}
				time.Sleep(2 * time.Minute)
				r.expire()
				r.check()
				if len(r.live) > 0 || r.Remembered().Answers != 0 {
					t.Errorf("%d reservations and %d answers are left", len(r.live), r.Remembered().Answers)
				}
			})
		})
	}
}

func (r *retries) id() string     { return fmt.Sprint(r.rnd.IntN(6)) }
func (r *retries) prompt() uint32 { return r.rnd.Uint32N(3) }

func (r *retries) lease() time.Duration {
	if r.rnd.IntN(2) == 0 {
		return 0
	}
	return time.Duration(1+r.rnd.IntN(5))*time.Second + time.Second/2
}

func (r *retries) ifExists() selection.IfExists { return selection.IfExists(r.rnd.IntN(2)) }

// enter notes a reservation.
func (r *retries) enter(id string, k known) {
	k.ends = time.Now().Add(lifetime)
	if k.lease > 0 {
		k.ends = time.Now().Add(k.lease)
	}
	r.live[id] = k
}

func (r *retries) expire() {
	maps.DeleteFunc(r.live, func(_ string, k known) bool { return k.ends.Before(time.Now()) })
}

// judge compares an answer with what the model says: same is whether the request
// is the one that booked the id, if it is taken.
func (r *retries) judge(what, id string, rank catalog.Rank, repeated bool, err error, wanted selection.IfExists, same bool) (booked bool) {
	r.T.Helper()
	k, taken := r.live[id]
	switch {
	case taken && same && wanted == selection.ReturnFirst:
		if err != nil || !repeated || rank != k.rank {
			r.T.Errorf("%d: %s %s: %v, repeated %t, %s, want the first answer %s", r.step, what, id, err, repeated, rank, k.rank)
		}
		if k.lease > 0 { // a retry is a sign of life
			r.enter(id, k)
		}
	case taken:
		var e *contract.Error
		if !errors.As(err, &e) || e.Kind != contract.Conflict {
			r.T.Errorf("%d: %s %s: %v, want a conflict", r.step, what, id, err)
		}
	default:
		if err != nil || repeated {
			r.T.Errorf("%d: %s %s: %v, repeated %t, want a reservation", r.step, what, id, err, repeated)
		}
		return err == nil
	}
	return false
}

func (r *retries) choose() {
	id, p, lease, wanted := r.id(), r.prompt(), r.lease(), r.ifExists()
	sel, err := reserve(r.World, id, servicetest.Prompt(p, 10), leased(lease), func(q *selection.SelectRequest) { q.IfExists, q.Dialect = wanted, contract.Version(r.rnd.IntN(2)) })
	if r.judge("choose", id, sel.Rank, sel.Repeated, err, wanted, r.live[id].prompt == p) {
		r.enter(id, known{rank: sel.Rank, prompt: p, lease: lease})
	}
}

func (r *retries) reserveOn() {
	id, p, lease, wanted, rank := r.id(), r.prompt(), r.lease(), r.ifExists(), catalog.Rank{Worker: r.rnd.Uint64N(3)}
	delete(r.kept, id)
	got, err := r.Reserve(&selection.ReserveRequest{
		Scope: servicetest.Scope, ID: id, Rank: rank, Prompt: servicetest.Ask(servicetest.Prompt(p, 10)).Prompt, Lease: lease, IfExists: wanted,
	})
	k := r.live[id]
	if r.judge("reserve", id, got.Rank, got.Repeated, err, wanted, k.prompt == p && k.rank == rank) {
		r.enter(id, known{rank: rank, prompt: p, lease: lease})
	}
}

func (r *retries) keepOne() {
	id, p := r.id(), r.prompt()
	r.kept[id] = known{rank: selectPending(r.World, id, servicetest.Prompt(p, 10)).Rank, prompt: p}
}

func (r *retries) bookOne() {
	id, lease, wanted := r.id(), r.lease(), r.ifExists()
	got, err := reservePending(r.World, id, func(q *selection.PendingRequest) { q.Lease, q.IfExists = lease, wanted })
	_, taken := r.live[id]
	k, ok := r.kept[id]
	if again := taken && wanted == selection.ReturnFirst; !ok && !again {
		servicetest.WantError(r.T, err, contract.NotFound, nonePending(id))
		return
	}
	if r.judge("book", id, got.Rank, got.Repeated, err, wanted, true) {
		r.enter(id, known{rank: k.rank, prompt: k.prompt, lease: lease})
		delete(r.kept, id)
	}
}

func (r *retries) end() {
	id := r.id()
	_, ok := r.live[id]
	if err := r.Free(id); (err == nil) != ok {
		r.T.Errorf("%d: free %s: %v, live %t", r.step, id, err, ok)
	}
	delete(r.live, id)
}

// touch takes a step that renews a lease.
func (r *retries) touch() {
	id := r.id()
	k, ok := r.live[id]
	var err error
	switch r.rnd.IntN(3) {
	case 0:
		err, ok = r.Renew(id), ok && k.lease > 0
	case 1:
		err = r.PrefillComplete(id)
	default:
		err = r.OutputBlock(id, nil)
	}
	if (err == nil) != ok {
		r.T.Errorf("%d: a step of %s: %v, want success %t", r.step, id, err, ok)
	}
	if ok && k.lease > 0 {
		r.enter(id, k)
	}
}

func (r *retries) pause() {
	time.Sleep(time.Duration(1+r.rnd.IntN(4)) * time.Second)
	r.expire()
}

// leave takes a worker away, which is back at once.
func (r *retries) leave() {
	id := r.rnd.Uint64N(3)
	r.Remove(id)
	r.Put(servicetest.Record(id, 1))
	maps.DeleteFunc(r.live, func(_ string, k known) bool { return k.rank.Worker == id })
}

// check compares the requests of every rank, and what is remembered.
func (r *retries) check() {
	r.T.Helper()
	want := map[catalog.Rank]uint64{}
	for _, k := range r.live {
		want[k.rank]++
	}
	for _, l := range r.Loads(nil, nil)[0].Loads {
		if l.Requests != want[l.Rank] {
			r.T.Errorf("%d: %d requests on %s, want %d", r.step, l.Requests, l.Rank, want[l.Rank])
		}
	}
	if n := r.Remembered().Answers; n != len(r.live) {
		r.T.Errorf("%d: %d answers are remembered, want %d", r.step, n, len(r.live))
	}
}

// TestRetriesRace: retries, frees, renewals and leases that end, all at once on a
// few ids: no one gets an answer for another prompt, and in the end nothing is
// booked or remembered.
func TestRetriesRace(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff, keeping, sessions)
	for id := range uint64(3) {
		w.Put(servicetest.Record(id, 1))
	}
	var wg sync.WaitGroup
	for g := range uint32(8) {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(g), 5))
			for range 300 {
				n := rnd.Uint32N(4)
				id := fmt.Sprint(n)
				switch rnd.IntN(5) {
				case 0:
					_ = w.Free(id)
				case 1:
					_ = w.Renew(id)
				case 2:
					_, _ = reservePending(w, id, func(r *selection.PendingRequest) { r.IfExists, r.Lease = selection.ReturnFirst, time.Millisecond })
				case 3:
					selectPending(w, id, servicetest.Prompt(n, 10), of(id))
				default:
					sel, err := reserve(w, id, servicetest.Prompt(n, 10), again, leased(time.Millisecond), of(id))
					var e *contract.Error
					switch {
					case err == nil && !sel.PlacementOnly && (sel.ISLTokens != 10 || sel.SequenceHashes[0] != servicetest.Sequence(servicetest.Prompt(n, 10), servicetest.BlockSize)[0]):
						t.Errorf("%s got another's answer: %+v", id, sel)
					case err != nil && (!errors.As(err, &e) || e.Kind != contract.Conflict): // booked by the id of a pending selection
						t.Errorf("%s: %v", id, err)
					}
				}
			}
		})
	}
	wg.Wait()
	for n := range 4 {
		_ = w.Free(fmt.Sprint(n))
	}
	w.WantLoad("0/0: 0 0 0, 1/0: 0 0 0, 2/0: 0 0 0")
	if n := w.Remembered().Answers; n != 0 {
		t.Errorf("%d answers are remembered", n)
	}
}
