package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/select-service/select-service/demo/sim/simapi"
	"github.com/select-service/select-service/test/checks/e2e"
)

// streamedAnswer: the first piece of a streamed answer ends the prefill, and the blocks
// stay booked to its end.
func streamedAnswer(t *testing.T) {
	b := lay(t, setup{engines: 1})
	e := b.engines[0]
	e.speed(t, still)
	r := b.begin(chats, chat(words(30, 200), streamed, object{"max_tokens": 10_000}))
	b.awaitLoad(1, 0, "prefills", func(l e2e.Load) bool { return l.Prefill >= 200 && l.Decode >= 12 && l.Requests == 1 })
	e.speed(t, normal)
	if _, err := r.event(); err != nil {
		t.Fatal(err)
	}
	b.awaitLoad(1, 0, "decodes", func(l e2e.Load) bool { return l.Prefill == 0 && l.Decode >= 12 && l.Requests == 1 })
	e.speed(t, hasty)
	r.end(t)
	b.idle()
}

// wholeAnswer: nothing is seen of an answer in one piece before its end. The engine's
// event for the last block of the prompt ends the prefill.
func wholeAnswer(t *testing.T) {
	b := lay(t, setup{engines: 1})
	e := b.engines[0]
	e.speed(t, still)
	done := make(chan error, 1)
	go func() {
		a, err := b.send(t.Context(), http.MethodPost, chats, chat(words(31, 200), object{"max_tokens": 10_000}))
		if err == nil && a.status != http.StatusOK {
			err = errors.New(a.String())
		}
		done <- err
	}()
	b.awaitLoad(1, 0, "prefills", func(l e2e.Load) bool { return l.Prefill >= 200 })
	e.speed(t, normal)
	b.awaitLoad(1, 0, "decodes", func(l e2e.Load) bool { return l.Prefill == 0 && l.Requests == 1 })
	b.awaitMetric(`select_service_gateway_prefill_completed_total{by="kv_event"}`, 1)
	select {
	case err := <-done:
		t.Fatalf("the answer has come: %v", err)
	default:
	}
	e.speed(t, hasty)
	if err := <-done; err != nil {
		t.Error(err)
	}
	b.idle()
}

// outputBlocks: an answer of 100 tokens fills six more blocks.
func outputBlocks(t *testing.T) {
	b := lay(t, setup{engines: 1})
	e := b.engines[0]
	e.speed(t, still)
	r := b.begin(chats, chat(words(32, 200), streamed, object{"max_tokens": 100_000}))
	var before uint64
	b.awaitLoad(1, 0, "is booked", func(l e2e.Load) bool { before = l.Decode; return l.Requests == 1 })
	e.speed(t, normal)
	for range 1 + 112 { // the role, and what seven blocks have
		if _, err := r.event(); err != nil {
			t.Fatal(err)
		}
	}
	b.awaitLoad(1, 0, fmt.Sprintf("has six blocks more than %d", before), func(l e2e.Load) bool { return l.Decode >= before+6 })
	e.speed(t, hasty)
	r.end(t)
	b.idle()
}

// addedLatency: the picker adds at most 5 ms to a request where nothing else runs.
func addedLatency(t *testing.T) {
	if !e2e.Alone() {
		t.Skipf("judges a delay: needs a machine of its own and %s", e2e.AloneEnv)
	}
	b := lay(t, setup{})
	median := func(url string) time.Duration {
		var all []time.Duration
		for range 200 {
			begin := time.Now()
			a, err := e2e.Call(t.Context(), client, http.MethodPost, url+completions, object{"model": model, "prompt": promptOf("Hello"), "max_tokens": 1})
			if err != nil || a.Status != http.StatusOK {
				t.Fatalf("%v, %v", a, err)
			}
			all = append(all, time.Since(begin))
		}
		slices.Sort(all)
		return all[len(all)/2]
	}
	without := median(b.envoy.inTurn)
	with := median(b.envoy.url)
	t.Logf("%v with the picker, %v without", with, without)
	if with-without > 5*time.Millisecond {
		t.Errorf("the picker adds %v", with-without)
	}
}

// leavesQueue: a client that leaves while its request waits is never booked.
func leavesQueue(t *testing.T) {
	b := lay(t, setup{engines: 1, service: []string{"--router-queue-threshold", "0"}})
	e := b.engines[0]
	e.speed(t, still)
	busy := b.begin(chats, chat(words(33, 100), streamed))
	b.awaitLoad(1, 0, "is busy", func(l e2e.Load) bool { return l.Requests == 1 })
	ctx, leave := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := b.send(ctx, http.MethodPost, chats, chat(words(34, 100)))
		done <- err
	}()
	b.awaitWaiting(1)
	leave()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the client that left: %v", err)
	}
	b.awaitWaiting(0)
	e.takeSeen()
	e.speed(t, hasty)
	busy.end(t)
	b.idle()
	if all := e.takeSeen(); len(all) > 0 {
		t.Errorf("the request reached the engine: %s", all[0].body)
	}
	b.awaitMetric(`select_service_gateway_requests_total{outcome="booked"}`, 1)
	b.awaitMetric(`select_service_gateway_requests_total{outcome="gone"}`, 1)
}

