package waitqueue_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/selection/admission"
	"github.com/select-service/select-service/internal/selection/waitqueue"
)

// hold is how much a rank of a fleet may have left to compute, in seconds.
const hold = 0.2

// fleet is ranks that compute one second a second.
type fleet struct {
	free []time.Time // when a rank has computed what was sent to it
	runs []string    // the requests in the order in which they were sent
}

func (f *fleet) left(rank int) float64 { return max(0, time.Until(f.free[rank]).Seconds()) }

// delayable takes that long on each rank of a fleet.
type delayable struct {
	fleet *fleet
	name  string
	work  []float64
	since time.Time
}

func (d *delayable) Waiter() admission.Waiter          { return admission.Waiter{Tokens: 10} }
func (d *delayable) Workers() int                      { return len(d.work) }
func (d *delayable) CanRun(*admission.Class) bool      { panic("no queue of classes") }
func (d *delayable) CanRunNow(*admission.Class) bool   { panic("no queue of classes") }
func (d *delayable) BeforeWait(*admission.Class) error { return nil }
func (d *delayable) Refresh(time.Duration) error       { return nil }
func (d *delayable) TooLate(admission.Payer) error     { return nil }
func (d *delayable) Run(admission.Payer) error         { panic("only by RunOrDelay") }
func (d *delayable) Work() float64                     { return slices.Min(d.work) }

// RunOrDelay sends the request to the rank where it would be done first, if that has
// little left.
func (d *delayable) RunOrDelay(charged map[uint32]float64, force bool, _ time.Duration) (time.Duration, error) {
	f, best := d.fleet, 0
	done := func(rank int) float64 { return f.left(rank) + charged[uint32(rank)] + d.work[rank] }
	for rank := range f.free {
		if done(rank) < done(best) {
			best = rank
		}
	}
	if left := f.left(best); left > hold && !force {
		charged[uint32(best)] += d.work[best]
		return max(1, time.Duration((left-hold)*float64(time.Second))), nil
	}
	f.free[best] = time.Now().Add(time.Duration((f.left(best) + d.work[best]) * float64(time.Second)))
	f.runs = append(f.runs, d.name)
	return 0, nil
}

// TestDelayedRequestsRun: in random histories every request has its turn, none waits longer
// than the longest time, and one that comes to an idle fleet does not wait.
func TestDelayedRequestsRun(t *testing.T) {
	const longest = 3 * time.Second
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			f := &fleet{free: make([]time.Time, 1+rnd.IntN(4))}
			q := waitqueue.NewDelaying(waitqueue.Config{Started: time.Now()}, longest)
			const n = 200
			done := make(chan time.Duration, n)
			for i := range n {
				time.Sleep(time.Duration(rnd.ExpFloat64() * 0.3 * float64(time.Second) / float64(len(f.free))))
				r := &delayable{fleet: f, name: fmt.Sprint(i), since: time.Now()}
				for range f.free {
					r.work = append(r.work, rnd.ExpFloat64()*0.3)
				}
				var since time.Time
				w, err := q.Enter(r, &since)
				if err != nil {
					t.Fatal(err)
				}
				if w == nil {
					done <- 0
					continue
				}
				go func() {
					<-w.Done()
					if w.Err() != nil {
						t.Error(w.Err())
					}
					done <- time.Since(r.since)
				}()
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			if len(done) != n || len(f.runs) != n {
				t.Fatalf("seed %d: %d of %d have run", seed, len(f.runs), n)
			}
			for range n {
				if waited := <-done; waited > longest+time.Millisecond {
					t.Errorf("seed %d: waited for %v", seed, waited)
				}
			}
			if requests, tokens := q.Pending(); requests != 0 || tokens != 0 {
				t.Errorf("seed %d: %d requests, %d tokens are left", seed, requests, tokens)
			}
			q.Close(nil)
		})
	}
}

// unkept is a request for whose wait there is no memory.
type unkept struct{ *delayable }

var errUnkept = errors.New("no memory")

func (unkept) BeforeWait(*admission.Class) error { return errUnkept }

// TestDelayedWithoutRoom: a request that would have to wait, but cannot, ends and leaves nothing in
// the queue; one that need not wait runs.
func TestDelayedWithoutRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fleet{free: []time.Time{time.Now().Add(10 * time.Second)}}
		q := waitqueue.NewDelaying(waitqueue.Config{Started: time.Now()}, time.Minute)
		enter := func() error {
			var since time.Time
			w, err := q.Enter(unkept{&delayable{fleet: f, name: "a", work: []float64{1}}}, &since)
			if w != nil {
				t.Error("it waits")
			}
			return err
		}
		if err := enter(); !errors.Is(err, errUnkept) {
			t.Errorf("got %v", err)
		}
		if requests, tokens := q.Pending(); requests != 0 || tokens != 0 || len(f.runs) != 0 {
			t.Errorf("%d requests, %d tokens are left; %v have run", requests, tokens, f.runs)
		}
		time.Sleep(10 * time.Second)
		if err := enter(); err != nil || len(f.runs) != 1 {
			t.Errorf("on an idle rank: %v, %v have run", err, f.runs)
		}
		if !q.Delays() || q.Enabled() || !q.Waits() {
			t.Error("it is no queue of delayed requests")
		}
	})
}

// TestDelayedOrder: the one with the least work goes first, but waiting counts 0.3 of itself.
func TestDelayedOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fleet{free: []time.Time{time.Now().Add(10 * time.Second)}}
		q := waitqueue.NewDelaying(waitqueue.Config{Started: time.Now()}, time.Minute)
		enter := func(name string, work float64) *waitqueue.Queued {
			var since time.Time
			w, err := q.Enter(&delayable{fleet: f, name: name, work: []float64{work}, since: time.Now()}, &since)
			if err != nil || w == nil {
				t.Fatalf("%s: %v", name, err)
			}
			return w
		}
		enter("old and long", 3)
		enter("old and short", 1)
		gone := enter("withdrawn", 0.1)
		time.Sleep(8 * time.Second)
		enter("new and short", 0.8) // 0.8 against 3 − 0.3·8 and 1 − 0.3·8
		enter("new and next to nothing", 0.01)
		if requests, tokens := q.Pending(); requests != 5 || tokens != 50 {
			t.Errorf("%d requests, %d tokens wait", requests, tokens)
		}
		if !q.Withdraw(gone) || q.Withdraw(gone) {
			t.Error("not withdrawn once")
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		want := []string{"old and short", "new and next to nothing", "old and long", "new and short"}
		if !slices.Equal(f.runs, want) {
			t.Errorf("ran %q, not %q", f.runs, want)
		}
	})
}

// TestHeldBehindMany: a request goes after the longest time also if so many are before it
// that nobody looks at it until then.
func TestHeldBehindMany(t *testing.T) {
	const longest = 3 * time.Second
	synctest.Test(t, func(t *testing.T) {
		f := &fleet{free: []time.Time{time.Now().Add(time.Hour)}}
		q := waitqueue.NewDelaying(waitqueue.Config{Started: time.Now()}, longest)
		enter := func(work float64) *waitqueue.Queued {
			var since time.Time
			w, err := q.Enter(&delayable{fleet: f, work: []float64{work}, since: time.Now()}, &since)
			if err != nil || w == nil {
				t.Fatal(err)
			}
			return w
		}
		first, begun := enter(100), time.Now()
		time.Sleep(longest / 2)
		for range 100 {
			enter(1)
		}
		<-first.Done()
		if waited := time.Since(begun); waited > longest+time.Millisecond {
			t.Errorf("waited for %v", waited)
		}
		q.Close(nil)
	})
}
