package catalog

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Endpoint is a ZMQ endpoint in its parts.
type Endpoint struct {
	Scheme string // tcp, ipc or inproc
	Host   string // tcp: name or address without brackets; else what follows the scheme
	Port   uint16 // tcp only
	// Wildcard: the host stands for all local addresses, so this end binds.
	Wildcard bool
}

// EndpointError says why a string is not a ZMQ endpoint, or not an allowed one.
// The texts about its form are those of dynamo-kv-router 1.3.1.
type EndpointError struct{ Endpoint, Why string }

// Error names the endpoint and says what is wrong with it.
func (e *EndpointError) Error() string {
	return fmt.Sprintf("invalid ZMQ endpoint `%s`: %s", e.Endpoint, e.Why)
}

// ParseEndpoint reads `tcp://host:port`, `tcp://[v6]:port`, `ipc://path` or
// `inproc://name`. Names are not resolved. An error is an *EndpointError.
func ParseEndpoint(s string) (Endpoint, error) {
	e, why := parseEndpoint(s)
	if why != "" {
		return Endpoint{}, &EndpointError{Endpoint: s, Why: why}
	}
	return e, nil
}

func parseEndpoint(s string) (e Endpoint, why string) {
	scheme, rest, ok := strings.Cut(s, "://")
	switch {
	case !ok:
		return e, "missing scheme"
	case rest == "":
		return e, "missing address"
	case scheme == "tcp":
		return parseTCP(rest)
	case scheme == "ipc" || scheme == "inproc":
		return Endpoint{Scheme: scheme, Host: rest}, ""
	}
	return e, fmt.Sprintf("unsupported scheme `%s`", scheme)
}

func parseTCP(rest string) (e Endpoint, why string) {
	colon := strings.LastIndexByte(rest, ':')
	if colon < 0 {
		return e, "missing TCP port"
	}
	host, port := rest[:colon], rest[colon+1:]
	switch {
	case host == "":
		return e, "missing TCP host"
	case host[0] == '[' && host[len(host)-1] != ']':
		return e, "missing closing `]`"
	case host[0] == '[':
		if host = host[1 : len(host)-1]; host == "" {
			return e, "missing TCP host"
		}
	case strings.Contains(host, ":"):
		return e, "missing TCP port"
	}
	n, why := parsePort(port)
	if why != "" {
		return e, "invalid TCP port: " + why
	}
	return Endpoint{Scheme: "tcp", Host: host, Port: n, Wildcard: wildcard(host)}, ""
}

// parsePort gives the error texts of Rust's integer parser, because they are part
// of the contract's texts.
func parsePort(s string) (port uint16, why string) {
	if s == "" {
		return 0, "cannot parse integer from empty string"
	}
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return 0, "invalid digit found in string"
		}
	}
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil {
		return 0, "number too large to fit in target type"
	}
	return uint16(n), ""
}

func wildcard(host string) bool {
	if host == "*" {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.IsUnspecified()
}
