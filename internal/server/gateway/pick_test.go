package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/admission"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// cache makes a worker hold a prompt.
func (w *world) cache(id uint64, ids []uint32) {
	e := w.engines[id]
	if e == nil {
		e = w.Engine(id, 0)
		w.engines[id] = e
	}
	e.Publish(0, e.Stored(ids, servicetest.BlockSize, nil))
	w.Settle()
}

// TestOverlap: the engine that has the prompt gets it, however it is sent.
func TestOverlap(t *testing.T) {
	w := start(t)
	w.put(1, 1)
	w.put(2, 1)
	ids := servicetest.Prompt(7, 16)
	w.cache(2, ids)
	list := strings.ReplaceAll(fmt.Sprint(ids), " ", ",")
	for _, tt := range []struct {
		name, path, body string
		asked            int64 // calls of the tokenizer
	}{
		{"chat", chatPath, chat(ids, ""), 1},
		{"completion", completionsPath, `{"model":"m","prompt":"` + wordsOf(ids) + `"}`, 1},
		{"tokens", completionsPath, `{"model":"m","prompt":` + list + `}`, 0},
		{"one list of tokens", completionsPath, `{"model":"m","prompt":[` + list + `]}`, 0},
		{"responses", "/v1/responses", `{"model":"m","input":"` + wordsOf(ids) + `"}`, 1},
		{"messages", "/v1/messages", `{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"` + wordsOf(ids) + `"}]}`, 1},
		{"under a prefix", "/models/m" + chatPath + "?x=y", chat(ids, ""), 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := w.tokenized.Load()
			e, p := w.post(tt.path, tt.body)
			if p.destination != at(2) || w.tokenized.Load()-before != tt.asked {
				t.Errorf("went to %q after %d calls of the tokenizer: %+v", p.destination, w.tokenized.Load()-before, p)
			}
			e.close()
		})
	}
}

// TestColdBurst: equal prompts that come at once are spread evenly.
func TestColdBurst(t *testing.T) {
	w := start(t)
	w.put(1, 1)
	w.put(2, 1)
	text := chat(servicetest.Prompt(7, 16), "")
	var wg sync.WaitGroup
	for range 50 {
		e := w.open()
		e.request(chatPath, false)
		wg.Go(func() {
			e.body(text, true)
			e.placement(true, false)
		})
	}
	wg.Wait()
	got := map[uint64]uint64{}
	for _, l := range w.Loads(nil, nil)[0].Loads {
		got[l.Rank.Worker] = l.Requests
	}
	if got[1]+got[2] != 50 || got[1] < 24 || got[2] < 24 {
		t.Errorf("requests by worker: %v", got)
	}
}

// TestUnreadable: requests whose prompt cannot be read go to the least loaded engine, and
// nothing is tokenized. Those with a body are booked as one request until they end.
func TestUnreadable(t *testing.T) {
	w := start(t)
	w.put(1, 1)
	w.put(2, 1)
	busy, p := w.post(chatPath, chat(servicetest.Prompt(7, 64), ""))
	idle := at(1)
	if p.destination == idle {
		idle = at(2)
	}
	before, asked := w.loads(), w.tokenized.Load()
	e := w.open()
	e.request("/v1/models", true)
	if p := e.placement(false, false); p.destination != idle {
		t.Errorf("GET /v1/models went to %q", p.destination)
	}
	e.response(200, "application/json", false)
	e.chunk(`{"data":[]}`, true)
	e.close()
	for _, text := range []string{`{"model":"m","input":"x"}`, `no JSON`, ``} {
		e, p := w.post("/v1/embeddings", text)
		if p.destination != idle || p.body != text || strings.Count(w.loads(), ": 0 0 1") != 1 {
			t.Errorf("%q: %+v, loads are %s", text, p, w.loads())
		}
		e.response(200, "application/json", false)
		e.chunk("{}", true)
		e.close()
	}
	if _, p := w.post("/v1/embeddings", `{"model":"other"}`); p.status != 404 {
		t.Errorf("an unknown model: %+v", p)
	}
	if w.loads() != before || w.tokenized.Load() != asked {
		t.Errorf("loads were %s and are %s; %d calls of the tokenizer", before, w.loads(), w.tokenized.Load()-asked)
	}
	busy.close()
}

