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
	// lookupsAtOnce bounds the lookups that run at a time: each may wait for a
	// name server that does not answer.
	lookupsAtOnce = 32
	// lookupTimeout lets a lookup get past one silent name server (5 s in the
	// default resolv.conf) to the next.
	lookupTimeout = 10 * time.Second
)

// lookupFunc returns the addresses of a host name, best first.
type lookupFunc func(ctx context.Context, host string) ([]netip.Addr, error)

// answerFunc takes the addresses of a host name: none, if there is no such
// name. An error means that this is not known. It must not block.
type answerFunc func(addresses []netip.Addr, err error)

// resolver looks host names up, each once for all who wait for it. libzmq would
// do that on its I/O threads, one name after the other, and all other sockets
// of the thread would wait.
type resolver struct {
	lookup lookupFunc
	wake   chan struct{} // of capacity 1: there is something in the queue

	// mu guards what follows.
	mu      sync.Mutex
	queue   list.List        // of *name: those that are not being looked up yet
	waiting map[string]*name // all
}

// name is a host name for whose addresses somebody waits.
type name struct {
	host  string
	turn  *list.Element // in the resolver's queue; nil: it is being looked up
	asked map[*inquiry]struct{}
}

// inquiry is one who waits for the addresses of a host name.
type inquiry struct {
	host   string
	answer answerFunc
}

func newResolver(lookup lookupFunc) *resolver {
	return &resolver{lookup: lookup, wake: make(chan struct{}, 1), waiting: make(map[string]*name)}
}

// run looks names up until ctx ends. When it returns no answer is given any more.
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

// lookUp has host looked up. With urgent it goes before the names that wait and
// are not: a new name does not queue behind old ones that fail again and again.
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
	default: // it has been woken
	}
	return i
}

// withdraw takes an inquiry back, so that nothing of who made it is kept where name servers
// are silent. An answer that is on its way is still given.
func (r *resolver) withdraw(i *inquiry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.waiting[i.host]
	if n == nil {
		return // it has been answered
	}
	delete(n.asked, i)
	if len(n.asked) == 0 && n.turn != nil {
		r.queue.Remove(n.turn)
		delete(r.waiting, i.host)
	}
}

// take returns the host name that is to be looked up next.
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

// lookupVia returns a lookup in the hosts file and at the system's name servers.
// Go's own resolver is used, because a call of the C library's cannot be ended,
// and every exchange is cut off when its context ends, which Go does not do.
func lookupVia(dial dialFunc) lookupFunc {
	r := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err == nil {
			context.AfterFunc(ctx, func() { _ = conn.Close() }) // the exchange is over or has been given up
		}
		return conn, err
	}}
	return func(ctx context.Context, host string) ([]netip.Addr, error) {
		return r.LookupNetIP(ctx, "ip", host)
	}
}
