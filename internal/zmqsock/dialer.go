package zmqsock

import (
	"net/netip"
	"slices"
	"time"
)

// While a socket is not connected to its host name, the name is looked up again and
// again, because an engine that comes back may have another address. The wait
// between two lookups doubles from firstLookup to maxLookup.
const (
	firstLookup = time.Second
	maxLookup   = 10 * time.Second
)

// dialer finds the address for one socket. Every address gets a socket of its
// own: nothing of an old connection can be taken for one of the new.
type dialer struct {
	target
	open      func(endpoint string) (*group, error)
	addresses []netip.Addr // as last looked up
	next      int          // the one to try next, modulo their number
	untried   int          // how many were not tried since the last lookup
	wait      time.Duration
	round     int // counts lost connections: what waits from before is void
}

// connect opens a socket with open, at once or, if the host of endpoint is a
// name, when that has been looked up.
func (l *loop) connect(id uint64, endpoint string, open func(endpoint string) (*group, error)) error {
	t, named, err := parseTarget(endpoint)
	if err != nil {
		return err
	}
	if named {
		l.byID[id] = &group{dialer: &dialer{target: t, open: open, wait: firstLookup}}
		l.lookUp(id, 0, true)
		return nil
	}
	g, err := open(endpoint)
	if err != nil {
		return err
	}
	l.byID[id] = g
	return nil
}

// lookUp has the name of a socket looked up, unless that is not needed any more.
func (l *loop) lookUp(id uint64, round int, urgent bool) {
	if g := l.dialing(id); g != nil && g.dialer.round == round {
		l.resolver.lookUp(g.dialer.host, urgent, func(addresses []netip.Addr, err error) {
			l.post(func() { l.lookedUp(id, round, addresses, err) })
		})
	}
}

// lookedUp takes the answer. When the addresses are still the same the next one
// is tried; if there is only one, libzmq is at it.
func (l *loop) lookedUp(id uint64, round int, addresses []netip.Addr, err error) {
	g := l.dialing(id)
	if g == nil || g.dialer.round != round {
		return
	}
	d := g.dialer
	l.after(d.wait, func() { l.lookUp(id, round, false) })
	d.wait = min(2*d.wait, maxLookup)
	switch {
	case err != nil: // the old ones may still be right
		return
	case !sameSet(d.addresses, addresses):
		l.closeGroup(g)
		d.addresses, d.next, d.untried = addresses, 0, len(addresses)
	case len(addresses) > 1 || g.main == nil:
		d.untried = len(addresses)
	}
	l.tryNextAddress(id)
}

func sameSet(a, b []netip.Addr) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(x netip.Addr) bool { return !slices.Contains(b, x) })
}

// tryNextAddress connects a socket that is not connected to its next address, if
// there is one.
func (l *loop) tryNextAddress(id uint64) {
	g := l.dialing(id)
	if g == nil || g.dialer.untried == 0 {
		return
	}
	d := g.dialer
	endpoint := d.at(d.addresses[d.next%len(d.addresses)])
	d.next++
	d.untried--
	paused := g.main != nil && g.main.paused
	l.closeGroup(g)
	next, err := d.open(endpoint)
	if err != nil {
		return // out of sockets or descriptors: tried again after the next lookup
	}
	next.dialer = d
	l.byID[id] = next
	if paused {
		l.pause(next.main)
	}
}

// refused takes the news that libzmq got no connection and will try again.
func (l *loop) refused(id uint64, c *connections) {
	if g := l.byID[id]; g == nil || g.dialer == nil || g.dialer.untried == 0 {
		return
	}
	// Later, because it is the socket's monitor that speaks.
	l.after(0, func() {
		if g := l.byID[id]; g != nil && g.connections == c {
			l.tryNextAddress(id)
		}
	})
}

// lost takes the news that the connection of a socket is gone. libzmq tries the
// address again by itself.
func (l *loop) lost(id uint64) {
	g := l.byID[id]
	if g == nil || g.dialer == nil {
		return
	}
	d := g.dialer
	d.round++
	d.wait, d.untried = firstLookup, 0
	round := d.round
	l.after(d.wait, func() { l.lookUp(id, round, false) })
}

// dialing returns a socket that is to be connected to a name and is not yet.
func (l *loop) dialing(id uint64) *group {
	g := l.byID[id]
	if g == nil || g.dialer == nil {
		return nil
	}
	if g.monitor != nil {
		l.drainAll(g.monitor) // it may have come up just now
		if g.dialer == nil || g.connections.up > 0 {
			return nil
		}
	}
	return g
}
