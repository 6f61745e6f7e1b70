package catalog_test

import (
	"errors"
	"testing"

	"github.com/select-service/select-service/pkg/catalog"
)

// TestParseEndpoint fixes the accepted forms and the text of every refusal.
func TestParseEndpoint(t *testing.T) {
	good := map[string]catalog.Endpoint{
		"tcp://127.0.0.1:5557":  {Scheme: "tcp", Host: "127.0.0.1", Port: 5557},
		"tcp://engine-0.pod:1":  {Scheme: "tcp", Host: "engine-0.pod", Port: 1},
		"tcp://[::1]:65535":     {Scheme: "tcp", Host: "::1", Port: 65535},
		"tcp://h:0":             {Scheme: "tcp", Host: "h"},
		"tcp://*:5557":          {Scheme: "tcp", Host: "*", Port: 5557, Wildcard: true},
		"tcp://0.0.0.0:5557":    {Scheme: "tcp", Host: "0.0.0.0", Port: 5557, Wildcard: true},
		"tcp://[::]:5557":       {Scheme: "tcp", Host: "::", Port: 5557, Wildcard: true},
		"tcp://[0:0::0:0]:5557": {Scheme: "tcp", Host: "0:0::0:0", Port: 5557, Wildcard: true},
		"ipc:///run/a:b":        {Scheme: "ipc", Host: "/run/a:b"},
		"ipc://*":               {Scheme: "ipc", Host: "*"},
		"inproc://x":            {Scheme: "inproc", Host: "x"},
	}
	for s, want := range good {
		if got, err := catalog.ParseEndpoint(s); err != nil || got != want {
			t.Errorf("ParseEndpoint(%q) = %+v, %v, want %+v", s, got, err, want)
		}
	}
	bad := map[string]string{
		"":                "missing scheme",
		"nope":            "missing scheme",
		"tcp:/h:1":        "missing scheme",
		"tcp://":          "missing address",
		"ipc://":          "missing address",
		"x://":            "missing address",
		"tcp://h":         "missing TCP port",
		"tcp://a:b:5":     "missing TCP port",
		"tcp://::1:5":     "missing TCP port",
		"tcp://:5":        "missing TCP host",
		"tcp://[]:5":      "missing TCP host",
		"tcp://[::1":      "missing closing `]`",
		"tcp://[::1:5":    "missing closing `]`",
		"tcp://[::1]":     "missing closing `]`",
		"tcp://[:5":       "missing closing `]`",
		"tcp://h:":        "invalid TCP port: cannot parse integer from empty string",
		"tcp://h:x":       "invalid TCP port: invalid digit found in string",
		"tcp://*:*":       "invalid TCP port: invalid digit found in string",
		"tcp://h:-1":      "invalid TCP port: invalid digit found in string",
		"tcp://h:+1":      "invalid TCP port: invalid digit found in string",
		"tcp://h:65536":   "invalid TCP port: number too large to fit in target type",
		"tcp://h:9999999": "invalid TCP port: number too large to fit in target type",
		"TCP://h:1":       "unsupported scheme `TCP`",
		"http://h:1":      "unsupported scheme `http`",
		"://h":            "unsupported scheme ``",
	}
	for s, why := range bad {
		_, err := catalog.ParseEndpoint(s)
		var typed *catalog.EndpointError
		if want := "invalid ZMQ endpoint `" + s + "`: " + why; !errors.As(err, &typed) || err.Error() != want {
			t.Errorf("ParseEndpoint(%q) = %v, want %s", s, err, want)
		}
	}
}

// FuzzParseEndpoint: no input makes the parser panic, and what it accepts has
// the parts that it reports.
func FuzzParseEndpoint(f *testing.F) {
	for _, s := range []string{"tcp://[::1]:5", "tcp://[", "tcp://]:1", "ipc://x", "tcp://:", "://"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		e, err := catalog.ParseEndpoint(s)
		if err == nil && (e.Scheme == "" || e.Host == "") {
			t.Errorf("ParseEndpoint(%q) = %+v without an error", s, e)
		}
	})
}
