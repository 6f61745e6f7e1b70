package gateway

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
)

// endpoint is the address of a rank's HTTP server in Envoy's form.
type endpoint struct {
	text string // ip:port, an IPv6 address in brackets
	ip   string // without brackets
}

// endpoints resolves the URLs of workers to addresses (decision G5). It is safe for concurrent
// use.
type endpoints struct {
	lookUp func(ctx context.Context, network, host string) ([]netip.Addr, error)
	now    func() time.Time

	mu    sync.RWMutex // guards known
	known map[string]resolved
}

// resolved is a remembered endpoint.
type resolved struct {
	endpoint
	until time.Time // when a host name is looked up again; zero: never, the URL has an address
}

const (
	// nameFor is how long the address of a host name is remembered. The resolver does not
	// report the record's time to live.
	nameFor = 30 * time.Second
	// maxEndpoints bounds the remembered endpoints. It is far above the number of ranks, since
	// the URLs of workers that have left stay until it is reached.
	maxEndpoints = 1 << 18
)

func newEndpoints() *endpoints {
	return &endpoints{lookUp: net.DefaultResolver.LookupNetIP, now: time.Now, known: make(map[string]resolved)}
}

// of returns the endpoint of a worker's rank. needsRank reports whether the request must name
// the rank to the engine, because several ranks share the endpoint.
func (e *endpoints) of(ctx context.Context, w *catalog.Worker, dp uint32) (at endpoint, needsRank bool, err error) {
	if own := w.RankEndpoints[dp]; own != "" {
		at, err = e.resolve(ctx, own)
		return at, false, err
	}
	at, err = e.resolve(ctx, w.Address())
	return at, w.RankCount() > 1, err
}

// resolve returns the endpoint of a URL. If a host name cannot be looked up, its last address
// is returned.
func (e *endpoints) resolve(ctx context.Context, text string) (endpoint, error) {
	e.mu.RLock()
	old, ok := e.known[text]
	e.mu.RUnlock()
	if ok && (old.until.IsZero() || e.now().Before(old.until)) {
		return old.endpoint, nil
	}
	host, port, err := hostPort(text)
	if err != nil {
		return endpoint{}, err
	}
	var r resolved
	addr, err := netip.ParseAddr(host)
	if err != nil {
		all, err := e.lookUp(ctx, "ip", host)
		switch {
		case err != nil && ok: // the last known address is the best guess
			return old.endpoint, nil
		case err != nil:
			return endpoint{}, fmt.Errorf("resolve endpoint %s: %w", catalog.Clip(text), err)
		}
		if len(all) == 0 {
			return endpoint{}, fmt.Errorf("resolve endpoint %s: no address", catalog.Clip(text))
		}
		addr, r.until = all[0], e.now().Add(nameFor)
		// Of a name with addresses of both kinds, such as localhost, engines listen on the IPv4
		// one by default, and Envoy knows them by it.
		if i := slices.IndexFunc(all, func(a netip.Addr) bool { return a.Unmap().Is4() }); i >= 0 {
			addr = all[i]
		}
	}
	addr = addr.Unmap()
	r.endpoint = endpoint{text: net.JoinHostPort(addr.String(), port), ip: addr.String()}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.known) >= maxEndpoints {
		clear(e.known)
	}
	e.known[text] = r
	return r.endpoint, nil
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
