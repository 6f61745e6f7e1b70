package main

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/select-service/select-service/internal/config"
	"github.com/select-service/select-service/internal/engines"
)

// TestReadsOfFleet: what a replica says of its URL over NATS is read where --allow-endpoints lets it, whatever
// the port is, and on --replica-hosts; without a fleet the policy is none of dumps.
func TestReadsOfFleet(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") }))
	t.Cleanup(s.Close)
	for _, tt := range []struct {
		name          string
		rules, hosts  []string
		alone, denied bool
	}{
		{name: "no rules"},
		{name: "allowed", rules: []string{"tcp://127.0.0.0/8:5557"}},
		{name: "not allowed", rules: []string{"tcp://10.0.0.0/8"}, denied: true},
		{name: "listed", rules: []string{"tcp://10.0.0.0/8"}, hosts: []string{"127.0.0.1"}},
		{name: "no fleet", rules: []string{"tcp://10.0.0.0/8"}, alone: true},
	} {
		var conf config.Config
		conf.Access.AllowEndpoints, conf.Replicas.Hosts = tt.rules, tt.hosts
		if !tt.alone {
			conf.Fleet.Servers = []string{"nats://127.0.0.1"}
		}
		r := newReplicas(conf, nil, nil, files{}, nil)
		body, err := r.dumps.Get(t.Context(), s.URL)
		if err == nil {
			err = body.Close()
		}
		if _, denied := errors.AsType[*engines.AddressError](err); denied != tt.denied || (err != nil) != tt.denied {
			t.Errorf("%s: %v", tt.name, err)
		}
		r.close()
	}
}
