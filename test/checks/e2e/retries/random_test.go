package retries_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/select-service/select-service/pkg/client"
	"github.com/select-service/select-service/test/checks/e2e"
)

// enough is how many flows there have to be.
func enough() int64 {
	if testing.Short() {
		return 250
	}
	return 5000
}

// TestRandom proves that whatever gets lost - requests, answers, patience, whole
// programs - the leases run out and nothing is left, on one service and on two
// that tell each other of their bookings; and that every booking is counted as
// ended once.
func TestRandom(t *testing.T) {
	t.Parallel()
	t.Run("one", func(t *testing.T) {
		t.Parallel()
		play(t, start(t))
	})
	t.Run("two", func(t *testing.T) {
		t.Parallel()
		both := pair(t)
		play(t, both[0], both[1])
	})
}

// dice makes decisions for many goroutines.
type dice struct {
	mu  sync.Mutex // guards rnd
	rnd *rand.Rand
}

func (d *dice) roll(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rnd.IntN(n)
}

// loss is what happens to a request: nothing to most.
func (d *dice) loss(*http.Request) loss {
	pause := func() { time.Sleep(time.Duration(d.roll(30)) * time.Millisecond) }
	switch d.roll(16) {
	case 0:
		return loss{drop: true}
	case 1:
		return loss{before: pause, cut: nothing}
	case 2:
		return loss{cut: half}
	case 3:
		return loss{before: pause}
	case 4:
		return loss{after: pause}
	case 5: // it arrives when its caller has tried again
		return loss{before: pause, patience: time.Millisecond}
	}
	return loss{}
}

// play lets many callers do what they like and see what is left.
func play(t *testing.T, services ...*service) {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	d := &dice{rnd: rand.New(rand.NewPCG(seed, 1))}
	var urls []string
	for _, s := range services {
		urls = append(urls, newProxy(t, s.URL(), d.loss).URL)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var g sync.WaitGroup
	var flows, crashes atomic.Int64
	for range 12 {
		g.Go(func() {
			for ctx.Err() == nil {
				p := newProgram(t, urls[d.roll(len(urls))])
				for range 1 + d.roll(20) {
					if flows.Add(1); p.use(ctx, d) != nil && d.roll(3) == 0 {
						break
					}
				}
				if d.roll(2) == 0 {
					crashes.Add(1)
					p.dead.Store(true)
				}
				_ = p.Close() // a dead one reaches nobody
				p.idle()
			}
		})
	}
	const stride = 50 // how long all of them take is up to the machine
	for flows.Load() < enough() {
		next := min(flows.Load()+stride, enough())
		e2e.Eventually(t, "the callers get on", func() error {
			if n := flows.Load(); n < next {
				return fmt.Errorf("%d flows of %d", n, next)
			}
			return nil
		})
	}
	stop()
	g.Wait()
	end, expired := time.Now(), uint64(0)
	for i, s := range services {
		e2e.Eventually(t, fmt.Sprintf("service %d is empty", i), func() error { return s.carries(0) })
		e2e.Eventually(t, fmt.Sprintf("service %d adds up", i), s.balance)
		booked, freed := s.event("booked"), s.event("freed")
		t.Logf("service %d: %d booked, %d freed, %d expired, %d dropped", i, booked, freed, s.event("expired"), s.event("dropped"))
		if expired += s.event("expired"); booked == 0 || freed == 0 {
			t.Errorf("nothing happened at service %d", i)
		}
	}
	if expired == 0 {
		t.Error("no lease has run out")
	}
	t.Logf("%d flows, %d crashes; empty after %v", flows.Load(), crashes.Load(), time.Since(end))
}

// program is a caller that can die: then nothing it sends arrives any more.
type program struct {
	*client.Client
	transport *http.Transport
	dead      atomic.Bool
}

func newProgram(t *testing.T, url string) *program {
	t.Helper()
	p := &program{transport: &http.Transport{MaxIdleConnsPerHost: 16}}
	p.Client = newClient(t, url, &http.Client{Transport: p})
	return p
}

var errDead = errors.New("the program is dead")

// RoundTrip sends while the program lives.
func (p *program) RoundTrip(r *http.Request) (*http.Response, error) {
	if p.dead.Load() {
		return nil, errDead
	}
	return p.transport.RoundTrip(r)
}

func (p *program) idle() { p.transport.CloseIdleConnections() }

// use books in some way and follows the booking for some steps; it may give up in
// any of them, and forget to free. Errors are what is expected here.
func (p *program) use(ctx context.Context, d *dice) error {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(1+d.roll(300))*time.Millisecond)
	defer cancel()
	held := ctx
	if d.roll(3) == 0 {
		held = context.WithoutCancel(ctx) // lives until Close or the program's end
	}
	lease, err := p.book(ctx, held, d)
	if err != nil {
		return err
	}
	for range d.roll(5) {
		switch d.roll(5) {
		case 0:
			err = lease.PrefillComplete(ctx)
		case 1, 2:
			err = lease.OutputBlock(ctx, nil)
		case 3:
			err = p.Renew(ctx, lease.ID())
		case 4:
			time.Sleep(time.Duration(d.roll(20)) * time.Millisecond)
		}
	}
	if d.roll(4) == 0 {
		return err
	}
	return lease.Free()
}

// book takes a lease that lives with held; ctx bounds what comes before.
func (p *program) book(ctx, held context.Context, d *dice) (*client.Lease, error) {
	req := request(d.roll(200), uint32(d.roll(4)))
	switch d.roll(4) {
	case 0:
		req.ID = fmt.Sprintf("%d-%d", time.Now().UnixNano(), d.roll(1<<30))
		chosen, err := p.Select(ctx, req)
		if err != nil {
			return nil, err
		}
		book := client.ReserveRequest{Model: model, ID: req.ID}
		if d.roll(2) == 0 {
			book.Worker, book.DPRank, book.Prompt = &chosen.Worker, chosen.DPRank, req.Prompt
		}
		return p.LeaseOn(held, book)
	case 1:
		req.ID = strings.Repeat("x", 1+d.roll(3)) // others book under it too
	}
	return p.Lease(held, req)
}