// TestRefusals: each fault has its status and its code, and books nothing.
func TestRefusals(t *testing.T) {
	ids := servicetest.Prompt(7, 8)
	subsetOf := func(v ...any) func(e *envoy) {
		return func(e *envoy) {
			list, err := structpb.NewList(v)
			if err != nil {
				e.t.Fatal(err)
			}
			e.subset = structpb.NewListValue(list)
		}
	}
	answers := func(code int) func(*world) {
		return func(w *world) {
			f := http.HandlerFunc(func(out http.ResponseWriter, _ *http.Request) { out.WriteHeader(code) })
			w.renderer.Store(&f)
		}
	}
	for _, tt := range []struct {
		name    string
		before  func(*world)
		request func(*envoy)
		body    string
		fields  []string
		status  int
		code    string
		retry   bool
	}{
		{name: "no JSON", body: "{", status: 400, code: "invalid_request_body"},
		// RFC 9110, section 15.5.16, has this status for a coding that is not read.
		{name: "compressed", body: "\x1f\x8b\b", fields: []string{"content-encoding", "gzip"}, status: 415, code: "unsupported_content_encoding"},
		{name: "no JSON, not compressed", body: "{", fields: []string{"content-encoding", "identity"}, status: 400, code: "invalid_request_body"},
		{name: "unknown model", body: `{"model":"x","messages":[]}`, status: 404, code: "model_not_found"},
		{name: "salt too long", body: chat(ids, ""), fields: []string{"x-tenant-id", strings.Repeat("x", 200)}, status: 400, code: "invalid_cache_salt"},
		{name: "empty subset", body: chat(ids, ""), request: subsetOf(), status: 503, code: "no_endpoints"},
		{name: "foreign subset", body: chat(ids, ""), request: subsetOf("10.9.9.9:1"), status: 503, code: "no_endpoints"},
		{name: "body too large", body: chat(ids, `,"x":"`+strings.Repeat("x", 1<<20)+`"`), status: 413, code: "body_too_large"},
		{name: "tokenizer rejects", before: answers(422), body: chat(ids, ""), status: 400, code: "invalid_request"},
		{name: "tokenizer has no room", before: answers(503), body: chat(ids, ""), status: 503, code: "tokenizer_unavailable", retry: true},
		{name: "tokenizer has no such route", before: answers(404), body: chat(ids, ""), status: 502, code: "tokenizer_failed"},
		{name: "no worker", before: func(w *world) { w.Remove(1); w.Remove(2) }, body: chat(ids, ""), status: 503, code: "no_endpoints", retry: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := start(t)
			w.put(1, 1)
			w.put(2, 1)
			if tt.before != nil {
				tt.before(w)
			}
			e := w.open()
			if tt.request != nil {
				tt.request(e)
			}
			e.request(chatPath, false, tt.fields...)
			for rest := tt.body; ; rest = rest[min(len(rest), 1<<16):] {
				e.body(rest[:min(len(rest), 1<<16)], len(rest) <= 1<<16)
				if len(rest) <= 1<<16 {
					break
				}
			}
			p := e.placement(true, false)
			if p.status != tt.status || !strings.Contains(p.answer, `"code":"`+tt.code+`"`) || !strings.HasPrefix(p.answer, `{"error":{"message":`) ||
				p.headers["content-type"] != "application/json" || (p.headers["retry-after"] != "") != tt.retry {
				t.Errorf("answered %d %s %v", p.status, p.answer, p.headers)
			}
			for _, sc := range w.Loads(nil, nil) {
				for _, l := range sc.Loads {
					if l.Requests > 0 {
						t.Errorf("%v is booked", l)
					}
				}
			}
		})
	}
}

