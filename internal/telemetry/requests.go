package telemetry

import (
	"iter"
	"maps"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/telemetry/metrics"
)

var (
	requestFamilies metrics.Families

	httpRequests = requestFamilies.Counter("http_requests_total", "HTTP requests answered, by route; those that found none have no method.", "listener", "method", "route", "code")
	httpDuration = requestFamilies.Histogram("http_request_duration_seconds", "Time from the arrival of an HTTP request to the end of its answer, time in the wait queue included.", "listener", "method", "route")
	httpInFlight = requestFamilies.Gauge("http_requests_in_flight", "HTTP requests that are not answered yet.", "listener")
	limitRefused = requestFamilies.Counter("limit_refused_total", "HTTP requests that were refused because of a limit: too many of something, or a value too large.", "limit")
)

// Requests counts HTTP requests by listener, method, route and status, and
// collects them.
type Requests struct {
	refused map[string]*atomic.Uint64 // by limit; the map does not change

	mu        sync.Mutex // guards listeners
	listeners map[string]*Listener
}

// NewRequests returns counters at 0.
func NewRequests() *Requests {
	r := &Requests{refused: make(map[string]*atomic.Uint64), listeners: make(map[string]*Listener)}
	for _, limit := range contract.Limits {
		r.refused[limit] = new(atomic.Uint64)
	}
	return r
}

// Listener returns the counters of a listener, by the name that is its label.
func (r *Requests) Listener(name string) *Listener {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.listeners[name]
	if l == nil {
		l = &Listener{name: name, refused: r.refused}
		l.routes.Store(&map[endpoint]*answers{})
		r.listeners[name] = l
	}
	return l
}

// all returns the current listeners.
func (r *Requests) all() map[string]*Listener {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.listeners)
}

// Listener counts the requests of one listener. Its methods may be called from any goroutine;
// they do not block, and allocate only for the first request of a method and route.
type Listener struct {
	name     string
	refused  map[string]*atomic.Uint64 // shared by all listeners
	inFlight atomic.Int64
	routes   atomic.Pointer[map[endpoint]*answers] // replaced under adding
	adding   sync.Mutex
}

// endpoint is a method and the pattern of a route, both empty if there is none.
type endpoint struct{ method, route string }

// answers counts the answers of one endpoint.
type answers struct {
	// byCode counts the statuses 100 to 599, and in its last element all others.
	byCode [lastCode - firstCode + 2]atomic.Uint64
	took   *metrics.Histogram
}

const (
	firstCode, lastCode = 100, 599
	noCode              = lastCode - firstCode + 1
)

// maxEndpoints bounds what a listener distinguishes; further ones count as if they
// had no route.
const maxEndpoints = 512

// Begin counts a request that has come.
func (l *Listener) Begin() { l.inFlight.Add(1) }

// End counts a request as answered. Method and route must be those of the route table, or both
// be empty, since they become labels. of is its trace.
func (l *Listener) End(method, route string, status int, took time.Duration, of metrics.Example) {
	l.inFlight.Add(-1)
	e := endpoint{method, route}
	a := (*l.routes.Load())[e]
	if a == nil {
		a = l.add(e)
	}
	code := status - firstCode
	if status < firstCode || status > lastCode {
		code = noCode
	}
	a.byCode[code].Add(1)
	a.took.ObserveExample(took.Seconds(), of)
}

// Refused counts a request that a limit refuses, one of contract.Limits.
func (l *Listener) Refused(limit string) {
	if n := l.refused[limit]; n != nil {
		n.Add(1)
	}
}

// add adds the counters of an endpoint that had no request before.
func (l *Listener) add(e endpoint) *answers {
	l.adding.Lock()
	defer l.adding.Unlock()
	all := *l.routes.Load()
	if a := all[e]; a != nil {
		return a
	}
	if len(all) >= maxEndpoints {
		if e = (endpoint{}); all[e] != nil {
			return all[e]
		}
	}
	a := &answers{took: metrics.NewHistogram(metrics.RequestBounds)}
	next := maps.Clone(all)
	next[e] = a
	l.routes.Store(&next)
	return a
}

// codes yields each status that has been answered, and how often.
func (a *answers) codes() iter.Seq2[string, uint64] {
	return func(yield func(string, uint64) bool) {
		for i := range a.byCode {
			n := a.byCode[i].Load()
			if n == 0 {
				continue
			}
			code := "other"
			if i != noCode {
				code = strconv.Itoa(firstCode + i)
			}
			if !yield(code, n) {
				return
			}
		}
	}
}

// Describe implements prometheus.Collector.
func (r *Requests) Describe(ch chan<- *prometheus.Desc) { requestFamilies.Describe(ch) }

// Collect implements prometheus.Collector.
func (r *Requests) Collect(ch chan<- prometheus.Metric) {
	for limit, n := range r.refused {
		metrics.Send(ch, limitRefused, n.Load(), limit)
	}
	for _, l := range r.all() {
		metrics.Send(ch, httpInFlight, l.inFlight.Load(), l.name)
		for e, a := range *l.routes.Load() {
			metrics.SendHistogram(ch, httpDuration, a.took, l.name, e.method, e.route)
			for code, n := range a.codes() {
				metrics.Send(ch, httpRequests, n, l.name, e.method, e.route, code)
			}
		}
	}
}
