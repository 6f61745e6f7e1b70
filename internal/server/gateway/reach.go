package gateway

import (
	"context"
	"errors"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/pkg/catalog"
)

// reach looks whether the engines that prefill for others can be reached, and reports those that cannot, which then get no requests. No
// front connects to them. The sidecar of the worker that decodes does, and if it cannot, it answers 502 or another status, or
// has its own engine compute the prompt, by which nobody notices anything.
type reach struct {
	dial     func(ctx context.Context, network, address string) (net.Conn, error)
	api      *selection.API
	endpoint func(catalog.Scope, catalog.Rank) string // see bookings.endpoint
	log      zerolog.Logger
	asked    chan rankOf // to be looked at

	mu sync.Mutex // guards of; the lock of the reports may be taken under it
	of map[rankOf]*looked
}

// rankOf is a rank in its scope.
type rankOf struct {
	scope catalog.Scope
	catalog.Rank
}

// looked is what is known of a rank.
type looked struct {
	at      time.Time // of the latest look, or of the order for one
	reached bool      // at some time
	lost    bool      // it was reported unreachable
}

const (
	// lookEvery is how old the latest look at a rank may be that gets a request, and failedEvery at one whose request has failed.
	lookEvery, failedEvery = 2 * time.Second, 100 * time.Millisecond
	// againEvery is the time between two looks at the ranks that cannot be reached.
	againEvery = time.Second
	// reachWithin is how long a connection may take.
	reachWithin = time.Second
	// maxLooks bounds the looks at a time, and those that wait for it. What has no room is looked at with a later request.
	maxLooks, maxLooksWaiting = 16, 256
	// forgetReach is after which time without a look a rank is forgotten.
	forgetReach = time.Minute
)

func newReach(dial func(context.Context, string, string) (net.Conn, error), api *selection.API, endpoint func(catalog.Scope, catalog.Rank) string, log zerolog.Logger) *reach {
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	return &reach{dial: dial, api: api, endpoint: endpoint, log: log, asked: make(chan rankOf, maxLooksWaiting), of: make(map[rankOf]*looked)}
}

// placed is called for the rank that is to prefill for a request.
func (r *reach) placed(of rankOf) { r.ask(of, lookEvery) }

// failed is called for the rank that was to prefill for a request whose answer is an error of a server.
func (r *reach) failed(of rankOf) { r.ask(of, failedEvery) }

// ask has a rank looked at unless that was done lately. It does not wait.
func (r *reach) ask(of rankOf, every time.Duration) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.entry(of)
	if l.lost || now.Sub(l.at) < every {
		return
	}
	select {
	case r.asked <- of:
		l.at = now
	default:
	}
}

// entry needs r.mu.
func (r *reach) entry(of rankOf) *looked {
	l := r.of[of]
	if l == nil {
		l = new(looked)
		r.of[of] = l
	}
	return l
}

// lost looks at a rank, and reports whether it cannot be reached.
func (r *reach) lost(ctx context.Context, of rankOf) bool {
	r.mu.Lock()
	l := r.of[of]
	known := l != nil && l.lost
	r.mu.Unlock()
	return known || r.look(ctx, of)
}

// run looks at ranks until ctx ends.
func (r *reach) run(ctx context.Context) error {
	var looks errgroup.Group
	looks.SetLimit(maxLooks)
	defer func() { _ = looks.Wait() }() // looks have no errors
	again := time.NewTicker(againEvery)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case of := <-r.asked:
			looks.Go(func() error { r.look(ctx, of); return nil })
		case <-again.C:
			for _, of := range r.lostOnes() {
				looks.Go(func() error { r.look(ctx, of); return nil })
			}
		}
	}
}

// lostOnes returns the ranks that cannot be reached. It forgets those that have not been looked at for long.
func (r *reach) lostOnes() (list []rankOf) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	for of, l := range r.of {
		switch {
		case l.lost:
			list = append(list, of)
		case now.Sub(l.at) > forgetReach:
			delete(r.of, of)
		}
	}
	return list
}

// look connects to a rank's engine, and reports whether that fails.
func (r *reach) look(ctx context.Context, of rankOf) (lost bool) {
	at := r.endpoint(of.scope, of.Rank)
	if at == "" { // it has left, or its host name is not known yet: only a request that is placed there looks that up
		r.mu.Lock()
		defer r.mu.Unlock()
		if l := r.of[of]; l != nil && l.lost {
			r.api.Reachable(of.scope, of.Rank)
		}
		delete(r.of, of)
		return true
	}
	within, cancel := context.WithTimeout(ctx, reachWithin)
	defer cancel()
	conn, err := r.dial(within, "tcp", at)
	if err == nil {
		_ = conn.Close()
	} else if ctx.Err() != nil {
		return false // it says nothing of the engine
	}
	return r.note(of, at, err)
}

// note notes how a look has ended, and reports whether the rank counts as lost. A host that has never answered may be one that this
// process cannot reach while the workers can; one that refuses the connection can be reached.
func (r *reach) note(of rankOf, at string, err error) (lost bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.entry(of)
	l.at = time.Now()
	switch {
	case err == nil:
		if l.reached = true; l.lost {
			l.lost = false
			r.api.Reachable(of.scope, of.Rank)
		}
		return false
	case !l.reached && !errors.Is(err, syscall.ECONNREFUSED):
		return false
	}
	if !l.lost {
		r.log.Debug().Err(err).Str("endpoint", at).Uint64("worker_id", of.Worker).Msg("an engine that prefills cannot be reached")
	}
	l.lost = true
	r.api.Unreachable(of.scope, of.Rank) // also again: the worker may have registered anew
	return true
}
