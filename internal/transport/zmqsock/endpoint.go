package zmqsock

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"github.com/select-service/select-service/pkg/catalog"
)

// Bound reports whether a socket is bound to endpoint instead of connected to it:
// a TCP endpoint whose host is "*" or an unspecified address (0.0.0.0, ::, with
// or without brackets) names a place to listen at (decision K14).
func Bound(endpoint string) bool {
	e, err := catalog.ParseEndpoint(endpoint)
	return err == nil && e.Wildcard
}

// target is where a socket is bound or connected to.
type target struct {
	network string // tcp or unix
	host    string // a name or an address; of unix a path
	port    string
	bound   bool
	named   bool // host is a name to look up
	// trusted: the policy has accepted the address, or need not be asked.
	trusted bool
}

// parseTarget reads an endpoint that the policy allows.
func parseTarget(endpoint string, policy catalog.EndpointPolicy) (target, error) {
	byAddress, err := policy.Check(endpoint)
	if err != nil {
		return target{}, err
	}
	e, err := catalog.ParseEndpoint(endpoint)
	if err != nil {
		return target{}, err
	}
	if e.Scheme == "ipc" {
		return target{network: "unix", host: e.Host, trusted: true}, nil
	}
	t := target{network: "tcp", host: e.Host, port: strconv.Itoa(int(e.Port)), bound: e.Wildcard, trusted: !byAddress}
	_, notAddress := netip.ParseAddr(e.Host)
	t.named = notAddress != nil && !e.Wildcard
	switch {
	case t.bound && e.Host == "*":
		t.host = ""
	case !t.bound && e.Port == 0:
		return target{}, fmt.Errorf("invalid ZMQ endpoint `%s`: port 0", endpoint)
	case t.named && !validName(e.Host):
		return target{}, fmt.Errorf("invalid ZMQ endpoint `%s`: invalid host name", endpoint)
	}
	return t, nil
}

// validName reports whether s can be looked up: not what would have to be quoted,
// nor the `source;` that libzmq knows.
func validName(s string) bool {
	for _, r := range s {
		letter := 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9'
		if !letter && r != '.' && r != '-' && r != '_' {
			return false
		}
	}
	return s != ""
}

// address returns the target's address for package net, with host instead of its own host.
func (t target) address(host string) string {
	if t.network == "unix" {
		return host
	}
	return net.JoinHostPort(host, t.port)
}
