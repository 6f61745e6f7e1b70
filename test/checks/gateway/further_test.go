package gateway

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/select-service/select-service/test/checks/e2e"
)

// TestFurther plays what is beside the scenarios: the same with other bodies, codings,
// clusters and limits.
func TestFurther(t *testing.T) {
	if testing.Short() {
		t.Skip("beside the scenarios")
	}
	for name, play := range map[string]func(*testing.T){
		"TLS":                         securePicker,
		"a burst above the limit":     burst,
		"one request after the other": oneAtATime,
		"a compressed stream":         compressedStream,
		"streams of other APIs":       otherStreams,
		"two refused connections":     twoRefused,
		"an engine that is no worker": foreignEngine,
		"subsets from a header":       subsetsOfHeader,
		"a timeout of Envoy":          idleTimeout,
		"clients leave the tokenizer": leaveTokenizer,
		"the tokenizer's breaker":     tokenizerBreaks,
		"no workers":                  noWorkers,
		"an original destination":     originalDestination,
		"two gateways at one address": twoGateways,
		"answers without a body":      noAnswerBody,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			play(t)
		})
	}
}

// securePicker: a picker with a certificate of its own. The health check needs the name of the
// protocol (ALPN), which Envoy gives by itself for requests only.
func securePicker(t *testing.T) {
	b := lay(t, setup{service: []string{"--gateway-self-signed"}, envoy: []edit{selfSigned}})
	b.post(http.StatusOK, chats, chat("Hello"))
	b.idle()
	b.awaitMetric(`select_service_gateway_requests_total{outcome="booked"}`, 1)
}

