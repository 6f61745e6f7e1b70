package counts

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/select-service/select-service/internal/telemetry/metrics"
)

var (
	// ProxyFamilies has the metric families of Proxied.
	ProxyFamilies metrics.Families

	proxyRetries     = ProxyFamilies.Counter("proxy_retries_total", "Requests that were sent to another engine because the first one had not begun to serve them: it could not be connected to (connect), or closed a connection (closed).", "why")
	proxyBroken      = ProxyFamilies.Counter("proxy_broken_total", "Answers that their engines have broken off, by the API.", "api")
	proxyGone        = ProxyFamilies.Counter("proxy_gone_total", "Clients that have left, or read nothing for a minute, before their answer was complete.")
	proxyConnections = ProxyFamilies.Gauge("proxy_engine_connections", "Connections to engines, by whether a request uses them.", "state")
	proxyTTFT        = ProxyFamilies.Histogram("proxy_ttft_seconds", "Time from a request's head to the first byte of its answer's body.")
)

// apis are those of openai.Kind, in its order.
var apis = [...]string{"other", "chat", "completions", "responses", "messages"}

// Proxied counts what only the proxy sees of its requests, and collects it. Its methods neither block nor allocate.
type Proxied struct {
	// Connections returns how many connections to engines there are, and how many of them no request uses. It may
	// be nil.
	Connections func() (open, idle int)

	connect, closed, gone atomic.Uint64
	broken                [len(apis)]atomic.Uint64
	ttft                  *metrics.Histogram
}

// NewProxied returns counters at 0.
func NewProxied() *Proxied { return &Proxied{ttft: metrics.NewHistogram(metrics.RequestBounds)} }

// Retried counts a request that goes to another engine; connected: the first one was connected to.
func (p *Proxied) Retried(connected bool) {
	if connected {
		p.closed.Add(1)
	} else {
		p.connect.Add(1)
	}
}

// Broken counts an answer of an API, an openai.Kind, that its engine has broken off.
func (p *Proxied) Broken(api uint8) { p.broken[api].Add(1) }

// Gone counts a client that has left.
func (p *Proxied) Gone() { p.gone.Add(1) }

// FirstByte counts the time to the first byte of an answer's body.
func (p *Proxied) FirstByte(after time.Duration) { p.ttft.Observe(after.Seconds()) }

// Describe implements prometheus.Collector.
func (*Proxied) Describe(ch chan<- *prometheus.Desc) { ProxyFamilies.Describe(ch) }

// Collect implements prometheus.Collector.
func (p *Proxied) Collect(ch chan<- prometheus.Metric) {
	metrics.Send(ch, proxyRetries, p.connect.Load(), "connect")
	metrics.Send(ch, proxyRetries, p.closed.Load(), "closed")
	for i, api := range apis {
		metrics.Send(ch, proxyBroken, p.broken[i].Load(), api)
	}
	metrics.Send(ch, proxyGone, p.gone.Load())
	if p.Connections != nil {
		open, idle := p.Connections()
		metrics.Send(ch, proxyConnections, open-idle, "used")
		metrics.Send(ch, proxyConnections, idle, "idle")
	}
	metrics.SendHistogram(ch, proxyTTFT, p.ttft)
}
