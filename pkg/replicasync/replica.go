package replicasync

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/memory"
	"github.com/select-service/select-service/pkg/reservations"
)

// The topics of a Transport.
const (
	// TopicEvents carries reservations and their ends, in Dynamo's form.
	TopicEvents = "dynamo.slot-tracker.v1"
	// TopicReservations carries reservations whose prompt begins like that of another one, which
	// is named instead of these blocks, in a form like that of the events. It takes the place of
	// TopicEvents at followers that subscribe to both.
	TopicReservations = "select-service.reservation.v1"
	// TopicAnnounce carries announcements, which only replicas of this service
	// send and read.
	TopicAnnounce = "select-service.replica.v1"
	// TopicLeases carries renewals of leases, in a form like that of the events,
	// between replicas of this service that know of leases. It is a topic of its
	// own because Dynamo's services log events that they do not know.
	TopicLeases = "select-service.lease.v1"
	// TopicSessions carries which rank a session is bound to, in Dynamo's form.
	TopicSessions = "dynamo.session-affinity.v1"
	// TopicSessionEnds carries, in the same form, bindings that have ended, which
	// Dynamo's services do not publish.
	TopicSessionEnds = "select-service.session-end.v1"
	// TopicServed carries how many engine seconds a replica has served to tenants and programs, which only replicas of
	// this service send and read.
	TopicServed = "select-service.served.v1"
)

// Topics returns the topics of a replica, for a transport that has to subscribe to
// each: those of sessions only if the replica shares sessions.
func Topics(sessions bool) []string {
	topics := []string{TopicReservations, TopicEvents, TopicAnnounce, TopicLeases}
	if sessions {
		topics = append(topics, TopicSessions, TopicSessionEnds)
	}
	return append(topics, TopicServed)
}

// SnapshotPath is where a replica's HTTP base URL serves WriteSnapshot, with the
// query parameters after and limit.
const SnapshotPath = "/replica_sync/snapshot"

const (
	// MaxPayload bounds a message in bytes, both ways.
	MaxPayload = 8 << 20
	// maxHashes bounds the blocks of one reservation. Real hashes take nine bytes on
	// the wire, so that MaxPayload is reached first: the limit only keeps a
	// message of small numbers from growing in memory.
	maxHashes = 1 << 20
	// maxSequence keeps sums of sequence numbers from overflowing.
	maxSequence = 1 << 62
)

// Transport carries messages from every replica to its followers. It may lose, repeat
// and reorder them: receivers notice that and repair it.
type Transport interface {
	// Publish sends a message to all followers, in the order of the calls. It must
	// not keep the payload and never waits for a follower. The caller counts an
	// error as a loss.
	Publish(topic string, payload []byte) error
	// PublishEither is Publish of a message that has two forms. Followers that subscribe to
	// topic get payload. Those that subscribe only to the topic other get what form returns,
	// or nothing if that is nil. form is called only if there are such followers.
	PublishEither(topic string, payload []byte, other string, form func() []byte) error
	// Follow delivers what peer, an endpoint, publishes, and reports whether it is
	// connected. Both callbacks come from the transport's goroutine and do not
	// block. The payload belongs to the callee.
	Follow(peer string, deliver func(topic string, payload []byte), status func(up bool)) (stop func(), err error)
}

// Fetcher gets pages of a peer's snapshot.
type Fetcher interface {
	// GetAnnounced returns the body at a URL that was announced by the replica followed
	// at host. It refuses URLs of other hosts that it does not know. It bounds the time
	// without a byte and the rate, not the total time.
	GetAnnounced(ctx context.Context, url, host string) (io.ReadCloser, error)
}

// Scopes knows the scopes of this replica's catalog. It is called under the ledger's
// locks and must not take a lock that is ever held while the ledger is called.
type Scopes interface {
	// BlockSize returns the block size of a scope in tokens.
	BlockSize(sc catalog.Scope) (blockSize uint32, known bool)
}