// burst: of requests that come at once, before Envoy has learned anything of the picker,
// exactly as many as may be are booked.
func burst(t *testing.T) {
	const most, all = 2, 40
	b := lay(t, setup{engines: 1, service: []string{"--gateway-max-streams", fmt.Sprint(most)}})
	e := b.engines[0]
	e.speed(t, still)
	var full atomic.Int64
	done := make(chan error, 1)
	go func() {
		done <- each(t.Context(), all, func(ctx context.Context, _ int) error {
			a, err := b.send(ctx, http.MethodPost, chats, chat("Hello"))
			switch {
			case err != nil:
			case a.status == http.StatusServiceUnavailable && a.header.Get("Retry-After") != "":
				full.Add(1)
			case a.status != http.StatusOK:
				err = errors.New(a.String())
			}
			return err
		})
	}()
	e2e.Eventually(t, "the others are refused", func() error {
		if n := full.Load(); n != all-most {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
	e.speed(t, hasty)
	if err := <-done; err != nil {
		t.Error(err)
	}
	b.idle()
}

// oneAtATime: a client that has an answer, or a refusal, may send its next request, though
// there is room for one only.
func oneAtATime(t *testing.T) {
	b := lay(t, setup{engines: 1, service: []string{"--gateway-max-streams", "1"}})
	b.engines[0].speed(t, hasty)
	for range 10 {
		b.post(http.StatusOK, chats, chat("Hello", streamed))
		b.post(http.StatusBadRequest, chats, []byte("{"))
		b.post(http.StatusOK, chats, chat("Hello"))
		b.ask(http.StatusOK, http.MethodGet, "/v1/models", nil)
	}
	b.idle()
}

// steps makes an engine answer piece by piece, one each time that it is told to.
func (b *backend) steps(header http.Header, pieces ...string) (next chan<- struct{}) {
	steps := make(chan struct{})
	b.answer(func(w http.ResponseWriter, r *http.Request) {
		for name, values := range header {
			w.Header()[name] = values
		}
		flush := http.NewResponseController(w)
		_ = flush.Flush() // fails only if the client is gone, as all writes here
		for _, piece := range pieces {
			select {
			case <-steps:
			case <-r.Context().Done():
				return
			}
			_, _ = io.WriteString(w, piece)
			_ = flush.Flush()
		}
	})
	return steps
}

// compressedStream: nothing can be read in a compressed answer. Its first byte ends the
// prefill, and it arrives as it is.
func compressedStream(t *testing.T) {
	var text strings.Builder
	z := gzip.NewWriter(&text)
	const said = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: [DONE]\n\n"
	if _, err := io.WriteString(z, said); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	b := lay(t, setup{engines: 1})
	next := b.engines[0].steps(http.Header{"Content-Type": {"text/event-stream"}, "Content-Encoding": {"gzip"}}, text.String()[:20], text.String()[20:])
	r := b.begin(chats, chat(words(1, 100), streamed), "Accept-Encoding", "gzip")
	b.awaitLoad(1, 0, "prefills", func(l e2e.Load) bool { return l.Requests == 1 && l.Prefill >= 100 })
	next <- struct{}{}
	b.awaitLoad(1, 0, "decodes", func(l e2e.Load) bool { return l.Requests == 1 && l.Prefill == 0 })
	next <- struct{}{}
	body, err := r.rest()
	if err != nil || string(body) != text.String() {
		t.Errorf("%d bytes came as %d, %v", text.Len(), len(body), err)
	}
	b.idle()
}

// otherStreams: the events of each API end the prefill and tell what was cached; several
// choices come in one event, lines end in either way.
func otherStreams(t *testing.T) {
	for path, tc := range map[string]struct {
		body   object
		events []string
	}{
		"/v1/responses": {object{"model": model, "input": words(1, 100), "stream": true}, []string{
			"event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"a\"}\n\n",
			"data: {\"type\":\"response.completed\",\"response\":{\"usage\":{\"input_tokens\":100,\"input_tokens_details\":{\"cached_tokens\":32},\"output_tokens\":1}}}\r\n\r\n",
		}},
		"/v1/messages": {object{"model": model, "max_tokens": 4, "messages": []any{object{"role": "user", "content": words(2, 100)}}, "stream": true}, []string{
			"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"a\"}}\n\n",
			"event: message_delta\ndata: {\"type\":\"message_delta\",\"usage\":{\"input_tokens\":68,\"cache_read_input_tokens\":32,\"output_tokens\":1}}\n\n",
		}},
		completions: {object{"model": model, "prompt": words(3, 100), "stream": true, "n": 2}, []string{
			"data: {\"choices\":[{\"index\":0,\"text\":\"a\"},{\"index\":1,\"text\":\"b\"}]}\n\n",
			"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":100,\"prompt_tokens_details\":{\"cached_tokens\":32}}}\n\ndata: [DONE]\n\n",
		}},
	} {
		t.Run(path, func(t *testing.T) {
			b := lay(t, setup{engines: 1})
			next := b.engines[0].steps(http.Header{"Content-Type": {"text/event-stream"}}, append(tc.events, "\n")...)
			r := b.begin(path, tc.body)
			b.awaitLoad(1, 0, "prefills", func(l e2e.Load) bool { return l.Requests == 1 && l.Prefill >= 100 })
			next <- struct{}{}
			b.awaitLoad(1, 0, "decodes", func(l e2e.Load) bool { return l.Requests == 1 && l.Prefill == 0 })
			next <- struct{}{}
			next <- struct{}{}
			if _, err := r.rest(); err != nil {
				t.Error(err)
			}
			b.awaitMetric("select_service_gateway_cached_tokens_count", 1)
			b.awaitMetric("select_service_gateway_cached_tokens_sum", 32)
			b.idle()
		})
	}
}

// twoRefused: two of three endpoints refuse the connection, and the booking ends on the third.
func twoRefused(t *testing.T) {
	b := lay(t, setup{engines: 3, envoy: []edit{retries(2)}})
	b.post(http.StatusOK, chats, chat("The picker learns that this gateway says who served."))
	text := words(1, 500)
	b.warm(b.engines[0], chats, chat(text))
	b.engines[0].refuse()
	b.engines[1].refuse()
	last := b.engines[2]
	last.speed(t, still)
	r := b.begin(completions, object{"model": model, "prompt": promptOf(text), "stream": true})
	if r.engine() != last.name {
		t.Errorf("%s answers", r.engine())
	}
	b.awaitLoad(3, 0, "has the request", func(l e2e.Load) bool { return l.Requests == 1 })
	if n := b.requests(); n[1]+n[2] != 0 {
		t.Errorf("the engines carry %v", n)
	}
	last.speed(t, hasty)
	r.end(t)
	b.idle()
}

// foreignEngine: Envoy has come to the end of the picker's list, and takes an engine that is
// no worker. Nothing stays booked.
func foreignEngine(t *testing.T) {
	b := lay(t, setup{envoy: []edit{retries(3)}})
	b.picker.Must(t, http.StatusOK, http.MethodDelete, "/workers/2", nil, nil)
	b.engines[0].refuse()
	b.engines[1].speed(t, still)
	r := b.begin(completions, object{"model": model, "prompt": promptOf("Hello"), "stream": true})
	b.awaitMetric(`select_service_gateway_served_total{endpoint="unknown"}`, 1)
	b.idle()
	b.engines[1].speed(t, hasty)
	r.end(t)
}

// subsetsOfHeader: a subset as a text, in the ways in which people write lists.
func subsetsOfHeader(t *testing.T) {
	b := lay(t, setup{envoy: []edit{func(c config) {
		c.before("envoy.filters.http.header_to_metadata", "envoy.extensions.filters.http.header_to_metadata.v3.Config", object{
			"request_rules": []any{object{"header": "x-subset", "remove": true, "on_header_present": object{
				"metadata_namespace": "envoy.lb.subset_hint", "key": "x-gateway-destination-endpoint-subset", "type": "STRING",
			}}},
		})
	}}})
	for _, e := range b.engines {
		for _, text := range []string{e.address, "  " + e.address + "\t", "192.0.2.1:80 , " + e.address, e.address + ",", "," + e.address} {
			if a := b.post(http.StatusOK, chats, chat("Hello"), "X-Subset", text); a.engine() != e.name {
				t.Errorf("%q: %s answers", text, a.engine())
			}
		}
	}
	b.post(http.StatusOK, chats, chat("Hello"), "X-Subset", "127.0.0.1")
	for _, text := range []string{",", "127.0.0.2", "127.0.0.1:1"} {
		refusal(t, b.post(http.StatusServiceUnavailable, chats, chat("Hello"), "X-Subset", text))
	}
	b.idle()
}

// idleTimeout: Envoy gives up a request that waits for a worker. It is never booked.
func idleTimeout(t *testing.T) {
	b := lay(t, setup{
		engines: 1, service: []string{"--router-queue-threshold", "0"},
		envoy: []edit{func(c config) { c.connections()["stream_idle_timeout"] = "2s" }},
	})
	b.picker.Must(t, http.StatusCreated, http.MethodPost, "/reservations", object{
		"model_name": model, "worker_id": 1, "dp_rank": 0, "sequence_hashes": []int{}, "block_hashes": []int{},
		"isl_tokens": 5000, "effective_prefill_tokens": 5000, "reservation_id": "busy",
	}, nil)
	b.post(http.StatusGatewayTimeout, chats, chat("Hello"))
	b.awaitWaiting(0)
	b.picker.Must(t, http.StatusOK, http.MethodDelete, "/reservations/busy", nil, nil)
	b.idle()
	b.awaitMetric(`select_service_gateway_requests_total{outcome="gone"}`, 1)
	if n := b.placed(); n != 0 {
		t.Errorf("%v requests were booked", n)
	}
}

// leaveTokenizer: clients that leave while their prompts are tokenized say nothing of the
// tokenizer.
func leaveTokenizer(t *testing.T) {
	var hangs atomic.Bool
	asked := make(chan struct{})
	r := newRenderer(t, func(w http.ResponseWriter, r *http.Request) {
		if hangs.Load() {
			asked <- struct{}{}
			<-r.Context().Done()
			return
		}
		says(http.StatusOK, tokenized(promptOf("Hello")))(w, r)
	})
	b := lay(t, setup{tokenizer: r})
	b.post(http.StatusOK, chats, chat("Hello"))
	b.awaitProbe()
	hangs.Store(true)
	const clients = 8 // more than open the breaker
	for range clients {
		ctx, leave := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := b.send(ctx, http.MethodPost, chats, chat("Hello"))
			done <- err
		}()
		<-asked
		leave()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("the client that left: %v", err)
		}
	}
	b.awaitMetric(`select_service_gateway_requests_total{outcome="gone"}`, clients)
	hangs.Store(false)
	b.post(http.StatusOK, chats, chat("Hello"))
	b.idle()
}

// awaitProbe waits until the picker has tried its tokenizer.
func (b *bed) awaitProbe() {
	b.t.Helper()
	e2e.Eventually(b.t, "the picker has tried the tokenizer", func() error {
		if log := b.picker.Output(); !strings.Contains(log, "the tokenizer answers") && !strings.Contains(log, "the tokenizer does not answer") {
			return errNotYet
		}
		return nil
	})
}

// tokenizerBreaks: five failures of requests in a row, the picker's own at its start not among
// them, open the breaker; an answer closes it.
func tokenizerBreaks(t *testing.T) {
	var well atomic.Bool
	r := newRenderer(t, func(w http.ResponseWriter, r *http.Request) {
		if well.Load() {
			says(http.StatusOK, tokenized(promptOf("Hello")))(w, r)
		} else {
			says(http.StatusInternalServerError, "")(w, r)
		}
	})
	b := lay(t, setup{tokenizer: r})
	b.awaitProbe()
	for range 5 {
		refusal(t, b.post(http.StatusBadGateway, chats, chat("Hello")))
	}
	e2e.Eventually(t, "the tokenizer is not asked any more", func() error {
		if a := b.failed(chats, chat("Hello")); a.status != http.StatusServiceUnavailable || a.header.Get("Retry-After") == "" {
			return errors.New(a.String()) // a trial, on a slow machine
		}
		return nil
	})
	well.Store(true)
	e2e.Eventually(t, "the tokenizer is asked again", func() error {
		if a := b.failed(chats, chat("Hello")); a.status != http.StatusOK {
			return errors.New(a.String())
		}
		return nil
	})
	b.post(http.StatusOK, chats, chat("Hello"))
	b.idle()
}

// failed sends a request that may fail.
func (b *bed) failed(path string, body any) answered {
	b.t.Helper()
	a, err := b.send(b.t.Context(), http.MethodPost, path, body)
	if err != nil {
		b.t.Fatal(err)
	}
	return a
}

// noWorkers: without workers every request is one for which there is no engine, as nobody
// knows the models.
func noWorkers(t *testing.T) {
	b := lay(t, setup{})
	b.post(http.StatusOK, chats, chat("Hello"))
	for worker := range b.engines {
		b.picker.Must(t, http.StatusOK, http.MethodDelete, fmt.Sprint("/workers/", worker+1), nil, nil)
	}
	refusal(t, b.post(http.StatusServiceUnavailable, chats, chat("Hello")))
	refusal(t, b.post(http.StatusServiceUnavailable, "/v1/embeddings", object{"model": model, "input": "a"}))
	refusal(t, b.ask(http.StatusServiceUnavailable, http.MethodGet, "/v1/models", nil))
	for _, record := range b.workers {
		b.picker.Must(t, http.StatusCreated, http.MethodPost, "/workers", record, nil)
	}
	b.post(http.StatusOK, chats, chat("Hello"))
	b.idle()
}

// originalDestination: a cluster without endpoints, where Envoy connects to what the header
// names, and all else as Envoy AI Gateway has it.
func originalDestination(t *testing.T) {
	b := lay(t, setup{service: []string{"--gateway-self-signed"}, envoy: []edit{aiGateway}})
	for i, e := range b.engines {
		text := words(uint32(i+1), 200)
		b.warm(e, chats, chat(text))
		if a := b.post(http.StatusOK, chats, chat(text)); a.engine() != e.name {
			t.Errorf("%s answers, and %s has the prefix", a.engine(), e.name)
		}
		b.idle()
	}
}

// twoGateways: what one gateway can do says nothing of another one with the same address. A cluster of the type
// ORIGINAL_DST takes a list of endpoints for none, and answers 503.
func twoGateways(t *testing.T) {
	b := lay(t, setup{service: []string{"--gateway-self-signed"}, envoy: []edit{selfSigned}})
	for range 4 { // the second answer at the latest gives it fallbacks
		b.post(http.StatusOK, chats, chat("Hello"))
	}
	other := *b
	other.envoy = startEnvoy(t, b.gateway, b.engines, aiGateway)
	for range 4 {
		other.post(http.StatusOK, chats, chat("Hello"))
		b.post(http.StatusOK, chats, chat("Hello"))
	}
	b.idle()
}

// noAnswerBody: answers that have no body end their bookings too.
func noAnswerBody(t *testing.T) {
	b := lay(t, setup{})
	refusal(t, b.post(http.StatusBadRequest, chats, nil)) // and a chat without one is none
	b.ask(http.StatusOK, http.MethodHead, "/v1/models", nil)
	for _, status := range []int{http.StatusNoContent, http.StatusNotModified, http.StatusTeapot} {
		for _, e := range b.engines {
			e.answer(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Link", "</a>; rel=preload")
				w.WriteHeader(http.StatusEarlyHints)
				w.WriteHeader(status)
			})
		}
		b.post(status, chats, chat("Hello"))
		b.idle()
	}
}
