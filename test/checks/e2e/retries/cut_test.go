package retries_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/select-service/select-service/pkg/client"
	"github.com/select-service/select-service/test/checks/e2e"
)

// TestCutAnswers proves that a booking whose first answers were cut off is one
// booking, with the first answer, and is gone after its free, whose answers are
// cut off too.
func TestCutAnswers(t *testing.T) {
	t.Parallel()
	s := start(t)
	var cuts atomic.Int32 // so many answers are lost
	var how cut
	p := newProxy(t, s.URL(), func(*http.Request) loss {
		if cuts.Add(-1) >= 0 {
			return loss{cut: how}
		}
		return loss{}
	})
	c := newClient(t, p.URL, nil)
	ctx := t.Context()
	on := workerIDs[2]
	for _, how = range []cut{nothing, half} {
		for name, book := range map[string]func() (id string, worker uint64, free func() error, err error){
			"lease": func() (string, uint64, func() error, error) {
				l, err := c.Lease(ctx, request(100, 1))
				if err != nil {
					return "", 0, nil, err
				}
				return l.ID(), l.Selection().Worker, l.Free, nil
			},
			"lease on": func() (string, uint64, func() error, error) {
				l, err := c.LeaseOn(ctx, client.ReserveRequest{Model: model, Worker: &on, Prompt: promptOf(100, 1)})
				if err != nil {
					return "", 0, nil, err
				}
				return l.ID(), l.Selection().Worker, l.Free, nil
			},
			"kept selection": func() (string, uint64, func() error, error) {
				req := request(100, 1)
				req.ID = "kept"
				if _, err := c.Select(ctx, req); err != nil {
					return "", 0, nil, err
				}
				cuts.Store(3)
				l, err := c.LeaseOn(ctx, client.ReserveRequest{Model: model, ID: req.ID})
				if err != nil {
					return "", 0, nil, err
				}
				return l.ID(), l.Selection().Worker, l.Free, nil
			},
			"select_and_reserve": func() (string, uint64, func() error, error) {
				got, err := c.SelectAndReserve(ctx, request(100, 1))
				return got.ID, got.Worker, func() error { return c.Free(ctx, got.ID) }, err
			},
		} {
			before := s.event("booked")
			cuts.Store(3)
			id, worker, free, err := book()
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if err := s.carries(1); err != nil || s.event("booked") != before+1 {
				t.Errorf("%s: %v, %d bookings", name, err, s.event("booked")-before)
			}
			at := uint64(0)
			loads, err := s.direct.Loads(ctx, client.Scope{})
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range loads[0].Loads {
				if l.ActiveRequests == 1 {
					at = l.Worker
				}
			}
			if at != worker {
				t.Errorf("%s: the client was told worker %d, the load is on %d", name, worker, at)
			}
			cuts.Store(3)
			if err := free(); err != nil {
				t.Errorf("%s: free %s: %v", name, id, err)
			}
			if err := s.carries(0); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if err := s.balance(); err != nil {
		t.Error(err)
	}
}

// TestKilledProgram proves that a program that is killed leaves nothing when its
// leases ran out, and that they do not run out while it lives.
func TestKilledProgram(t *testing.T) {
	t.Parallel()
	s := start(t)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), programEnv+"="+s.URL())
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	line := make([]byte, 100)
	n, err := out.Read(line)
	if err != nil || strings.TrimSpace(string(line[:n])) != "booked" {
		t.Fatalf("the program wrote %q: %v", line[:n], err)
	}
	// Time passes for the service as for a lease of another, which nobody renews.
	if a, err := e2e.Call(context.Background(), http.DefaultClient, http.MethodPost, s.URL()+"/v1.6/select_and_reserve",
		fmt.Appendf(nil, `{"model_name":"m","selection_id":"other","token_ids":[1],"lease_seconds":%v}`, lease.Seconds())); err != nil || a.Status != http.StatusOK {
		t.Fatal(a, err)
	}
	e2e.Eventually(t, "the other lease has run out", func() error { return s.carries(5) })
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	e2e.Eventually(t, "the program's leases have run out", func() error { return s.carries(0) })
	if n := s.event("expired"); n != 6 {
		t.Errorf("%d bookings expired, want 6", n)
	}
	if err := s.balance(); err != nil {
		t.Error(err)
	}
}
