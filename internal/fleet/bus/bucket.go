package bus

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Errors of a Bucket. Any other error says that the bucket cannot be used now.
var (
	// ErrNoKey: the bucket has no such key.
	ErrNoKey = errors.New("the bucket has no such key")
	// ErrRevision: the key has another revision than the one that was to be replaced.
	ErrRevision = errors.New("the key has been changed meanwhile")
	// ErrTooLong: the servers take no value of that length.
	ErrTooLong = errors.New("the value is longer than max_payload of the NATS server allows")
)

// errAway: there is no connection, so that waiting for an answer is in vain.
var errAway = errors.New("the fleet's NATS is away")

// OldServerError refuses a NATS server that is too old for a bucket.
type OldServerError struct{ Version string }

// Error names the version that is needed.
func (e *OldServerError) Error() string {
	return fmt.Sprintf("nats-server %s is too old: the catalog of a fleet needs %d.%d or later", e.Version, leastMajor, leastMinor)
}

// leastMajor and leastMinor are the oldest version of nats-server whose buckets are used.
const leastMajor, leastMinor = 2, 10

const (
	// requestTimeout is how long an answer of JetStream is awaited. While a new leader is elected
	// there is none.
	requestTimeout = 2 * time.Second
	// lookTimeout is how long an answer is awaited after an error: whether there is the bucket.
	lookTimeout = 300 * time.Millisecond
	// copies is how many servers of a cluster keep a bucket.
	copies = 3
)

// Bucket is a key-value bucket of JetStream. It is opened, and made if there is none, when it is used.
// All methods are safe for concurrent use.
type Bucket struct {
	conn *Conn
	name string

	mu   sync.Mutex // guards open
	open *opened    // nil: it is not, or not any more
}

// opened is a bucket of a connection.
type opened struct {
	nc     *nats.Conn
	kv     jetstream.KeyValue
	stream jetstream.Stream // of kv
}

// Bucket returns the fleet's bucket, select-service-FLEET in JetStream.
func (c *Conn) Bucket() *Bucket { return &Bucket{conn: c, name: "select-service-" + c.config.Fleet} }

// opened returns the bucket, once it is open.
func (b *Bucket) opened(ctx context.Context) (*opened, error) {
	if b.conn.Phase() == Lost {
		return nil, errAway
	}
	o := &opened{nc: b.conn.nc.Load()}
	b.mu.Lock()
	last := b.open
	b.mu.Unlock()
	if last != nil && last.nc == o.nc {
		return last, nil
	}
	if version := o.nc.ConnectedServerVersion(); version != "" && tooOld(version) {
		return nil, &OldServerError{version}
	}
	js, err := jetstream.New(o.nc)
	if err != nil {
		return nil, err
	}
	o.kv, err = js.KeyValue(ctx, b.name)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		o.kv, err = b.create(ctx, js)
	}
	if err == nil {
		o.stream, err = js.Stream(ctx, b.stream())
	}
	if err != nil {
		return nil, fmt.Errorf("bucket %s: %w", b.name, inWords(err))
	}
	b.mu.Lock()
	b.open = o
	b.mu.Unlock()
	return o, nil
}

// stream is the name of the bucket's stream.
func (b *Bucket) stream() string { return "KV_" + b.name }

// subject is that of a key.
func (b *Bucket) subject(key string) string { return "$KV." + b.name + "." + key }

// create makes the bucket, on as many servers as a cluster should have.
func (b *Bucket) create(ctx context.Context, js jetstream.JetStream) (jetstream.KeyValue, error) {
	config := jetstream.KeyValueConfig{
		Bucket: b.name, Description: "select-service: what the replicas of a fleet share", History: 1, Storage: jetstream.FileStorage, Replicas: copies,
	}
	kv, err := js.CreateKeyValue(ctx, config)
	var refused *jetstream.APIError
	if errors.As(err, &refused) && refused.ErrorCode == notClustered {
		config.Replicas = 1
		kv, err = js.CreateKeyValue(ctx, config)
	}
	if errors.Is(err, jetstream.ErrBucketExists) { // another replica was first
		return js.KeyValue(ctx, b.name)
	}
	return kv, err
}

// notClustered is the code of "replicas > 1 not supported in non-clustered mode".
const notClustered = 10074

