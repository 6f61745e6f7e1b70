package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/select-service/select-service/demo/sim/simapi"
	"github.com/select-service/select-service/internal/simulation/workload"
)

// replicas is the policy that asks a selection service, or several replicas of one in turn. It
// plays two parts of a real fleet: a load balancer that asks another replica when one does not
// answer, and a registry that registers the engines again with a replica that comes back.
type replicas struct {
	each    []*replica
	engines []engineClient
	infos   []simapi.Info
	// shared: the replicas have one catalog.
	shared bool
	turn   atomic.Uint64
	stop   func() // ends watch

	// mu guards doubtful: requests of which a replica that is down may have booked one that the others
	// hear of too late to free it.
	mu       sync.Mutex
	doubtful map[*workload.Request]struct{}
}

type replica struct {
	selection
	up    atomic.Bool
	falls atomic.Int64 // how often it did not answer
}

// fell: the replica has not answered.
func (r *replica) fell() {
	r.up.Store(false)
	r.falls.Add(1)
}

// watchPause is how often a replica that is down is checked.
const watchPause = 50 * time.Millisecond

// newReplicas returns the policy for the given targets; s is copied with its URL replaced by
// each target.
func newReplicas(targets []string, s selection) *replicas {
	f := &replicas{doubtful: make(map[*workload.Request]struct{})}
	for _, url := range targets {
		s.url = url
		f.each = append(f.each, &replica{selection: s})
	}
	return f
}

// join registers the engines with every replica, waits until all of them have
// subscribed to each engine, and watches the replicas until leave.
func (re *replicas) join(ctx context.Context, engines []engineClient, infos []simapi.Info) error {
	re.engines, re.infos = engines, infos
	ctx, cancel := context.WithCancel(ctx)
	var watch sync.WaitGroup
	re.stop = func() { cancel(); watch.Wait() }
	for i, r := range re.each {
		if !re.shared || i == 0 {
			if err := re.awaitRegistered(ctx, r); err != nil {
				return err
			}
		}
		r.up.Store(true)
	}
	for _, e := range engines {
		if err := e.awaitSubscribers(ctx, len(re.each)); err != nil {
			return err
		}
	}
	watch.Go(func() { re.watch(ctx) })
	return nil
}

func (re *replicas) register(ctx context.Context, r *replica) error {
	for i, e := range re.engines {
		if err := r.register(ctx, i+1, e.url, re.infos[i]); err != nil {
			return err
		}
	}
	return nil
}

// awaitRegistered is register that waits for a catalog which cannot be changed yet: that of a fleet
// before its server is reached.
func (re *replicas) awaitRegistered(ctx context.Context, r *replica) error {
	ctx, cancel := context.WithTimeout(ctx, returnWait)
	defer cancel()
	for {
		err := re.register(ctx, r)
		if err == nil || !re.shared || !unavailable(ctx, err) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(watchPause):
		}
	}
}

// watch marks replicas that are down as up again once all engines are registered
// with them, unless their catalog is shared, and they report that they are ready.
func (re *replicas) watch(ctx context.Context) {
	for {
		for _, r := range re.each {
			if r.up.Load() || !re.shared && re.register(ctx, r) != nil {
				continue
			}
			r.up.Store(call(ctx, http.MethodGet, r.url+"/ready", nil, nil) == nil)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(watchPause):
		}
	}
}

// returnWait is how long a replica may take to come back, on a machine with much else to do.
const returnWait = 2 * time.Minute

// awaitUp waits until all replicas are up.
func (re *replicas) awaitUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, returnWait)
	defer cancel()
	for i, r := range re.each {
		for !r.up.Load() {
			select {
			case <-ctx.Done():
				return fmt.Errorf("replica %d has not come back within %v", i+1, returnWait)
			case <-time.After(watchPause):
			}
		}
	}
	return nil
}

// leave unregisters the engines from the replicas, even after an interrupt.
func (re *replicas) leave(ctx context.Context) {
	re.stop()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	for _, r := range re.each {
		for i := range re.engines {
			_ = r.unregister(ctx, i+1) // fails if the service has ended
		}
	}
}