// TestLoadOnly: a tokenizer that fails does not stop requests where load alone may decide.
func TestLoadOnly(t *testing.T) {
	w := start(t, func(_ *node.Config, c *settings) { c.LoadOnly = true })
	w.put(1, 1)
	f := http.HandlerFunc(func(out http.ResponseWriter, _ *http.Request) { out.WriteHeader(500) })
	w.renderer.Store(&f)
	e, p := w.post(chatPath, chat(servicetest.Prompt(7, 64), ""))
	if p.destination != at(1) {
		t.Fatalf("answered %+v", p)
	}
	if got := w.loads(); strings.HasPrefix(got, "1/0: 0 ") || !strings.HasSuffix(got, " 1") {
		t.Errorf("loads are %s", got)
	}
	e.close()
	w.wantLoads("1/0: 0 0 0")
}

// TestSubset: a request stays in the subset of its gateway, by address and port or by address.
func TestSubset(t *testing.T) {
	ids := servicetest.Prompt(7, 16)
	for _, v := range []*structpb.Value{
		structpb.NewStringValue(" " + at(1) + " , 10.0.0.77:1"),
		structpb.NewStringValue("10.0.0.1"),
		structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{structpb.NewStringValue(at(1))}}),
	} {
		t.Run(v.String(), func(t *testing.T) {
			w := start(t)
			w.put(1, 1)
			w.put(2, 1)
			w.cache(2, ids)
			for _, get := range []bool{false, true} {
				e := w.open()
				e.subset = v
				e.request(chatPath, get)
				if !get {
					e.body(chat(ids, ""), true)
				}
				if p := e.placement(!get, false); p.destination != at(1) {
					t.Errorf("went to %+v", p)
				}
				e.close()
			}
		})
	}
}

// TestSubsetOfIPv6: an IPv6 address is the same however it is written.
func TestSubsetOfIPv6(t *testing.T) {
	w := start(t)
	w.put(1, 1)
	w.put(2, 1, func(r *catalog.Record) { r.Endpoint = new("http://[2001:db8::2]:8000") })
	for _, text := range []string{
		"[2001:db8::2]:8000", "[2001:DB8:0:0::2]:8000", "2001:db8::2", "[2001:db8::2]", " 2001:0db8::2 ", "10.9.9.9, [2001:db8::2]:8000",
	} {
		e := w.open()
		e.subset = structpb.NewStringValue(text)
		e.request(chatPath, true)
		if p := e.placement(false, false); p.destination != "[2001:db8::2]:8000" {
			t.Errorf("in the subset %q it went to %+v", text, p)
		}
		e.close()
	}
	for _, text := range []string{"[2001:db8::2]:8001", "2001:db8::3", "::ffff:10.0.0.2"} {
		e := w.open()
		e.subset = structpb.NewStringValue(text)
		e.request(chatPath, true)
		if p := e.placement(false, false); p.status != 503 {
			t.Errorf("in the subset %q it went to %+v", text, p)
		}
	}
}

// TestSubsetOfSession: a subset goes before the session, whose further requests go where they went.
func TestSubsetOfSession(t *testing.T) {
	w := start(t, func(c *node.Config, _ *settings) { c.Selection.SessionTTL = time.Minute })
	w.put(1, 1)
	w.put(2, 1)
	ids := servicetest.Prompt(7, 16)
	w.cache(1, ids)
	for _, tt := range []struct{ subset, want string }{{"", at(1)}, {at(2), at(2)}, {"", at(1)}} {
		e := w.open()
		if tt.subset != "" {
			e.subset = structpb.NewStringValue(tt.subset)
		}
		e.request(chatPath, false, "x-session-id", "s")
		e.body(chat(ids, ""), true)
		if p := e.placement(true, false); p.destination != tt.want {
			t.Errorf("in the subset %q it went to %+v, want %s", tt.subset, p, tt.want)
		}
		e.close()
	}
}

