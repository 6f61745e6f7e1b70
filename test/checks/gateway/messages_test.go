package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/select-service/select-service/test/checks/e2e"
)

// fullDuplex: Envoy demands both bodies in full duplex, and does not set
// send_body_without_waiting_for_header_response. The engine that serves is the one that
// the picker has booked.
func fullDuplex(t *testing.T) {
	b := lay(t, setup{})
	for range 4 { // both engines are met
		r := b.begin(chats, chat(words(1, 40), streamed, object{"max_tokens": 200}))
		worker := 1
		if r.engine() == "B" {
			worker = 2
		}
		b.awaitLoad(worker, 0, "carries the request", func(l e2e.Load) bool { return l.Requests > 0 })
		t.Cleanup(func() { _, _ = r.rest() })
	}
	for _, e := range b.engines {
		e.speed(t, hasty)
	}
	b.idle()
	b.awaitMetric(`select_service_gateway_served_total{endpoint="chosen"}`, 4)
}

// buffered: a picker that has to answer before it sees the body cannot choose. The
// request fails at once, and the log says which field of Envoy's configuration is wrong.
func buffered(t *testing.T) {
	b := lay(t, setup{envoy: []edit{mode("request_body_mode", "BUFFERED")}})
	if a := b.post(http.StatusInternalServerError, chats, chat("Hello")); a.engine() != "" {
		t.Errorf("an engine answered: %v", a)
	}
	e2e.Eventually(t, "the log names the field", func() error {
		if log := b.picker.Output(); !strings.Contains(log, "request_body_mode") {
			return errors.New(log)
		}
		return nil
	})
	b.idle()
}

// partsOfResponses: the picker sees only the headers of an answer, only its body, or neither. The
// request is booked while the answer streams, until Envoy says that it is done with it.
func partsOfResponses(t *testing.T) {
	for _, modes := range [][2]string{{"NONE", "SEND"}, {"NONE", "SKIP"}, {"FULL_DUPLEX_STREAMED", "SKIP"}} {
		b := lay(t, setup{envoy: []edit{mode("response_body_mode", modes[0]), mode("response_header_mode", modes[1])}})
		r := b.begin(chats, chat("Hello", streamed, object{"max_tokens": 200}))
		worker := 1
		if r.engine() == "B" {
			worker = 2
		}
		b.awaitLoad(worker, 0, "carries the request", func(l e2e.Load) bool { return l.Requests > 0 })
		for _, e := range b.engines {
			e.speed(t, hasty)
		}
		r.end(t)
		b.idle()
		b.post(http.StatusOK, chats, chat("Hello"))
		b.idle()
		if modes[0] != "NONE" {
			b.awaitMetric(`select_service_gateway_prefill_completed_total{by="stream"}`, 1)
		}
	}
}

// observedAnswers: a second filter in observability_mode shows the first token of a streamed answer, which ends the
// prefill. The answer reaches the client whole, and it is booked to its end, or until its client leaves.
func observedAnswers(t *testing.T) {
	b := lay(t, setup{envoy: []edit{observer(t)}})
	// The first answer shows the picker that there is such a filter. Its own prefill may end with an event.
	b.begin(chats, chat("Hello", streamed, object{"max_tokens": 50})).end(t)
	b.idle()
	const seen = `select_service_gateway_prefill_completed_total{by="stream"}`
	before, err := b.picker.Sum(t.Context(), seen)
	if err != nil {
		t.Fatal(err)
	}
	r := b.begin(chats, chat(words(30, 200), streamed, object{"max_tokens": 200}))
	b.awaitMetric(seen, before+1)
	worker := 1
	if r.engine() == "B" {
		worker = 2
	}
	b.awaitLoad(worker, 0, "carries the request", func(l e2e.Load) bool { return l.Requests > 0 })
	for _, e := range b.engines {
		e.speed(t, hasty)
	}
	r.end(t)
	b.idle()
	b.post(http.StatusOK, chats, chat("Hello"))
	b.idle()
	for _, e := range b.engines {
		e.speed(t, still)
	}
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := b.send(ctx, http.MethodPost, chats, chat("Hello again", streamed, object{"max_tokens": 100_000}))
		left <- err
	}()
	e2e.Eventually(t, "the request is booked", func() error {
		if n := b.requests(); n[1]+n[2] != 1 {
			return fmt.Errorf("%v", n)
		}
		return nil
	})
	leave()
	if err := <-left; err == nil && ctx.Err() == nil {
		t.Error("the client has not left")
	}
	b.idle()
}

// largeBody: 300 KB reach the engine unchanged, and no message of the picker has more
// than 62,000 bytes of them.
func largeBody(t *testing.T) {
	tap := &tap{}
	b := lay(t, setup{tap: tap})
	body := encode(t, chat(words(2, 60_000)))
	b.post(http.StatusOK, chats, body)
	_, got := only(t, b.engines)
	if got.hash != sha256.Sum256(body) {
		t.Errorf("the engine got %d other bytes than the %d that were sent", got.length, len(body))
	}
	if n := tap.longest(); n == 0 || n > 62_000 {
		t.Errorf("the longest piece of a body has %d bytes", n)
	}
	b.idle()
}

