package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/select-service/select-service/demo/sim/simapi"
)

func TestConfig(t *testing.T) {
	for name, tc := range map[string]struct {
		args string
		ok   bool
	}{
		"defaults":       {"", true},
		"four on ports":  {"--engines 4 --port 9000", true},
		"no engine":      {"--engines 0", false},
		"ports overflow": {"--engines 4 --port 65533", false},
		"events":         {"--engines 4 --events-port 9000", true},
		"events beyond":  {"--engines 4 --events-port 65529", false},
		"wildcard":       {"--listen 0.0.0.0", false},
		"standstill":     {"--speedup 0", false},
		"no ranks":       {"--data-parallel-size 0", false},
		"no name":        {"--model=", false},
		"no cache":       {"--cache-blocks 0", false},
		"unequal":        {"--engines 2 --speed 1,0.5 --cache-blocks 64,32 --chunked", true},
		"one too few":    {"--engines 3 --speed 1,0.5", false},
		"one too many":   {"--engines 2 --cache-blocks 64,64,32", false},
		"one stands":     {"--engines 2 --speed 1,0", false},
		"one backwards":  {"--engines 2 --speed 1,-1", false},
		"pairs":          {"--engines 2 --role prefill,decode --transfer-domain a,b --transfer-setup 1ms,2ms --transfer-per-token 0s,1us", true},
		"unknown role":   {"--role encode", false},
		"roles of two":   {"--engines 3 --role prefill,decode", false},
		"domains of two": {"--engines 3 --transfer-domain a,b", false},
		"one link":       {"--transfer-setup 1ms", false},
		"before it is":   {"--transfer-per-token 1us,-1us", false},
	} {
		conf := defaults()
		if err := conf.flags().Parse(strings.Fields(tc.args)); err != nil {
			t.Fatal(err)
		}
		if err := conf.validate(); (err == nil) != tc.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestRun starts two engines on real sockets, restarts one over HTTP and proves
// that it comes back with new event sockets, and that the process ends cleanly.
func TestRun(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	out, in := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := run(ctx, []string{"--engines", "2", "--speedup", "100", "--data-parallel-size", "2"}, in)
		in.Close()
		done <- err
	}()
	var engines [][]string
	lines := bufio.NewScanner(out)
	for lines.Scan() && lines.Text() != "ready" {
		engines = append(engines, strings.Fields(lines.Text()))
	}
	if len(engines) != 2 || len(engines[1]) != 7 || engines[1][0] != "engine" || engines[1][1] != "2" {
		t.Fatalf("start lines = %v", engines)
	}
	url, events := engines[1][2], engines[1][4]
	resp, err := http.Post(url+simapi.PathReset, "application/json", strings.NewReader(`{"speedup":50}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var info simapi.Info
	if err := json.NewDecoder(resp.Body).Decode(&info); err != nil {
		t.Fatal(err)
	}
	if info.Speedup != 50 || info.KVEventsEndpoint == events || !strings.HasPrefix(info.KVEventsEndpoint, "tcp://127.0.0.1:") {
		t.Errorf("after a restart: %+v, before: %s", info, events)
	}
	asked, err := http.Post(url+"/v1/completions", "application/json", strings.NewReader(`{"model":"simulated","prompt":[1,2,3]}`))
	if err != nil {
		t.Fatal(err)
	}
	defer asked.Body.Close()
	if asked.StatusCode != http.StatusOK || strings.Count(events, "tcp://127.0.0.1:") != 2 {
		t.Errorf("a completion: %s; events of two ranks at %s", asked.Status, events)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("run: %v", err)
	}
}

// TestPortTaken proves that a taken port is an error, and that it stops the
// engines before it.
func TestPortTaken(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := taken.Addr().(*net.TCPAddr).Port
	err = run(t.Context(), []string{"--engines", "2", "--port", strconv.Itoa(port - 1)}, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("err = %v", err)
	}
}