// TestSessionsOfAgents: a sub-agent is a session of its own beside its root, and the last request of a session ends its
// binding with the answer.
func TestSessionsOfAgents(t *testing.T) {
	w := start(t, func(c *node.Config, _ *settings) { c.Selection.SessionTTL = time.Minute })
	w.put(1, 1)
	root := []string{"x-claude-code-session-id", "s"}
	child := append(root, "x-claude-code-agent-id", "c") //nolint:gocritic // another list
	bound := func(session string) bool {
		_, ok := w.SessionRank(servicetest.Scope, "", session)
		return ok
	}
	ask := func(headers ...string) {
		e, _ := w.post(chatPath, chat(servicetest.Prompt(7, 16), ""), headers...)
		e.response(200, "application/json", false)
		e.chunk("{}", true)
		e.close()
	}
	ask(child...)
	if bound("s") || !bound("c") {
		t.Errorf("behind a sub-agent's request: the root is bound: %t, the sub-agent: %t", bound("s"), bound("c"))
	}
	ask(root...)
	if !bound("s") {
		t.Error("the root is not bound")
	}
	ask(append(root, "x-dynamo-session-final", "true")...)
	if bound("s") || !bound("c") {
		t.Errorf("behind its last request the root is bound: %t, the sub-agent: %t", bound("s"), bound("c"))
	}
}

// TestSalt: a tenant's prompt shares no cache with another's, and the engine is told the salt
// that counts, with the tag if that is asked for.
func TestSalt(t *testing.T) {
	ids := servicetest.Prompt(7, 16)
	for _, tagged := range []bool{false, true} {
		t.Run(fmt.Sprintf("tagged %t", tagged), func(t *testing.T) {
			w := start(t, func(_ *node.Config, c *settings) { c.SaltTag = tagged })
			w.put(1, 1)
			w.put(2, 1)
			stored := w.Engine(2, 0).Stored(ids, servicetest.BlockSize, servicetest.Dict{"cache_salt": "a"})
			w.Engine(2, 0).Publish(0, stored)
			w.Settle()
			told := func(salt string) string {
				if tagged {
					return `"cache_salt":"dynamo-cache-salt:` + salt + `"`
				}
				return `"cache_salt":"` + salt + `"`
			}
			for _, tt := range []struct {
				tenant, body, want string
				cached             bool
			}{
				{"a", "", told("a"), true},
				{"", `,"cache_salt":"a"`, told("a"), true},
				{"b", `,"cache_salt":"a"`, told("b"), false},
				{"b", `,"nvext":{"cache_salt":"a"}`, told("b"), false},
				{"", `,"nvext":{"cache_salt":"a"},"cache_salt":"c"`, told("a"), true},
			} {
				fields := []string{}
				if tt.tenant != "" {
					fields = []string{"x-tenant-id", tt.tenant}
				}
				e, p := w.post(chatPath, chat(ids, tt.body), fields...)
				cached := p.destination == at(2) && strings.Contains(w.loads(), "2/0: 0 4 1")
				if !strings.Contains(p.body, tt.want) || cached != tt.cached {
					t.Errorf("tenant %q, body %q: the engine at %s gets %s; loads are %s", tt.tenant, tt.body, p.destination, p.body, w.loads())
				}
				e.close()
				w.wantLoads("1/0: 0 0 0; 2/0: 0 0 0")
			}
		})
	}
}

