package proxy

import (
	"context"
	"net"
	"sync"
	"syscall"
	"time"
)

// departures notices clients of HTTP/1.1 that leave while net/http cannot: it reads ahead of the next request for
// that, and stops once a byte has come (golang/go#37145), be it of a next request or a stray newline.
type departures struct {
	mu   sync.Mutex // guards open
	open map[*exchange]context.CancelFunc
}

// lookEvery is how often clients are looked at.
const lookEvery = 500 * time.Millisecond

// connKey is the context key of a request's connection, a syscall.RawConn.
type connKey struct{}

// withConn adds a connection that can be looked at to the context of its requests.
func withConn(ctx context.Context, c net.Conn) context.Context {
	if secure, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = secure.NetConn()
	}
	if s, ok := c.(syscall.Conn); ok {
		if raw, err := s.SyscallConn(); err == nil {
			return context.WithValue(ctx, connKey{}, raw)
		}
	}
	return ctx
}

// add makes d call cancel if the client of a request leaves, until remove is called.
func (d *departures) add(e *exchange, cancel context.CancelFunc) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open[e] = cancel
}

func (d *departures) remove(e *exchange) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.open, e)
}

// run looks at the clients until ctx ends.
func (d *departures) run(ctx context.Context) {
	every := time.NewTicker(lookEvery)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-every.C:
			d.look(now)
		}
	}
}

// look looks at the clients that have waited for a while.
func (d *departures) look(now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for e, cancel := range d.open {
		if now.Sub(e.began) < lookEvery {
			continue
		}
		if raw, ok := e.r.Context().Value(connKey{}).(syscall.RawConn); ok && hasLeft(raw) {
			cancel()
		}
	}
}
