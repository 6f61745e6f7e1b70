package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/config"
	"github.com/select-service/select-service/internal/engines"
	"github.com/select-service/select-service/internal/fleet"
	"github.com/select-service/select-service/internal/fleet/bus"
	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/server/replicastatus"
	"github.com/select-service/select-service/internal/transport/certs"
	"github.com/select-service/select-service/internal/transport/fetch"
	"github.com/select-service/select-service/internal/transport/zmqsock"
	"github.com/select-service/select-service/pkg/memory"
	"github.com/select-service/select-service/pkg/replicasync"
)

// member is this replica's part in a fleet; nil: it is of none.
type member struct {
	conf    config.Fleet
	process uint64
	conn    *bus.Conn
	catalog *fleet.Catalog
	service func() *node.Service
	hosts   []string // of --replica-hosts
	// dial connects to other hosts, where --allow-endpoints lets it.
	dial func(ctx context.Context, network, address string) (net.Conn, error)
	// status returns what the others are told of this replica. It is set before run is called.
	status func() *replicastatus.Status
}

// newMember prepares the connection to a fleet's NATS. service returns the service, once run is
// called.
func newMember(conf config.Config, url string, certificates *certs.Side, budget *memory.Budget, service func() *node.Service, log zerolog.Logger) (*member, error) {
	if !conf.Fleet.Enabled() {
		return nil, nil
	}
	f := &member{conf: conf.Fleet, process: 1 + rand.Uint64N(math.MaxUint64), service: service, hosts: conf.Replicas.Hosts}
	f.dial = engines.Dialer{Endpoints: conf.Access.Endpoints()}.Dial
	name := conf.Fleet.Replica
	if name == "" {
		host, err := os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("--fleet-replica is not given, and this host has no name: %w", err)
		}
		name = bus.NameOf(host)
	}
	c := bus.Config{
		Servers: conf.Fleet.Servers, Fleet: conf.Fleet.Name, Replica: name, Process: f.process, URL: url,
		Credentials: conf.Fleet.Credentials, Snapshots: budget.Account(memory.Snapshots), Log: log,
		Follow: func(endpoint string) error {
			if !f.conf.NATS() {
				return nil
			}
			return service().FollowMember(endpoint)
		},
		Heard: func(version uint64) { f.catalog.Heard(version) },
		Unfollow: func(endpoint string) {
			if f.conf.NATS() {
				_ = service().UnfollowMember(endpoint) // it may have been unfollowed at the stop
			}
		},
	}
	if certificates != nil {
		c.TLS = certificates.Client("")
	}
	var err error
	if f.conn, err = bus.Dial(c); err != nil {
		return nil, fmt.Errorf("--fleet: %w", err)
	}
	f.catalog = fleet.New(fleet.Config{
		Bucket: f.conn.Bucket(), Fleet: f.conn, Replica: name, Cache: cacheFile(conf), Required: conf.Fleet.Required, Log: log,
	})
	return f, nil
}

// cacheFile returns the file that keeps the fleet's catalog, "" for none. It has the fleet's name, so
// that no other fleet's is used.
func cacheFile(conf config.Config) string {
	if conf.Data.Dir == "" {
		return ""
	}
	return filepath.Join(conf.Data.Dir, "fleet-"+conf.Fleet.Name)
}

// ReadyJSON returns the member fleet of GET /ready, nil if there is none.
func (me *member) ReadyJSON() []byte {
	if me == nil {
		return nil
	}
	return me.conn.ReadyJSON(me.catalog.Status())
}

// settingsVersion returns the version of the settings that this replica shares with others, 0: none.
func (me *member) settingsVersion() uint64 {
	if me == nil {
		return 0
	}
	return me.catalog.Status().Settings
}

// collectors returns those of the metrics of a fleet.
func (me *member) collectors() []prometheus.Collector {
	if me == nil {
		return []prometheus.Collector{bus.Collector{}, fleet.Collector{}}
	}
	return []prometheus.Collector{bus.Collector{Conn: me.conn}, fleet.Collector{Catalog: me.catalog}}
}

// usesMesh reports whether reservations are shared over ZMQ.
func (me *member) usesMesh() bool { return me == nil || me.conf.Mesh() }

// dialer returns what connects to the URLs that replicas have said over NATS; nil: nothing else than to others.
func (me *member) dialer() func(ctx context.Context, network, address string) (net.Conn, error) {
	if me == nil {
		return nil
	}
	return me.dial
}

