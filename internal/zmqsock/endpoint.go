package zmqsock

import (
	"net/netip"
	"strings"
)

// Bound says whether a socket is bound to endpoint instead of connected to it:
// a TCP endpoint whose host is "*" or an unspecified address (0.0.0.0, ::, with
// or without brackets) names a place to listen at (decision K14).
func Bound(endpoint string) bool {
	address, ok := strings.CutPrefix(endpoint, "tcp://")
	if !ok {
		return false
	}
	colon := strings.LastIndexByte(address, ':')
	if colon < 0 {
		return false
	}
	host := address[:colon]
	if host == "*" {
		return true
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsUnspecified()
}