func encode(t *testing.T, v any) []byte {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// requestTrailers: a request that ends with trailers has no piece of its body that is
// marked as the last. It is picked all the same, and its trailers arrive.
func requestTrailers(t *testing.T) {
	b := lay(t, setup{envoy: []edit{http2}})
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	defer transport.CloseIdleConnections()
	text := encode(t, chat(words(3, 40)))
	body, in := io.Pipe()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, b.envoy.url+chats, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Trailer = http.Header{"X-Checksum": nil}
	go func() {
		for len(text) > 0 {
			n := min(100, len(text))
			_, _ = in.Write(text[:n]) // fails with the request
			text = text[n:]
		}
		req.Trailer.Set("X-Checksum", "right")
		_ = in.Close()
	}()
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if answer, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s %s, %v", resp.Status, answer, err)
	}
	at, got := only(t, b.engines)
	if got.trailer.Get("X-Checksum") != "right" || got.field("model") != model {
		t.Errorf("%s got trailers %v and %s", at.name, got.trailer, got.body)
	}
	if got.header.Get(destination) != at.address {
		t.Errorf("%s was not picked: %v", at.name, got.header)
	}
	b.idle()
}

// destination is the header in which the picker names the endpoint.
const destination = "X-Gateway-Destination-Endpoint"

// responseTrailers: trailers of an answer reach the client, and the booking ends, also where the picker
// has seen nothing of the answer before.
func responseTrailers(t *testing.T) {
	trailers(t)
	trailers(t, mode("response_body_mode", "NONE"), mode("response_header_mode", "SKIP"))
}

func trailers(t *testing.T, more ...edit) {
	t.Helper()
	b := lay(t, setup{envoy: append(more, http2, func(c config) { c.connections()["codec_type"] = "AUTO" })})
	for _, e := range b.engines {
		e.answer(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"choices":[]}`)
			w.Header().Set(http.TrailerPrefix+"X-Checksum", "right")
		})
	}
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, b.envoy.url+chats, strings.NewReader(string(encode(t, chat("Hello")))))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || string(text) != `{"choices":[]}` || resp.Trailer.Get("X-Checksum") != "right" {
		t.Errorf("%s %s, trailers %v, %v", resp.Status, text, resp.Trailer, err)
	}
	b.idle()
}

// noBody: GET /v1/models goes to any engine, and books nothing.
func noBody(t *testing.T) {
	b := lay(t, setup{})
	if a := b.ask(http.StatusOK, http.MethodGet, "/v1/models", nil); !strings.Contains(a.body, `"id":"m"`) {
		t.Errorf("%v", a)
	}
	at, got := only(t, b.engines)
	if got.header.Get(destination) != at.address {
		t.Errorf("%s was not picked: %v", at.name, got.header)
	}
	b.idle()
	b.awaitMetric(`select_service_gateway_requests_total{outcome="placed"}`, 1)
}

// otherPath: a path that the picker does not know passes unchanged, without tokens.
func otherPath(t *testing.T) {
	r := newRenderer(t, says(http.StatusInternalServerError, "not to be asked"))
	b := lay(t, setup{tokenizer: r})
	for _, e := range b.engines {
		e.answer(says(http.StatusOK, `{"object":"list","data":[]}`))
	}
	body := []byte(`{"model":"m",  "input":["one","two"]}`)
	b.post(http.StatusOK, "/v1/embeddings", body)
	at, got := only(t, b.engines)
	if got.hash != sha256.Sum256(body) || !b.proxied && got.header.Get(destination) != at.address {
		t.Errorf("%s got %s and %v", at.name, got.body, got.header)
	}
	if asked := r.takeAsked(); len(asked) > 0 {
		t.Errorf("the tokenizer was asked: %s", asked[0].body)
	}
	b.idle()
}

// textCompletions: a prompt as text is tokenized, one as tokens is not.
func textCompletions(t *testing.T) {
	text := words(4, 40)
	tokens := append([]uint32{1}, tokenize(text)...)
	r := newRenderer(t, says(http.StatusOK, tokenized(tokens)))
	b := lay(t, setup{tokenizer: r})
	b.post(http.StatusOK, completions, object{"model": model, "prompt": text, "max_tokens": 1})
	first, _ := only(t, b.engines)
	if asked := r.takeAsked(); len(asked) != 1 || asked[0].field("prompt") != text {
		t.Errorf("the tokenizer was asked %d times", len(asked))
	}
	b.known()
	b.post(http.StatusOK, completions, object{"model": model, "prompt": append(tokens, 7, 7, 7), "max_tokens": 1})
	if second, _ := only(t, b.engines); second != first {
		t.Errorf("the text went to %s, its tokens to %s", first.name, second.name)
	}
	if asked := r.takeAsked(); len(asked) > 0 {
		t.Errorf("the tokenizer was asked: %s", asked[0].body)
	}
	b.idle()
}

// responses: the requests of OpenAI's newer API are placed, too.
func responses(t *testing.T) {
	b := lay(t, setup{})
	release := make(chan struct{})
	for _, e := range b.engines {
		e.answer(func(w http.ResponseWriter, r *http.Request) {
			<-release
			says(http.StatusOK, `{"object":"response","usage":{"input_tokens":40,"input_tokens_details":{"cached_tokens":16}}}`)(w, r)
		})
	}
	done := make(chan answered, 1)
	go func() {
		a, _ := b.send(t.Context(), http.MethodPost, "/v1/responses", object{"model": model, "input": words(5, 40)})
		done <- a
	}()
	e2e.Eventually(t, "the request is booked", func() error {
		if n := b.requests(); n[1]+n[2] != 1 {
			return errNotYet
		}
		return nil
	})
	close(release)
	if a := <-done; a.status != http.StatusOK {
		t.Errorf("%v", a)
	}
	b.idle()
}
