package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/select-service/select-service/internal/config"
	"github.com/select-service/select-service/test/checks/e2e"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// env is an environment that has nothing but the given names and values.
func env(pairs ...string) func(string) string {
	return func(name string) string {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1]
			}
		}
		return ""
	}
}

// TestActions: what the flags that do not serve write, and to where.
func TestActions(t *testing.T) {
	tests := map[string]struct {
		args           []string
		stdout, stderr string // parts
	}{
		"version":      {[]string{"--version"}, "select-service ", ""},
		"help":         {[]string{"--help"}, "--help-all has every option", ""},
		"all help":     {[]string{"--help-all"}, "--max-connections N\n", ""},
		"print config": {[]string{"--print-config", "--port", "1234"}, "port: 1234", ""},
		"check config": {[]string{"--check-config", "--max-memory", "1GiB"}, "configuration is valid\nmemory limit 1073741824 bytes (--max-memory)\n", ""},
		"token help":   {[]string{"token", "--help"}, "Usage: select-service token new", ""},
		"slots help":   {[]string{"slots", "--help"}, "--replica-sync-bind", ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			if err := run(t.Context(), tt.args, env(), &stdout, &stderr); err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(stdout.String(), tt.stdout) {
				t.Errorf("stdout is %q, want %q in it", &stdout, tt.stdout)
			}
			if !strings.Contains(stderr.String(), tt.stderr) || tt.stderr == "" && stderr.Len() > 0 {
				t.Errorf("stderr is %q, want %q", &stderr, tt.stderr)
			}
		})
	}
}

// TestBadConfiguration: the start is refused with every fault by its name and
// the exit status for it, before anything listens.
func TestBadConfiguration(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(path, []byte("nonsense: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{}, {"--check-config"}} {
		args = append(args, "--config", path, "--threads", "0")
		err := run(t.Context(), args, env("DYN_ROUTER_TEMPERATURE", "-1"), io.Discard, io.Discard)
		if err == nil {
			t.Fatal("started")
		}
		for _, key := range []string{"nonsense", "--threads", "DYN_ROUTER_TEMPERATURE"} {
			if !strings.Contains(err.Error(), key) {
				t.Errorf("%q is not named in: %v", key, err)
			}
		}
		var out bytes.Buffer
		if got := status(err, &out); got != config.ExitCode || !strings.HasPrefix(out.String(), "select-service: ") {
			t.Errorf("exit status %d with %q", got, &out)
		}
	}
}

// TestBadWorkersFile: what no catalog accepts is a fault of the configuration, each
// of them told with its line.
func TestBadWorkersFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "w.yaml")
	text := "workers:\n- {worker_id: 1, data_parallel_size: 5000}\n- {worker_id: 2}\n- {worker_id: 2}\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	want := "workers[0] (line 2): data_parallel_size 5000 exceeds the maximum 4096; workers[2] (line 4): worker_id 2 is given twice"
	for _, args := range [][]string{{}, {"--check-config"}} {
		err := run(t.Context(), append(args, "--workers-file", path), env(), io.Discard, io.Discard)
		if err == nil || !strings.HasSuffix(err.Error(), want) || status(err, io.Discard) != config.ExitCode {
			t.Errorf("%v: exit status %d with %v", args, status(err, io.Discard), err)
		}
	}
}

// TestExitStatus: a clean end, and any other error than of the configuration.
func TestExitStatus(t *testing.T) {
	if got := status(nil, io.Discard); got != 0 {
		t.Errorf("exit status %d, want 0", got)
	}
	if got := status(errors.New("x"), io.Discard); got != 1 {
		t.Errorf("exit status %d, want 1", got)
	}
}

// process is the service in this process.
type process struct {
	t    *testing.T
	url  string             // of the first listener
	urls map[string]string  // by contract
	stop context.CancelFunc // the signal
	done chan error         // what run returned
}

func startProcess(t *testing.T, getenv func(string) string, args ...string) *process {
	t.Helper()
	return launch(t, getenv, 1, append(args, "--listen", "127.0.0.1", "--port", "0")...)
}

// launch starts the service with these arguments alone and waits until it
// listens for that many contracts.
func launch(t *testing.T, getenv func(string) string, contracts int, args ...string) *process {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	p := &process{t: t, urls: make(map[string]string), stop: cancel, done: make(chan error, 1)}
	t.Cleanup(cancel)
	logs, w := io.Pipe()
	go func() {
		p.done <- run(ctx, args, getenv, io.Discard, w)
		_ = w.Close()
	}()
	lines := bufio.NewScanner(logs)
	for len(p.urls) < contracts && lines.Scan() {
		var line struct{ Message, Address, Contract string }
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			t.Fatalf("log line %q: %v", lines.Text(), err)
		}
		if line.Message == "listening" {
			p.urls[line.Contract] = "http://" + line.Address
			p.url = cmp.Or(p.url, "http://"+line.Address)
		}
	}
	if len(p.urls) < contracts {
		t.Fatalf("it does not listen: %v", <-p.done)
	}
	go func() { _, _ = io.Copy(io.Discard, logs) }()
	return p
}