// urls returns the base URLs of the fleet's replicas that may be read.
func (me *member) urls() (all []string) {
	if me == nil {
		return nil
	}
	for _, m := range me.conn.Members() {
		all = append(all, m.URL)
	}
	return onHosts(all, me.hosts)
}

// onHosts returns the URLs on certain hosts; without any, all. What a replica says of itself over NATS has no
// address beside it: who may speak there could have others read any URL, and send it their token. dial holds
// the policy for endpoints against that, too.
func onHosts(urls, hosts []string) []string {
	if len(hosts) == 0 {
		return urls
	}
	return slices.DeleteFunc(urls, func(text string) bool {
		u, err := url.Parse(text)
		return err != nil || !slices.ContainsFunc(hosts, func(h string) bool { return strings.EqualFold(h, u.Hostname()) })
	})
}

// configure adds what the fleet gives to the service's configuration.
func (me *member) configure(c *node.Config, r replicas, url string, maxPeers int) {
	if me == nil {
		return
	}
	c.Process, c.Workers = me.process, me.catalog.Store()
	if me.conf.Settings {
		c.Settings = me.catalog.SettingsStore()
	}
	if c.Recovery.Find == nil {
		c.Recovery.Find = func(ctx context.Context) []string { return onHosts(me.conn.Peers(ctx), me.hosts) }
		c.Recovery.GivenUp = me.catalog.GivenUp
	}
	if !me.conf.NATS() {
		return
	}
	both := r.bookings()
	if c.Replication == nil {
		c.Replication = &node.Replication{URL: url, MaxPeers: maxPeers}
	}
	c.Replication.Transport, c.Replication.Fetch = both, both
	c.Replication.Speaker, c.Replication.Reachable, c.Replication.AuthenticatedAt = bus.Speaker, me.conn.Reachable, me.conn.Endpoint()
	c.Replication.Malformed = both.malformed
}

// share keeps the catalog that of the fleet until ctx ends.
func (me *member) share(ctx context.Context) error {
	if me == nil {
		return nil
	}
	return me.catalog.Run(ctx)
}

// run takes part in the fleet until ctx ends.
func (me *member) run(ctx context.Context) error {
	if me == nil {
		return nil
	}
	me.conn.SetAnswer(me.answer)
	return me.conn.Run(ctx)
}

var errUnknownQuestion = errors.New("unknown path")

// answer answers the requests of other replicas.
func (me *member) answer(ctx context.Context, w io.Writer, u *url.URL) error {
	switch u.Path {
	case replicasync.SnapshotPath:
		return me.service().WriteSnapshot(ctx, w, replicasync.PageOf(u.Query()))
	case replicastatus.Path:
		return json.NewEncoder(w).Encode(me.status())
	}
	return errUnknownQuestion
}

// bookings shares reservations over NATS and, if there is one, over the mesh.
type bookings struct {
	fleet     *bus.Conn     // nil: this replica is of none
	mesh      *zmqsock.Mesh // nil: there is none
	snapshots *fetch.Client
}

// Publish implements replicasync.Transport.
func (b bookings) Publish(topic string, payload []byte) error {
	err := b.fleet.Publish(topic, payload)
	if b.mesh != nil {
		err = errors.Join(err, b.mesh.Publish(topic, payload))
	}
	return err
}

// PublishEither implements replicasync.Transport.
func (b bookings) PublishEither(topic string, payload []byte, other string, form func() []byte) error {
	err := b.fleet.PublishEither(topic, payload, other, form)
	if b.mesh != nil {
		err = errors.Join(err, b.mesh.PublishEither(topic, payload, other, form))
	}
	return err
}

// Follow implements replicasync.Transport.
func (b bookings) Follow(peer string, deliver func(string, []byte), status func(bool)) (func(), error) {
	if b.mesh == nil || strings.HasPrefix(peer, bus.Scheme) {
		return b.fleet.Follow(peer, deliver, status)
	}
	return b.mesh.Follow(peer, deliver, status)
}

// GetAnnounced implements replicasync.Fetcher.
func (b bookings) GetAnnounced(ctx context.Context, address, host string) (io.ReadCloser, error) {
	if strings.HasPrefix(address, bus.Scheme) {
		body, err := b.fleet.Get(ctx, address)
		if err != nil {
			return nil, err
		}
		return fetch.Paced(body), nil
	}
	return b.snapshots.GetAnnounced(ctx, address, host)
}

func (b bookings) malformed() uint64 {
	n := b.fleet.Status().Malformed
	if b.mesh != nil {
		n += b.mesh.Stats().Malformed
	}
	return n
}
