package retries_test

import (
	"strconv"
	"testing"

	"github.com/select-service/select-service/test/checks/e2e"
)

// pair starts two replicas that follow each other.
func pair(t *testing.T) (both [2]*service) {
	t.Helper()
	ports := [2]string{strconv.Itoa(e2e.FreePort(t)), strconv.Itoa(e2e.FreePort(t))}
	for i := range both {
		both[i] = start(t, "--replica-sync-port", ports[i], "--replica-sync-peers", "tcp://127.0.0.1:"+ports[1-i])
	}
	return both
}

// TestKilledOwner proves that a replica drops the leased bookings of another one
// that was killed, and keeps those that are freed through it exactly until then.
func TestKilledOwner(t *testing.T) {
	t.Parallel()
	both := pair(t)
	c := newClient(t, both[0].URL(), nil)
	for range 4 {
		if _, err := c.Lease(t.Context(), request(100, 1)); err != nil {
			t.Fatal(err)
		}
	}
	freed, err := c.Lease(t.Context(), request(100, 2))
	if err != nil {
		t.Fatal(err)
	}
	e2e.Eventually(t, "the other replica knows the bookings", func() error { return both[1].carries(5) })
	if err := both[1].direct.Free(t.Context(), freed.ID()); err != nil {
		t.Error(err)
	}
	for _, s := range both {
		e2e.Eventually(t, "the free is known", func() error { return s.carries(4) })
	}
	both[0].Kill()
	e2e.Eventually(t, "the leases of the killed replica have run out", func() error { return both[1].carries(0) })
	e2e.Eventually(t, "the other replica adds up", both[1].balance)
}