// Watcher is told what an operator wants to know. Several goroutines of the replica
// call it, without holding a lock.
type Watcher interface {
	// Connected: a peer's connection has come up or was lost.
	Connected(peer string, up bool)
	// Lost: this many events of a process were found missing since the last call, which
	// was at least a second ago. The process's snapshot will be read.
	Lost(peer string, process, events uint64)
	// Fetched: the snapshot at a base URL was read or, with an error, could not be read;
	// failures is how many fetches have failed in a row.
	Fetched(url string, process uint64, failures int, err error)
}

// Options of a Replica. Zero limits mean the defaults.
type Options struct {
	// Process is the replica's id: random, not zero, new at every start.
	Process uint64
	// URL is the base URL of the replica's own HTTP interface, which is announced
	// to the others. If its host is unspecified (0.0.0.0 or ::), receivers use the
	// host at which they follow this replica.
	URL string
	// AuthenticatedAt is the endpoint at which the transport authenticates this replica, see Speaker; "" for none.
	// Snapshots name it, so that others who hear this replica at another endpoint, too, know that it is one.
	AuthenticatedAt string
	// Watcher may be nil.
	Watcher Watcher
	// Speaker returns what the transport knows of the replica that has announced a URL at an
	// endpoint; nil: EndpointSpeaker.
	Speaker func(announced, peer string) (Speaker, error)
	// Reachable reports whether what is published at an endpoint can reach this process at
	// all. If not, the replica there is not absent because it is silent. Nil: it always can.
	Reachable func(peer string) bool

	// SendQueue bounds the events that wait to be published (default 100,000, as in
	// dynamo-kv-router). When it is full the newest event is dropped.
	SendQueue int
	// ReceiveQueue bounds the messages of all peers that wait to be applied (default
	// 100,000). When it is full the newest message is dropped.
	ReceiveQueue int
	// ReceiveBytes bounds the payloads of these messages in bytes (default 128 MiB).
	ReceiveBytes int
	// MaxPeers bounds the peers (default 64).
	MaxPeers int
	// Queues is the account of what waits in both queues, Snapshots that of what was
	// read of a snapshot and is not used yet; nil has no limit.
	Queues, Snapshots *memory.Account
	// Page is how many reservations are requested at a time (default 1,000).
	Page int
}

func (o Options) withDefaults() Options {
	set := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	set(&o.SendQueue, 100_000)
	set(&o.ReceiveQueue, 100_000)
	set(&o.ReceiveBytes, 128<<20)
	set(&o.Page, defaultPage)
	set(&o.MaxPeers, 64)
	return o
}

const (
	// announceEvery is the interval at which a replica announces itself.
	announceEvery = time.Second
	// silentAfter is how long a replica may be silent before it counts as absent.
	silentAfter = 5 * time.Second
)

// Errors that callers branch on.
var (
	// ErrPeerNotFound: no such peer is registered.
	ErrPeerNotFound = errors.New("peer not found")
	// ErrTooManyPeers: Options.MaxPeers are registered.
	ErrTooManyPeers = errors.New("as many peers as are allowed are registered")
	// ErrStopped: Run has ended.
	ErrStopped = errors.New("replica sync has stopped")
)

// Replica shares the reservations of one ledger with the other replicas. It is the
// ledger's observer. All methods are safe for concurrent use, once Attach was
// called.
type Replica struct {
	opt       Options
	scopes    Scopes
	transport Transport
	fetch     Fetcher
	now       func() time.Time
	sessions  Sessions   // nil: they are not shared
	served    ServedSink // nil: nobody here wants to know

	counts counters
	outbox *outbox
	inbox  *queue[message]
	// wake makes catchUp look for fetches that are due. Its capacity is 1.
	wake     chan struct{}
	newRanks atomic.Bool // RanksAdded was called
	// servedVersion is the number of the last call of ShareServed.
	servedVersion atomic.Uint64

	// coreMu guards core. The ledger is called under it, so what the ledger calls
	// must not take it.
	coreMu sync.Mutex
	core   *core

	// mu guards peers and stopped. It is held while the transport is called; the
	// transport's callbacks do not take it.
	mu      sync.Mutex
	peers   map[string]*peer
	stopped bool
}

