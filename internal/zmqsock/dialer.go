package zmqsock

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/select-service/select-service/internal/zmtp"
)

const (
	// firstRetry is the wait after the first attempt to connect that fails; it doubles up to
	// socketOptions.maxReconnect. A connection that lasts for stable begins anew.
	firstRetry = 100 * time.Millisecond
	stable     = 5 * time.Second
	// While a socket is not connected to its host name, the name is looked up again
	// and again, because an engine that comes back may have another address. The wait
	// between two lookups doubles from firstLookup to maxLookup.
	firstLookup = time.Second
	maxLookup   = 10 * time.Second
	// longestRetry and longestAttempt are the defaults of socketOptions.
	longestRetry   = 5 * time.Second
	longestAttempt = 5 * time.Second
)

// dialer keeps one socket connected.
type dialer struct {
	*socket
	hosts []string      // to try, in order: what is known of the name's addresses
	retry time.Duration // the next wait between two attempts

	// Of a name.
	answers    chan lookedUp // of capacity 1
	looking    bool          // an answer will come
	lookAt     time.Time     // the next lookup, if none is under way
	lookupWait time.Duration // after the next lookup
	urgent     bool          // it has never been looked up
}

// lookedUp is the answer to a lookup.
type lookedUp struct {
	addresses []netip.Addr
	err       error
}

// connect connects the socket, and again whenever the connection is lost, until it
// is closed or its request has been served.
func (s *socket) connect() {
	d := &dialer{
		socket: s, retry: firstRetry, answers: make(chan lookedUp, 1),
		lookAt: time.Now(), lookupWait: firstLookup, urgent: true,
	}
	if !s.target.named {
		d.hosts = []string{s.target.host}
	}
	for s.ctx.Err() == nil {
		lasted, connected := d.tryAll()
		if connected && s.opt.request != nil {
			return // it is sent once
		}
		if connected {
			d.lost()
		}
		if lasted >= stable {
			d.retry = firstRetry
		}
		d.pause()
	}
}

// tryAll tries one address after the other, and serves the first that answers
// until it is lost.
func (d *dialer) tryAll() (lasted time.Duration, connected bool) {
	for i, host := range d.hosts {
		conn, err := d.dial(host)
		if err != nil {
			d.hub.count(d.endpoint, err)
			continue
		}
		var since time.Time
		memory := d.hub.partials.open(d.ctx, conn, d.opt.account)
		d.hub.count(d.endpoint, d.serve(conn, memory, func() { since = time.Now() }, func() {}))
		if !since.IsZero() {
			d.hosts[0], d.hosts[i] = d.hosts[i], d.hosts[0] // the first to be tried next time
			return time.Since(since), true
		}
		if d.ctx.Err() != nil {
			break
		}
	}
	return 0, false
}

// dial connects to an address of the target. The address is checked when it is
// about to be used, so that no name can stand for one that is not allowed.
func (d *dialer) dial(host string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: longestAttempt}
	if d.opt.connectTimeout > 0 {
		dialer.Timeout = d.opt.connectTimeout
	}
	if !d.target.trusted {
		dialer.Control = func(_, address string, _ syscall.RawConn) error {
			at, err := netip.ParseAddrPort(address)
			if err != nil || !d.hub.opt.Endpoints.AllowsAddress(at.Addr(), at.Port()) {
				return zmtp.Refuse(zmtp.NotAllowed, "%s", address)
			}
			return nil
		}
	}
	conn, err := dialer.DialContext(d.ctx, d.target.network, d.target.address(host))
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return conn, nil
}

// lost says that the connection is gone. The name is looked up soon: what was
// known of it may be old.
func (d *dialer) lost() {
	d.lookupWait = firstLookup
	select {
	case <-d.answers:
		d.looking = false
	default:
	}
	d.lookAt = time.Now().Add(firstLookup)
}

// pause waits until the addresses are to be tried again: after the wait of an
// attempt that failed, or at once when the name has other addresses.
func (d *dialer) pause() {
	longest := longestRetry
	if d.opt.maxReconnect > 0 {
		longest = d.opt.maxReconnect
	}
	end := time.Now().Add(time.Duration(float64(d.retry) * (0.75 + rand.Float64()/2)))
	d.retry = min(2*d.retry, longest)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for d.ctx.Err() == nil {
		now := time.Now()
		if d.target.named && !d.looking && !now.Before(d.lookAt) {
			d.lookUp()
		}
		if len(d.hosts) > 0 && !now.Before(end) {
			return
		}
		next := end
		switch {
		case !d.target.named:
		case !d.looking && (len(d.hosts) == 0 || d.lookAt.Before(end)):
			next = d.lookAt
		case d.looking && len(d.hosts) == 0:
			next = now.Add(lookupTimeout) // for nothing: the answer comes before
		}
		timer.Reset(time.Until(next))
		select {
		case <-d.ctx.Done():
		case a := <-d.answers:
			if d.take(a) {
				return
			}
		case <-timer.C:
		}
	}
}

func (d *dialer) lookUp() {
	d.looking = true
	answers := d.answers
	d.hub.resolver.lookUp(d.target.host, d.urgent, func(addresses []netip.Addr, err error) {
		answers <- lookedUp{addresses, err} // one is asked for at a time
	})
	d.urgent = false
}

// take takes an answer and reports whether there are other addresses than before.
func (d *dialer) take(a lookedUp) (changed bool) {
	d.looking = false
	d.lookAt = time.Now().Add(d.lookupWait)
	d.lookupWait = min(2*d.lookupWait, maxLookup)
	if a.err != nil { // the old ones may still be right
		return false
	}
	hosts := make([]string, len(a.addresses))
	for i, address := range a.addresses {
		hosts[i] = address.String()
	}
	if len(hosts) == len(d.hosts) && !slices.ContainsFunc(hosts, func(h string) bool { return !slices.Contains(d.hosts, h) }) {
		return false
	}
	d.hosts = hosts
	return len(hosts) > 0
}

// wait waits for a time, or until ctx ends.
func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
