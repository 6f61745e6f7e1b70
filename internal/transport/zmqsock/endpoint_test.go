package zmqsock

import (
	"testing"

	"github.com/select-service/select-service/pkg/catalog"
)

// What is bound, connected and looked up; and what no socket is opened to.
func TestParseTarget(t *testing.T) {
	for endpoint, want := range map[string]target{
		"tcp://w1:5557":             {network: "tcp", host: "w1", port: "5557", named: true, trusted: true},
		"tcp://my_pod-0.svc.:5557":  {network: "tcp", host: "my_pod-0.svc.", port: "5557", named: true, trusted: true},
		"tcp://256.1.1.1:5557":      {network: "tcp", host: "256.1.1.1", port: "5557", named: true, trusted: true},
		"tcp://127.0.0.1:5557":      {network: "tcp", host: "127.0.0.1", port: "5557", trusted: true},
		"tcp://[::1]:5557":          {network: "tcp", host: "::1", port: "5557", trusted: true},
		"tcp://[fe80::1%eth0]:5557": {network: "tcp", host: "fe80::1%eth0", port: "5557", trusted: true},
		"tcp://*:5557":              {network: "tcp", port: "5557", bound: true, trusted: true},
		"tcp://0.0.0.0:5557":        {network: "tcp", host: "0.0.0.0", port: "5557", bound: true, trusted: true},
		"ipc:///tmp/w1:1":           {network: "unix", host: "/tmp/w1:1", trusted: true},
	} {
		if got, err := parseTarget(endpoint, catalog.EndpointPolicy{IPC: true}); err != nil || got != want {
			t.Errorf("parseTarget(%q) = %+v, %v, want %+v", endpoint, got, err, want)
		}
	}
	for _, endpoint := range []string{
		"", "w1:5557", "tcp://w1", "tcp://:5557", "tcp://w1:", "tcp://w1:http", "tcp://w 1:5", "tcp://w1/x:5", "tcp://wörker:5",
		"tcp://127.0.0.1:0", "tcp://eth0;w1:5557", "ipc:///tmp/w1", "inproc://w1", "udp://w1:1", "ws://w1:1", "pgm://w1:1", "vmci://1:1",
	} {
		if got, err := parseTarget(endpoint, catalog.EndpointPolicy{}); err == nil {
			t.Errorf("parseTarget(%q) = %+v, want an error", endpoint, got)
		}
	}
}
