package access

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// CheckOrigin refuses what a page of another site makes a browser send: a request
// with an Origin other than the scheme, host and port that it came to ("null" too),
// or one that Sec-Fetch-Site calls foreign, a link that was followed included. The
// service has no pages of its own. Programs send neither header.
func CheckOrigin(r *http.Request) error {
	if origins, sent := r.Header["Origin"]; sent && (len(origins) != 1 || !isOwn(origins[0], r)) {
		return errForeignOrigin
	}
	for _, site := range r.Header["Sec-Fetch-Site"] {
		if site != "same-origin" && site != "none" {
			return errForeignOrigin
		}
	}
	return nil
}

var errForeignOrigin = &DeniedError{
	Status: http.StatusForbidden, Code: "foreign_origin", Text: "requests of foreign sites are refused: Origin or Sec-Fetch-Site is not this service's",
}

// isOwn reports whether an origin is that of the request's target.
func isOwn(origin string, r *http.Request) bool {
	scheme, port := "http", "80"
	if r.TLS != nil {
		scheme, port = "https", "443"
	}
	rest, ok := strings.CutPrefix(origin, scheme+"://")
	if !ok || r.Host == "" {
		return false
	}
	return strings.EqualFold(withPort(rest, port), withPort(r.Host, port))
}

// withPort adds the port that a host leaves out.
func withPort(host, port string) string {
	if _, _, err := net.SplitHostPort(host); err == nil {
		return host
	}
	return host + ":" + port
}

// Hosts are the names under which a listener may be addressed. They keep the page of
// a foreign site, whose name is made to resolve to this machine, from passing for our
// own (DNS rebinding). A nil *Hosts allows any name.
type Hosts struct {
	names map[string]bool
}

// NewHosts returns the hosts of a listener at an address: allowed, own names and, on
// loopback, the names of that; nil if there is no list and the address is not
// loopback, since then the process cannot know its names. In the list, "*" allows
// all.
func NewHosts(allowed []string, listener net.Addr, own ...string) *Hosts {
	if len(allowed) == 0 && !IsLoopback(listener) {
		return nil
	}
	h := &Hosts{names: make(map[string]bool)}
	for _, name := range allowed {
		if name == "*" {
			return nil
		}
		h.names[canonical(name)] = true
	}
	for _, name := range own {
		h.names[canonical(name)] = true
	}
	return h
}

// IsLoopback reports whether an address is reached from its own machine only.
func IsLoopback(a net.Addr) bool {
	if a.Network() == "unix" {
		return true
	}
	at, err := netip.ParseAddrPort(a.String())
	return err == nil && at.Addr().Unmap().IsLoopback()
}

// Check refuses a request for a host that is not the listener's. The address at which
// the connection came is always one of it, and so are on loopback localhost and all
// loopback addresses. A request without a host is no browser's.
func (h *Hosts) Check(r *http.Request) error {
	if h == nil || r.Host == "" {
		return nil
	}
	host := canonical(r.Host)
	if h.names[host] {
		return nil
	}
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if local == nil {
		return errForeignHost
	}
	at, err := netip.ParseAddrPort(local.String())
	if err != nil {
		return errForeignHost
	}
	asked, err := netip.ParseAddr(host)
	switch loopback := at.Addr().Unmap().IsLoopback(); {
	case err == nil && asked.Unmap() == at.Addr().Unmap(),
		err == nil && loopback && asked.Unmap().IsLoopback(),
		loopback && (host == "localhost" || strings.HasSuffix(host, ".localhost")):
		return nil
	}
	return errForeignHost
}

var errForeignHost = &DeniedError{
	Status: http.StatusForbidden, Code: "foreign_host", Text: "the Host of the request is not one of this service; see --allowed-hosts",
}

// canonical is a host without port, brackets and final dot, in lower case.
func canonical(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	return strings.ToLower(strings.TrimSuffix(host, "."))
}
