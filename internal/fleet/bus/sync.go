package bus

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/select-service/select-service/pkg/replicasync"
)

// Scheme begins the endpoints of replicas: nats://REPLICA.
const Scheme = "nats://"

// A message on the subject sync is a batch: the version, then for each message of package
// replicasync the index of its topic (1 byte), its length in bytes (uvarint) and the payload. A
// topic that a reader does not know is skipped, so that later ones can be added at the end.
const batchVersion = 1

var batchTopics = replicasync.Topics(true)

var (
	errTopic  = errors.New("the fleet has no such topic")
	errLarge  = errors.New("message is larger than the NATS server takes")
	errNoPeer = errors.New("the endpoint names no replica of the fleet")
)

const (
	// busyRate is the rate, in messages a second, above which messages wait for others: for
	// linger at most, or until there are lingerBytes.
	busyRate    = 1000
	linger      = time.Millisecond
	lingerBytes = 64 << 10
	// rateWindow is the time over which the rate is taken.
	rateWindow = 100 * time.Millisecond
)

// outgoing collects messages into batches.
type outgoing struct {
	send func(batch []byte, messages int) error
	now  func() time.Time

	// mu guards the fields below, and the order of what is sent.
	mu       sync.Mutex
	batch    []byte
	messages int         // in batch
	timer    *time.Timer // calls flush
	window   time.Time   // when the window of the rate began
	inWindow int         // messages in it
	busy     bool        // the window before was above busyRate
}

func newOutgoing(send func([]byte, int) error) *outgoing {
	o := &outgoing{send: send, now: time.Now}
	o.timer = time.AfterFunc(time.Hour, func() { _ = o.flush() }) // what is lost is counted
	o.timer.Stop()
	return o
}

// put adds a message, and sends the batch unless more is expected soon. max bounds a batch in
// bytes.
func (o *outgoing) put(topic int, payload []byte, most int) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	size := 1 + binary.MaxVarintLen64 + len(payload)
	if 1+size > most {
		return errLarge
	}
	if len(o.batch)+size > most {
		if err := o.flushLocked(); err != nil {
			return err
		}
	}
	if len(o.batch) == 0 {
		o.batch = append(o.batch, batchVersion)
	}
	o.batch = append(o.batch, byte(topic))
	o.batch = binary.AppendUvarint(o.batch, uint64(len(payload)))
	o.batch = append(o.batch, payload...)
	o.messages++
	switch {
	case !o.count() || len(o.batch) >= lingerBytes:
		return o.flushLocked()
	case o.messages == 1:
		o.timer.Reset(linger)
	}
	return nil
}

// count counts a message, and reports whether the rate is above busyRate.
func (o *outgoing) count() bool {
	const most = busyRate * int(rateWindow) / int(time.Second)
	if now := o.now(); now.Sub(o.window) >= rateWindow {
		o.busy = o.inWindow >= most && now.Sub(o.window) < 2*rateWindow
		o.window, o.inWindow = now, 0
	}
	o.inWindow++
	return o.busy || o.inWindow >= most
}

// flush sends what waits.
func (o *outgoing) flush() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.flushLocked()
}

func (o *outgoing) flushLocked() error {
	if o.messages == 0 {
		return nil
	}
	err := o.send(o.batch, o.messages)
	o.batch, o.messages = o.batch[:0], 0
	if cap(o.batch) > 4*lingerBytes {
		o.batch = nil
	}
	return err
}

// send publishes a batch.
func (c *Conn) send(batch []byte, messages int) error {
	err := c.publish("sync", batch)
	if err != nil {
		c.unsent.Add(uint64(messages))
	}
	return err
}

// publish publishes below this replica's subject. While the fleet is away it fails at once: the
// library holds its lock while it connects.
func (c *Conn) publish(rest string, data []byte) error {
	if c.Phase() == Lost {
		return errAway
	}
	return c.nc.Load().Publish(c.subject(rest), data)
}

// Publish implements replicasync.Transport. A message that waits for others may be lost later; the
// receivers notice.
func (c *Conn) Publish(topic string, payload []byte) error {
	i := slices.Index(batchTopics, topic)
	if i < 0 {
		return fmt.Errorf("publish %q: %w", topic, errTopic)
	}
	most := int(c.maxPayload.Load())
	if most == 0 { // not connected yet
		most = replicasync.MaxPayload
	}
	return c.out.put(i, payload, most)
}

