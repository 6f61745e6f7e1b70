package catalog

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// EndpointPolicy says which ZMQ endpoints of engines and replicas may be used. The
// zero value allows TCP to everywhere. `inproc` is never allowed (decision X4).
type EndpointPolicy struct {
	IPC     bool           // `ipc` is allowed
	Allowed []EndpointRule // nil: all of TCP
}

// EndpointRule allows TCP endpoints. Exactly one of Network, Name and Bound is set.
type EndpointRule struct {
	Network netip.Prefix // addresses, also those to which a host name resolves
	Name    string       // a host name, whatever its addresses are
	Bound   bool         // `*`: endpoints that this process binds
	Port    uint16       // 0: any
}

// ParseEndpointRule reads tcp://network[:port], tcp://address[:port],
// tcp://name[:port] or tcp://*[:port], where the port may be * for any, which is the
// default. A network is in CIDR notation; IPv6 is in brackets if a port follows.
func ParseEndpointRule(s string) (EndpointRule, error) {
	r, why := parseRule(s)
	if why != "" {
		return EndpointRule{}, fmt.Errorf("invalid rule for endpoints `%s`: %s", s, why)
	}
	return r, nil
}

func parseRule(s string) (r EndpointRule, why string) {
	rest, ok := strings.CutPrefix(s, "tcp://")
	if !ok {
		return r, "want tcp://network, tcp://name or tcp://*, and a port or :*"
	}
	host, port := rest, "*"
	if _, _, isNetwork := parseNetwork(rest); !isNetwork {
		if colon := strings.LastIndexByte(rest, ':'); colon >= 0 {
			host, port = rest[:colon], rest[colon+1:]
		}
	}
	if port != "*" {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return r, "the port is not in [1, 65535]"
		}
		r.Port = uint16(n)
	}
	network, why, isNetwork := parseNetwork(host)
	switch {
	case isNetwork:
		r.Network = network
	case why != "":
		return r, why
	case host == "*":
		r.Bound = true
	case strings.ContainsRune(host, '/'):
		return r, "want a network such as 10.0.0.0/8"
	case host == "" || strings.ContainsAny(host, "*[]: \t"):
		return r, "no host"
	default:
		r.Name = host
	}
	return r, ""
}

// parseNetwork reads an address or a network, with or without brackets.
func parseNetwork(s string) (network netip.Prefix, why string, ok bool) {
	if strings.HasPrefix(s, "[") {
		inside, bits, found := strings.Cut(s[1:], "]")
		if !found {
			return network, "missing closing `]`", false
		}
		s = inside + bits // [fd00::]/8 and [fd00::/8]
	}
	if addr, err := netip.ParseAddr(s); err == nil {
		return netip.PrefixFrom(addr.Unmap(), addr.Unmap().BitLen()), "", true
	}
	network, err := netip.ParsePrefix(s)
	return network.Masked(), "", err == nil
}

// Check returns an *EndpointError for an endpoint that may not be used. named reports
// that its host is a name that no rule allows by itself: then the address to which the
// name resolves must be checked with AllowsAddress.
func (p EndpointPolicy) Check(endpoint string) (named bool, err error) {
	e, err := ParseEndpoint(endpoint)
	if err != nil {
		return false, err
	}
	switch {
	case e.Scheme == "ipc" && !p.IPC:
		return false, &EndpointError{endpoint, "unsupported scheme `ipc` without --allow-ipc"}
	case e.Scheme == "inproc":
		return false, &EndpointError{endpoint, fmt.Sprintf("unsupported scheme `%s`", e.Scheme)}
	case e.Scheme != "tcp" || p.Allowed == nil:
		return false, nil
	}
	addr, notAddress := netip.ParseAddr(e.Host)
	networks := false
	for _, r := range p.Allowed {
		networks = networks || r.Network.IsValid()
		switch {
		case r.Port != 0 && r.Port != e.Port:
		case e.Wildcard && r.Bound, r.Name != "" && strings.EqualFold(r.Name, e.Host):
			return false, nil
		case !e.Wildcard && notAddress == nil && r.Network.Contains(addr.Unmap()):
			return false, nil
		}
	}
	if notAddress != nil && !e.Wildcard && networks {
		return true, nil
	}
	return false, &EndpointError{endpoint, "not among the allowed endpoints (--allow-endpoints)"}
}

// CheckReplay returns an *EndpointError for an endpoint that replay requests cannot be
// sent to: Check refuses it, or its host is a wildcard (decision K14).
func (p EndpointPolicy) CheckReplay(endpoint string) error {
	if e, err := ParseEndpoint(endpoint); err == nil && e.Wildcard {
		return &EndpointError{Endpoint: endpoint, Why: "wildcard host"}
	}
	_, err := p.Check(endpoint)
	return err
}

// AllowsName reports whether a rule names a host, whatever its addresses are, on some port at least.
func (p EndpointPolicy) AllowsName(host string) bool {
	return slices.ContainsFunc(p.Allowed, func(r EndpointRule) bool {
		return r.Name != "" && strings.EqualFold(r.Name, host)
	})
}

// AllowsAddress reports whether a connection to the address and port is allowed; with
// port 0, whether one from the address may be accepted.
func (p EndpointPolicy) AllowsAddress(addr netip.Addr, port uint16) bool {
	if p.Allowed == nil {
		return true
	}
	for _, r := range p.Allowed {
		if (port == 0 || r.Port == 0 || r.Port == port) && r.Network.Contains(addr.Unmap()) {
			return true
		}
	}
	return false
}
