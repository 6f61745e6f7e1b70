package replicasync

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/select-service/select-service/pkg/reservations"
)

// Errors that callers branch on.
var (
	// ErrPeerNotFound: no such peer is registered.
	ErrPeerNotFound = errors.New("peer not found")
	// ErrStopped: Run has ended.
	ErrStopped = errors.New("replica sync has stopped")
)

// Replica shares the bookings of one ledger with the other replicas. It is the
// ledger's observer. All methods are safe for concurrent use, once Attach was
// called.
type Replica struct {
	opt       Options
	scopes    Scopes
	transport Transport
	fetch     Fetcher
	now       func() time.Time

	counts counters
	outbox *outbox
	inbox  *queue[message]
	// wake makes the fetches be looked at; it has one place.
	wake     chan struct{}
	newRanks atomic.Bool // RanksAdded was called

	// coreMu guards core. Ledger calls are made under it, so it must not be
	// taken by what the ledger calls.
	coreMu sync.Mutex
	core   *core

	// mu guards the peers. It is held while the transport is called; the
	// transport's callbacks do not take it.
	mu      sync.Mutex
	peers   map[string]*peer
	stopped bool
}

// peer is an endpoint that is followed.
type peer struct {
	endpoint     string
	since        time.Time // registered
	stop         func()
	deregistered atomic.Bool // deregistered: what is still queued is not for us
	up           atomic.Bool
	upTold       bool // what the watcher knows of up; written by the goroutine that tells
}

// message is what a peer published.
type message struct {
	from    *peer
	topic   string
	payload []byte
}

// New returns a Replica that does nothing yet: Attach, then Run.
func New(opt Options, scopes Scopes, transport Transport, fetch Fetcher, now func() time.Time) *Replica {
	opt = opt.withDefaults()
	return &Replica{
		opt: opt, scopes: scopes, transport: transport, fetch: fetch, now: now,
		outbox: newOutbox(opt.SendQueue),
		inbox:  newQueue[message](opt.ReceiveQueue, opt.ReceiveBytes),
		wake:   make(chan struct{}, 1),
		peers:  make(map[string]*peer),
	}
}

var _ reservations.Observer = (*Replica)(nil)

// Attach says which ledger it is about: the one whose observer this is. To be
// called once, before everything else.
func (r *Replica) Attach(l *reservations.Ledger) { r.attach(l) }

func (r *Replica) attach(l ledger) { r.core = newCore(r.opt.Process, l, r.scopes, &r.counts) }

// Register follows a peer; added is false if it is followed already. ErrStopped
// after Run; else an error is the transport's.
func (r *Replica) Register(endpoint string) (added bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.stopped:
		return false, ErrStopped
	case r.peers[endpoint] != nil:
		return false, nil
	}
	p := &peer{endpoint: endpoint, since: r.now()}
	p.stop, err = r.transport.Follow(endpoint,
		func(topic string, payload []byte) { r.receive(message{p, topic, payload}) },
		func(up bool) {
			p.up.Store(up)
			r.wakeFetches()
		})
	if err != nil {
		return false, err
	}
	r.peers[endpoint] = p
	return true, nil
}

// Deregister stops following a peer. What was learned from it stays.
// ErrPeerNotFound, or ErrStopped after Run.
func (r *Replica) Deregister(endpoint string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped {
		return ErrStopped
	}
	p := r.peers[endpoint]
	if p == nil {
		return ErrPeerNotFound
	}
	r.unfollow(p)
	return nil
}

func (r *Replica) unfollow(p *peer) {
	p.deregistered.Store(true)
	p.stop()
	delete(r.peers, p.endpoint)
	r.coreMu.Lock()
	defer r.coreMu.Unlock()
	r.core.leave(p.endpoint)
}

// Peers returns the registered endpoints in order.
func (r *Replica) Peers() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(maps.Keys(r.peers))
}

// RanksAdded says that ranks have come into the ledger. Bookings for them that
// were refused before are asked for again, soon.
func (r *Replica) RanksAdded() {
	r.newRanks.Store(true)
	r.wakeFetches()
}

func (r *Replica) wakeFetches() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// seen is up to where the events of each process are known here.
func (r *Replica) seen() map[uint64]uint64 {
	r.coreMu.Lock()
	defer r.coreMu.Unlock()
	seen := make(map[uint64]uint64, len(r.core.senders))
	for process, s := range r.core.senders {
		seen[process] = s.completeUpTo()
	}
	return seen
}
