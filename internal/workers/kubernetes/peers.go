package kubernetes

import (
	"context"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// PeersConfig says how the other replicas are found: they are the endpoints of a Service.
type PeersConfig struct {
	Service, Namespace string
	Self               netip.Addr // the address of this replica; those of its family count
	// SyncPort and HTTPPort are those of replicas whose slices name no port replica-agg and http.
	SyncPort, HTTPPort uint16
	Scheme             string // of HTTP
	// Follow and Unfollow start and end the following of a replica's reservations, see
	// node.Service.RegisterPeer.
	Follow   func(endpoint string) (added bool, err error)
	Unfollow func(endpoint string) error
}

// The names of a Service's ports between replicas.
const portReplica = "replica-agg"

// firstPeers is how long the first list of replicas is awaited.
const firstPeers = 10 * time.Second

// peers follows the replicas.
type peers struct {
	config PeersConfig
	d      *Discovery
	slices *follower[*endpointSlice]
	listed chan struct{} // closed with the first list
	first  sync.Once     // of them

	// Guarded by Discovery.mu.
	parts    slicesByKey
	known    []peer          // by endpoint
	followed map[string]bool // those that this has made followed
}

// peer is another replica.
type peer struct {
	Endpoint string `json:"endpoint"`
	Serving  bool   `json:"serving"` // it is ready and not terminating
	url      string
}

// PeersStatus is what GET /kubernetes shows of the replicas.
type PeersStatus struct {
	Service  string `json:"service"`
	State    State  `json:"state"`
	Error    string `json:"error,omitempty"`
	Replicas []peer `json:"replicas"`
}

func (d *Discovery) newPeers(config PeersConfig) *peers {
	p := &peers{config: config, d: d, listed: make(chan struct{}), parts: make(slicesByKey), followed: make(map[string]bool)}
	to := p.parts.sink(p.change)
	replace := to.replace
	to.replace = func(all []*endpointSlice, keep map[string]bool) {
		replace(all, keep)
		p.first.Do(func() { close(p.listed) })
	}
	p.slices = d.newSlices(config.Namespace, config.Service, to, func() {})
	return p
}

// change makes a change of the slices and follows the replicas that they have then.
func (p *peers) change(do func()) {
	p.d.mu.Lock()
	do()
	p.known = p.find()
	var start, end []string
	now := make(map[string]bool, len(p.known))
	for _, k := range p.known {
		now[k.Endpoint] = true
		if !p.followed[k.Endpoint] {
			start = append(start, k.Endpoint)
		}
	}
	for endpoint := range p.followed {
		if !now[endpoint] {
			end = append(end, endpoint)
		}
	}
	p.d.mu.Unlock()
	// Sockets are opened without the lock. The sink's calls come one after the other.
	slices.Sort(end)
	for _, endpoint := range end {
		if err := p.config.Unfollow(endpoint); err != nil {
			p.d.log.Warn().Err(err).Str("peer", endpoint).Msg("a replica that has gone is still followed")
		}
		p.d.mu.Lock()
		delete(p.followed, endpoint)
		p.d.mu.Unlock()
	}
	for _, endpoint := range start {
		added, err := p.config.Follow(endpoint)
		if err != nil {
			p.d.log.Warn().Err(err).Str("peer", endpoint).Msg("a replica cannot be followed")
			continue
		}
		if added {
			p.d.mu.Lock()
			p.followed[endpoint] = true
			p.d.mu.Unlock()
		}
	}
	if len(start)+len(end) > 0 {
		p.d.log.Info().Str("service", p.config.Service).Strs("joined", start).Strs("left", end).Msg("replicas in Kubernetes")
	}
}

// find returns the replicas that the slices have: also those that are not ready, whose bookings
// count.
func (p *peers) find() []peer {
	var all []peer
	own := p.config.Self.Unmap()
	for _, s := range p.parts {
		if s.fqdn || s.ipv6 != own.Is6() {
			continue
		}
		for _, e := range s.endpoints {
			at, err := netip.ParseAddr(e.address)
			if err != nil || at.Unmap() == own {
				continue
			}
			sync, http := p.config.SyncPort, p.config.HTTPPort
			if port := s.ports[portReplica]; port != 0 {
				sync = port
			}
			if port := s.ports[portHTTP]; port != 0 {
				http = port
			}
			of := func(port uint16) string { return net.JoinHostPort(e.address, strconv.Itoa(int(port))) }
			k := peer{Endpoint: "tcp://" + of(sync), Serving: e.serving && !e.terminating, url: p.config.Scheme + "://" + of(http)}
			if i := slices.IndexFunc(all, func(o peer) bool { return o.Endpoint == k.Endpoint }); i >= 0 {
				all[i].Serving = all[i].Serving || k.Serving
				continue
			}
			all = append(all, k)
		}
	}
	slices.SortFunc(all, func(a, b peer) int { return strings.Compare(a.Endpoint, b.Endpoint) })
	return all
}

// ServingPeers returns the base URLs of the replicas that serve, in random order, once they have
// been listed, or none if that takes too long. Run must be running.
func (d *Discovery) ServingPeers(ctx context.Context) []string {
	if d == nil || d.peers == nil {
		return nil
	}
	late := time.NewTimer(firstPeers)
	defer late.Stop()
	select {
	case <-ctx.Done():
		return nil
	case <-late.C:
		d.log.Warn().Str("service", d.peers.config.Service).Msg("no list of the other replicas yet: the index starts without theirs")
		return nil
	case <-d.peers.listed:
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var urls []string
	for _, k := range d.peers.known {
		if k.Serving {
			urls = append(urls, k.url)
		}
	}
	rand.Shuffle(len(urls), func(i, j int) { urls[i], urls[j] = urls[j], urls[i] })
	return urls
}

// statusLocked returns what is shown of the replicas. Discovery.mu is held.
func (p *peers) statusLocked() *PeersStatus {
	st := p.slices.status()
	return &PeersStatus{Service: p.config.Service, State: st.State, Error: st.Problem, Replicas: slices.Concat([]peer{}, p.known)}
}
