package catalog_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/select-service/select-service/pkg/catalog"
)

func policy(t *testing.T, rules ...string) catalog.EndpointPolicy {
	t.Helper()
	var p catalog.EndpointPolicy
	for _, s := range rules {
		r, err := catalog.ParseEndpointRule(s)
		if err != nil {
			t.Fatal(err)
		}
		p.Allowed = append(p.Allowed, r)
	}
	return p
}

func TestEndpointPolicy(t *testing.T) {
	private := policy(t, "tcp://10.0.0.0/8:5557", "tcp://[fd00::]/8", "tcp://[fd01::/16]:7", "tcp://192.168.0.1:*", "tcp://engines.example:6000", "tcp://*:5557")
	namesOnly := policy(t, "tcp://engines.example")
	const byAddress, refused = "by address", "not among the allowed endpoints (--allow-endpoints)"
	for _, tc := range []struct {
		policy         catalog.EndpointPolicy
		endpoint, want string // "": allowed; byAddress; else why not
	}{
		{catalog.EndpointPolicy{}, "tcp://1.2.3.4:5", ""},
		{catalog.EndpointPolicy{}, "tcp://*:5", ""},
		{catalog.EndpointPolicy{}, "ipc:///tmp/x", "unsupported scheme `ipc` without --allow-ipc"},
		{catalog.EndpointPolicy{IPC: true}, "ipc:///tmp/x", ""},
		{catalog.EndpointPolicy{IPC: true}, "inproc://monitor-1-1", "unsupported scheme `inproc`"},
		{catalog.EndpointPolicy{IPC: true}, "ws://h:1", "unsupported scheme `ws`"},
		{catalog.EndpointPolicy{IPC: true}, "udp://h:1", "unsupported scheme `udp`"},
		{private, "tcp://10.1.2.3:5557", ""},
		{private, "tcp://[::ffff:10.1.2.3]:5557", ""},
		{private, "tcp://10.1.2.3:5558", refused},
		{private, "tcp://11.1.2.3:5557", refused},
		{private, "tcp://[fd12::1]:1", ""},
		{private, "tcp://[fe80::1]:1", refused},
		{private, "tcp://192.168.0.1:1", ""},
		{private, "tcp://192.168.0.2:1", refused},
		{private, "tcp://Engines.example:6000", ""},
		{private, "tcp://engines.example:6001", byAddress},
		{private, "tcp://other.example:1", byAddress},
		{private, "tcp://*:5557", ""},
		{private, "tcp://0.0.0.0:5557", ""},
		{private, "tcp://*:5558", refused},
		{namesOnly, "tcp://engines.example:1", ""},
		{namesOnly, "tcp://other.example:1", refused},
		{namesOnly, "tcp://10.0.0.1:1", refused},
		{namesOnly, "tcp://*:1", refused},
	} {
		named, err := tc.policy.Check(tc.endpoint)
		got := ""
		switch {
		case err != nil:
			got = err.Error()
		case named:
			got = byAddress
		}
		if got != tc.want && (err == nil || !strings.HasSuffix(got, ": "+tc.want)) {
			t.Errorf("%s: %q, want %q", tc.endpoint, got, tc.want)
		}
	}
	for addr, want := range map[string]bool{"10.9.9.9:5557": true, "10.9.9.9:5558": false, "10.9.9.9:0": true, "[::ffff:10.9.9.9]:5557": true, "127.0.0.1:5557": false, "[fd00::1]:9": true} {
		at := netip.MustParseAddrPort(addr)
		if got := private.AllowsAddress(at.Addr(), at.Port()); got != want {
			t.Errorf("%s: %v, want %v", addr, got, want)
		}
	}
	if err := (catalog.EndpointPolicy{}).CheckReplay("tcp://*:1"); err == nil || !strings.HasSuffix(err.Error(), "wildcard host") {
		t.Errorf("a replay endpoint that is bound: %v", err)
	}
}

func TestParseEndpointRuleErrors(t *testing.T) {
	for _, s := range []string{"", "10.0.0.0/8", "ipc:///tmp", "tcp://", "tcp://h:0", "tcp://h:x", "tcp://h:70000", "tcp://10.0.0.0/33", "tcp://[fd00::/8", "tcp://a/b:1", "tcp://*.example:1"} {
		if r, err := catalog.ParseEndpointRule(s); err == nil {
			t.Errorf("ParseEndpointRule(%q) = %+v", s, r)
		}
	}
	if _, err := catalog.ParseEndpointRule("tcp://10.0.0.0/40:5557"); !strings.Contains(err.Error(), "want a network such as") {
		t.Error(err)
	}
}
