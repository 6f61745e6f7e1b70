package fleet

import (
	"context"
	"errors"
	"io"
	"net/url"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/select-service/select-service/internal/fleet/bus"
	"github.com/select-service/select-service/internal/transport/fetch"
	"github.com/select-service/select-service/internal/transport/zmqsock"
)

// Member is this replica's part in a fleet. The methods of nil, where they may be called, are those of a
// replica of none.
type Member struct {
	options Options
	conn    *bus.Conn
	catalog *Catalog
	peers   Peers
	answers map[string]Answer
}

// Options say how a replica takes part in a fleet.
type Options struct {
	// Bus says where the fleet meets, without its callbacks.
	Bus bus.Config
	// Cache and Required are those of Config.
	Cache    string
	Required bool
	// Bookings: reservations are shared over NATS, so that the other replicas are followed there.
	Bookings bool
	// Hosts bounds the hosts of other replicas that are read over HTTP; empty: all.
	Hosts []string
}

// Peers follows other replicas, see replicasync.Replica.
type Peers interface {
	FollowMember(endpoint string) error
	UnfollowMember(endpoint string) error
}

// Answer answers a request of another replica for a URL.
type Answer func(ctx context.Context, w io.Writer, u *url.URL) error

// Join prepares the connection of a replica to its fleet.
func Join(opt Options) (*Member, error) {
	m := &Member{options: opt}
	c := opt.Bus
	c.Announced = func(version uint64) { m.catalog.NoteVersion(version) }
	c.Follow = func(endpoint string) error {
		if !opt.Bookings {
			return nil
		}
		return m.peers.FollowMember(endpoint)
	}
	c.Unfollow = func(endpoint string) {
		if opt.Bookings {
			_ = m.peers.UnfollowMember(endpoint) // it may have been unfollowed at the stop
		}
	}
	var err error
	if m.conn, err = bus.Dial(c); err != nil {
		return nil, err
	}
	m.catalog = New(Config{Bucket: m.conn.Bucket(), Fleet: m.conn, Replica: c.Replica, Cache: opt.Cache, Required: opt.Required, Log: c.Log})
	return m, nil
}

// Catalog returns what the replicas share.
func (m *Member) Catalog() *Catalog { return m.catalog }

// Conn returns the connection to the fleet.
func (m *Member) Conn() *bus.Conn { return m.conn }

// Process returns this process's id among the replicas.
func (m *Member) Process() uint64 { return m.options.Bus.Process }

// Attach gives the member what follows other replicas, and what answers their requests by its path. It must
// be called before Run.
func (m *Member) Attach(peers Peers, answers map[string]Answer) { m.peers, m.answers = peers, answers }

var errUnknownPath = errors.New("unknown path")

// Run takes part in the fleet until ctx ends.
func (m *Member) Run(ctx context.Context) error {
	if m == nil {
		return nil
	}
	m.conn.SetAnswer(func(ctx context.Context, w io.Writer, u *url.URL) error {
		if answer := m.answers[u.Path]; answer != nil {
			return answer(ctx, w, u)
		}
		return errUnknownPath
	})
	return m.conn.Run(ctx)
}

// Share keeps the workers and the settings those of the fleet until ctx ends.
func (m *Member) Share(ctx context.Context) error {
	if m == nil {
		return nil
	}
	return m.catalog.Run(ctx)
}

// Membership is what operators are shown of a member.
type Membership struct {
	State    string // of the connection
	Fault    string // "" for none
	Replica  string
	Replicas []string // the names of the others that are live, never nil
	Catalog  Status
}

// Membership returns what operators are shown now; nil: the replica is of no fleet.
func (m *Member) Membership() *Membership {
	if m == nil {
		return nil
	}
	st := m.conn.Status()
	return &Membership{State: st.State.String(), Fault: st.Fault, Replica: m.options.Bus.Replica, Replicas: m.conn.Live(), Catalog: m.catalog.Status()}
}

// Collectors returns those of the metrics of a fleet, which a replica of none describes, too.
func (m *Member) Collectors() []prometheus.Collector {
	if m == nil {
		return []prometheus.Collector{bus.Collector{}, Collector{}}
	}
	return []prometheus.Collector{bus.Collector{Conn: m.conn}, Collector{Catalog: m.catalog}}
}

// URLs returns the base URLs of the fleet's replicas that may be read.
func (m *Member) URLs() (all []string) {
	if m == nil {
		return nil
	}
	for _, of := range m.conn.Members() {
		all = append(all, of.URL)
	}
	return m.readable(all)
}

// Find waits for the other replicas, and returns the base URLs of those that may be read.
func (m *Member) Find(ctx context.Context) []string { return m.readable(m.conn.Peers(ctx)) }

// readable returns the URLs on the hosts that may be read. A URL that a replica announces over NATS has no
// address beside it. Everybody who may speak there could make others read any URL, and send it their token. The
// policy for endpoints prevents that, too.
func (m *Member) readable(urls []string) []string {
	hosts := m.options.Hosts
	if len(hosts) == 0 {
		return urls
	}
	return slices.DeleteFunc(urls, func(text string) bool {
		u, err := url.Parse(text)
		return err != nil || !slices.ContainsFunc(hosts, func(h string) bool { return strings.EqualFold(h, u.Hostname()) })
	})
}

// Bookings returns what shares reservations over NATS and, unless it is nil, over a mesh. snapshots reads what
// replicas of the mesh have announced.
func (m *Member) Bookings(mesh *zmqsock.Mesh, snapshots *fetch.Client) *Bookings {
	return &Bookings{bus: m.conn, mesh: mesh, snapshots: snapshots}
}