// inTurn returns the replicas to try, in order: those that are up, or else all.
func (re *replicas) inTurn() []int {
	first := int(re.turn.Add(1) % uint64(len(re.each)))
	var up, all []int
	for i := range re.each {
		n := (first + i) % len(re.each)
		all = append(all, n)
		if re.each[n].up.Load() {
			up = append(up, n)
		}
	}
	if len(up) == 0 {
		return all
	}
	return up
}

func (re *replicas) place(ctx context.Context, r *workload.Request) (placement, error) {
	var errs []error
	for _, i := range re.inTurn() {
		if len(errs) > 0 { // a replica that failed may have booked it
			_ = re.each[i].free(ctx, r)
			re.doubt(r)
		}
		falls := re.each[i].falls.Load()
		at, err := re.each[i].place(ctx, r)
		if !unavailable(ctx, err) {
			at.replica, at.falls = i, falls
			return at, err
		}
		re.each[i].fell()
		errs = append(errs, err)
	}
	return placement{}, errors.Join(errs...)
}

// report reports to the replica that booked, or to another one if that is down, or another one has come
// in its place that does not know the reservation.
func (re *replicas) report(ctx context.Context, r *workload.Request, at placement, step simapi.Step) error {
	booker := re.each[at.replica]
	err := booker.report(ctx, r, at, step)
	switch {
	case unavailable(ctx, err):
		booker.fell()
	case !notFound(err) || booker.falls.Load() == at.falls:
		return err
	}
	for _, i := range re.inTurn() {
		if i == at.replica {
			continue
		}
		if again := re.reportElsewhere(ctx, i, r, at, step); !unavailable(ctx, again) {
			if again != nil {
				re.doubt(r)
			}
			return again
		}
	}
	return err
}

func (re *replicas) doubt(r *workload.Request) {
	re.mu.Lock()
	defer re.mu.Unlock()
	re.doubtful[r] = struct{}{}
}

func (re *replicas) doubts(r *workload.Request) bool {
	re.mu.Lock()
	defer re.mu.Unlock()
	_, doubted := re.doubtful[r]
	return doubted
}

// arriveWait is how long the reservation of a replica that is down may still be on its way to
// another one, on a machine with much else to do.
const arriveWait = 15 * time.Second

// reportElsewhere reports to a replica that did not book, which may not know the reservation yet. That
// is awaited once for each request.
func (re *replicas) reportElsewhere(ctx context.Context, i int, r *workload.Request, at placement, step simapi.Step) error {
	for until := time.Now().Add(arriveWait); ; {
		err := re.each[i].report(ctx, r, at, step)
		if !notFound(err) || re.doubts(r) || time.Now().After(until) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(watchPause):
		}
	}
}

// notFound reports whether a replica does not know a reservation.
func notFound(err error) bool {
	var status *statusError
	return errors.As(err, &status) && status.status == http.StatusNotFound
}

// unavailable reports whether another replica should be asked.
func unavailable(ctx context.Context, err error) bool {
	if err == nil || ctx.Err() != nil {
		return false
	}
	var status *statusError
	return !errors.As(err, &status) || status.status == http.StatusServiceUnavailable
}

// emptyWait is how long the replicas may take to agree that no reservations are left, on a machine
// with much else to do.
const emptyWait = time.Minute

// checkEmpty returns an error if a replica is down after a play, or still has reservations other than
// those in doubt, which it frees.
func (re *replicas) checkEmpty(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, emptyWait)
	defer cancel()
	for i, r := range re.each {
		for {
			n, err := r.reservations(ctx)
			if err == nil && n == 0 {
				break
			}
			for doubtful := range re.doubtful { // the requests have ended: nobody adds any
				_ = r.free(ctx, doubtful)
			}
			select {
			case <-time.After(watchPause):
				continue
			case <-ctx.Done():
			}
			if err != nil {
				return fmt.Errorf("replica %d after the play: %w", i+1, err)
			}
			return fmt.Errorf("replica %d still has %d reservations after the play", i+1, n)
		}
	}
	return nil
}