// TestExtraKey: SGLang caches a prompt under its extra_key too, which events do not tell: such a
// prompt finds no cached block, and shares what runs with prompts of the same key and salt only.
func TestExtraKey(t *testing.T) {
	w := start(t)
	w.put(1, 1)
	ids := servicetest.Prompt(7, 16)
	w.cache(1, ids)
	first, p := w.post(chatPath, chat(ids, `,"extra_key":"x","cache_salt":"s"`))
	w.wantLoads("1/0: 16 4 1")
	if !strings.Contains(p.body, `"extra_key":"x","cache_salt":"s"`) {
		t.Errorf("the engine gets %s", p.body)
	}
	for body, blocks := range map[string]int{
		`,"extra_key":"x","cache_salt":"s"`:            4,
		`,"extra_key":"x","nvext":{"cache_salt":"s"}`:  4,
		`,"extra_key":"x","cache_salt":"t"`:            8,
		`,"extra_key":"x"`:                             8,
		`,"extra_key":"y","cache_salt":"s"`:            8,
		`,"extra_key":"s","cache_salt":"x"`:            8,
		`,"extra_key":"","cache_salt":"s"`:             8,
		`,"cache_salt":"s"`:                            8,
		`,"extra_key":"x\u0000","cache_salt":"s"`:      8,
		`,"extra_key":["x"],"cache_salt":"s","n":null`: 4,
	} {
		e, _ := w.post(chatPath, chat(ids, body))
		w.wantLoads(fmt.Sprintf("1/0: 32 %d 2", blocks))
		e.close()
		w.wantLoads("1/0: 16 4 1")
	}
	for body, want := range map[string]string{
		`{"input_ids":` + idsOf(ids) + `,"extra_key":"x","cache_salt":"s"}`: "1/0: 32 4 2",
		`{"input_ids":` + idsOf(ids) + `}`:                                  "1/0: 16 8 2",
	} {
		e, _ := w.post("/generate", body)
		w.wantLoads(want)
		e.close()
		w.wantLoads("1/0: 16 4 1")
	}
	first.close()
}

// TestRanks: an engine with several ranks is told the one that was chosen.
func TestRanks(t *testing.T) {
	w := start(t)
	w.put(1, 4)
	ids := servicetest.Prompt(7, 16)
	w.Engine(1, 2).Publish(2, w.Engine(1, 2).Stored(ids, servicetest.BlockSize, nil))
	w.Settle()
	e, p := w.post(chatPath, chat(ids, ""))
	if p.destination != at(1) || p.headers["x-data-parallel-rank"] != "2" {
		t.Errorf("answered %+v", p)
	}
	e.close()
}

// TestPriority: the header goes before the body, field by field, and a malformed one counts as
// none: by the order in which requests that wait are placed.
func TestPriority(t *testing.T) {
	w := start(t, func(c *node.Config, _ *settings) { c.Scopes.Admission = admission.Config{Threshold: new(0.5)} })
	w.put(1, 1, func(r *catalog.Record) { r.MaxNumBatchedTokens = new(uint64(16)) })
	first, _ := w.post(chatPath, chat(servicetest.Prompt(1, 16), ""))
	wait := func(waiting int, strict string, body string) *envoy {
		e := w.open()
		e.request(chatPath, false, "x-dynamo-request-strict-priority", strict)
		e.body(chat(servicetest.Prompt(uint32(waiting+1), 16), body), true)
		await(t, func() string {
			if n := w.Loads(nil, nil)[0].PendingCount; n != waiting {
				return fmt.Sprintf("%d requests wait, want %d", n, waiting)
			}
			return ""
		})
		return e
	}
	low := wait(1, "1", `,"nvext":{"agent_hints":{"strict_priority":9}}`)
	high := wait(2, "malformed", `,"nvext":{"agent_hints":{"strict_priority":5}}`)
	first.close()
	high.placement(true, false)
	high.close()
	low.placement(true, false)
	low.close()
}

