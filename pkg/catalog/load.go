package catalog

import (
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"
)

// LoadMetrics says that a worker's load is read from the metrics of its engine, a page of
// Prometheus' text format.
type LoadMetrics struct {
	// URL is that of the page. Unset: /metrics, or the path of the engine that the record names or
	// that has described itself, below the worker's endpoint, or below those of its ranks that have one
	// of their own.
	URL *string
	// IntervalSeconds is the time between two readings; unset is DefaultLoadInterval.
	IntervalSeconds *float64
}

// DefaultLoadInterval is the time between two readings of an engine's metrics, minLoadInterval
// and maxLoadInterval its bounds.
const (
	DefaultLoadInterval = 2 * time.Second
	minLoadInterval     = 250 * time.Millisecond
	maxLoadInterval     = time.Hour
)

func (m *LoadMetrics) equal(o *LoadMetrics) bool {
	return m == o || m != nil && o != nil && equalPointers(m.URL, o.URL) && equalPointers(m.IntervalSeconds, o.IntervalSeconds)
}

func (m *LoadMetrics) interval() time.Duration {
	if m.IntervalSeconds == nil {
		return DefaultLoadInterval
	}
	return time.Duration(*m.IntervalSeconds * float64(time.Second))
}

// LoadStream is the stream of one rank's load.
type LoadStream struct {
	DP       uint32
	Endpoint string // checked; to be bound if its host is a wildcard
}

// LoadPage is a page of metrics with the load of Ranks consecutive ranks from FirstRank on.
type LoadPage struct {
	URL              string // checked
	Interval         time.Duration
	FirstRank, Ranks uint32
	// KVTokens is the capacity of each rank's KV cache by the worker's record, in tokens, 0 if it
	// is not known.
	KVTokens uint64
	// BlockSize is that of the worker, in tokens.
	BlockSize uint32
}

func (r *Record) checkLoadEndpoints() error {
	for _, dp := range slices.Sorted(maps.Keys(r.LoadEndpoints)) {
		if !r.HasRank(dp) {
			return &InvalidError{fmt.Sprintf("load_endpoints names rank %d, which the worker does not have", dp)}
		}
	}
	return nil
}

func (r *Record) checkLoadMetrics() error {
	m := r.LoadMetrics
	if m == nil {
		return nil
	}
	if m.URL != nil {
		if why := badURL(*m.URL); why != "" {
			return &InvalidError{fmt.Sprintf("load_metrics.url: `%s` %s", Clip(*m.URL), why)}
		}
	}
	if s := m.IntervalSeconds; s != nil && !(*s >= minLoadInterval.Seconds() && *s <= maxLoadInterval.Seconds()) {
		return &InvalidError{fmt.Sprintf("load_metrics.interval_seconds %g is not in [%g, %g]", *s, minLoadInterval.Seconds(), maxLoadInterval.Seconds())}
	}
	return nil
}

// loadEndpoint returns the endpoint of the rank's load stream, "" if there is none. A map, if it
// is set, takes precedence over the single endpoint, which is for workers with one rank only.
func (r *Record) loadEndpoint(dp uint32) string {
	if len(r.LoadEndpoints) > 0 {
		return r.LoadEndpoints[dp]
	}
	if r.LoadEndpoint != nil && r.RankCount() == 1 && dp == r.FirstRank() {
		return *r.LoadEndpoint
	}
	return ""
}

// setLoads sets the load streams and pages of a complete record. The error is the reason why one
// may not be used.
func (a *Attachment) setLoads(r *Record, policy EndpointPolicy) error {
	for dp := range r.ranks() {
		endpoint := r.loadEndpoint(dp)
		if endpoint == "" {
			continue
		}
		if _, err := policy.Check(endpoint); err != nil {
			return fmt.Errorf("invalid load endpoint for worker %d dp_rank %d: %w", r.ID, dp, err)
		}
		a.Loads = append(a.Loads, LoadStream{DP: dp, Endpoint: endpoint})
	}
	for _, p := range r.loadPages() {
		if err := policy.CheckURL(p.URL); err != nil {
			return fmt.Errorf("invalid load_metrics for worker %d: %w", r.ID, err)
		}
		a.Pages = append(a.Pages, p)
	}
	return nil
}

// loadPages returns the pages with the metrics of the ranks.
func (r *Record) loadPages() (pages []LoadPage) {
	m := r.LoadMetrics
	if m == nil {
		return nil
	}
	whole := LoadPage{Interval: m.interval(), FirstRank: r.FirstRank(), Ranks: r.RankCount(), BlockSize: r.blockSize()}
	if r.TotalKVBlocks != nil {
		whole.KVTokens = *r.TotalKVBlocks * uint64(r.blockSize())
	}
	if m.URL != nil {
		whole.URL = *m.URL
		return []LoadPage{whole}
	}
	shared := false // some rank is served at the worker's own endpoint
	for dp := range r.ranks() {
		endpoint, own := r.RankEndpoints[dp]
		if !own {
			shared = true
			continue
		}
		p := whole
		p.URL, p.FirstRank, p.Ranks = r.metricsBelow(endpoint), dp, 1
		pages = append(pages, p)
	}
	if shared {
		whole.URL = r.metricsBelow(r.Address())
		pages = append(pages, whole)
	}
	return pages
}

// metricsBelow returns the usual URL of the metrics of an engine's HTTP server.
func (r *Record) metricsBelow(endpoint string) string {
	return strings.TrimRight(endpoint, "/") + r.engine().MetricsPath
}

// keepLoads drops the load streams for which keep is false, and what is about ranks that are no
// candidates.
func (a *Attachment) keepLoads(keep func(LoadStream) bool) {
	candidate := func(dp uint32) bool {
		r, ok := a.Rank(dp)
		return ok && r.Candidate
	}
	var loads []LoadStream
	for _, s := range a.Loads {
		if candidate(s.DP) && keep(s) {
			loads = append(loads, s)
		}
	}
	a.Loads = loads
	var pages []LoadPage
	for _, p := range a.Pages {
		for p.Ranks > 0 && !candidate(p.FirstRank) {
			p.FirstRank++
			p.Ranks--
		}
		for p.Ranks > 0 && !candidate(p.FirstRank+p.Ranks-1) {
			p.Ranks--
		}
		if p.Ranks > 0 {
			pages = append(pages, p)
		}
	}
	a.Pages = pages
}

// CheckURL returns an error for the URL of an engine's HTTP server that may not be asked. The
// ports of the rules, which are those of ZMQ sockets, do not matter. A host name that no rule
// names has to be checked with AllowsAddress when it is resolved.
func (p EndpointPolicy) CheckURL(text string) error {
	if why := badURL(text); why != "" {
		return fmt.Errorf("`%s` %s", Clip(text), why)
	}
	u, err := url.Parse(text)
	if err != nil {
		return fmt.Errorf("`%s`: %w", Clip(text), err)
	}
	host := u.Hostname()
	if p.Allowed == nil || p.AllowsName(host) {
		return nil
	}
	if addr, err := netip.ParseAddr(host); err == nil && p.AllowsAddress(addr.WithZone(""), 0) {
		return nil
	} else if err != nil && slices.ContainsFunc(p.Allowed, func(r EndpointRule) bool { return r.Network.IsValid() }) {
		return nil
	}
	return fmt.Errorf("`%s`: not among the allowed endpoints (--allow-endpoints)", Clip(text))
}
