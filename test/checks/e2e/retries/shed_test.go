package retries_test

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/select-service/select-service/pkg/client"
	"github.com/select-service/select-service/test/checks/e2e"
)

// counting counts the requests for bookings that it passes on.
type counting struct {
	http.RoundTripper
	n atomic.Int64
}

func (c *counting) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Path == "/v1.6/select_and_reserve" {
		c.n.Add(1)
	}
	return c.RoundTripper.RoundTrip(r)
}

// TestShedding proves that a lease waits while the service sheds load and gets
// through when load is freed; that attempts are bounded, that the context ends the
// wait, and that refusals book nothing.
func TestShedding(t *testing.T) {
	t.Parallel()
	s := start(t, "--active-prefill-tokens-threshold", "100")
	for _, id := range workerIDs[1:] {
		if err := s.direct.DeleteWorker(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	busy, err := s.direct.Lease(t.Context(), request(200, 0))
	if err != nil {
		t.Fatal(err)
	}
	transport := &counting{RoundTripper: &http.Transport{}}
	retry := client.DefaultRetry()
	retry.Overload = client.Backoff{Attempts: 10_000, Base: 5 * time.Millisecond, Jitter: 5 * time.Millisecond, Max: 20 * time.Millisecond}
	c, err := client.New(s.URL(), client.Options{HTTP: &http.Client{Transport: transport}, Lease: 5 * time.Second, Retry: &retry})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })

	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	_, err = c.Lease(ctx, request(10, 1))
	cancel()
	if !errors.Is(err, client.ErrOverloaded) && !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("out of time: %v", err)
	}
	if _, err := newClient(t, s.URL(), nil).Lease(t.Context(), request(10, 1)); !errors.Is(err, client.ErrOverloaded) || errors.Is(err, client.ErrMaybeDone) {
		t.Errorf("out of attempts: %v", err)
	}
	if err := s.carries(1); err != nil {
		t.Error(err)
	}

	const callers = 8
	var g sync.WaitGroup
	before := transport.n.Load()
	for i := range uint32(callers) {
		g.Go(func() {
			l, err := c.Lease(t.Context(), request(200, i)) // room for one at a time
			if err != nil {
				t.Error(err)
				return
			}
			if err := l.Free(); err != nil {
				t.Error(err)
			}
		})
	}
	e2e.Eventually(t, "callers come again", func() error {
		if n := transport.n.Load() - before; n < 3*callers {
			return errors.New("too few attempts")
		}
		return nil
	})
	if err := busy.Free(); err != nil {
		t.Error(err)
	}
	g.Wait()
	if err := s.carries(0); err != nil {
		t.Error(err)
	}
	if err := s.balance(); err != nil || s.event("booked") != callers+1 {
		t.Errorf("%v, %d booked", err, s.event("booked"))
	}
}
