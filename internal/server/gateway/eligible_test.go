package gateway_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection/admission"
	"github.com/select-service/select-service/internal/server/gateway/tokenizer"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// queueing makes a rank busy with 8 tokens of prefill on workers with fewTokens.
func queueing(c *node.Config, g *settings) {
	c.Scopes.Admission = admission.Config{Threshold: new(0.5)}
	g.PickTimeout = time.Minute
}

func fewTokens(r *catalog.Record) { r.MaxNumBatchedTokens = new(uint64(16)) }

func (w *world) awaitPending(want int) {
	w.T.Helper()
	await(w.T, func() string {
		if n := w.Loads(nil, nil)[0].PendingCount; n != want {
			return fmt.Sprintf("%d requests wait, want %d", n, want)
		}
		return ""
	})
}

// ask sends a chat, in a subset unless that is "".
func (w *world) ask(subset string, prompt uint32) *envoy {
	e := w.open()
	if subset != "" {
		e.subset = structpb.NewStringValue(subset)
	}
	e.request(chatPath, false)
	e.body(chat(servicetest.Prompt(prompt, 16), `,"stream":true`), true)
	return e
}

// TestJoins: a request that waits gets a worker that has joined meanwhile, if it may have it.
func TestJoins(t *testing.T) {
	w := start(t, queueing)
	w.put(1, 1, fewTokens)
	busy := w.ask("", 1)
	busy.placement(true, false)
	in := w.ask(at(1)+","+at(3), 2)
	w.awaitPending(1)
	w.put(2, 1, fewTokens, role("prefill"))
	w.awaitPending(1)
	w.put(3, 1, fewTokens)
	if p := in.placement(true, false); p.destination != at(3) {
		t.Errorf("went to %q (%d), want the worker of its subset that decodes", p.destination, p.status)
	}
}

// TestSubsetsOfRanks: a request that waits for one rank of a worker does not hold up one that
// may go to another.
func TestSubsetsOfRanks(t *testing.T) {
	w := start(t, queueing)
	w.put(1, 2, fewTokens, func(r *catalog.Record) {
		r.RankEndpoints = map[uint32]string{0: "http://10.0.0.1:8001", 1: "http://10.0.0.1:8002"}
	})
	w.ask("10.0.0.1:8001", 1).placement(true, false)
	second := w.ask("10.0.0.1:8002", 2)
	second.placement(true, false)
	w.ask("10.0.0.1:8001", 3)
	w.awaitPending(1)
	waits := w.ask("10.0.0.1:8002", 4)
	w.awaitPending(2)
	second.close()
	if p := waits.placement(true, false); p.destination != "10.0.0.1:8002" {
		t.Errorf("went to %q (%d)", p.destination, p.status)
	}
}

// TestBusyPrefill: while the prefill workers are busy, a free decode worker prefills itself.
func TestBusyPrefill(t *testing.T) {
	w := start(t, queueing)
	w.put(1, 1, fewTokens)
	w.put(2, 1, fewTokens, role("prefill"))
	w.Burden("load", 2, 0, 1, 16)
	e := w.ask("", 1)
	if p := e.placement(true, false); p.destination != at(1) || p.headers[prefiller] != "" {
		t.Errorf("%+v", p)
	}
}

// TestDecodeLegIgnoresCaches, under every policy: the worker that prefills has sent it the blocks.
func TestDecodeLegIgnoresCaches(t *testing.T) {
	for _, kind := range []string{"", "dynamo-default-cost-fn", "dynamo-two-tier-cost-fn", "lmetric", "predicted-ttft"} {
		t.Run(kind, func(t *testing.T) {
			w := start(t, func(c *node.Config, _ *settings) {
				if kind != "" {
					servicetest.Policies(t, "aggregated: p\ninstances: [{name: p, type: "+kind+"}]")(c)
				}
			})
			w.put(1, 1, role("prefill"))
			w.put(2, 1, role("decode"))
			w.put(3, 1, role("decode"))
			ids := servicetest.Prompt(1, 16)
			w.cache(3, ids)
			went := map[string]int{}
			for range 40 {
				e, p := w.post(chatPath, chat(ids, `,"stream":true`))
				went[p.destination]++
				e.close()
			}
			if went[at(2)] == 0 {
				t.Errorf("all 40 go to the worker with the blocks: %v", went)
			}
		})
	}
}

