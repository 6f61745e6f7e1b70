package gateway_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection/admission"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/memory"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// tokenIDs is a completion whose prompt is about size bytes of token ids.
func tokenIDs(size int) string {
	return `{"model":"m","prompt":[` + strings.Repeat("1,", size/2) + `1]}`
}

// TestTokenMemory: the token ids of a body are in an account while they are in use, which has
// a limit, and not while the request waits.
func TestTokenMemory(t *testing.T) {
	budget := memory.New(4 << 20)
	serving := budget.Account(memory.Serving)
	w := start(t, func(c *node.Config, g *settings) {
		g.Memory, c.Scopes.Admission = budget, admission.Config{Threshold: new(0.5)}
	})
	w.put(1, 1, func(r *catalog.Record) { r.MaxNumBatchedTokens = new(uint64(16)) })
	if _, p := w.post(completionsPath, tokenIDs(int(serving.Limit())/4+2)); p.status != 503 || !strings.Contains(p.answer, `"no_memory"`) {
		t.Errorf("a body whose tokens have no room: %d %s", p.status, p.answer)
	}
	first, p := w.post(completionsPath, tokenIDs(memory.SmallBody+2))
	if p.destination != at(1) {
		t.Fatalf("answered %+v", p)
	}
	second := w.open()
	second.request(completionsPath, false)
	second.body(tokenIDs(memory.SmallBody+2), true)
	await(t, func() string {
		if n := w.Loads(nil, nil)[0].PendingCount; n != 1 || serving.Used() > 0 {
			return fmt.Sprintf("%d requests wait, and %d bytes are in use", n, serving.Used())
		}
		return ""
	})
	first.close()
	second.placement(true, false)
	second.close()
	w.wantLoads("1/0: 0 0 0")
}

// relays is a script that looks at an account whenever a piece of a body is sent.
type relays struct {
	*script
	account *memory.Account
	most    int64
}

func (r *relays) SendMsg(m any) error {
	r.most = max(r.most, r.account.Used())
	return r.script.SendMsg(m)
}

// TestRelayMemory: pieces of answers are in an account while they pass by; beyond its limit new
// requests are refused.
func TestRelayMemory(t *testing.T) {
	budget := memory.New(4 << 20)
	answers := budget.Account(memory.Answers)
	w := start(t, func(_ *node.Config, c *settings) { c.Memory = budget })
	w.put(1, 1)
	piece := make([]byte, 100<<10)
	s := &relays{account: answers, script: newScript([]step{
		{message: steps[0]},
		{message: steps[4]},
		{message: &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extprocv3.HttpHeaders{
			Headers: headerMap([]string{":status", "200", "content-type", "application/octet-stream"}),
		}}}},
		{message: &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: &extprocv3.HttpBody{Body: piece, EndOfStream: true}}}},
	})}
	if err := w.server.Process(s); err != nil {
		t.Fatal(err)
	}
	if s.most != int64(len(piece)) || answers.Used() != 0 {
		t.Errorf("%d bytes were in use while a piece of %d passed, %d afterwards", s.most, len(piece), answers.Used())
	}

	over := answers.Limit() + 1
	answers.Add(over)
	if _, p := w.post(chatPath, chat(servicetest.Prompt(1, 8), "")); p.status != 503 || !strings.Contains(p.answer, `"no_memory"`) || p.headers["retry-after"] == "" {
		t.Errorf("answered %+v", p)
	}
	answers.Add(-over)
	e, p := w.post(chatPath, chat(servicetest.Prompt(1, 8), ""))
	if p.destination != at(1) {
		t.Errorf("answered %+v", p)
	}
	e.close()
}

// TestStalledBodies: requests whose bodies have stopped make room for the bodies of others, and only those in the account
// that is full.
func TestStalledBodies(t *testing.T) {
	budget := memory.New(64 << 20)
	requests := budget.Account(memory.Requests)
	w := start(t, func(_ *node.Config, c *settings) { c.Memory = budget })
	w.put(1, 1)
	const stalled, piece = 4, 50_000
	for range stalled {
		e := w.open()
		e.request(chatPath, false)
		e.body(strings.Repeat(" ", piece), false)
	}
	large := w.open()
	large.request(chatPath, false)
	large.body(strings.Repeat(" ", 2*memory.SmallBody), false)
	await(t, func() string {
		if n := requests.Used(); n < stalled*piece || budget.Account(memory.Bodies).Used() == 0 {
			return fmt.Sprintf("%d bytes are in use", n)
		}
		return ""
	})
	requests.Reserve(requests.Limit() - requests.Used())
	text := chat(servicetest.Prompt(1, 8), "")
	await(t, func() string {
		e, p := w.post(chatPath, text)
		if p.destination != at(1) {
			return p.answer
		}
		e.close()
		return ""
	})
	large.body(text, true)
	if p := large.placement(true, false); p.destination != at(1) {
		t.Errorf("answered %+v", p)
	}
	large.close()
}

// elsewhere is a client of another front that gives its memory up when it is cut off.
type elsewhere struct{ cut chan struct{} }

func (e elsewhere) CutOff() { close(e.cut) }

// TestStalledElsewhere: clients of the HTTP API whose bodies have stopped, in the same account, make room for a request.
func TestStalledElsewhere(t *testing.T) {
	budget := memory.New(64 << 20)
	requests := budget.Account(memory.Requests)
	w := start(t, func(_ *node.Config, c *settings) { c.Memory = budget })
	w.put(1, 1)
	var token memory.Token
	if err := requests.Limiter().Take(t.Context(), &token, requests.Limit(), 0); err != nil {
		t.Fatal(err)
	}
	e := elsewhere{make(chan struct{})}
	token.Lend(e, time.Millisecond)
	go func() {
		<-e.cut
		token.Release()
	}()
	await(t, func() string {
		x, p := w.post(chatPath, chat(servicetest.Prompt(1, 8), ""))
		if p.destination != at(1) {
			return p.answer
		}
		x.close()
		return ""
	})
	<-e.cut
}

// TestAnsweredTokens: the ids that a tokenizer answers beyond what the body has reserved are in the account
// requests while the engine is chosen, and given back.
func TestAnsweredTokens(t *testing.T) {
	budget := memory.New(64 << 20)
	requests := budget.Account(memory.Requests)
	w := start(t, func(_ *node.Config, c *settings) { c.Memory = budget })
	w.put(1, 1)
	w.renderer.Store(new(http.HandlerFunc(func(out http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(out, `{"tokens":[`+strings.Repeat("1,", 17<<10)+`1]}`)
	})))
	text := chat(servicetest.Prompt(1, 1), `,"user":"`+strings.Repeat("x", 2<<10)+`"`)
	e, p := w.post(chatPath, text)
	if p.destination != at(1) {
		t.Fatalf("%+v", p)
	}
	e.close()
	await(t, func() string {
		if n := requests.Used(); n > 0 {
			return fmt.Sprintf("%d bytes are in use", n)
		}
		return ""
	})
	requests.Reserve(requests.Limit() - 32<<10)
	if _, p = w.post(chatPath, text); p.status != http.StatusServiceUnavailable || p.headers["retry-after"] == "" {
		t.Errorf("without memory for the ids: %+v", p)
	}
}
