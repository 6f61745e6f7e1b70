package access

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// CheckOrigin refuses requests that a page of another site makes a browser send: those with an
// Origin other than the scheme, host and port of the request itself (also "null"), and those
// that Sec-Fetch-Site calls foreign, including links that were followed; programs send
// neither header.
func CheckOrigin(r *http.Request) error {
	sites := r.Header["Sec-Fetch-Site"]
	vouched := len(sites) == 1 && sites[0] == "same-origin"
	if origins, sent := r.Header["Origin"]; sent && (len(origins) != 1 || !isOwn(origins[0], r, vouched)) {
		return errForeignOrigin
	}
	for _, site := range sites {
		if site != "same-origin" && site != "none" {
			return errForeignOrigin
		}
	}
	return nil
}

var errForeignOrigin = &DeniedError{
	Status: http.StatusForbidden, Code: "foreign_origin", Text: "requests of foreign sites are refused: Origin or Sec-Fetch-Site is not this service's",
}

// isOwn reports whether an origin is the request's own target. If the browser vouches that it is
// (vouched), it may be https where we see http: a proxy ends the TLS.
func isOwn(origin string, r *http.Request, vouched bool) bool {
	scheme, port := "http", "80"
	if r.TLS != nil || vouched && strings.HasPrefix(origin, "https://") {
		scheme, port = "https", "443"
	}
	rest, ok := strings.CutPrefix(origin, scheme+"://")
	if !ok || r.Host == "" {
		return false
	}
	return strings.EqualFold(withPort(rest, port), withPort(r.Host, port))
}

// withPort appends the port if host has none.
func withPort(host, port string) string {
	if _, _, err := net.SplitHostPort(host); err == nil {
		return host
	}
	return host + ":" + port
}

// Hosts has the names under which a listener may be addressed. Without it a foreign page
// whose name resolves to this machine would pass for our own (DNS rebinding). A nil
// *Hosts allows any name.
type Hosts struct {
	names map[string]bool
	// open: the list of names may be incomplete. Programs may use any name, and browsers those that no
	// foreign page can have.
	open bool
	// certified reports whether a host is one of the listener's certificate: then a browser has checked it.
	certified func(host string) bool
}

// NewHosts returns the hosts of a listener: the allowed list and own names, and on loopback
// also the names of loopback. If the list is empty and the address is not loopback, the process cannot
// know all its names: then browsers, and nobody else, have to use one that foreign pages cannot have (isOurs),
// or one that is certified, which may be nil. "*" in the list allows all.
func NewHosts(allowed []string, listener net.Addr, certified func(host string) bool, own ...string) *Hosts {
	h := &Hosts{names: make(map[string]bool), open: len(allowed) == 0 && !IsLoopback(listener), certified: certified}
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

// IsLoopback reports whether an address can be reached only from its own machine.
func IsLoopback(a net.Addr) bool {
	if a.Network() == "unix" {
		return true
	}
	at, err := netip.ParseAddrPort(a.String())
	return err == nil && at.Addr().Unmap().IsLoopback()
}

// fromBrowser reports whether a browser may have sent a request. Browsers send an Origin with whatever is not
// GET or HEAD (Fetch standard, "append a request Origin header"), and Sec-Fetch-Site where the connection is
// trusted (Fetch Metadata, "set the metadata headers"). The rest are GETs of a page to its own host over plain
// HTTP: these have an Accept-Language, or a User-Agent that begins as all browsers' does, and no page can take
// both away. Node's fetch and PowerShell are no browsers: the one sends Sec-Fetch-Mode without
// Sec-Fetch-Site, which no browser does, the other names itself.
func fromBrowser(r *http.Request) bool {
	_, origin := r.Header["Origin"]
	_, site := r.Header["Sec-Fetch-Site"]
	if origin || site {
		return true
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return false
	}
	_, mode := r.Header["Sec-Fetch-Mode"]
	_, language := r.Header["Accept-Language"]
	agent := r.Header.Get("User-Agent")
	return !mode && (language || strings.HasPrefix(agent, "Mozilla/") && !strings.Contains(agent, "PowerShell/"))
}

// isOurs reports whether no page of the internet can have a host: an address, which resolves to nothing else, a
// name without dots, and names in a cluster or of the loopback.
func isOurs(host string) bool {
	if _, err := netip.ParseAddr(host); err == nil || !strings.Contains(host, ".") {
		return true
	}
	for _, zone := range [...]string{".svc", ".svc.cluster.local", ".localhost"} {
		if strings.HasSuffix(host, zone) {
			return true
		}
	}
	return false
}

// Check refuses a request whose Host is not one of the listener's. The local address of the
// connection is always allowed, and on loopback also localhost and all loopback addresses. A
// request without a host passes: browsers always send one.
func (h *Hosts) Check(r *http.Request) error {
	if h == nil || r.Host == "" || h.open && !fromBrowser(r) {
		return nil
	}
	host := canonical(r.Host)
	if h.names[host] || h.open && (isOurs(host) || h.certified != nil && h.certified(host)) {
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
	case err == nil && asked.Unmap() == at.Addr().Unmap().WithZone(""),
		err == nil && loopback && asked.Unmap().IsLoopback(),
		loopback && (host == "localhost" || strings.HasSuffix(host, ".localhost")):
		return nil
	}
	return errForeignHost
}

var errForeignHost = &DeniedError{
	Status: http.StatusForbidden, Code: "foreign_host", Text: "the Host of the request is not one of this service; see --allowed-hosts",
}

// canonical returns a host in lower case, without port, brackets, final dot and the zone of an IPv6
// address, which means something on the client's machine only (RFC 6874).
func canonical(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if strings.Contains(host, ":") {
		host, _, _ = strings.Cut(host, "%")
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}