// TestOtherPathsGoByLoad, whatever the policy and the session.
func TestOtherPathsGoByLoad(t *testing.T) {
	for name, set := range map[string]func(*node.Config){
		"round-robin": servicetest.Policies(t, "aggregated: p\ninstances: [{name: p, type: round-robin}]"),
		"temperature": func(c *node.Config) { c.Selection.Weights.Temperature = 5 },
		"session":     func(c *node.Config) { c.Selection.SessionTTL = time.Minute },
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t, func(c *node.Config, _ *settings) { set(c) })
			w.put(1, 1)
			e, _ := w.post(chatPath, chat(servicetest.Prompt(7, 16), ""), "x-session-id", "s") // binds the session to 1
			e.close()
			w.put(2, 1)
			w.Burden("load", 1, 0, 10, 100)
			for range 10 {
				e := w.open()
				e.request("/v1/embeddings", false, "x-session-id", "s")
				e.body(`{"model":"m","input":"x"}`, true)
				if p := e.placement(true, false); p.destination != at(2) {
					t.Fatalf("went to %q", p.destination)
				}
				e.close()
			}
		})
	}
}

// TestUnknownAddress: a worker whose host name is not found gets no request, nor do requests
// fail because of it.
func TestUnknownAddress(t *testing.T) {
	nowhere := func(r *catalog.Record) { r.Endpoint = new("http://no-such-host.invalid:8000") }
	w := start(t)
	w.put(1, 1)
	w.put(2, 1, nowhere)
	w.put(3, 1, nowhere, role("prefill"))
	for i := range 10 {
		_, p := w.post(chatPath, chat(servicetest.Prompt(uint32(i+1), 16), `,"stream":true`))
		if p.destination != at(1) || p.headers[prefiller] != "" {
			t.Fatalf("%+v", p)
		}
	}
	_, p := w.post("/v1/embeddings", `{"model":"m","input":"x"}`)
	if p.destination != at(1) {
		t.Errorf("embeddings: %+v", p)
	}
	w.wantLoads("1/0: 160 40 11; 2/0: 0 0 0; 3/0: 0 0 0") // the embeddings count as a request
}

// TestEncodersGetNothing: a worker that only encodes gets no request, neither one that is placed by its prompt nor one that is
// placed by load, beside workers of whatever roles. Where there is no other worker the request is one for a model without any.
func TestEncodersGetNothing(t *testing.T) {
	image := `{"model":"m","messages":[{"content":[{"type":"image_url","image_url":{"url":"data:"}}]}]}`
	ids := servicetest.Prompt(1, 16)
	requests := []struct{ path, body string }{
		{chatPath, chat(ids, "")}, {chatPath, image}, {"/v1/embeddings", `{"model":"m","input":"1"}`}, {"/v1/files", "x"},
	}
	w := start(t)
	w.put(1, 1, role("encode"))
	w.cache(1, ids)
	for _, r := range requests {
		if _, p := w.post(r.path, r.body); p.status != 503 {
			t.Errorf("%s, alone: %+v", r.path, p)
		}
	}
	w.put(2, 1)
	for range 3 {
		for _, r := range requests {
			if _, p := w.post(r.path, r.body); p.destination != at(2) {
				t.Errorf("%s: %+v", r.path, p)
			}
		}
	}
	w.put(3, 1, role("prefill"))
	for range 3 {
		for _, body := range []string{chat(ids, ""), image} {
			if _, p := w.post(chatPath, body); p.destination != at(2) || p.headers[prefiller] != at(3) {
				t.Errorf("a pair: %+v", p)
			}
		}
	}
}

// TestEncodersAreNotAsked: a worker that only encodes may have no tokenizer, so it is not asked for the tokens of a prompt: the
// request would fail.
func TestEncodersAreNotAsked(t *testing.T) {
	asks := tokenizer.New(tokenizer.Options{URL: tokenizer.Worker, Protocol: tokenizer.VLLMTokenize, Timeout: time.Minute, MaxResponse: 1 << 20})
	t.Cleanup(asks.Close)
	w := start(t, func(_ *node.Config, c *settings) { c.Tokenizer = asks })
	var asked atomic.Int64
	encoder := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.WriteHeader(http.StatusNotFound)
	}))
	t.Cleanup(encoder.Close)
	engine := httptest.NewServer(http.HandlerFunc(w.tokenize))
	t.Cleanup(engine.Close)
	w.Put(servicetest.Record(1, 1, role("encode"), func(r *catalog.Record) { r.Endpoint = &encoder.URL }))
	body := chat(servicetest.Prompt(1, 16), "")
	if _, p := w.post(chatPath, body); p.status != 503 {
		t.Errorf("alone: %+v", p)
	}
	w.Put(servicetest.Record(2, 1, func(r *catalog.Record) { r.Endpoint = &engine.URL }))
	for range 20 { // each begins at a random worker
		if _, p := w.post(chatPath, body); "http://"+p.destination != engine.URL {
			t.Errorf("beside another one: %+v", p)
		}
	}
	if n := asked.Load(); n > 0 {
		t.Errorf("the one that encodes was asked %d times", n)
	}
}
