package main

import (
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/config"
	"github.com/select-service/select-service/internal/fleet/bus"
	"github.com/select-service/select-service/internal/node"
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
	fleet     *member       // nil: this replica is of no fleet
	dumps     *fetch.Client
	snapshots *fetch.Client
}

// newReplicas prepares the connections. followed returns the endpoints of the replicas whose
// reservations are followed. sessions: sessions are shared too.
func newReplicas(conf config.Replicas, in *member, sessions bool, hub *zmqsock.Hub, read files, followed func() []string) replicas {
	who := fetch.Identity{Certificates: read.peers, Token: read.peerToken, Trusted: func(u *url.URL) bool {
		return isPeer(u, slices.Concat(conf.IndexerPeers, in.urls()), followed())
	}, Hosts: conf.Hosts}
	for _, text := range conf.IndexerPeers {
		if u, err := url.Parse(text); err == nil {
			who.Hosts = append(who.Hosts, u.Hostname())
		}
	}
	reads := who
	reads.Dial = in.dialer()
	r := replicas{conf: conf, fleet: in, dumps: fetch.New(dumpIdle, reads), snapshots: fetch.New(snapshotIdle, who)}
	if endpoint := conf.Publish(); endpoint != "" && in.usesMesh() {
		r.mesh = zmqsock.NewMesh(hub, endpoint, replicasync.Topics(sessions))
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

// configure adds the settings of replication to the service's configuration. url is the base
// URL of this process, maxPeers the most replicas to follow.
func (r replicas) configure(c *node.Config, url string, maxPeers int) {
	c.Recovery = node.RecoveryConfig{
		Peers:    r.conf.IndexerPeers,
		Deadline: r.conf.RecoveryDeadline,
		Grace:    r.conf.RecoveryGrace,
		Fetch:    r.dumps,
	}
	if r.mesh != nil {
		c.Replication = &node.Replication{
			URL:        url,
			Advertised: r.conf.SyncAdvertise,
			Transport:  r.mesh,
			Malformed:  func() uint64 { return r.mesh.Stats().Malformed },
			Fetch:      r.snapshots,
			MaxPeers:   maxPeers,
		}
	}
	r.fleet.configure(c, r, url, maxPeers)
}

// bookings returns what shares reservations, and reads what the followed replicas have announced.
func (r replicas) bookings() bookings {
	b := bookings{mesh: r.mesh, snapshots: r.snapshots}
	if r.fleet != nil {
		b.fleet = r.fleet.conn
	}
	return b
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
		if _, err := svc.RegisterPeer(peer); err != nil {
			return err
		}
	}
	log.Info().Str("endpoint", r.conf.Publish()).Strs("peers", svc.Peers()).Msg("sharing reservations")
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