// leavesAnswer: a client that leaves in the middle of an answer carries nothing any
// more, though the engine is not done.
func leavesAnswer(t *testing.T) {
	b := lay(t, setup{engines: 1})
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	r, err := b.open(ctx, http.MethodPost, chats, chat(words(35, 100), streamed, object{"max_tokens": 100_000}))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.event(); err != nil {
		t.Fatal(err)
	}
	b.awaitLoad(1, 0, "decodes", func(l e2e.Load) bool { return l.Requests == 1 && l.Prefill == 0 })
	leave()
	b.idle()
}

// breaksBetween: an engine that breaks when its answer has begun, while Envoy still waits for
// what the picker says to the answer's head, is a 502 of Envoy ("protocol error": a chunked body
// has no end) and no fault of the picker's messages. The booking ends.
func breaksBetween(t *testing.T) {
	broken := make(chan struct{})
	defer close(broken)
	tap := &tap{before: func(m *extprocv3.ProcessingResponse) {
		if m.GetResponseHeaders() != nil {
			<-broken
		}
	}}
	b := lay(t, setup{tap: tap})
	for _, e := range b.engines {
		e.answer(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: {}\n\n")
			_ = http.NewResponseController(w).Flush() // the test sees what comes of it
			panic(http.ErrAbortHandler)
		})
	}
	a := b.post(http.StatusBadGateway, chats, chat("Hello", streamed))
	if !strings.Contains(a.body, "protocol error") {
		t.Errorf("answered %v", a)
	}
	b.idle()
}

// engineBreaks: whatever ends an answer early, nothing stays booked.
func engineBreaks(t *testing.T) {
	b := lay(t, setup{})
	for name, faults := range map[string]simapi.Faults{
		"500": {Status: 500}, "503": {Status: 503}, "no answer": {Reset: true}, "half an answer": {Reset: true, ResetTokens: 2},
	} {
		for _, e := range b.engines {
			e.SetFaults(faults)
		}
		for _, fields := range []object{{}, streamed} {
			a, err := b.send(t.Context(), http.MethodPost, chats, chat(words(36, 100), fields))
			if err == nil && a.status == http.StatusOK && (!b.proxied || !strings.Contains(a.body, `data: {"error":`)) {
				t.Errorf("%s: %v", name, a)
			}
			if faults.Status != 0 && a.status != faults.Status {
				t.Errorf("%s: %v, %v", name, a, err)
			}
			b.idle()
		}
	}
	for _, e := range b.engines {
		e.SetFaults(simapi.Faults{})
	}
	b.post(http.StatusOK, chats, chat(words(36, 100)))
	b.idle()
}

// refusedConnection: the engine that was picked refuses, and the gateway goes on to the
// next in the picker's list. The load is booked there.
func refusedConnection(t *testing.T) {
	b := lay(t, setup{envoy: []edit{retries(1)}})
	b.post(http.StatusOK, chats, chat("The picker learns that this gateway says who served."))
	text := words(37, 500)
	b.warm(b.engines[0], chats, chat(text))
	b.engines[0].refuse()
	b.engines[1].speed(t, still)
	r := b.begin(chats, chat(text, streamed))
	if r.engine() != "B" {
		t.Errorf("%s answers", r.engine())
	}
	b.awaitLoad(2, 0, "has the request", func(l e2e.Load) bool { return l.Requests == 1 })
	b.awaitLoad(1, 0, "has none", func(l e2e.Load) bool { return !l.Carries() })
	b.engines[1].speed(t, hasty)
	r.end(t)
	b.idle()
}

// sameRequestID: two requests with the same id at once are two requests.
func sameRequestID(t *testing.T) {
	b := lay(t, setup{engines: 1})
	e := b.engines[0]
	e.speed(t, still)
	var both []*reply
	for range 2 {
		both = append(both, b.begin(chats, chat(words(38, 100), streamed), "X-Request-Id", "the-same"))
	}
	b.awaitLoad(1, 0, "has two", func(l e2e.Load) bool { return l.Requests == 2 })
	e.speed(t, hasty)
	for _, r := range both {
		r.end(t)
	}
	b.idle()
}

// usageInPieces: the usage at the end of an answer comes in three pieces, and is
// counted once.
func usageInPieces(t *testing.T) {
	b := lay(t, setup{engines: 1})
	const usage = `data: {"choices":[],"usage":{"prompt_tokens":40,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":32}}}` + "\n\n"
	b.engines[0].answer(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		flush := http.NewResponseController(w)
		for _, piece := range []string{
			"data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n", usage[:30], usage[30:70], usage[70:], "data: [DONE]\n\n",
		} {
			_, _ = io.WriteString(w, piece)
			_ = flush.Flush()
		}
	})
	b.begin(chats, chat(words(39, 40), streamed, object{"stream_options": object{"include_usage": true}})).end(t)
	b.awaitMetric("select_service_gateway_cached_tokens_count", 1)
	b.awaitMetric("select_service_gateway_cached_tokens_sum", 32)
	b.idle()
}
