package zmqsock

import (
	"net/netip"
	"strings"
	"syscall"

	"github.com/pebbe/zmq4"
)

// Bound reports whether a socket is bound to endpoint instead of connected to it:
// a TCP endpoint whose host is "*" or an unspecified address (0.0.0.0, ::, with
// or without brackets) names a place to listen at (decision K14).
func Bound(endpoint string) bool {
	before, host, _, ok := splitTCP(endpoint)
	if !ok || before != tcp {
		return false
	}
	if host == "*" {
		return true
	}
	ip, err := netip.ParseAddr(unbracket(host))
	return err == nil && ip.IsUnspecified()
}

const tcp = "tcp://"

// splitTCP splits tcp://[source;]host:port around its host.
func splitTCP(endpoint string) (before, host, port string, ok bool) {
	address, ok := strings.CutPrefix(endpoint, tcp)
	if !ok {
		return "", "", "", false
	}
	colon := strings.LastIndexByte(address, ':')
	if colon < 0 {
		return "", "", "", false
	}
	start := strings.LastIndexByte(address[:colon], ';') + 1
	return tcp + address[:start], address[start:colon], address[colon+1:], true
}

func unbracket(host string) string {
	return strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
}

// target is an endpoint to connect to whose host is a name.
type target struct{ before, host, port string }

// parseTarget reads an endpoint that is connected to. named is false for one
// that libzmq can connect to without looking anything up, or refuses.
func parseTarget(endpoint string) (t target, named bool, err error) {
	before, host, port, ok := splitTCP(endpoint)
	t = target{before, unbracket(host), port}
	if !ok || t.host == "" || t.host == "*" {
		return t, false, nil
	}
	if _, err := netip.ParseAddr(t.host); err == nil {
		return t, false, nil
	}
	if !validAddress(strings.TrimPrefix(before, tcp)+host, port) {
		return t, true, zmq4.Errno(syscall.EINVAL) // as libzmq says
	}
	return t, true, nil
}

// validAddress makes the check that libzmq 4.3 makes before it looks a name up.
func validAddress(host, port string) bool {
	invalid := func(r rune) bool { return !alphanumeric(r) && !strings.ContainsRune(".-_:;%*[]", r) }
	first := rune(host[0])
	return (alphanumeric(first) || first == '[' || first == ':') && !strings.ContainsFunc(host, invalid) &&
		port != "" && '0' <= port[0] && port[0] <= '9'
}

func alphanumeric(r rune) bool {
	return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9'
}

// at returns the endpoint with an address in the place of the name.
func (t target) at(a netip.Addr) string {
	if a.Is6() {
		return t.before + "[" + a.String() + "]:" + t.port
	}
	return t.before + a.String() + ":" + t.port
}
