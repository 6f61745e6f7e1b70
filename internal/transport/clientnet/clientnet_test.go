package clientnet_test

import (
	"net/netip"
	"testing"

	"github.com/select-service/select-service/internal/transport/clientnet"
)

// TestOf: what counts as one client.
func TestOf(t *testing.T) {
	for a, want := range map[string]string{
		"192.0.2.1":            "192.0.2.1/32",
		"::ffff:192.0.2.1":     "192.0.2.1/32",
		"2001:db8::1":          "2001:db8::/64",
		"2001:db8::ffff:1:2:3": "2001:db8::/64",
		"2001:db8:0:1::1":      "2001:db8:0:1::/64",
		"fe80::1%a":            "fe80::/64",
	} {
		if got := clientnet.Of(netip.MustParseAddr(a)); got.String() != want {
			t.Errorf("%s counts as %s, want %s", a, got, want)
		}
	}
	if got := clientnet.Of(netip.Addr{}); got != (netip.Prefix{}) {
		t.Errorf("no address counts as %v", got)
	}
}