// peer is an endpoint that is followed.
type peer struct {
	endpoint     string
	since        time.Time   // when it was registered
	stop         func()      // stops following
	deregistered atomic.Bool // its messages that still wait are ignored
	up           atomic.Bool // it is connected
	reportedUp   bool        // the value of up that was last reported to the watcher; guarded by Replica.mu
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
		outbox: newOutbox(opt.SendQueue, opt.Queues),
		inbox:  newQueue[message](opt.ReceiveQueue, opt.ReceiveBytes, opt.Queues),
		wake:   make(chan struct{}, 1),
		peers:  make(map[string]*peer),
	}
}

var _ reservations.Observer = (*Replica)(nil)

// Attach sets the ledger, whose observer must be this replica. It must be called once,
// before any other method.
func (r *Replica) Attach(l *reservations.Ledger) { r.attach(l) }

func (r *Replica) attach(l ledger) {
	r.core = newCore(r.opt.Process, l, r.scopes, &r.counts)
	if r.opt.Speaker != nil {
		r.core.speaker = r.opt.Speaker
	}
}

// Register follows a peer; added is false if it is followed already. Errors are
// ErrStopped once Run has ended, ErrTooManyPeers, and those of the transport.
func (r *Replica) Register(endpoint string) (added bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.stopped:
		return false, ErrStopped
	case r.peers[endpoint] != nil:
		return false, nil
	case len(r.peers) >= r.opt.MaxPeers:
		return false, ErrTooManyPeers
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

// Deregister stops following a peer. Everything learned from it stays. Errors are
// ErrPeerNotFound, and ErrStopped once Run has ended.
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
	r.core.forgetPeer(p.endpoint)
}

// Peers returns the registered endpoints in order.
func (r *Replica) Peers() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(maps.Keys(r.peers))
}

// RanksAdded must be called when ranks were added to the ledger. Reservations on them
// that were refused before are then requested again.
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

// AttachSessions makes the replica share sessions, too. It must be called once, before
// Run.
func (r *Replica) AttachSessions(s Sessions) { r.sessions = s }

// seen returns, by process, the number up to which all effects of its events are known
// here.
func (r *Replica) seen() map[uint64]uint64 {
	r.coreMu.Lock()
	defer r.coreMu.Unlock()
	seen := make(map[uint64]uint64, len(r.core.identities))
	for process, id := range r.core.identities {
		for _, s := range id.senders {
			seen[process] = max(seen[process], s.completeUpTo())
		}
	}
	return seen
}

// announceWithin is how long after its registration CaughtUp waits for a peer's
// announcement, which comes every second. A peer that does not announce itself in that
// time is not running, or is not a replica of this service.
const announceWithin = 3 * announceEvery

// CaughtUp reports whether no snapshot is wanted or being read: the snapshot of every
// peer that has announced itself was read, also after losses, and after ranks were added
// for which something had been refused. It is false while a peer registered less than
// 3 s ago has not announced itself.
func (r *Replica) CaughtUp() bool {
	now := r.now()
	var young []string
	r.mu.Lock()
	for _, p := range r.peers {
		if now.Sub(p.since) < announceWithin {
			young = append(young, p.endpoint)
		}
	}
	r.mu.Unlock()
	r.coreMu.Lock()
	defer r.coreMu.Unlock()
	return !r.newRanks.Load() && r.core.caughtUp(young)
}

// ReservationsDropped must be called when n live reservations have ended with their
// ranks. These ends are not published one by one. The other replicas learn from the next
// snapshot the ends of those that this replica had accepted, because no caller can end
// them here any more.
func (r *Replica) ReservationsDropped(n int) {
	r.counts.merged.Add(uint64(n))
	r.counts.unannounced.Store(true)
}
