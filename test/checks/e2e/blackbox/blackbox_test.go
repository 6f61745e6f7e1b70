// Package blackbox drives the built service from outside: its command line,
// HTTP, ZMQ and signals, with what goes wrong around a service in production.
package blackbox_test

import (
	"fmt"
	"net/http"
	"strconv"
	"testing"

	"github.com/select-service/select-service/test/checks/e2e"
)

type (
	object = e2e.Object
	load   = e2e.Load
)

// service is a running service. A connection to it lasts for one request, so that it
// counts for no descriptor afterwards.
type service struct{ *e2e.Service }

// start starts a service on a free port and waits until it answers.
func start(t *testing.T, env map[string]string, args ...string) *service {
	t.Helper()
	port := e2e.FreePort(t)
	return launch(t, port, env, append([]string{"--port", strconv.Itoa(port)}, args...)...)
}

// launch starts the program with exactly these arguments and waits until it
// answers at the port.
func launch(t *testing.T, port int, env map[string]string, args ...string) *service {
	t.Helper()
	s := e2e.New(t, e2e.Options{
		Command: append([]string{e2e.Binary(t)}, args...), Env: env, Address: fmt.Sprintf("127.0.0.1:%d", port),
	})
	s.HTTP = &http.Client{Timeout: e2e.Patience, Transport: &http.Transport{DisableKeepAlives: true}}
	s.Run()
	return &service{s}
}

// register puts n equal workers, ids from 1, that listen to no events.
func (s *service) register(t *testing.T, n int) {
	t.Helper()
	for id := 1; id <= n; id++ {
		s.Must(t, http.StatusCreated, "POST", "/workers", object{
			"worker_id": id, "endpoint": fmt.Sprintf("http://w%d:8000", id), "block_size": 4, "max_num_batched_tokens": 1024,
		}, nil)
	}
}

// loads is the part of /loads of the scope that is used by default.
func (s *service) loads(t *testing.T) e2e.ScopeLoads {
	t.Helper()
	var scopes []e2e.ScopeLoads
	s.Must(t, http.StatusOK, "GET", "/loads?model_name=default&tenant_id=default", nil, &scopes)
	if len(scopes) != 1 {
		t.Fatalf("/loads: %d scopes, want 1", len(scopes))
	}
	return scopes[0]
}

// use is what a process holds.
type use struct{ goroutines, threads, descriptors int }

func (s *service) use(t *testing.T) use {
	t.Helper()
	u := use{goroutines: s.Metric(t, "go_goroutines")}
	var err error
	if u.threads, err = s.Status("Threads"); err != nil {
		t.Fatal(err)
	}
	if u.descriptors, err = s.Descriptors(); err != nil {
		t.Fatal(err)
	}
	return u
}

// settles waits until the process holds no more than before. The slack is for
// what the Go runtime keeps for itself: threads that were blocked once stay.
func (s *service) settles(t *testing.T, before use) {
	t.Helper()
	slack := use{goroutines: 2, threads: 12, descriptors: 4}
	e2e.Eventually(t, "goroutines, threads and descriptors are back", func() error {
		now := s.use(t)
		if now.goroutines > before.goroutines+slack.goroutines || now.threads > before.threads+slack.threads ||
			now.descriptors > before.descriptors+slack.descriptors {
			return fmt.Errorf("%+v, before %+v", now, before)
		}
		return nil
	})
}

// eventsOff is the environment of a service without KV events.
func eventsOff(more ...string) map[string]string {
	env := map[string]string{"DYN_USE_KV_EVENTS": "false"}
	for i := 0; i+1 < len(more); i += 2 {
		env[more[i]] = more[i+1]
	}
	return env
}
