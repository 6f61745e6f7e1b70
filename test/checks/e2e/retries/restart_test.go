package retries_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/select-service/select-service/pkg/client"
	"github.com/select-service/select-service/test/checks/e2e"
)

// step is one call of the flow, as its request looks.
type step struct {
	name, method, end string
	// keeps: the call works, or ends well, although everything was forgotten.
	keeps        bool
	needsWorkers bool
}

var steps = []step{
	{"select", http.MethodPost, "/select", true, true},
	{"reserve", http.MethodPost, "/reservations", false, false},
	{"select_and_reserve", http.MethodPost, "/select_and_reserve", true, true},
	{"prefill", http.MethodPost, "/prefill_complete", false, false},
	{"output", http.MethodPost, "/output_block", false, false},
	{"renew", http.MethodPost, "/renew", false, false},
	{"free", http.MethodDelete, "", true, false},
}

func (s step) is(r *http.Request) bool {
	return r.Method == s.method && strings.HasSuffix(r.URL.Path, s.end)
}

// TestRestart kills the service and starts it again on its port, before, during
// and after every call of the flow: before the request goes on, when it was lost
// with the process, and when the answer was, and without its workers. Every time the caller ends with a
// booking that is freed or with an error that says what happened, and no load is
// left.
func TestRestart(t *testing.T) {
	t.Parallel()
	s := start(t)
	for i, st := range steps {
		for j, at := range []struct {
			name string
			loss loss
		}{
			{"before", loss{before: s.restart}},
			{"during", loss{before: s.restart, drop: true}},
			{"after", loss{after: s.restart, cut: nothing}},
			{"empty", loss{before: func() { s.Kill(); s.Run() }}}, // nobody has told it of workers
		} {
			if testing.Short() && (i+j)%2 > 0 {
				continue // each step has two of these, each of these three steps or four
			}
			name, what := at.name, at.loss
			t.Run(st.name+"/"+name, func(t *testing.T) {
				var hit atomic.Bool
				p := newProxy(t, s.URL(), func(r *http.Request) loss {
					if st.is(r) && hit.CompareAndSwap(false, true) {
						return what
					}
					return loss{}
				})
				c := newClient(t, p.URL, nil)
				err := flow(t.Context(), c, st.name)
				if !hit.Load() {
					t.Fatalf("the call was not made: %v", err)
				}
				switch {
				case name == "empty" && st.needsWorkers:
					if !errors.Is(err, client.ErrUnavailable) || errors.Is(err, client.ErrMaybeDone) {
						t.Errorf("without workers: %v", err)
					}
				case err != nil && (st.keeps || !clear(err)):
					t.Errorf("ends with %v", err)
				}
				if name == "empty" {
					s.register()
				}
				if err := c.Close(); err != nil {
					t.Error(err)
				}
				if err := errors.Join(s.carries(0), s.balance()); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// clear tells errors that say that the booking is gone.
func clear(err error) bool {
	return errors.Is(err, client.ErrNotFound) || errors.Is(err, client.ErrMaybeDone)
}

// flow is a request's life: chosen and booked in one step or in two, followed,
// freed. It frees what it booked whatever happens.
func flow(ctx context.Context, c *client.Client, step string) (err error) {
	var lease *client.Lease
	req := request(100, 1)
	if step == "select" || step == "reserve" {
		req.ID = "id-" + step
		chosen, err := c.Select(ctx, req)
		if err != nil {
			return err
		}
		book := client.ReserveRequest{Model: model, ID: req.ID}
		if step == "select" { // the choice may be forgotten: it is booked as it was
			book.Worker, book.DPRank, book.Prompt = &chosen.Worker, chosen.DPRank, req.Prompt
		}
		lease, err = c.LeaseOn(ctx, book)
		if err != nil {
			return err
		}
	} else if lease, err = c.Lease(ctx, req); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lease.Free()) }()
	if err := lease.PrefillComplete(ctx); err != nil {
		return err
	}
	if err := lease.OutputBlock(ctx, new(0.5)); err != nil {
		return err
	}
	if err := c.Renew(ctx, lease.ID()); err != nil {
		return err
	}
	return lease.Free()
}

// TestLeaseOverRestart proves that the holder of a lease learns that a restarted
// service does not know it, without a call of its own.
func TestLeaseOverRestart(t *testing.T) {
	t.Parallel()
	s := start(t)
	c := newClient(t, s.URL(), nil)
	lease, err := c.Lease(t.Context(), request(100, 1))
	if err != nil {
		t.Fatal(err)
	}
	s.restart()
	e2e.Eventually(t, "the lease is known as lost", lost(lease))
	if err := lease.Free(); err != nil {
		t.Error(err)
	}
	if err := s.carries(0); err != nil {
		t.Error(err)
	}
}

func lost(l *client.Lease) func() error {
	return func() error {
		if !errors.Is(l.Err(), client.ErrLeaseLost) {
			return errors.New("not lost")
		}
		return nil
	}
}
