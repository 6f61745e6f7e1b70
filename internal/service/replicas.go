package service

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/contract"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/replicasync"
	"github.com/select-service/select-service/pkg/reservations"
)

// Replication is what it takes to share bookings with other replicas.
type Replication struct {
	// URL is the base URL under which others reach this process over HTTP.
	URL string
	// Advertised is the endpoint at which others follow this process, empty if
	// nobody said. The slot tracker's contract refuses it as a peer.
	Advertised string
	Transport  replicasync.Transport
	// Malformed, if set, counts what the transport received and could not take
	// for a message.
	Malformed func() uint64
	Fetch     replicasync.Fetcher
}

// newLedger makes the ledger and, if bookings are shared, the replica that
// watches it. process names this process among the replicas.
func (s *Service) newLedger(process uint64) {
	r := s.config.Replication
	if r == nil {
		s.ledger = reservations.New(process, time.Now, nil)
		s.ledger.SetLifetime(s.config.ReservationLifetime)
		return
	}
	s.replica = replicasync.New(replicasync.Options{Process: process, URL: r.URL, Watcher: replicaLog{s.log}}, s, r.Transport, r.Fetch, time.Now)
	s.ledger = reservations.New(process, time.Now, s.replica)
	s.ledger.SetLifetime(s.config.ReservationLifetime)
	s.replica.Attach(s.ledger)
}

var (
	errSyncDisabled = &contract.Error{Kind: contract.Conflict, Text: "replica sync is disabled"}
	errOwnEndpoint  = &contract.Error{Kind: contract.BadRequest, Text: "peer endpoint matches this replica's advertised endpoint"}
)

// Peers lists the endpoints of the replicas whose bookings are followed, sorted.
func (s *Service) Peers() []string {
	if s.replica == nil {
		return []string{}
	}
	return s.replica.Peers()
}

// RegisterPeer follows one more replica; added is false if it is followed
// already. That the other side is there is not waited for.
func (s *Service) RegisterPeer(endpoint string) (added bool, err error) {
	if err := s.checkPeer(endpoint); err != nil {
		return false, err
	}
	added, err = s.replica.Register(endpoint)
	return added, peerError(err)
}

func peerError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, replicasync.ErrPeerNotFound):
		return &contract.Error{Kind: contract.NotFound, Text: err.Error(), Err: err}
	case errors.Is(err, replicasync.ErrStopped):
		return &contract.Error{Kind: contract.Unavailable, Text: "replica peer manager is unavailable", Err: err}
	}
	return &contract.Error{Kind: contract.BadRequest, Text: err.Error(), Err: err} // well formed, but cannot be followed
}

// SlotsRegisterPeer is RegisterPeer, but this replica itself is refused.
func (s *Service) SlotsRegisterPeer(endpoint string) (added bool, err error) {
	if r := s.config.Replication; r != nil && r.Advertised != "" && endpoint == r.Advertised {
		return false, errOwnEndpoint
	}
	return s.RegisterPeer(endpoint)
}

// DeregisterPeer stops following a replica. The bookings that it told of stay.
func (s *Service) DeregisterPeer(endpoint string) error {
	if err := s.checkPeer(endpoint); err != nil {
		return err
	}
	return peerError(s.replica.Deregister(endpoint))
}

// checkPeer tells whether the endpoint can be a peer's.
func (s *Service) checkPeer(endpoint string) error {
	if s.replica == nil {
		return errSyncDisabled
	}
	if _, err := catalog.ParseEndpoint(endpoint); err != nil {
		return &contract.Error{Kind: contract.BadRequest, Text: err.Error(), Err: err}
	}
	return nil
}

// WriteSnapshot writes one page of the live bookings that this process knows, as
// JSON: at most limit, 0 for as many as is usual, after the cursor of the page
// before, empty for the first one.
func (s *Service) WriteSnapshot(ctx context.Context, w io.Writer, after string, limit int) error {
	if s.replica == nil {
		return errSyncDisabled
	}
	err := s.replica.WriteSnapshot(ctx, w, after, limit)
	if errors.Is(err, replicasync.ErrCursor) {
		return &contract.Error{Kind: contract.BadRequest, Text: err.Error(), Err: err}
	}
	return err
}

// replicaLog writes down what an operator should know of other replicas.
type replicaLog struct{ log zerolog.Logger }

func (l replicaLog) Connected(peer string, up bool) {
	if up {
		l.log.Info().Str("peer", peer).Msg("replica connected")
		return
	}
	l.log.Warn().Str("peer", peer).Msg("connection to a replica lost")
}

func (l replicaLog) Lost(peer string, process, events uint64) {
	l.log.Warn().Str("peer", peer).Uint64("process", process).Uint64("events", events).
		Msg("events of a replica lost; its snapshot will be read")
}

// Fetched logs fewer and fewer of many failures in a row.
func (l replicaLog) Fetched(url string, process uint64, failures int, err error) {
	if err == nil {
		l.log.Debug().Str("url", url).Uint64("process", process).Msg("snapshot of a replica read")
		return
	}
	if failures&(failures-1) == 0 { // powers of two
		l.log.Warn().Err(err).Str("url", url).Uint64("process", process).Int("failures", failures).
			Msg("snapshot of a replica could not be read")
	}
}
