package zmqsock

import (
	"net/netip"
	"testing"
)

// Which endpoints are looked up, and as what; IP addresses and what is no TCP
// are libzmq's business.
func TestParseTarget(t *testing.T) {
	for endpoint, want := range map[string]string{ // to the endpoint with an address in it
		"tcp://w1:5557":                   "tcp://[::1]:5557",
		"tcp://localhost:5557":            "tcp://[::1]:5557",
		"tcp://my_pod-0.svc.:5557":        "tcp://[::1]:5557",
		"tcp://[w1]:5557":                 "tcp://[::1]:5557",
		"tcp://256.1.1.1:5557":            "tcp://[::1]:5557",
		"tcp://10.0.0.1:0;w1:5557":        "tcp://10.0.0.1:0;[::1]:5557",
		"tcp://127.0.0.1:5557":            "",
		"tcp://[::1]:5557":                "",
		"tcp://::1:5557":                  "",
		"tcp://[fe80::1%eth0]:5557":       "",
		"tcp://10.0.0.1:0;127.0.0.1:5557": "",
		"tcp://*:5557":                    "",
		"tcp://:5557":                     "",
		"tcp://w1":                        "",
		"ipc:///tmp/w1:1":                 "",
		"inproc://w1:1":                   "",
		"w1:5557":                         "",
	} {
		target, named, err := parseTarget(endpoint)
		got := ""
		if named {
			got = target.at(netip.MustParseAddr("::1"))
		}
		if got != want || err != nil {
			t.Errorf("parseTarget(%q) leads to %q, error %v, want %q", endpoint, got, err, want)
		}
	}
	for _, endpoint := range []string{"tcp://w1:", "tcp://w1:http", "tcp://w 1:5", "tcp://-w1:5", "tcp://w1/x:5", "tcp://wörker:5"} {
		if _, named, err := parseTarget(endpoint); !named || err == nil || err.Error() != "invalid argument" {
			t.Errorf("parseTarget(%q): error %v, want invalid argument", endpoint, err)
		}
	}
}
