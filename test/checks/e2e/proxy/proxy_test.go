// Package proxy_test plays clients and engines around the built service's --proxy-port.
package proxy_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/select-service/select-service/test/checks/e2e"
)

func TestMain(m *testing.M) { e2e.Main(m) }

// engine is an engine that answers chats with pieces, streamed or not, and echoes on WebSockets.
type engine struct {
	address string
	asked   atomic.Int64 // requests for answers
	open    atomic.Int64 // those under way
}

// pieces are the texts of an answer.
var pieces = []string{"one", "two", "three"}

func startEngine(t testing.TB) *engine {
	t.Helper()
	e := &engine{}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /tokenize", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"count":3,"max_model_len":4096,"tokens":[1,2,3]}`)
	})
	mux.HandleFunc("POST /v1/chat/completions", e.under(e.chat))
	mux.HandleFunc("GET /v1/realtime", e.under(e.echo))
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	e.address = s.Listener.Addr().String()
	return e
}

func (e *engine) under(f http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		e.asked.Add(1)
		e.open.Add(1)
		defer e.open.Add(-1)
		f(w, r)
	}
}

func (e *engine) chat(w http.ResponseWriter, r *http.Request) {
	var request struct {
		Stream bool `json:"stream"`
	}
	if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	if !request.Stream {
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"choices":[{"message":{"role":"assistant","content":%q}}],"usage":{"prompt_tokens":3,"completion_tokens":3}}`, strings.Join(pieces, " "))
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for _, piece := range pieces {
		_, _ = fmt.Fprintf(w, "data: {\"choices\":[{\"delta\":{\"content\":%q}}]}\n\n", piece)
		_ = http.NewResponseController(w).Flush()
	}
	_, _ = io.WriteString(w, "data: [DONE]\n\n")
}

func (e *engine) echo(w http.ResponseWriter, _ *http.Request) {
	c, in, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer c.Close()
	_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	_, _ = io.Copy(c, in)
}

// bed is the service with its proxy.
type bed struct {
	*e2e.Service
	proxy string // host:port
}

// lay starts the service with more flags, and engines at URLs. tokens gives tokens, past all faults.
func lay(t *testing.T, tokens *engine, urls []string, args ...string) *bed {
	t.Helper()
	port := e2e.FreePort(t)
	b := &bed{proxy: net.JoinHostPort("127.0.0.1", strconv.Itoa(port))}
	b.Service = e2e.Serve(t, nil, append([]string{"--proxy-port", strconv.Itoa(port), "--use-kv-events=false", "--tokenizer-url", "http://" + tokens.address}, args...)...)
	for i, at := range urls {
		var got struct {
			Lifecycle string   `json:"lifecycle"`
			Reasons   []string `json:"reasons"`
		}
		b.Must(t, http.StatusCreated, http.MethodPost, "/workers", e2e.Object{
			"worker_id": i + 1, "model_name": "m", "endpoint": at, "block_size": 16, "data_parallel_size": 1,
			"max_num_batched_tokens": 8192, "total_kv_blocks": 16384,
		}, &got)
		if got.Lifecycle != "schedulable" {
			t.Fatalf("worker %d is %s: %q", i+1, got.Lifecycle, got.Reasons)
		}
	}
	return b
}

// The kinds of requests.
const (
	whole    = "whole"
	streamed = "stream"
	upgraded = "upgrade"
)

var kinds = []string{whole, streamed, upgraded}

// ask sends a request of a kind and returns what its client sees: the status, and "whole", "cut" if the connection
// breaks, or "error" with the code of a last event or a refusal.
func (b *bed) ask(ctx context.Context, t testing.TB, kind string) string {
	t.Helper()
	if kind == upgraded {
		return b.askUpgrade(ctx, t)
	}
	body := fmt.Sprintf(`{"model":"m","stream":%t,"messages":[{"role":"user","content":"hello"}]}`, kind == streamed)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+b.proxy+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := b.HTTP.Do(r)
	if err != nil {
		return outcome(ctx, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return judge(ctx, kind, resp.StatusCode, string(text), err)
}

// outcome is that of a request without an answer.
func outcome(ctx context.Context, err error) string {
	switch {
	case ctx.Err() != nil:
		return "left"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET):
		return "cut"
	}
	return "no answer: " + err.Error()
}

// judge says what an answer is.
func judge(ctx context.Context, kind string, status int, text string, err error) string {
	said := fmt.Sprint(status, " ")
	switch {
	case ctx.Err() != nil:
		return said + "left"
	case err != nil && strings.Contains(text, "[DONE]"):
		return said + "cut behind its end"
	case err != nil:
		return said + "cut"
	case status != http.StatusOK:
		return said + codeOf(text)
	case kind == whole && strings.Contains(text, `"content":"one two three"`):
		return said + "whole"
	case kind == streamed && strings.Count(text, `"content"`) == len(pieces) && strings.HasSuffix(text, "data: [DONE]\n\n"):
		return said + "whole"
	case kind == streamed && !strings.Contains(text, "[DONE]") && strings.HasSuffix(text, "\n\n"):
		events := strings.Split(strings.TrimSuffix(text, "\n\n"), "\n\n")
		if event, ok := strings.CutPrefix(events[len(events)-1], "data: "); ok {
			return said + "error " + codeOf(event)
		}
	}
	return fmt.Sprintf("%s%q", said, text)
}

// codeOf is the code of an error in OpenAI's form.
func codeOf(text string) string {
	var got struct {
		Error struct {
			Code string `json:"code"`
		} `json:"error"`
	}
	if err := json.Unmarshal([]byte(text), &got); err != nil || got.Error.Code == "" {
		return fmt.Sprintf("%q", text)
	}
	return got.Error.Code
}

// askUpgrade changes to a WebSocket, sends a text and waits for its echo.
func (b *bed) askUpgrade(ctx context.Context, t testing.TB) string {
	t.Helper()
	c, err := new(net.Dialer).DialContext(ctx, "tcp", b.proxy)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	_, _ = io.WriteString(c, "GET /v1/realtime?model=m HTTP/1.1\r\nHost: proxy\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
	in := bufio.NewReader(c)
	resp, err := http.ReadResponse(in, nil) //nolint:bodyclose // the connection is closed at the end
	if err != nil {
		return outcome(ctx, err)
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			return fmt.Sprint(resp.StatusCode, " cut")
		}
		return fmt.Sprint(resp.StatusCode, " ", codeOf(string(text)))
	}
	const text = "an echo"
	_, _ = io.WriteString(c, text)
	echo := make([]byte, len(text))
	switch _, err := io.ReadFull(in, echo); {
	case ctx.Err() != nil:
		return "101 left"
	case err != nil:
		return "101 cut"
	case string(echo) != text:
		return fmt.Sprintf("101 %q", echo)
	}
	return "101 whole"
}

// isIdle waits until nothing is booked, and until no more goroutines and descriptors are there than before.
func (b *bed) isIdle(t *testing.T, before use) {
	t.Helper()
	e2e.Eventually(t, "nothing is booked", func() error {
		scopes, err := b.Loads(t.Context())
		for _, s := range scopes {
			for _, l := range s.Loads {
				if l.Carries() {
					err = errors.Join(err, fmt.Errorf("worker %d carries %+v", l.WorkerID, l))
				}
			}
		}
		return err
	})
	b.HTTP.CloseIdleConnections()
	e2e.Eventually(t, "goroutines and descriptors are back", func() error {
		now := b.use(t)
		if now.goroutines > before.goroutines+2 || now.descriptors > before.descriptors+4 {
			return fmt.Errorf("%+v, before %+v", now, before)
		}
		return nil
	})
}

// use is what a process has of the system's resources.
type use struct{ goroutines, descriptors int }

func (b *bed) use(t *testing.T) use {
	t.Helper()
	n, err := b.Descriptors()
	if err != nil {
		t.Fatal(err)
	}
	return use{b.Metric(t, "go_goroutines"), n}
}
