package zmqsock

import (
	"container/list"
	"context"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/select-service/select-service/internal/transport/zmtp"
)

const (
	// firstRetry is the wait after the first failed attempt to connect. It doubles up to
	// socketKind.maxReconnect, for engines longestRetry. After a connection that lasted for
	// stable it starts at firstRetry again.
	firstRetry   = 100 * time.Millisecond
	longestRetry = 5 * time.Second
	stable       = 5 * time.Second
	// longestConnect and longestHandshake bound an attempt to connect. If packets are dropped,
	// the kernel would retry at growing intervals, and the next retry might come half a minute
	// after the network works again.
	longestConnect   = time.Second
	longestHandshake = 3 * time.Second
	// While a socket is not connected, its host name is looked up again and again, because an
	// engine that comes back may have another address. The wait between two lookups doubles
	// from firstLookup to maxLookup.
	firstLookup = time.Second
	maxLookup   = 10 * time.Second
)

// dialer keeps one socket connected. It has a goroutine only while it tries to connect or is
// connected, so that thousands of absent engines take little memory.
type dialer struct {
	*socket
	turn *list.Element // in a queue of dials; guarded by the mutex of dials

	// mu guards the fields below. dials reads dead without mu while the dialer waits for its
	// turn, when nothing changes it. mu is taken before the mutex of dials.
	mu          sync.Mutex
	closed      bool
	busy        bool               // waits for its turn, tries to connect or is connected
	cancel      context.CancelFunc // ends the connection; nil: there is none
	timer       *time.Timer        // calls wake; nil before it is needed
	dead        bool               // the last address did not answer, or many attempts have failed
	retry       time.Duration      // wait after the next failed attempt
	nextAttempt time.Time          // time of the next attempt
	nextHost    int                // index in hosts of the next address to try

	// If the target is a host name:
	hosts      []string      // known addresses of the name, in the order to try them
	lookup     *inquiry      // the lookup under way; nil: none
	lookedUp   bool          // the name has been looked up before
	lookAt     time.Time     // time of the next lookup, if none is under way
	lookupWait time.Duration // wait after the next lookup
}

// wake starts what is due: it connects the socket for the first time, and again whenever the
// connection is lost, until the socket is closed or its request has been served.
func (d *dialer) wake() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.wakeLocked()
}

func (d *dialer) wakeLocked() {
	if d.closed || d.busy {
		return
	}
	now := time.Now()
	if d.target.named && d.lookup == nil && !now.Before(d.lookAt) {
		d.lookUpLocked()
	}
	known := !d.target.named || len(d.hosts) > 0
	if known && !now.Before(d.nextAttempt) {
		d.busy = true
		d.kind.dials.add(d)
		return
	}
	switch {
	case known && (!d.target.named || d.lookup != nil || d.nextAttempt.Before(d.lookAt)):
		d.setTimerLocked(d.nextAttempt.Sub(now))
	case d.lookup == nil:
		d.setTimerLocked(d.lookAt.Sub(now))
	}
}

func (d *dialer) setTimerLocked(wait time.Duration) {
	if d.timer == nil {
		d.timer = time.AfterFunc(wait, d.wake)
	} else {
		d.timer.Reset(wait)
	}
}

// close ends the connection. An attempt under way ends when it notices.
func (d *dialer) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	if d.timer != nil {
		d.timer.Stop()
	}
	if d.cancel != nil {
		d.cancel()
	}
	if d.lookup != nil {
		d.hub.resolver.withdraw(d.lookup)
	}
	d.kind.dials.remove(d)
}

// address returns the next address to try; ok is false if there is none.
func (d *dialer) address() (host string, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.closed:
		return "", false
	case !d.target.named:
		return d.target.host, true
	case len(d.hosts) == 0: // the name has no addresses any more
		d.busy = false
		d.wakeLocked()
		return "", false
	}
	return d.hosts[d.nextHost], true
}