// call sends a request and returns status and body.
func (p *process) call(method, path, body string) (int, string) {
	return p.callAt(p.url, method, path, body)
}

func (p *process) callAt(base, method, path, body string) (int, string) {
	req, err := http.NewRequestWithContext(p.t.Context(), method, base+path, strings.NewReader(body))
	if err != nil {
		p.t.Error(err)
		return 0, ""
	}
	req.Header.Set("Content-Type", "application/json")
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Error(err)
	}
	return resp.StatusCode, string(text)
}

// ended waits for the end of run, for so long that only a hanging one is missed.
func (p *process) ended() {
	const within = 2 * time.Minute
	p.t.Helper()
	select {
	case err := <-p.done:
		if err != nil {
			p.t.Errorf("run: %v", err)
		}
	case <-time.After(within):
		p.t.Fatalf("still running after %v", within)
	}
}

// TestServe: on a free port, a worker with a live event socket, a selection,
// metrics; the signal ends it all in time.
func TestServe(t *testing.T) {
	p := startProcess(t, env("GOGC", "100"))
	for _, step := range []struct {
		method, path, body string
		status             int
		answer             string // part
	}{
		{"GET", "/health", "", 200, `{"status":"ok"}`},
		{"GET", "/ready", "", 503, `"ready":false`},
		{"POST", "/workers", `{"worker_id":1,"endpoint":"http://w","block_size":4,"kv_events_endpoint":"tcp://*:0"}`, 201, `"lifecycle":"schedulable"`},
		{"GET", "/ready", "", 200, `"ready":true`},
		{"POST", "/select_and_reserve", `{"token_ids":[1,2,3,4],"reservation_id":"r"}`, 200, `"worker_id":1`},
		{"GET", "/metrics", "", 200, "select_service_reservations_live 1"},
		{"GET", "/dump", "", 200, `{"default:default":{"block_size":4,"events":[]}}`},
	} {
		if status, answer := p.call(step.method, step.path, step.body); status != step.status || !strings.Contains(answer, step.answer) {
			t.Errorf("%s %s: %d %s, want %d %s", step.method, step.path, status, answer, step.status, step.answer)
		}
	}
	p.stop()
	p.ended()
}