// TestWaiting: who goes while he waits is never booked; a request that waits too long is
// refused.
func TestWaiting(t *testing.T) {
	queue := func(c *node.Config, g *settings) {
		c.Scopes.Admission = admission.Config{Threshold: new(0.5)}
		g.PickTimeout = time.Second
	}
	w := start(t, queue)
	w.put(1, 1, func(r *catalog.Record) { r.MaxNumBatchedTokens = new(uint64(16)) })
	w.Burden("load", 1, 0, 4, 16)
	await(t, func() string { // on a busy machine the second may be over before the request waits
		if _, p := w.post(chatPath, chat(servicetest.Prompt(2, 16), "")); p.status != 429 || p.headers["retry-after"] == "" {
			return fmt.Sprintf("answered %+v", p)
		}
		return ""
	})
	w.wantLoads("1/0: 16 4 1")

	long := start(t, queue, func(_ *node.Config, g *settings) { g.PickTimeout = time.Minute })
	long.put(1, 1, func(r *catalog.Record) { r.MaxNumBatchedTokens = new(uint64(16)) })
	first, _ := long.post(chatPath, chat(servicetest.Prompt(1, 16), ""))
	for name, leave := range map[string]func(*envoy){
		"half-close":    func(e *envoy) { e.close() },
		"broken stream": func(e *envoy) { e.cancel() },
		"local reply": func(e *envoy) {
			e.response(504, "text/plain", true)
			e.close()
		},
	} {
		e := long.open()
		e.request(chatPath, false)
		e.body(chat(servicetest.Prompt(2, 16), ""), true)
		waiting := func(want int) {
			await(t, func() string {
				if n := long.Loads(nil, nil)[0].PendingCount; n != want {
					return fmt.Sprintf("%s: %d requests wait, want %d", name, n, want)
				}
				return ""
			})
		}
		waiting(1)
		leave(e)
		waiting(0)
		long.wantLoads("1/0: 16 4 1")
	}
	first.close()
	long.wantLoads("1/0: 0 0 0")
}

// TestTooMany: streams beyond the limit are refused at once.
func TestTooMany(t *testing.T) {
	w := start(t, func(_ *node.Config, c *settings) { c.MaxStreams = 2 })
	w.put(1, 1)
	var open []*envoy
	for i := range 2 {
		e, _ := w.post(chatPath, chat(servicetest.Prompt(uint32(i+1), 8), `,"stream":true`))
		open = append(open, e)
	}
	e := w.open()
	e.request(chatPath, false)
	if p := e.placement(true, false); p.status != 503 || p.headers["retry-after"] == "" {
		t.Errorf("answered %+v", p)
	}
	// The end of an answer makes room, before its client knows.
	open[0].response(200, sse, false)
	open[0].chunk(event("a"), true)
	third, p := w.post(chatPath, chat(servicetest.Prompt(3, 8), ""))
	if p.status != 0 {
		t.Errorf("after an answer: %+v", p)
	}
	for _, e := range append(open, third) {
		e.close()
	}
}

// TestBurst: of requests that come at once exactly as many as there is room for are admitted,
// and one that is refused takes no room.
func TestBurst(t *testing.T) {
	w := start(t, func(_ *node.Config, c *settings) { c.MaxStreams = 4 })
	w.put(1, 1)
	for range 3 {
		var all []*envoy
		for range 40 {
			all = append(all, w.open())
		}
		for _, e := range all {
			e.request(chatPath, false)
		}
		var admitted []*envoy
		for i, e := range all {
			e.body(chat(servicetest.Prompt(uint32(i+1), 8), ""), true)
			if p := e.placement(true, false); p.status == 0 {
				admitted = append(admitted, e)
			} else if p.status != 503 && p.status != 408 { // on a slow machine one gives its place to another
				t.Errorf("answered %+v", p)
			}
		}
		if len(admitted) != 4 {
			t.Errorf("%d requests were admitted, want 4", len(admitted))
		}
		for _, e := range admitted {
			e.response(200, "application/json", true)
			e.close()
		}
		_, p := w.post(chatPath, "{") // refused for its body, and gone
		if p.status != 400 {
			t.Errorf("answered %+v", p)
		}
	}
}

