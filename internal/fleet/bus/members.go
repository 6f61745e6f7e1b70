package bus

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// Member is another replica of the fleet, as it has said itself.
type Member struct {
	Name    string `json:"-"`
	Process uint64 `json:"process"`
	URL     string `json:"url"`
	// Catalog is the version of the fleet's catalog that it has, 0: none.
	Catalog uint64 `json:"catalog,omitempty"`
	// Settings is the version of the fleet's settings that are in force there, 0: none.
	Settings uint64    `json:"settings,omitempty"`
	LastSeen time.Time `json:"-"`
	// Live: it has spoken within liveFor, or this process is cut off from the fleet.
	Live bool `json:"-"`

	followed bool
	refused  error // why it could not be followed the last time
}

const (
	announceEvery = time.Second
	// liveFor is how long a replica may be silent before nothing waits for it any more, departedAfter
	// how long before it is no longer followed. While the fleet cannot be reached, nobody is silent.
	liveFor       = 5 * time.Second
	departedAfter = 2 * time.Minute
	// joinTime is how long after a connection was made every live replica is known: who is there answers a
	// new process within greetEvery, the others announce themselves within announceEvery.
	joinTime = 3 * announceEvery / 2
	// greetEvery is the least time between two answers to announcements of new processes.
	greetEvery = announceEvery / 10
	// maxMembers bounds the replicas that are remembered.
	maxMembers      = 1024
	maxAnnouncement = 4 << 10
)

// membership is who is in the fleet.
type membership struct {
	conn *Conn
	wake chan struct{} // an announcement is due at once; capacity 1

	mu     sync.Mutex // guards the fields below
	known  map[string]*Member
	double uint64 // announcements of other processes with the name of this one
	// greeted is when the last announcement of a new process was answered, or will be.
	greeted time.Time
}

func newMembership(c *Conn) *membership {
	return &membership{conn: c, wake: make(chan struct{}, 1), known: make(map[string]*Member)}
}

// run announces this replica every second and follows those that announce themselves, until ctx ends or the connection is lost for good.
func (m *membership) run(ctx context.Context) {
	tick := time.NewTicker(announceEvery)
	defer tick.Stop()
	for {
		m.announce()
		m.dropSilent(time.Now())
		m.follow()
		select {
		case <-ctx.Done():
			return
		case <-m.conn.lost:
			return
		case <-tick.C:
			m.conn.check()
		case <-m.wake:
		}
	}
}

// follow follows those that are not followed yet. One that cannot be, as too many are, may be later,
// when others have departed.
func (m *membership) follow() {
	m.mu.Lock()
	var names []string
	for name, k := range m.known {
		if !k.followed {
			names = append(names, name)
		}
	}
	m.mu.Unlock()
	slices.Sort(names)
	for _, name := range names {
		err := m.conn.config.Follow(Scheme + name)
		m.mu.Lock()
		k := m.known[name] // only this goroutine removes members
		again := k.refused != nil
		k.followed, k.refused = err == nil, err
		m.mu.Unlock()
		switch {
		case err != nil && !again:
			m.conn.config.Log.Warn().Err(err).Str("replica", name).Msg("replica of the fleet cannot be followed yet: what it books is not known here")
		case err == nil && again:
			m.conn.config.Log.Info().Str("replica", name).Msg("replica of the fleet can be followed now")
		}
	}
}

func (m *membership) announce() {
	text, err := json.Marshal(Member{Process: m.conn.config.Process, URL: m.conn.url(), Catalog: m.conn.catalog.Load(), Settings: m.conn.settings.Load()})
	if err == nil {
		err = m.conn.publish("hello", text)
	}
	if err != nil {
		m.conn.unsent.Add(1) // the next one says the same
	}
}

// url returns the base URL of this replica for others. The address at which the NATS server sees it
// replaces an unspecified host.
func (c *Conn) url() string {
	u, err := url.Parse(c.config.URL)
	if err != nil {
		return c.config.URL
	}
	if addr, err := netip.ParseAddr(u.Hostname()); err != nil || !addr.IsUnspecified() {
		return c.config.URL
	}
	if ip, err := c.nc.Load().GetClientIP(); err == nil {
		u.Host = net.JoinHostPort(ip.String(), u.Port())
	}
	return u.String()
}

