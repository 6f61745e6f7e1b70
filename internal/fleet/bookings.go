package fleet

import (
	"context"
	"errors"
	"io"
	"strings"

	"github.com/select-service/select-service/internal/fleet/bus"
	"github.com/select-service/select-service/internal/transport/fetch"
	"github.com/select-service/select-service/internal/transport/zmqsock"
)

// Bookings shares reservations over NATS and, if there is one, over the mesh. It implements
// replicasync.Transport and replicasync.Fetcher.
type Bookings struct {
	bus       *bus.Conn
	mesh      *zmqsock.Mesh // nil: there is none
	snapshots *fetch.Client
}

// Publish implements replicasync.Transport.
func (b *Bookings) Publish(topic string, payload []byte) error {
	err := b.bus.Publish(topic, payload)
	if b.mesh != nil {
		err = errors.Join(err, b.mesh.Publish(topic, payload))
	}
	return err
}

// PublishEither implements replicasync.Transport.
func (b *Bookings) PublishEither(topic string, payload []byte, other string, form func() []byte) error {
	err := b.bus.PublishEither(topic, payload, other, form)
	if b.mesh != nil {
		err = errors.Join(err, b.mesh.PublishEither(topic, payload, other, form))
	}
	return err
}

// Follow implements replicasync.Transport.
func (b *Bookings) Follow(peer string, deliver func(string, []byte), status func(bool)) (func(), error) {
	if b.mesh == nil || strings.HasPrefix(peer, bus.Scheme) {
		return b.bus.Follow(peer, deliver, status)
	}
	return b.mesh.Follow(peer, deliver, status)
}

// GetAnnounced implements replicasync.Fetcher.
func (b *Bookings) GetAnnounced(ctx context.Context, address, host string) (io.ReadCloser, error) {
	if strings.HasPrefix(address, bus.Scheme) {
		body, err := b.bus.Get(ctx, address)
		if err != nil {
			return nil, err
		}
		return fetch.Paced(body), nil
	}
	return b.snapshots.GetAnnounced(ctx, address, host)
}

// Malformed returns how many received messages could not be parsed.
func (b *Bookings) Malformed() uint64 {
	n := b.bus.Status().Malformed
	if b.mesh != nil {
		n += b.mesh.Stats().Malformed
	}
	return n
}
