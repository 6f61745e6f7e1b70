package zmqsock

import (
	"net/netip"
	"testing"
)

// named returns a dialer of a name with addresses, whose turn does not come.
func named(hosts ...string) *dialer {
	kind := &socketKind{maxReconnect: longestRetry}
	kind.dials.running, kind.dials.dead = attemptsAtOnce, deadAtOnce
	d := &dialer{socket: &socket{hub: newHub(Options{}, nil), kind: kind, target: target{named: true}}, retry: firstRetry, lookupWait: firstLookup}
	d.hosts, d.lookup = hosts, new(inquiry)
	return d
}

// wantWaiting checks where a dialer waits for its turn, and for which address.
func wantWaiting(t *testing.T, d *dialer, dead bool, want string) {
	t.Helper()
	q := &d.kind.dials
	if n := q.waiting.Len() + q.waitingDead.Len(); n != 1 || !d.busy || d.dead != dead || (q.waitingDead.Len() == 1) != dead {
		t.Errorf("%d wait, %d of them behind the dead ones", n, q.waitingDead.Len())
	}
	if host, ok := d.address(); host != want || !ok {
		t.Errorf("it waits for %q, want %q", host, want)
	}
}

// TestDeadNameMoves: an engine that comes back at another address does not wait behind
// the dead ones, even if its own attempt does already.
func TestDeadNameMoves(t *testing.T) {
	old, other := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	for _, waits := range []bool{true, false} {
		d := named(old.String())
		d.dead = true
		if waits {
			d.wake()
			d.answer([]netip.Addr{old}, nil)
			wantWaiting(t, d, true, old.String())
		}
		d.answer([]netip.Addr{other}, nil)
		wantWaiting(t, d, false, other.String())
		d.close()
	}
}

// TestSilentFirstAddress: a name is dead when all its addresses were tried, not before.
func TestSilentFirstAddress(t *testing.T) {
	d := named("10.0.0.1", "10.0.0.2")
	d.failed("10.0.0.1", true)
	wantWaiting(t, d, false, "10.0.0.2")
	d.kind.dials.remove(d)
	d.failed("10.0.0.2", true)
	if !d.dead || d.busy {
		t.Error("it is not dead")
	}
	d.close()
}
