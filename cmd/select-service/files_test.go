package main

import (
	"io"
	"net/url"
	"strings"
	"testing"

	"github.com/select-service/select-service/internal/transport/certs"
)

// TestIsPeer: the token goes to named URLs and to the hosts whose reservations are
// followed, whatever their port.
func TestIsPeer(t *testing.T) {
	named, followed := []string{"https://a:8092/x"}, []string{"tcp://10.0.0.1:9000", "ipc:///tmp/x", "nats://replica"}
	for text, want := range map[string]bool{
		"https://a:8092/dump":  true,
		"http://a:8092/dump":   false,
		"https://a:8093/dump":  false,
		"https://ab:8092/dump": false,
		"https://10.0.0.1:1/":  true,
		"https://10.0.0.11:1/": false,
		"https:///dump":        false,
		"https://replica/dump": false,
	} {
		u, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := isPeer(u, named, followed); got != want {
			t.Errorf("%s: %t, want %t", text, got, want)
		}
	}
}

// TestBadFiles: files that cannot be used are faults of the configuration.
func TestBadFiles(t *testing.T) {
	for want, args := range map[string][]string{
		"certificates of the listeners: ":                {"--tls-cert=/nowhere", "--tls-key=/nowhere"},
		"certificates for other replicas: ":              {"--peer-ca=/nowhere"},
		"token for other replicas: ":                     {"--peer-token-file=/nowhere"},
		"2 faults:\n  certificates for other replicas: ": {"--peer-ca=/nowhere", "--tokens-file=/nowhere"},
		"--tls-client-ca: needs --tls-cert":              {"--tls-client-ca=/nowhere"},
		"--tls-cert: needs --tls-key":                    {"--tls-cert=/nowhere"},
		"--peer-key: needs --peer-cert":                  {"--peer-key=/nowhere"},
		`--debug-listen: "6060" is not HOST:PORT`:        {"--debug-listen=6060"},
		`--admin-listen: ":99999": port 99999 is no`:     {"--admin-listen=:99999"},
	} {
		for _, args := range [][]string{args, append(args, "--check-config")} {
			err := run(t.Context(), args, env(), io.Discard, io.Discard)
			if err == nil || !strings.Contains(err.Error(), want) || status(err, io.Discard) != 2 {
				t.Errorf("%v: %v, want %q", args, err, want)
			}
		}
	}
}

// TestOpenness: a listener is a warning until it is encrypted and its callers are known.
func TestOpenness(t *testing.T) {
	for _, tc := range []struct {
		l    listener
		want string
	}{
		{listener{}, "neither encrypted (--tls-cert) nor authenticated (--tokens-file)"},
		{listener{anyHost: true}, "by others only with --allowed-hosts"},
		{listener{tokens: true, anyHost: true}, "not encrypted"},
		{listener{secure: new(certs.Side)}, "neither --tokens-file nor --tls-client-ca"},
		{listener{secure: new(certs.Side), clientCA: true}, ""},
		{listener{secure: new(certs.Side), tokens: true}, ""},
	} {
		if got := tc.l.openness(); !strings.Contains(got, tc.want) || (tc.want == "") != (got == "") {
			t.Errorf("%+v: %q, want %q", tc.l, got, tc.want)
		}
	}
}