// TestShortenedPrompt proves that what the engine cuts off a prompt is neither looked up nor
// booked, and that a prompt whose length is not known counts as it stands.
func TestShortenedPrompt(t *testing.T) {
	w := start(t)
	w.put(1, 1)
	ids := servicetest.Prompt(7, 100)[:100]
	list := strings.ReplaceAll(fmt.Sprint(ids), " ", ",")
	for _, tt := range []struct {
		body   string
		tokens int
	}{
		{`{"model":"m","prompt":` + list + `,"truncate_prompt_tokens":8}`, 8},
		{`{"model":"m","prompt":` + list + `,"truncate_prompt_tokens":8,"truncation_side":"right"}`, 8},
		{`{"model":"m","prompt":[` + list + `,[1,2]],"truncate_prompt_tokens":8}`, 10},
		{`{"model":"m","prompt":` + list + `,"truncate_prompt_tokens":200}`, 100},
		{`{"model":"m","prompt":` + list + `,"truncate_prompt_tokens":-1}`, 100},
	} {
		e, _ := w.post(completionsPath, tt.body)
		if got := w.Loads(nil, nil)[0].Loads[0].PrefillTokens; got != uint64(tt.tokens) {
			t.Errorf("%s: %d tokens booked, want %d", tt.body[len(tt.body)-50:], got, tt.tokens)
		}
		e.close()
		w.wantLoads("1/0: 0 0 0")
	}
	if n := w.count("model_length_unknown_total", ""); n != 1 {
		t.Errorf("%v requests with an unknown length, want 1", n)
	}
}

// TestTruncatedOverlap proves which tokens of a shortened prompt are looked up: the last ones, or
// the first ones with truncation_side "right".
func TestTruncatedOverlap(t *testing.T) {
	w := start(t)
	w.put(1, 1)
	w.put(2, 1)
	ids := servicetest.Prompt(7, 64)[:64]
	first, last := ids[:32], ids[32:]
	w.cache(1, first)
	w.cache(2, last)
	list := strings.ReplaceAll(fmt.Sprint(ids), " ", ",")
	for _, tt := range []struct {
		path, body string
		worker     uint64
	}{
		{completionsPath, `{"model":"m","prompt":` + list + `,"truncate_prompt_tokens":32}`, 2},
		{completionsPath, `{"model":"m","prompt":` + list + `,"truncate_prompt_tokens":32,"truncation_side":"left"}`, 2},
		{completionsPath, `{"model":"m","prompt":` + list + `,"truncate_prompt_tokens":32,"truncation_side":"right"}`, 1},
		{chatPath, chat(ids, `,"truncate_prompt_tokens":32`), 2},
		{chatPath, chat(ids, `,"truncate_prompt_tokens":32,"truncation_side":"right"`), 1},
		{chatPath, chat(nil, `,"kv_transfer_params":{"prompt_token_ids":`+list+`}`), 1},
		{chatPath, chat(last, `,"kv_transfer_params":{"prompt_token_ids":`+strings.ReplaceAll(fmt.Sprint(first), " ", ",")+`}`), 1},
		{chatPath, chat(first, `,"echo":true,"kv_transfer_params":{"prompt_token_ids":`+strings.ReplaceAll(fmt.Sprint(last), " ", ",")+`}`), 1},
	} {
		for range 5 { // not by chance
			e, p := w.post(tt.path, tt.body)
			if p.destination != at(tt.worker) {
				t.Errorf("%s: went to %s", tt.body[max(0, len(tt.body)-120):], p.destination)
			}
			e.close()
			w.wantLoads("1/0: 0 0 0; 2/0: 0 0 0")
		}
	}
}