// TestServeWorkersFile: with a workers file every PUT /workers is refused, also one
// that could not be read.
func TestServeWorkersFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "w.yaml")
	if err := os.WriteFile(path, []byte("workers: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := startProcess(t, env(), "--workers-file", path)
	for _, body := range []string{`{"workers":[]}`, `{}`, "nonsense"} {
		status, answer := p.call("PUT", "/workers", body)
		if want := `{"error":"workers are managed by --workers-file ` + path + `"}`; status != 409 || answer != want {
			t.Errorf("PUT %s: %d %s, want 409 %s", body, status, answer, want)
		}
	}
	p.stop()
	p.ended()
}

// freePort returns a TCP port that nothing else takes before it is used.
func freePort(t *testing.T) string {
	t.Helper()
	return strconv.Itoa(e2e.FreePort(t))
}

// TestServeConductor: the Conductor API has a listener of its own and a prefix on
// the other one, and both are the same service; a publisher's live event socket
// does not hold up the end.
func TestServeConductor(t *testing.T) {
	p := launch(t, env(), 2, "--listen", "127.0.0.1", "--port", "0", "--conductor-port", freePort(t))
	selection, own := p.urls["selection"], p.urls["conductor"]
	const publisher = `{"endpoint":"tcp://*:0","type":"vLLM","modelname":"m","instance_id":"i","block_size":4,"dp_rank":0}`
	for _, step := range []struct {
		base, method, path, body string
		status                   int
		answer                   string // part
	}{
		{own, "GET", "/health", "", 200, `{"status":"ok"}`},
		{own, "POST", "/register", publisher, 200, `"status":"registered successfully"`},
		{own, "GET", "/services", "", 200, `"instance_id":"i"`},
		{selection, "GET", "/conductor/services", "", 200, `"instance_id":"i"`},
		{own, "POST", "/query", `{"model":"m","block_size":4,"token_ids":[1,2,3,4]}`, 200, `"longest_matched":0`},
		{selection, "POST", "/conductor/query", `{"model":"m","block_size":4,"token_ids":[1,2,3,4]}`, 200, `"longest_matched":0`},
		{selection, "GET", "/metrics", "", 200, "select_service_conductor_publishers 1"},
		{own, "GET", "/dump", "", 404, `"error"`},
	} {
		status, answer := p.callAt(step.base, step.method, step.path, step.body)
		if status != step.status || !strings.Contains(answer, step.answer) {
			t.Errorf("%s %s: %d %s, want %d %s", step.method, step.path, status, answer, step.status, step.answer)
		}
	}
	p.stop()
	p.ended()
}

// TestServeReplica: both listeners and the sockets to other replicas come up and
// go down; the slot tracker alone does too.
func TestServeReplica(t *testing.T) {
	for name, tc := range map[string]struct {
		args      []string
		contracts int
	}{
		"selection": {[]string{
			"--listen", "127.0.0.1", "--port", "0", "--slots-port", freePort(t),
			"--replica-sync-port", freePort(t), "--replica-sync-peers", "tcp://127.0.0.1:1",
		}, 2},
		"slots": {[]string{
			"slots", "--port", "0", "--replica-sync-bind", "tcp://127.0.0.1:" + freePort(t), "--replica-sync-peers", "tcp://127.0.0.1:1",
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			p := launch(t, env("SELECT_SERVICE_LISTEN", "127.0.0.1"), tc.contracts, tc.args...)
			for _, step := range []struct {
				method, path, body string
				status             int
				answer             string
			}{
				{"GET", "/health", "", 200, ""},
				{"POST", "/register", `{"worker_id":1,"model_name":"m","block_size":4,"dp_start":0,"dp_size":1}`, 201, `{"status":"ok"}`},
				{"GET", "/peers", "", 200, `["tcp://127.0.0.1:1"]`},
				{"GET", "/replica_sync/peers", "", 200, `["tcp://127.0.0.1:1"]`},
				{"GET", "/dump", "", 404, `{"error":"route not found"}`},
			} {
				status, answer := p.callAt(p.urls["slots"], step.method, step.path, step.body)
				if status != step.status || answer != step.answer {
					t.Errorf("%s %s: %d %s, want %d %s", step.method, step.path, status, answer, step.status, step.answer)
				}
			}
			if _, page := p.callAt(p.urls["slots"], "GET", "/replica_sync/snapshot", ""); !strings.Contains(page, `"bookings":[]`) {
				t.Errorf("snapshot: %s", page)
			}
			p.stop()
			p.ended()
		})
	}
}

// TestStopAnswersQueue: a request that waits when the signal comes is answered.
func TestStopAnswersQueue(t *testing.T) {
	p := startProcess(t, env("DYN_ROUTER_QUEUE_THRESHOLD", "0", "DYN_USE_KV_EVENTS", "false"))
	p.call("POST", "/workers", `{"worker_id":1,"endpoint":"http://w","block_size":4,"max_num_batched_tokens":10}`)
	if status, answer := p.call("POST", "/select_and_reserve", `{"token_ids":[1,2,3,4]}`); status != 200 {
		t.Fatalf("%d %s", status, answer)
	}
	waiting := make(chan string, 1)
	go func() {
		status, answer := p.call("POST", "/select", `{"token_ids":[1,2,3,4]}`)
		waiting <- fmt.Sprint(status, " ", answer)
	}()
	for {
		if _, loads := p.call("GET", "/loads", ""); strings.Contains(loads, `"pending_count":1`) {
			break
		}
	}
	p.stop()
	if got, want := <-waiting, `503 {"error":"selection service is shutting down"}`; got != want {
		t.Errorf("the waiting request got %s, want %s", got, want)
	}
	p.ended()
}

// TestStopWithSilentClient: a client that stops in the middle of its request
// does not make the end late.
func TestStopWithSilentClient(t *testing.T) {
	t.Parallel()
	p := startProcess(t, env("DYN_USE_KV_EVENTS", "false"))
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(p.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const head = "POST /workers HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\nExpect: 100-continue\r\n\r\n{"
	if _, err := io.WriteString(conn, head); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil || !strings.Contains(line, "100 Continue") {
		t.Fatalf("%q, %v: the body is not being read", line, err)
	}
	p.stop()
	p.ended()
}

// TestPortTaken: the start fails before anything runs, whichever port it is, says
// which one, and leaves nothing behind.
func TestPortTaken(t *testing.T) {
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	_, port, err := net.SplitHostPort(ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"--listen", "127.0.0.1", "--port", port}, "listen on 127.0.0.1:" + port + " (--port): "},
		{[]string{"--listen", "127.0.0.1", "--port", "0", "--slots-port", port}, "listen on 127.0.0.1:" + port + " (--slots-port): "},
		{[]string{"--listen", "127.0.0.1", "--port", "0", "--conductor-port", port}, "listen on 127.0.0.1:" + port + " (--conductor-port): "},
		{[]string{"slots", "--port", port}, "listen on 127.0.0.1:" + port + " (--port): "},
		{
			[]string{"--listen", "127.0.0.1", "--port", "0", "--replica-sync-bind", "tcp://127.0.0.1:" + port},
			"failed to bind replica publisher to `tcp://127.0.0.1:" + port + "`",
		},
		{
			[]string{"slots", "--port", "0", "--replica-sync-bind", "tcp://127.0.0.1:" + freePort(t), "--replica-sync-peers", "ipc:///run/x"},
			"unsupported scheme `ipc`",
		},
	} {
		err = run(t.Context(), tc.args, env("SELECT_SERVICE_LISTEN", "127.0.0.1"), io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%v: error is %v", tc.args, err)
		}
		if got := status(err, io.Discard); got != 1 {
			t.Errorf("exit status %d, want 1", got)
		}
	}
}

