package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/config"
	"github.com/select-service/select-service/pkg/memory"
)

// TestServeUnderPressure: the thresholds of flag and environment are in force at
// the start, a refusal has the configured header, and the requests of all
// listeners are in the metrics of the selection's, Dynamo's names on demand.
func TestServeUnderPressure(t *testing.T) {
	p := launch(t, env("DYN_ACTIVE_DECODE_BLOCKS_THRESHOLD", "None", "DYN_ACTIVE_PREFILL_TOKENS_THRESHOLD", "7"), 3,
		"--listen", "127.0.0.1", "--port", "0", "--slots-port", freePort(t), "--conductor-port", freePort(t), "--use-kv-events=false",
		"--active-prefill-tokens-threshold", "3", "--overload-retry-after-secs", "2", "--metrics-dynamo-aliases")
	selection := p.urls[selectionContract]
	for _, step := range []struct {
		base, method, path, body string
		status                   int
		answer                   string // part
	}{
		{selection, "POST", "/workers", `{"worker_id":1,"endpoint":"http://w","block_size":4}`, 201, `"lifecycle":"schedulable"`},
		{selection, "GET", "/busy_threshold", "", 200, `"active_decode_blocks_threshold":null,"active_prefill_tokens_threshold":3,`},
		{selection, "POST", "/select_and_reserve", `{"token_ids":[1,2,3,4]}`, 200, `"worker_id":1`},
		{selection, "POST", "/select", `{"token_ids":[1]}`, 503, `"type":"service_unavailable","code":503`},
		{p.urls[slotsContract], "GET", "/loads", "", 200, ""},
		{p.urls[conductorContract], "GET", "/services", "", 200, ""},
		{selection, "GET", "/metrics", "", 200, `select_service_http_requests_total{code="503",listener="selection",method="POST",route="/select"} 1` + "\n"},
		{selection, "GET", "/metrics", "", 200, `select_service_http_requests_total{code="200",listener="slots",method="GET",route="/loads"} 1` + "\n"},
		{selection, "GET", "/metrics", "", 200, `select_service_http_requests_total{code="200",listener="conductor",method="GET",route="/services"} 1` + "\n"},
		{selection, "GET", "/metrics", "", 200, "dynamo_kvindexer_workers"},
	} {
		status, answer := p.callAt(step.base, step.method, step.path, step.body)
		if status != step.status || !strings.Contains(answer, step.answer) {
			t.Errorf("%s %s: %d %s, want %d %s", step.method, step.path, status, answer, step.status, step.answer)
		}
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, selection+"/select", strings.NewReader(`{"token_ids":[1]}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if got := resp.Header.Get("Retry-After"); resp.StatusCode != http.StatusServiceUnavailable || got != "2" {
		t.Errorf("status %d, Retry-After %q", resp.StatusCode, got)
	}
	p.stop()
	p.ended()
}

// TestStartUnderPressure: the log starts with what is in force, and with what a
// wait queue leaves of it; nothing set is no line.
func TestStartUnderPressure(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel() // it stops as soon as it listens
	for name, tc := range map[string]struct {
		args []string
		want []string
	}{
		"nothing":         {nil, nil},
		"only the header": {[]string{"--overload-retry-after-secs=2"}, nil},
		"thresholds": {
			[]string{"--active-decode-blocks-threshold=0.85", "--active-prefill-tokens-threshold=18446744073709551615"},
			[]string{`{"level":"info","active_decode_blocks_threshold":0.85,"active_prefill_tokens_threshold":18446744073709551615,` +
				`"active_prefill_tokens_threshold_frac":null,"time":`},
		},
		"thresholds, header and queue": {
			[]string{"--active-prefill-tokens-threshold-frac=-0", "--overload-retry-after-secs=2", "--router-queue-threshold=1"},
			[]string{
				`{"level":"warn","time":`,
				`{"level":"info","active_decode_blocks_threshold":null,"active_prefill_tokens_threshold":null,` +
					`"active_prefill_tokens_threshold_frac":0,"retry_after_secs":2,"time":`,
			},
		},
	} {
		var log bytes.Buffer
		if err := run(ended, append(tc.args, "--listen=127.0.0.1", "--port=0"), env(), io.Discard, &log); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		lines := slices.Collect(strings.Lines(log.String()))
		lines = lines[:slices.IndexFunc(lines, func(line string) bool { return strings.Contains(line, `"message":"listening"`) })]
		lines = slices.DeleteFunc(lines, func(line string) bool { return !strings.Contains(line, "threshold") })
		same := slices.EqualFunc(lines, tc.want, strings.HasPrefix)
		if !same || len(lines) > 1 && !strings.Contains(lines[0], "beside the wait queue of --router-queue-threshold") {
			t.Errorf("%s: log is %q, want %q", name, lines, tc.want)
		}
	}
}

// TestMemory: the budget is what the flag says; the collector's limit follows it
// unless the user has set that.
func TestMemory(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(-1))
	defer debug.SetGCPercent(debug.SetGCPercent(100))
	const total = 96 << 20
	for _, tc := range []struct {
		env  func(string) string
		want int64
		line string
	}{
		{env(), 90 << 20, `"max_memory":100663296,"source":"--max-memory","time"`},
		{env("GOMEMLIMIT", "1GiB"), 1 << 30, `"max_memory":100663296,"source":"--max-memory","gomemlimit":"1GiB"`},
	} {
		debug.SetMemoryLimit(1 << 30) // as the runtime has read it
		var log bytes.Buffer
		m := newMemory(config.Limits{MaxMemory: total}, tc.env, zerolog.New(&log).With().Timestamp().Logger())
		m.apply(tc.env)
		if got := debug.SetMemoryLimit(-1); got != tc.want || !strings.Contains(log.String(), tc.line) {
			t.Errorf("limit %d, want %d, log %s", got, tc.want, log.String())
		}
		m.budget.Account(memory.Index).Set(30 << 20)
		if got := m.limit(); got != 60<<20 {
			t.Errorf("the index leaves %d bytes", got)
		}
		if !m.isIdle() {
			t.Error("the index alone is no work under way")
		}
		m.budget.Account(memory.Ledger).Set(13 << 20)
		if m.isIdle() {
			t.Error("reservations take more than an eighth")
		}
	}
	var log bytes.Buffer
	newMemory(config.Limits{MaxMemory: 1 << 60}, env(), zerolog.New(&log))
	if want := `"max_memory":1152921504606846976,"available":`; !strings.Contains(log.String(), want) || !strings.Contains(log.String(), `"level":"warn"`) {
		t.Errorf("more than there is: %s, want %s", &log, want)
	}
	if m := newMemory(config.Limits{}, env(), zerolog.Nop()); m.budget.Total() < 64<<20 || m.source == "--max-memory" {
		t.Errorf("default of %d bytes from %s", m.budget.Total(), m.source)
	}
}

// TestColours: the console format is for people, but a file or a pipe gets no
// control characters.
func TestColours(t *testing.T) {
	t.Setenv("NO_COLOR", "")
	var buffer bytes.Buffer
	log := logger(config.Log{Level: zerolog.InfoLevel, Format: "console"}, &buffer, false)
	log.Info().Str("key", "value").Msg("text")
	if got := buffer.String(); strings.Contains(got, "\x1b") || !strings.HasSuffix(got, "INF text key=value\n") {
		t.Errorf("console format writes %q", got)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	file, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	device, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0) // a character device as a terminal is one
	if err != nil {
		t.Fatal(err)
	}
	defer device.Close()
	for out, want := range map[io.Writer]bool{w: false, file: false, device: true} {
		if got := isTerminal(out); got != want {
			t.Errorf("%v is a terminal: %t, want %t", out, got, want)
		}
	}
}
