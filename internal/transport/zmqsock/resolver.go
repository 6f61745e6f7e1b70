package zmqsock

import (
	"container/list"
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// lookupsAtOnce bounds the concurrent lookups; each may wait for a name server that does
	// not answer.
	lookupsAtOnce = 32
	// lookupTimeout lets a lookup get past one silent name server (5 s in the
	// default resolv.conf) to the next.
	lookupTimeout = 10 * time.Second
)

// lookupFunc returns the addresses of a host name, best first.
type lookupFunc func(ctx context.Context, host string) ([]netip.Addr, error)

// answerFunc is called with the addresses of a host name, none if there is no such name. An
// error means that they could not be found out. It must not block.
type answerFunc func(addresses []netip.Addr, err error)

// resolver looks up host names, each once for all inquiries about it. libzmq would look up one
// name after the other on its I/O threads, and block all other sockets of the thread.
type resolver struct {
	lookup lookupFunc
	wake   chan struct{} // capacity 1; signals that the queue is not empty

	// mu guards the fields below.
	mu      sync.Mutex
	queue   list.List        // of *name: names whose lookup has not begun
	waiting map[string]*name // all names with inquiries
}

// name is a host name with inquiries.
type name struct {
	host  string
	turn  *list.Element // in the resolver's queue; nil: it is being looked up
	asked map[*inquiry]struct{}
}

// inquiry is one request for the addresses of a host name.
type inquiry struct {
	host   string
	answer answerFunc
}

func newResolver(lookup lookupFunc) *resolver {
	return &resolver{lookup: lookup, wake: make(chan struct{}, 1), waiting: make(map[string]*name)}
}

// run looks up names until ctx ends. When it returns, no answer is given any more.
func (r *resolver) run(ctx context.Context) {
	var g errgroup.Group
	g.SetLimit(lookupsAtOnce)
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-r.wake:
		}
		for host, ok := r.take(); ok && ctx.Err() == nil; host, ok = r.take() {
			g.Go(func() error { r.resolve(ctx, host); return nil })
		}
	}
	_ = g.Wait() // no lookup returns an error
}

// lookUp requests a lookup of host. An urgent one goes before those that are not, so that a new
// name does not queue behind old ones that fail again and again.
func (r *resolver) lookUp(host string, urgent bool, answer answerFunc) *inquiry {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := &inquiry{host: host, answer: answer}
	if n := r.waiting[host]; n != nil {
		n.asked[i] = struct{}{}
		return i
	}
	n := &name{host: host, asked: map[*inquiry]struct{}{i: {}}}
	r.waiting[host] = n
	if urgent {
		n.turn = r.queue.PushFront(n)
	} else {
		n.turn = r.queue.PushBack(n)
	}
	select {
	case r.wake <- struct{}{}:
	default: // already signalled
	}
	return i
}

// withdraw removes an inquiry, so that nothing of its maker is kept while name servers are
// silent. An answer already on its way is still given.
func (r *resolver) withdraw(i *inquiry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.waiting[i.host]
	if n == nil {
		return // already answered
	}
	delete(n.asked, i)
	if len(n.asked) == 0 && n.turn != nil {
		r.queue.Remove(n.turn)
		delete(r.waiting, i.host)
	}
}

// take returns the next host name to look up.
func (r *resolver) take() (host string, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	first := r.queue.Front()
	if first == nil {
		return "", false
	}
	n := r.queue.Remove(first).(*name)
	n.turn = nil
	return n.host, true
}

func (r *resolver) resolve(ctx context.Context, host string) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	found, err := r.lookup(ctx, host)
	var failed *net.DNSError
	if errors.As(err, &failed) && failed.IsNotFound {
		found, err = nil, nil
	}
	var addresses []netip.Addr
	for _, a := range found {
		if a = a.Unmap(); !slices.Contains(addresses, a) {
			addresses = append(addresses, a)
		}
	}
	r.mu.Lock()
	asked := r.waiting[host].asked
	delete(r.waiting, host)
	r.mu.Unlock()
	for i := range asked {
		i.answer(addresses, err)
	}
}

// dialFunc connects to a name server.
type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// lookupVia returns a lookup in the hosts file and at the system's name servers. It uses Go's
// own resolver, because a call of the C library cannot be cancelled, and it cuts off every
// exchange when ctx ends, which Go's does not.
func lookupVia(dial dialFunc) lookupFunc {
	r := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err == nil {
			context.AfterFunc(ctx, func() { _ = conn.Close() }) // the exchange is over or was cancelled
		}
		return conn, err
	}}
	return func(ctx context.Context, host string) ([]netip.Addr, error) {
		return r.LookupNetIP(ctx, "ip", host)
	}
}