// receive takes a replica's announcement.
func (m *membership) receive(msg *nats.Msg) {
	var said Member
	if len(msg.Data) > maxAnnouncement || json.Unmarshal(msg.Data, &said) != nil || said.Process == 0 {
		m.conn.malformed.Add(1)
		return
	}
	said.Name, said.LastSeen = m.conn.sender(msg.Subject), time.Now()
	if said.Name == m.conn.config.Replica {
		m.sameName(said)
		return
	}
	known, first := m.note(said)
	if first && said.URL == m.conn.url() {
		m.conn.config.Log.Error().Str("replica", said.Name).Str("url", said.URL).
			Msg("another replica of the fleet has this one's base URL, so that neither can read the other's index: give each its own --advertise-url")
	}
	if known && m.conn.config.Announced != nil {
		m.conn.config.Announced(said.Catalog)
	}
}

// note remembers a replica's announcement, which may be the first of its process. known is false if there are too many
// replicas.
func (m *membership) note(said Member) (known, first bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.known[said.Name]
	switch {
	case before == nil && len(m.known) >= maxMembers:
		return false, false
	case before != nil:
		said.followed, said.refused = before.followed, before.refused
	}
	m.known[said.Name] = &said
	if first = before == nil || before.Process != said.Process; first {
		m.greetLocked()
	}
	return true, first
}

// greetLocked answers a new process by an announcement, one of several for all of them.
func (m *membership) greetLocked() {
	now := time.Now()
	if now.Before(m.greeted) {
		return // one is due
	}
	next := m.greeted.Add(greetEvery)
	if !now.Before(next) {
		m.greeted = now
		m.announceNow()
		return
	}
	m.greeted = next
	time.AfterFunc(next.Sub(now), m.announceNow)
}

// SetCatalog announces the catalog's version and that of the settings in force.
func (c *Conn) SetCatalog(version, settings uint64) {
	was := c.settings.Swap(settings)
	if c.catalog.Swap(version) != version || was != settings {
		c.membership.announceNow()
	}
}

// Lagging names the live replicas that have not announced the version of the catalog, and these
// settings or later ones.
func (c *Conn) Lagging(version, settings uint64) (names []string) {
	for _, m := range c.Members() {
		if m.Live && (m.Catalog < version || m.Settings < settings) {
			names = append(names, m.Name)
		}
	}
	return names
}

// sameName handles another process that uses this one's name.
func (m *membership) sameName(said Member) {
	if said.Process == m.conn.config.Process {
		return
	}
	m.mu.Lock()
	m.double++
	n := m.double
	m.mu.Unlock()
	if n&(n-1) == 0 { // powers of two
		m.conn.config.Log.Error().Str("replica", said.Name).Str("url", said.URL).Uint64("process", said.Process).
			Msg("another process of the fleet uses this replica's name: give each its own --fleet-replica")
	}
}

// announceNow sends an announcement at once.
func (m *membership) announceNow() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// dropSilent forgets replicas that have been silent for long.
func (m *membership) dropSilent(now time.Time) {
	settled := m.conn.Phase() == Settled
	var departed []string
	m.mu.Lock()
	for name, k := range m.known {
		switch {
		case !settled:
			k.LastSeen = now
		case now.Sub(k.LastSeen) > departedAfter:
			departed = append(departed, name)
			delete(m.known, name)
		}
	}
	m.mu.Unlock()
	for _, name := range departed {
		m.conn.config.Unfollow(Scheme + name)
	}
}

// Members lists the other replicas by name.
func (c *Conn) Members() []Member {
	settled := c.Phase() == Settled
	c.membership.mu.Lock()
	defer c.membership.mu.Unlock()
	var list []Member
	for _, k := range c.membership.known {
		k := *k
		k.Live = !settled || time.Since(k.LastSeen) <= liveFor
		list = append(list, k)
	}
	slices.SortFunc(list, func(a, b Member) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// Peers returns the base URLs of the other replicas, which are not this one's. It waits until the fleet can be reached
// and those are known, at most until ctx ends.
func (c *Conn) Peers(ctx context.Context) []string {
	tick := time.NewTicker(announceEvery / 20)
	defer tick.Stop()
	for c.Phase() < Joined && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	urls := make(map[string]struct{})
	own := c.url()
	for _, k := range c.Members() {
		if k.URL != "" && k.URL != own {
			urls[k.URL] = struct{}{}
		}
	}
	return slices.Sorted(maps.Keys(urls))
}