// tooOld reports whether a server's version is below the least one. One that cannot be read is not.
func tooOld(version string) bool {
	major, rest, _ := strings.Cut(version, ".")
	minor, _, _ := strings.Cut(rest, ".")
	x, err := strconv.Atoi(major)
	y, err2 := strconv.Atoi(minor)
	return err == nil && err2 == nil && (x < leastMajor || x == leastMajor && y < leastMinor)
}

// inWords says what an operator can do about an error.
func inWords(err error) error {
	switch {
	case errors.Is(err, jetstream.ErrJetStreamNotEnabled), errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount):
		return fmt.Errorf("%w: start nats-server with -js, or enable it for the account", err)
	case errors.Is(err, nats.ErrMaxPayload):
		return fmt.Errorf("%w: %w", ErrTooLong, err)
	case errors.Is(err, nats.ErrNoResponders):
		return fmt.Errorf("%w: JetStream is not enabled, or has no leader now", err)
	}
	return err
}

// use calls f with the bucket.
func (b *Bucket) use(ctx context.Context, f func(ctx context.Context, o *opened) error) error {
	within, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	o, err := b.opened(within)
	if err != nil {
		return err
	}
	err = f(within, o)
	if err == nil || errors.Is(err, ErrNoKey) || errors.Is(err, ErrRevision) {
		return err
	}
	if b.isGone(ctx) {
		b.mu.Lock()
		b.open = nil // it is made again
		b.mu.Unlock()
	}
	return fmt.Errorf("bucket %s: %w", b.name, inWords(err))
}

// isGone reports whether the servers say that the bucket does not exist. While the bucket has no leader,
// they say nothing. It can be read then, and written again as soon as it has one.
func (b *Bucket) isGone(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	js, err := jetstream.New(b.conn.nc.Load())
	if err == nil {
		_, err = js.Stream(ctx, b.stream())
	}
	return errors.Is(err, jetstream.ErrStreamNotFound)
}

// Get returns the value of a key and its revision, which may be those of a moment ago. The error is
// ErrNoKey if there is none.
func (b *Bucket) Get(ctx context.Context, key string) (value []byte, revision uint64, err error) {
	err = b.use(ctx, func(ctx context.Context, o *opened) error {
		e, err := o.kv.Get(ctx, key)
		if errors.Is(err, jetstream.ErrKeyNotFound) || errors.Is(err, jetstream.ErrKeyDeleted) {
			return ErrNoKey
		}
		if err == nil {
			value, revision = e.Value(), e.Revision()
		}
		return err
	})
	return value, revision, err
}

// Put sets the value of a key.
func (b *Bucket) Put(ctx context.Context, key string, value []byte) error {
	return b.use(ctx, func(ctx context.Context, o *opened) error {
		_, err := o.kv.Put(ctx, key, value)
		return err
	})
}

// Replace sets the value of a key that has the given revision, 0: that the bucket does not have, or
// not any more, and returns the new revision. The error is ErrRevision if it has another one.
func (b *Bucket) Replace(ctx context.Context, key string, value []byte, revision uint64) (now uint64, err error) {
	err = b.use(ctx, func(ctx context.Context, o *opened) (err error) {
		if revision == 0 {
			now, err = o.kv.Create(ctx, key, value) // also in the place of what marks a deleted key
		} else {
			now, err = o.kv.Update(ctx, key, value, revision)
		}
		var refused *jetstream.APIError
		if errors.As(err, &refused) &&
			(refused.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || refused.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant) {
			return ErrRevision
		}
		return err
	})
	return now, err
}

// Remove removes keys and everything that the bucket remembers of them.
func (b *Bucket) Remove(ctx context.Context, keys ...string) error {
	for _, key := range keys {
		err := b.use(ctx, func(ctx context.Context, o *opened) error {
			return o.stream.Purge(ctx, jetstream.WithPurgeSubject(b.subject(key)))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Keys lists the keys that begin with a prefix and a point.
func (b *Bucket) Keys(ctx context.Context, prefix string) (keys []string, err error) {
	err = b.use(ctx, func(ctx context.Context, o *opened) error {
		info, err := o.stream.Info(ctx, jetstream.WithSubjectFilter(b.subject(prefix+".>")))
		if err != nil {
			return err
		}
		for subject := range info.State.Subjects {
			keys = append(keys, strings.TrimPrefix(subject, b.subject("")))
		}
		return nil
	})
	return keys, err
}
