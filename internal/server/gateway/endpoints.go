package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/pkg/catalog"
)

// endpoint is the address of a rank's HTTP server in Envoy's form.
type endpoint struct {
	text string // ip:port, an IPv6 address in brackets
	ip   string // without brackets
	url  string // the server's URL, or its host:port, as the worker's record has it
}

// endpoints resolves the URLs of workers to addresses (decision G5). It is safe for concurrent
// use.
type endpoints struct {
	lookUp func(ctx context.Context, network, host string) ([]netip.Addr, error)
	now    func() time.Time
	log    zerolog.Logger

	mu       sync.RWMutex // guards resolved
	resolved map[string]resolved
}

// resolved is a remembered endpoint.
type resolved struct {
	endpoint
	err   error     // the host name has no address yet, and endpoint is empty
	until time.Time // when a host name is looked up again; zero: never, the URL has an address
}

const (
	// nameFor is how long the address of a host name is remembered. The resolver does not
	// report the record's time to live.
	nameFor = 30 * time.Second
	// retryNameAfter is the time between two look-ups of a host name that fail: requests must not
	// each wait for the resolver.
	retryNameAfter = 2 * time.Second
	// maxEndpoints bounds the remembered endpoints. It is far above the number of ranks, since
	// the URLs of workers that have left stay until it is reached.
	maxEndpoints = 1 << 18
)

func newEndpoints(log zerolog.Logger) *endpoints {
	return &endpoints{lookUp: net.DefaultResolver.LookupNetIP, now: time.Now, log: log, resolved: make(map[string]resolved)}
}

// of returns the endpoint of a worker's rank.
func (e *endpoints) of(ctx context.Context, w *catalog.Worker, dp uint32) (endpoint, error) {
	return e.resolve(ctx, urlOf(w, dp))
}

func urlOf(w *catalog.Worker, dp uint32) string {
	if own := w.RankEndpoints[dp]; own != "" {
		return own
	}
	return w.Address()
}

// known returns the endpoint of a worker's rank if that needs no look-up of a host name.
func (e *endpoints) known(w *catalog.Worker, dp uint32) (at endpoint, ok bool) {
	text := urlOf(w, dp)
	e.mu.RLock()
	old, ok := e.resolved[text]
	e.mu.RUnlock()
	if ok {
		return old.endpoint, old.err == nil
	}
	if host, port, err := hostPort(text); err == nil {
		if addr, err := netip.ParseAddr(host); err == nil {
			return endpointOf(text, addr, port), true
		}
	}
	return endpoint{}, false
}

func endpointOf(url string, addr netip.Addr, port string) endpoint {
	addr = addr.Unmap()
	return endpoint{text: net.JoinHostPort(addr.String(), port), ip: addr.String(), url: url}
}

// resolve returns the endpoint of a URL. If a host name cannot be looked up, its last address
// is returned.
func (e *endpoints) resolve(ctx context.Context, text string) (endpoint, error) {
	e.mu.RLock()
	old, ok := e.resolved[text]
	e.mu.RUnlock()
	if ok && (old.until.IsZero() || e.now().Before(old.until)) {
		return old.endpoint, old.err
	}
	host, port, err := hostPort(text)
	if err != nil {
		return endpoint{}, err
	}
	var r resolved
	if addr, err := netip.ParseAddr(host); err == nil {
		r.endpoint = endpointOf(text, addr, port)
	} else if addr, err = e.address(ctx, host); err == nil {
		r.endpoint, r.until = endpointOf(text, addr, port), e.now().Add(nameFor)
	} else {
		if ok && old.err == nil { // the last known address is the best guess
			r = old
		} else {
			r.err = fmt.Errorf("resolve endpoint %s: %w", catalog.Clip(text), err)
		}
		if ctx.Err() != nil { // says nothing about the name
			return r.endpoint, r.err
		}
		r.until = e.now().Add(retryNameAfter)
		e.log.Warn().Err(err).Str("endpoint", catalog.Clip(text)).Str("address", r.text).Msg("a worker's host name is not found; without an address it gets no request")
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.resolved) >= maxEndpoints {
		clear(e.resolved)
	}
	e.resolved[text] = r
	return r.endpoint, r.err
}

// address looks a host name up. Of a name with addresses of both kinds, such as localhost,
// engines listen on the IPv4 one by default, and Envoy knows them by it.
func (e *endpoints) address(ctx context.Context, host string) (netip.Addr, error) {
	all, err := e.lookUp(ctx, "ip", host)
	switch {
	case err != nil:
		return netip.Addr{}, err
	case len(all) == 0:
		return netip.Addr{}, errors.New("no address")
	}
	if i := slices.IndexFunc(all, func(a netip.Addr) bool { return a.Unmap().Is4() }); i >= 0 {
		return all[i], nil
	}
	return all[0], nil
}

// hostPort splits the URL of a worker, or plain host:port. The port of a URL without one is its
// scheme's.
func hostPort(text string) (host, port string, err error) {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" {
		if host, port, err = net.SplitHostPort(text); err == nil && port != "" {
			return host, port, nil
		}
		return "", "", fmt.Errorf("endpoint %s is neither a URL nor host:port", catalog.Clip(text))
	}
	fallback := "80"
	if u.Scheme == "https" {
		fallback = "443"
	}
	return u.Hostname(), cmp.Or(u.Port(), fallback), nil
}