// TestServeDebug: profiles and variables are on the debug listener and nowhere else.
func TestServeDebug(t *testing.T) {
	p := launch(t, env(), 2, "--listen", "127.0.0.1", "--port", "0", "--debug-listen", "127.0.0.1:0")
	for path, part := range map[string]string{
		"/debug/vars":              `"memstats"`,
		"/debug/pprof/":            "goroutine",
		"/debug/pprof/heap":        "",
		"/debug/pprof/cmdline":     "",
		"/debug/pprof/goroutine":   "",
		"/debug/pprof/symbol?0x1":  "num_symbols",
		"/debug/pprof/nonexistent": "Unknown profile",
	} {
		status, answer := p.callAt(p.urls[debugContract], "GET", path, "")
		if want := path != "/debug/pprof/nonexistent"; (status == 200) != want || !strings.Contains(answer, part) {
			t.Errorf("GET %s: %d %.200s", path, status, answer)
		}
		if status, _ := p.callAt(p.urls[selectionContract], "GET", path, ""); status != 404 {
			t.Errorf("GET %s of the selection: %d", path, status)
		}
	}
	if status, _ := p.callAt(p.urls[debugContract], "GET", "/workers", ""); status != 404 {
		t.Errorf("GET /workers of the debug listener: %d", status)
	}
	p.stop()
	p.ended()
}

// TestServeListedEngines: a proxy is ready once its engines have been asked, so that the first chat finds one.
func TestServeListedEngines(t *testing.T) {
	asked, release := make(chan struct{}), make(chan struct{})
	arrived, answer := sync.OnceFunc(func() { close(asked) }), sync.OnceFunc(func() { close(release) })
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		arrived()
		<-release
		http.NotFound(w, r)
	}))
	defer engine.Close()
	defer answer()
	began := time.Now()
	p := launch(t, env(), 2, "--listen", "127.0.0.1", "--port", "0", "--proxy-port", freePort(t), "--use-kv-events=false", "--engines", engine.URL,
		"--tokenizer-protocol", "none", "--gateway-drain-delay", "1ms")
	<-asked
	// After 5 s the engine has failed to answer.
	if status, text := p.callAt(p.urls["proxy"], "GET", "/ready", ""); status != http.StatusServiceUnavailable && time.Since(began) < 5*time.Second {
		t.Errorf("before its engine answers: %d %s", status, text)
	}
	answer()
	e2e.Eventually(t, "it is ready", func() error {
		if status, text := p.callAt(p.urls["proxy"], "GET", "/ready", ""); status != http.StatusOK {
			return fmt.Errorf("%d %s", status, text)
		}
		return nil
	})
	p.stop()
	p.ended()
}

// TestServeGateway: the connections of gateways count with those of callers.
func TestServeGateway(t *testing.T) {
	p := launch(t, env(), 2, "--listen", "127.0.0.1", "--port", "0", "--gateway-port", freePort(t), "--use-kv-events=false",
		"--max-connections", "1", "--gateway-drain-delay", "1ms")
	conn, err := grpc.NewClient(strings.TrimPrefix(p.urls["gateway"], "http://"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
		t.Error(err)
	}
	if status, answer := p.callAt(p.urls[selectionContract], "GET", "/health", ""); status != http.StatusServiceUnavailable && status != 0 { // 0: the answer was there before the request
		t.Errorf("beside a gateway: %d %s", status, answer)
	}
	_ = conn.Close()
	e2e.Eventually(t, "the gateway's connection counts no more", func() error {
		if status, answer := p.callAt(p.urls[selectionContract], "GET", "/health", ""); status != http.StatusOK {
			return fmt.Errorf("%d %s", status, answer)
		}
		return nil
	})
	p.stop()
	p.ended()
}