// attempt tries to connect to one address, and serves the connection until it is lost. dead:
// dials counts it as an attempt to a dead address.
func (d *dialer) attempt(dead bool) {
	host, ok := d.address()
	if !ok {
		d.kind.dials.done(dead)
		return
	}
	var connected time.Time
	began := time.Now()
	conn, err := d.dial(host)
	if err == nil {
		err = d.serveConn(conn, func() {
			connected = time.Now()
			d.kind.dials.done(dead)
		})
	}
	d.hub.count(d.to.endpoint, err)
	if connected.IsZero() {
		d.failed(host, time.Since(began) >= silentAfter)
		d.kind.dials.done(dead)
	} else {
		d.lost(host, time.Since(connected))
	}
}

// serveConn serves a connection until it is lost or the socket is closed.
func (d *dialer) serveConn(conn net.Conn, established func()) error {
	ctx, cancel := context.WithCancel(d.hub.running)
	defer cancel()
	d.mu.Lock()
	d.cancel = cancel
	if d.closed {
		cancel()
	}
	d.mu.Unlock()
	return d.serve(ctx, conn, d.hub.partials.open(ctx, conn, d.kind.account), established, func() {})
}

// dial connects to an address of the target. The policy checks the address itself, right before
// it is used, so that a name cannot stand for an address that is not allowed.
func (d *dialer) dial(host string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: longestConnect}
	if !d.target.trusted {
		dialer.Control = func(_, address string, _ syscall.RawConn) error {
			at, err := netip.ParseAddrPort(address)
			if err != nil || !d.hub.opt.Endpoints.AllowsAddress(at.Addr(), at.Port()) {
				return zmtp.Refuse(zmtp.NotAllowed, "%s", address)
			}
			return nil
		}
	}
	return dialer.DialContext(d.hub.running, d.target.network, d.target.address(host)) //nolint:wrapcheck // read by count alone
}

// failed handles an attempt without a connection. The next address of the name is tried at once.
func (d *dialer) failed(host string, silent bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.busy, d.cancel = false, nil
	if d.nextHost = slices.Index(d.hosts, host) + 1; d.nextHost >= len(d.hosts) {
		d.nextHost = 0
		d.dead = silent || d.retry >= deadRetry
		d.pauseLocked()
	}
	d.wakeLocked()
}

// lost handles the end of a connection. The name is looked up soon, because its known
// addresses may be old.
func (d *dialer) lost(host string, lasted time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.busy, d.cancel = false, nil
	d.dead = false
	if d.to.request != nil {
		d.closed = true // the request is sent once only
	}
	if i := slices.Index(d.hosts, host); i > 0 { // try this address first next time
		d.hosts[0], d.hosts[i] = d.hosts[i], d.hosts[0]
	}
	d.nextHost = 0
	d.lookupWait = firstLookup
	d.lookAt = time.Now().Add(firstLookup)
	if lasted >= stable {
		d.retry = firstRetry
	}
	d.pauseLocked()
	d.wakeLocked()
}

// pauseLocked sets the time of the next attempt.
func (d *dialer) pauseLocked() {
	d.nextAttempt = time.Now().Add(time.Duration(float64(d.retry) * (0.75 + rand.Float64()/2)))
	d.retry = min(2*d.retry, d.kind.maxReconnect)
}

func (d *dialer) lookUpLocked() {
	d.lookup = d.hub.resolver.lookUp(d.target.host, !d.lookedUp, d.answer)
	d.lookedUp = true
}

// answer handles the result of a lookup. New addresses are tried at once; after an error the
// old ones stay.
func (d *dialer) answer(addresses []netip.Addr, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lookup = nil
	d.lookAt = time.Now().Add(d.lookupWait)
	d.lookupWait = min(2*d.lookupWait, maxLookup)
	if err == nil {
		d.takeLocked(addresses)
	}
	d.wakeLocked()
}

func (d *dialer) takeLocked(addresses []netip.Addr) {
	hosts := make([]string, len(addresses))
	for i, address := range addresses {
		hosts[i] = address.String()
	}
	if len(hosts) == len(d.hosts) && !slices.ContainsFunc(hosts, func(h string) bool { return !slices.Contains(d.hosts, h) }) {
		return
	}
	d.hosts, d.nextHost, d.nextAttempt = hosts, 0, time.Time{}
	if d.dead && (!d.busy || d.kind.dials.remove(d)) { // the old addresses were dead
		d.dead, d.busy = false, false
	}
}
