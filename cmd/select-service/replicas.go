package main

import (
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/config"
	"github.com/select-service/select-service/internal/fleet"
	"github.com/select-service/select-service/internal/fleet/bus"
	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/server/replicastatus"
	"github.com/select-service/select-service/internal/transport/fetch"
	"github.com/select-service/select-service/internal/transport/zmqsock"
	"github.com/select-service/select-service/pkg/replicasync"
)

// dumpIdle is how long another replica may send nothing of its dump. With a large index the
// first byte takes long.
const dumpIdle = 30 * time.Second

// snapshotIdle is the same for the reservations, which come at once. If packets are dropped, a
// request hangs and the next one waits for its end; replicas agree again within 5 s after that.
const snapshotIdle = 3 * time.Second

// replicas has the connections from this process to other replicas.
type replicas struct {
	conf      config.Replicas
	mesh      *zmqsock.Mesh // nil: reservations are not shared over ZMQ
	fleet     *fleet.Member // nil: this replica is of no fleet
	dumps     *fetch.Client
	snapshots *fetch.Client
}

// newReplicas prepares the connections. followed returns the endpoints of the replicas whose
// reservations are followed.
func newReplicas(all config.Config, in *fleet.Member, hub *zmqsock.Hub, read files, followed func() []string) replicas {
	conf := all.Replicas
	who := fetch.Identity{Certificates: read.peers, Token: read.peerToken, Trusted: func(u *url.URL) bool {
		return isPeer(u, slices.Concat(conf.IndexerPeers, in.URLs()), followed())
	}, Hosts: conf.Hosts}
	for _, text := range conf.IndexerPeers {
		if u, err := url.Parse(text); err == nil {
			who.Hosts = append(who.Hosts, u.Hostname())
		}
	}
	reads := who
	reads.Dial = fleetDialer(all)
	r := replicas{conf: conf, fleet: in, dumps: fetch.New(dumpIdle, reads), snapshots: fetch.New(snapshotIdle, who)}
	if endpoint := conf.Publish(); endpoint != "" && (!all.Fleet.Enabled() || all.Fleet.Mesh()) {
		r.mesh = zmqsock.NewMesh(hub, endpoint, replicasync.Topics(all.Selections.SessionTTL > 0 || all.Fronts()))
	}
	return r
}

// isPeer reports whether the token may be sent to a URL: to URLs below those that the operator
// has named, and to hosts whose reservations are followed. The check is needed because replicas
// themselves announce the URLs of their snapshots.
func isPeer(u *url.URL, named, followed []string) bool {
	for _, text := range named {
		if peer, err := url.Parse(text); err == nil && peer.Scheme == u.Scheme && peer.Host == u.Host {
			return true
		}
	}
	for _, text := range followed {
		if strings.HasPrefix(text, bus.Scheme) { // a replica's name, not a host's
			continue
		}
		if peer, err := url.Parse(text); err == nil && peer.Hostname() != "" && peer.Hostname() == u.Hostname() {
			return true
		}
	}
	return false
}

// configure adds to the service's configuration what comes from the other replicas, and goes to
// them. url is the base URL of this process.
func (r replicas) configure(c *node.Config, all config.Config, url string) {
	c.Recovery = node.RecoveryConfig{
		Peers:    r.conf.IndexerPeers,
		Deadline: r.conf.RecoveryDeadline,
		Fetch:    r.dumps,
	}
	if r.mesh != nil {
		c.Replication = &node.Replication{
			URL:        url,
			Advertised: r.conf.SyncAdvertise,
			Transport:  r.mesh,
			Malformed:  func() uint64 { return r.mesh.Stats().Malformed },
			Fetch:      r.snapshots,
			MaxPeers:   all.Limits.MaxPeers,
		}
	}
	if r.fleet == nil {
		return
	}
	c.Process, c.Workers = r.fleet.Process(), r.fleet.Catalog().Store()
	c.Selection.Settings = r.fleet.Catalog().SettingsStore()
	c.Recovery.Find, c.Recovery.GivenUp = r.fleet.Find, r.fleet.Catalog().GivenUp
	if !all.Fleet.NATS() {
		return
	}
	if c.Replication == nil {
		c.Replication = &node.Replication{URL: url, MaxPeers: all.Limits.MaxPeers}
	}
	both, conn := r.fleet.Bookings(r.mesh, r.snapshots), r.fleet.Conn()
	c.Replication.Transport, c.Replication.Fetch, c.Replication.Malformed = both, both, both.Malformed
	c.Replication.Speaker, c.Replication.Reachable, c.Replication.AuthenticatedAt = bus.Speaker, conn.Reachable, conn.Endpoint()
}

// announced returns what reads what the followed replicas have announced.
func (r replicas) announced() replicastatus.Getter {
	if r.fleet == nil {
		return r.snapshots
	}
	return r.fleet.Bookings(r.mesh, r.snapshots)
}

// behind returns a function that counts the messages that slow replicas missed; nil
// without a publisher.
func (r replicas) behind() func() uint64 {
	if r.mesh == nil {
		return nil
	}
	return func() uint64 { return r.mesh.Stats().Dropped }
}

// open binds the publisher and follows the first peers. The hub must run.
func (r replicas) open(svc *node.Service, log zerolog.Logger) error {
	if r.mesh == nil {
		return nil
	}
	if err := r.mesh.Open(); err != nil {
		return err
	}
	for _, peer := range r.conf.SyncPeers {
		if _, err := svc.UseCases.RegisterPeer(peer); err != nil {
			return err
		}
	}
	log.Info().Str("endpoint", r.conf.Publish()).Strs("peers", svc.UseCases.Peers()).Msg("sharing reservations")
	return nil
}

// close undoes open.
func (r replicas) close() {
	if r.mesh != nil {
		r.mesh.Close()
	}
	r.dumps.Close()
	r.snapshots.Close()
}
