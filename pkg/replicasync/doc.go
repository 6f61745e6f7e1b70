// Package replicasync lets replicas share their bookings: what one accepts, ends
// or completes the others hear of, and who missed something finds out and
// catches up from a snapshot.
//
// A local step travels: ledger → Booked, PrefillCompleted, Freed, Renewed (number
// and queue) → codec → Transport. A remote one: Transport → bounded queue → codec →
// core → ledger. The core decides, without goroutines, sockets or a clock, what
// a message does and when whose snapshot is due; Replica has the goroutines.
//
// The messages are those of Dynamo's selection service and slot tracker
// (dynamo-kv-router 1.3.1 and 1.6.1) with further keys, which those ignore.
// docs/replica-sync.md says what is promised and what is not.
package replicasync

import (
	"context"
	"io"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
)

// The topics of a Transport.
const (
	// TopicEvents carries bookings and their ends, in Dynamo's form.
	TopicEvents = "dynamo.slot-tracker.v1"
	// TopicAnnounce carries announcements, which only replicas of this service
	// send and read.
	TopicAnnounce = "select-service.replica.v1"
	// TopicLeases carries renewals of leases, in a form like that of the events,
	// between replicas of this service that know of leases. It is a topic of its
	// own because Dynamo's complains of events that it does not know.
	TopicLeases = "select-service.lease.v1"
)

// Topics returns all topics, for a transport that wants to know them.
func Topics() []string { return []string{TopicEvents, TopicAnnounce, TopicLeases} }

// SnapshotPath is where a replica's HTTP base URL serves WriteSnapshot, with the
// query parameters after and limit.
const SnapshotPath = "/replica_sync/snapshot"

const (
	// MaxPayload bounds a message in bytes, both ways.
	MaxPayload = 8 << 20
	// maxHashes bounds the blocks of one booking. Real hashes take nine bytes on
	// the wire, so that MaxPayload is reached first: the limit only keeps a
	// message of small numbers from growing in memory.
	maxHashes = 1 << 20
	// maxSequence keeps sums of sequence numbers from overflowing.
	maxSequence = 1 << 62
)

// Transport carries messages from every replica to all that follow it. Nothing
// is promised about delivery: what is lost, doubled or out of order the
// receivers notice and repair.
type Transport interface {
	// Publish sends a message to all followers, in the order of the calls. It
	// must not keep the payload and never waits for a follower. The caller
	// counts an error as a loss.
	Publish(topic string, payload []byte) error
	// Follow delivers what peer publishes, and whether it is connected. Both
	// callbacks come from the transport's goroutine and do not block. The payload
	// belongs to the callee.
	Follow(peer string, deliver func(topic string, payload []byte), status func(up bool)) (stop func(), err error)
}

// Fetcher gets a page of a peer's snapshot. It bounds the time without a byte,
// not the total time.
type Fetcher interface {
	Get(ctx context.Context, url string) (io.ReadCloser, error)
}

// Scopes tells the block size of a scope of this replica's catalog, in tokens.
// It is asked under the ledger's locks and must not take one that is ever held
// while the ledger is called.
type Scopes interface {
	BlockSize(sc catalog.Scope) (blockSize uint32, known bool)
}

// Watcher is told what an operator wants to know. The calls come from goroutines
// of the replica that hold no lock, several at a time.
type Watcher interface {
	// Connected: a peer's connection has come up or was lost.
	Connected(peer string, up bool)
	// Lost: so many events of a process are missing since the last call, which is
	// at least a second ago. Its snapshot will be read.
	Lost(peer string, process, events uint64)
	// Fetched: the snapshot at a base URL was read or, for the n-th time in a
	// row, could not be.
	Fetched(url string, process uint64, failures int, err error)
}

// Options of a Replica. Zero limits mean the defaults.
type Options struct {
	// Process is the replica's id: random, not zero, new at every start.
	Process uint64
	// URL is the base URL of the replica's own HTTP interface, which is announced
	// to the others. With an unspecified host (0.0.0.0 or ::) receivers put in
	// the one at which they follow this replica.
	URL string
	// Watcher may be nil.
	Watcher Watcher

	// SendQueue bounds the events that wait to be published (100,000, as in
	// dynamo-kv-router). The newest is dropped when it is full.
	SendQueue int
	// ReceiveQueue bounds the messages that wait to be applied (100,000), over
	// all peers. The newest is dropped when it is full.
	ReceiveQueue int
	// ReceiveBytes bounds the same in bytes of payload (128 MiB).
	ReceiveBytes int
	// Page is how many bookings are asked for at a time (1,000).
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
	return o
}

const (
	// announceEvery is how often a replica announces itself.
	announceEvery = time.Second
	// silentAfter is how long a replica may be unheard before it counts as gone.
	silentAfter = 5 * time.Second
)
