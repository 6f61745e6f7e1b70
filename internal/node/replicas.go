package node

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/memory"
	"github.com/select-service/select-service/pkg/replicasync"
	"github.com/select-service/select-service/pkg/reservations"
)

// Replication has the settings for sharing reservations with other replicas.
type Replication struct {
	// URL is the base URL of this process for other replicas.
	URL string
	// Advertised is the endpoint where others follow this process, empty if not configured. The
	// slot tracker's contract refuses it as a peer.
	Advertised string
	Transport  replicasync.Transport
	// Malformed, if set, returns how many received messages the transport could not parse.
	Malformed func() uint64
	Fetch     replicasync.Fetcher
	// Speaker and Reachable are those of replicasync.Options; nil where all peers are ZMQ endpoints.
	Speaker   func(announced, peer string) (replicasync.Speaker, error)
	Reachable func(peer string) bool
	// AuthenticatedAt is that of replicasync.Options.
	AuthenticatedAt string
	// MaxPeers bounds the peers; 0 is the default of package replicasync.
	MaxPeers int
}

// newLedger returns the ledger and, if reservations are shared, the replica that observes it,
// else nil.
func newLedger(config *Config, scopes replicasync.Scopes, log zerolog.Logger) (*reservations.Ledger, *replicasync.Replica) {
	r, process := config.Replication, config.Process
	if r == nil {
		ledger := reservations.New(process, time.Now, nil)
		ledger.SetLifetime(config.ReservationLifetime)
		ledger.SetLimits(config.Reservations)
		return ledger, nil
	}
	replica := replicasync.New(replicasync.Options{
		Process: process, URL: r.URL, Watcher: replicaLog{log}, MaxPeers: r.MaxPeers,
		Speaker: r.Speaker, Reachable: r.Reachable, AuthenticatedAt: r.AuthenticatedAt,
		Queues: config.Memory.Account(memory.Replication), Snapshots: config.Memory.Account(memory.Snapshots),
	}, scopes, r.Transport, tracedFetcher{r.Fetch, config.Tracer}, time.Now)
	ledger := reservations.New(process, time.Now, replica)
	ledger.SetLifetime(config.ReservationLifetime)
	ledger.SetLimits(config.Reservations)
	replica.Attach(ledger)
	return ledger, replica
}

// peers has the use cases about the replicas that this process follows.
type peers struct {
	replica    *replicasync.Replica // nil: reservations are not shared
	advertised string               // endpoint of this process, "" if unknown
	endpoints  catalog.EndpointPolicy
}

// newPeers returns the use cases; replica is nil if reservations are not shared.
func newPeers(config *Config, replica *replicasync.Replica) *peers {
	p := &peers{replica: replica, endpoints: config.Endpoints}
	if config.Replication != nil {
		p.advertised = config.Replication.Advertised
	}
	return p
}

var (
	errSyncDisabled = &contract.Error{Kind: contract.Conflict, Text: "replica sync is disabled"}
	errOwnEndpoint  = &contract.Error{Kind: contract.BadRequest, Text: "peer endpoint matches this replica's advertised endpoint"}
)

// Peers lists the endpoints of the replicas whose reservations are followed, sorted.
func (p *peers) Peers() []string {
	if p.replica == nil {
		return []string{}
	}
	return p.replica.Peers()
}

// RegisterPeer starts following a replica; added is false if it is followed already. It does
// not wait for a connection.
func (p *peers) RegisterPeer(endpoint string) (added bool, err error) {
	if err := p.checkPeer(endpoint); err != nil {
		return false, err
	}
	added, err = p.replica.Register(endpoint)
	return added, peerError(err)
}

// FollowMember starts following a replica that the transport itself has found, and vouches for.
func (p *peers) FollowMember(endpoint string) error {
	_, err := p.replica.Register(endpoint)
	return peerError(err)
}

// UnfollowMember undoes FollowMember. The reservations of the replica stay.
func (p *peers) UnfollowMember(endpoint string) error {
	return peerError(p.replica.Deregister(endpoint))
}

func peerError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, replicasync.ErrPeerNotFound):
		return &contract.Error{Kind: contract.NotFound, Text: err.Error(), Err: err}
	case errors.Is(err, replicasync.ErrTooManyPeers):
		return &contract.Error{
			Kind: contract.Conflict, Text: err.Error() + " (--max-peers)", Reason: "limit_reached", Limit: contract.LimitPeers, Err: err,
		}
	case errors.Is(err, replicasync.ErrStopped):
		return &contract.Error{Kind: contract.Unavailable, Text: "replica peer manager is unavailable", Err: err}
	}
	return &contract.Error{Kind: contract.BadRequest, Text: err.Error(), Err: err} // well formed, but cannot be followed
}

// SlotsRegisterPeer is RegisterPeer that refuses this replica itself.
func (p *peers) SlotsRegisterPeer(endpoint string) (added bool, err error) {
	if p.advertised != "" && endpoint == p.advertised {
		return false, errOwnEndpoint
	}
	return p.RegisterPeer(endpoint)
}

// DeregisterPeer stops following a replica. Its reservations stay.
func (p *peers) DeregisterPeer(endpoint string) error {
	if err := p.checkPeer(endpoint); err != nil {
		return err
	}
	return peerError(p.replica.Deregister(endpoint))
}

// checkPeer returns why an endpoint cannot be a peer's.
func (p *peers) checkPeer(endpoint string) error {
	if p.replica == nil {
		return errSyncDisabled
	}
	if _, err := p.endpoints.Check(endpoint); err != nil {
		return &contract.Error{Kind: contract.BadRequest, Text: err.Error(), Err: err}
	}
	return nil
}

// WriteSnapshot writes one page of the live reservations as JSON.
func (p *peers) WriteSnapshot(ctx context.Context, w io.Writer, q replicasync.PageRequest) error {
	if p.replica == nil {
		return errSyncDisabled
	}
	err := p.replica.WriteSnapshot(ctx, w, q)
	if errors.Is(err, replicasync.ErrCursor) {
		return &contract.Error{Kind: contract.BadRequest, Text: err.Error(), Err: err}
	}
	return err
}

// replicaLog logs events of other replicas that concern an operator.
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

// Fetched logs failures in a row ever more rarely: the 1st, 2nd, 4th, 8th and so on.
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