// PublishEither implements replicasync.Transport: all replicas of a fleet know the shorter form.
func (c *Conn) PublishEither(topic string, payload []byte, _ string, _ func() []byte) error {
	return c.Publish(topic, payload)
}

// incoming has what is followed.
type incoming struct {
	// telling is held while followers are told whether the fleet can be reached, so that what they are told last is
	// so.
	telling sync.Mutex

	mu            sync.Mutex // guards the fields below
	followed      map[string]*follower
	subscriptions []*nats.Subscription
}

// follower takes what one replica publishes.
type follower struct {
	deliver func(topic string, payload []byte)
	status  func(up bool)
}

// Follow implements replicasync.Transport. peer is Scheme and the name of a replica.
func (c *Conn) Follow(peer string, deliver func(topic string, payload []byte), status func(up bool)) (stop func(), err error) {
	name, ok := strings.CutPrefix(peer, Scheme)
	if !ok || CheckName(name) != nil || name == c.config.Replica {
		return nil, fmt.Errorf("follow %s: %w", peer, errNoPeer)
	}
	f := &follower{deliver, status}
	c.in.telling.Lock()
	defer c.in.telling.Unlock()
	c.in.mu.Lock()
	c.in.followed[name] = f
	c.in.mu.Unlock()
	status(c.Phase() != Lost)
	return func() {
		c.in.mu.Lock()
		defer c.in.mu.Unlock()
		delete(c.in.followed, name)
	}, nil
}

// take hands a batch to the follower of its sender. The messages are parts of the batch's own memory,
// which nobody else uses.
func (c *Conn) take(m *nats.Msg) {
	c.in.mu.Lock()
	f := c.in.followed[c.sender(m.Subject)]
	c.in.mu.Unlock()
	if f == nil {
		return
	}
	if err := eachMessage(m.Data, f.deliver); err != nil {
		c.malformed.Add(1)
	}
}

var errBatch = errors.New("malformed batch")

// eachMessage calls deliver with the messages of a batch.
func eachMessage(batch []byte, deliver func(topic string, payload []byte)) error {
	if len(batch) == 0 || batch[0] != batchVersion {
		return errBatch
	}
	for rest := batch[1:]; len(rest) > 0; {
		topic := int(rest[0])
		n, width := binary.Uvarint(rest[1:])
		if width <= 0 || n > uint64(len(rest)-1-width) {
			return errBatch
		}
		rest = rest[1+width:]
		if topic < len(batchTopics) {
			deliver(batchTopics[topic], rest[:n:n])
		}
		rest = rest[n:]
	}
	return nil
}

// sender returns the replica that has published on a subject.
func (c *Conn) sender(subject string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(subject, c.prefix), ".")
	return name
}

// tell tells the followers whether the fleet can be reached.
func (c *Conn) tell() {
	c.in.telling.Lock()
	defer c.in.telling.Unlock()
	c.in.mu.Lock()
	all := slices.Collect(maps.Values(c.in.followed))
	c.in.mu.Unlock()
	up := c.Phase() != Lost
	for _, f := range all {
		f.status(up)
	}
}

// dropped returns how many messages were not taken in time.
func (in *incoming) dropped() (n uint64) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, s := range in.subscriptions {
		if d, err := s.Dropped(); err == nil {
			n += uint64(d)
		}
	}
	return n
}

// Endpoint is that of this replica.
func (c *Conn) Endpoint() string { return Scheme + c.config.Replica }

// Speaker is what replicasync.Options.Speaker has to be where some replicas are followed over
// NATS: the subject says who publishes, and only that replica can be asked there.
func Speaker(announced, peer string) (replicasync.Speaker, error) {
	if strings.HasPrefix(peer, Scheme) {
		return replicasync.Speaker{Base: peer, Authenticated: true}, nil
	}
	return replicasync.EndpointSpeaker(announced, peer)
}

// Reachable is replicasync.Options.Reachable.
func (c *Conn) Reachable(peer string) bool {
	return !strings.HasPrefix(peer, Scheme) || c.Phase() == Settled
}