// TestLengthOfModels proves that a length that /tokenize does not tell is asked for at an engine's
// list of models, again while that does not have it, and that responses with the truncation "auto"
// are then shortened to it, less the token of the output.
func TestLengthOfModels(t *testing.T) {
	w := start(t)
	var asked atomic.Int64
	engine := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/models" {
			http.NotFound(out, r)
			return
		}
		if asked.Add(1) == 1 { // still loading
			http.Error(out, "", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintf(out, `{"data":[{"id":"other","max_model_len":7},{"id":%q,"max_model_len":33}]}`, servicetest.Scope.Model)
	}))
	t.Cleanup(engine.Close)
	w.put(1, 1, func(r *catalog.Record) { r.Endpoint = new(engine.URL) })
	text := wordsOf(servicetest.Prompt(7, 64)[:64])
	body := `{"model":"m","input":"` + text + `","truncation":"auto"}`
	answer := http.HandlerFunc(func(out http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(out, `{"tokens":[%s]}`, strings.ReplaceAll(text, " ", ","))
	})
	w.renderer.Store(&answer)
	booked := func() uint64 {
		e, _ := w.post("/v1/responses", body)
		defer e.close()
		return w.Loads(nil, nil)[0].Loads[0].PrefillTokens
	}
	if n := booked(); n != 64 {
		t.Errorf("%d tokens booked while the length is unknown, want 64", n)
	}
	await(t, func() string {
		w.wantLoads("1/0: 0 0 0")
		if n := booked(); n != 32 {
			return fmt.Sprintf("%d tokens booked, want 32", n)
		}
		return ""
	})
	if n := asked.Load(); n != 2 {
		t.Errorf("asked %d times for the models, want 2", n)
	}
	w.wantLoads("1/0: 0 0 0")
}

// TestLengthOfWorkers proves that a length that a worker states, or that its engine has told, is that of
// its model at once, and that nobody is asked for it.
func TestLengthOfWorkers(t *testing.T) {
	w := start(t, func(_ *node.Config, c *settings) {
		c.Length = func(context.Context, string, string) (int, error) {
			t.Error("an engine was asked for a length that is stated")
			return 0, errors.New("not asked")
		}
	})
	w.put(1, 1, func(r *catalog.Record) { r.MaxModelLen = new(uint32(33)) })
	text := wordsOf(servicetest.Prompt(7, 64)[:64])
	answer := http.HandlerFunc(func(out http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(out, `{"tokens":[%s]}`, strings.ReplaceAll(text, " ", ","))
	})
	w.renderer.Store(&answer)
	e, _ := w.post("/v1/responses", `{"model":"m","input":"`+text+`","truncation":"auto"}`)
	defer e.close()
	if n := w.Loads(nil, nil)[0].Loads[0].PrefillTokens; n != 32 {
		t.Errorf("%d tokens booked, want 32", n)
	}
}

// TestGroups: sub-agents of a Claude Code session come together, beside their busy root, although nothing is cached and their
// sessions do not bind. Their headers are those of the client (Dynamo, docs/agents/session-ids.md).
func TestGroups(t *testing.T) {
	for _, mode := range []selection.SessionMode{selection.LooseSessions, selection.SoftSessions} {
		w := start(t, func(c *node.Config, s *settings) {
			c.Selection.HomeTTL, s.SessionMode, s.SessionGroups = time.Hour, mode, true
			servicetest.Policy(t, "predicted-ttft", "")(c)
		})
		for id := range uint64(8) {
			w.put(id, 1)
		}
		root, at := w.post(chatPath, chat(servicetest.Prompt(1, 2000), ""), "x-claude-code-session-id", "s")
		defer root.close()
		children := make(map[string]int)
		for i := range 6 {
			ids := append(servicetest.Prompt(2, 2000), servicetest.Prompt(uint32(10+i), 50)...)
			e, p := w.post(chatPath, chat(ids, ""), "x-claude-code-session-id", "s", "x-claude-code-agent-id", fmt.Sprint("c", i))
			defer e.close()
			children[p.destination]++
		}
		if len(children) > 2 || children[at.destination] > 0 {
			t.Errorf("mode %d: the root is at %s, its sub-agents at %v", mode, at.destination, children)
		}
	}
}
