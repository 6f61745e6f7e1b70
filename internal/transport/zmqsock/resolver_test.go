package zmqsock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func runResolver(t *testing.T, lookup lookupFunc) *resolver {
	t.Helper()
	r := newResolver(lookup)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); r.run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return r
}

// Name servers that do not answer: a bounded number of lookups at a time, a new
// name before old ones, and each ends.
func TestResolverWithSilentNameServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running, most, answered atomic.Int64
		r := runResolver(t, func(ctx context.Context, host string) ([]netip.Addr, error) {
			defer running.Add(-1)
			if n := running.Add(1); n > most.Load() {
				most.Store(n)
			}
			if host == "good" {
				return []netip.Addr{netip.MustParseAddr("10.0.0.1")}, nil
			}
			<-ctx.Done()
			return nil, ctx.Err()
		})
		const bad = 5 * lookupsAtOnce
		for i := range bad {
			r.lookUp(fmt.Sprint("bad", i), false, func(_ []netip.Addr, err error) {
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("bad name: %v, want a timeout", err)
				}
				answered.Add(1)
			})
		}
		synctest.Wait()
		start, good := time.Now(), make(chan time.Duration, 1)
		r.lookUp("good", true, func([]netip.Addr, error) { good <- time.Since(start) })
		if waited := <-good; waited > lookupTimeout {
			t.Errorf("a new name waited %v", waited)
		}
		time.Sleep(bad / lookupsAtOnce * lookupTimeout)
		synctest.Wait()
		if answered.Load() != bad || most.Load() != lookupsAtOnce {
			t.Errorf("%d answers, %d lookups at a time, want %d and %d", answered.Load(), most.Load(), bad, lookupsAtOnce)
		}
	})
}

// Sockets that are closed while name servers are silent leave nothing behind, and the names
// of others are still found.
func TestClosedSocketsWaitForNoName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		var asked atomic.Int64
		h := newHub(Options{}, func(ctx context.Context, _ string) ([]netip.Addr, error) {
			asked.Add(1)
			<-ctx.Done()
			return nil, ctx.Err()
		})
		done := make(chan struct{})
		go func() { defer close(done); _ = h.Run(ctx) }()
		defer func() { cancel(); <-done }()
		var ids []uint64
		for i := range 5 * lookupsAtOnce {
			for range 2 { // the second shares the lookup of the first
				id, err := h.Subscribe(fmt.Sprintf("tcp://w%d:1", i), nil, nil, nil)
				if err != nil {
					t.Fatal(err)
				}
				ids = append(ids, id)
			}
		}
		kept := func() (queued, inquiries int) {
			synctest.Wait()
			h.resolver.mu.Lock()
			defer h.resolver.mu.Unlock()
			for _, n := range h.resolver.waiting {
				inquiries += len(n.asked)
			}
			return h.resolver.queue.Len(), inquiries
		}
		// One name has been taken that waits for a lookup to end.
		if queued, inquiries := kept(); queued != 4*lookupsAtOnce-1 || inquiries != len(ids) {
			t.Errorf("%d names are queued for %d sockets", queued, inquiries)
		}
		for _, id := range ids[2:] {
			h.Close(id)
		}
		if queued, inquiries := kept(); queued > 1 || inquiries != 2 {
			t.Errorf("%d names are queued for %d sockets, one name for two sockets is left", queued, inquiries)
		}
		time.Sleep(lookupTimeout + maxLookup)
		if n := asked.Load(); n > lookupsAtOnce+2 {
			t.Errorf("%d lookups, of sockets that are closed", n)
		}
	})
}

// The streams of a worker's ranks share one lookup; what is found has no
// duplicates and keeps its order; a name that is not there is no error.
func TestResolverAnswers(t *testing.T) {
	a, b := netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.1")
	failed := errors.New("refused")
	for name, tc := range map[string]struct {
		found     []netip.Addr
		err       error
		want      []netip.Addr
		wantError error
	}{
		"addresses":      {found: []netip.Addr{netip.AddrFrom16(a.As16()), b, a}, want: []netip.Addr{a, b}},
		"no such name":   {err: &net.DNSError{IsNotFound: true}},
		"another reason": {err: failed, wantError: failed},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lookups := 0
				r := runResolver(t, func(context.Context, string) ([]netip.Addr, error) {
					time.Sleep(time.Second)
					lookups++
					return tc.found, tc.err
				})
				answers := make(chan bool, 3)
				for range cap(answers) {
					r.lookUp("w1", true, func(got []netip.Addr, err error) {
						answers <- slices.Equal(got, tc.want) && errors.Is(err, tc.wantError)
					})
				}
				for range cap(answers) {
					if !<-answers {
						t.Error("not the answer that was to come")
					}
				}
				if lookups != 1 {
					t.Errorf("%d lookups, want 1 for all", lookups)
				}
			})
		})
	}
}
