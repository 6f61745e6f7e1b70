package gateway

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/select-service/select-service/demo/sim/tokenizer"
	"github.com/select-service/select-service/test/checks/e2e"
)

// The headers that name the ranks of both legs.
const rankHeader, prefillRankHeader = "X-Data-Parallel-Rank", "X-Prefiller-Data-Parallel-Rank"

var errNotYet = errors.New("not yet")

func tokenize(text string) []uint32 { return tokenizer.Encode(text, false) }

// cachedPrefix: a prompt goes where its beginning is cached, also if the other engine
// has less to do, and otherwise to the other one.
func cachedPrefix(t *testing.T) {
	b := lay(t, setup{})
	shared := words(10, 2000)
	b.warm(b.engines[0], chats, chat(shared))
	// Engine A carries a request, which takes long.
	b.engines[0].speed(t, still)
	b.engines[1].speed(t, still)
	busy := b.begin(chats, chat(shared+" And more.", streamed))
	if busy.engine() != "A" {
		t.Errorf("A has the prefix, and %s answers", busy.engine())
	}
	for _, tc := range []struct{ text, want string }{{shared + words(11, 20), "A"}, {words(12, 200), "B"}} {
		r := b.begin(chats, chat(tc.text, streamed))
		if r.engine() != tc.want {
			t.Errorf("%.20s…: %s answers, want %s", tc.text, r.engine(), tc.want)
		}
		defer func() { _, _ = r.rest() }()
	}
	for _, e := range b.engines {
		e.speed(t, hasty)
	}
	busy.end(t)
	b.idle()
}

// equalPrompts: of 50 equal prompts at once, which nobody has cached, each engine gets
// 25: every choice sees the bookings before it. The policy is one to which a booking counts
// the same however long ago it was made. To predicted-ttft a prefill ends when its time has
// passed, so there the split depends on how fast this machine sends the requests.
func equalPrompts(t *testing.T) {
	b := lay(t, setup{service: []string{"--policy", "dynamo-default-cost-fn"}})
	for _, e := range b.engines {
		e.speed(t, still)
	}
	done := make(chan error, 1)
	go func() {
		done <- each(t.Context(), 50, func(ctx context.Context, _ int) error {
			a, err := b.send(ctx, http.MethodPost, chats, chat(words(13, 100)))
			if err == nil && a.status != http.StatusOK {
				err = errors.New(a.String())
			}
			return err
		})
	}()
	e2e.Eventually(t, "all are booked", func() error {
		if n := b.requests(); n[1]+n[2] != 50 {
			return errNotYet
		}
		return nil
	})
	if n := b.requests(); n[1] < 24 || n[2] < 24 {
		t.Errorf("the engines carry %v", n)
	}
	for _, e := range b.engines {
		e.speed(t, hasty)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	b.idle()
}

// priorities: of the requests that wait the one with the highest priority is next. The
// header counts more than the body, unless it is none.
func priorities(t *testing.T) {
	b := lay(t, setup{engines: 1, service: []string{"--router-queue-threshold", "0"}})
	e := b.engines[0]
	e.speed(t, still)
	var running []*reply
	running = append(running, b.begin(chats, chat("busy "+words(14, 100), streamed)))
	b.awaitLoad(1, 0, "is busy", func(l e2e.Load) bool { return l.Requests == 1 })
	e.takeSeen()
	type waiter struct {
		text, header string
		body         int
	}
	waiters := []waiter{{"low", "0", 50}, {"malformed", "very", 300}, {"high", "900", 0}}
	done := make(chan error, len(waiters))
	for i, w := range waiters {
		body := chat(w.text, object{"nvext": object{"agent_hints": object{"priority": w.body}}})
		var header []string
		if w.header != "" {
			header = []string{"X-Dynamo-Request-Priority", w.header}
		}
		go func() {
			a, err := b.send(t.Context(), http.MethodPost, chats, body, header...)
			if err == nil && a.status != http.StatusOK {
				err = errors.New(a.String())
			}
			done <- err
		}()
		b.awaitWaiting(i + 1)
	}
	e.speed(t, normal)
	for range waiters {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	for _, r := range running {
		r.end(t)
	}
	var order []string
	for _, s := range e.takeSeen() {
		for _, w := range waiters {
			if strings.Contains(string(s.body), `"`+w.text+`"`) {
				order = append(order, w.text)
			}
		}
	}
	if want := []string{"high", "malformed", "low"}; !slices.Equal(order, want) {
		t.Errorf("the order is %q, want %q", order, want)
	}
	b.idle()
}

// tenants: the tenant of a request is its salt. Tenants share no blocks, and no client
// can choose the salt of another.
func tenants(t *testing.T) {
	b := lay(t, setup{})
	shared := words(15, 200)
	first := b.post(http.StatusOK, chats, chat(shared, object{"cache_salt": "b"}), "X-Tenant-Id", "a")
	at, got := only(t, b.engines)
	if got.field("cache_salt") != "a" {
		t.Errorf("the engine got the salt %v", got.field("cache_salt"))
	}
	b.known()
	b.idle()
	// The tenant's next request follows the cached blocks, another tenant's does not:
	// a is where b is not.
	again := b.post(http.StatusOK, chats, chat(shared), "X-Tenant-Id", "a")
	if again.engine() != first.engine() || !strings.Contains(again.body, `"cached_tokens":192`) {
		t.Errorf("the same tenant: %s after %s, %v", again.engine(), first.engine(), again)
	}
	b.idle()
	b.known()
	// A little load on the engine that has a's blocks sends b to the other one.
	at.speed(t, still)
	busy := b.begin(chats, chat(shared, streamed), "X-Tenant-Id", "a")
	other := b.post(http.StatusOK, chats, chat(shared), "X-Tenant-Id", "b")
	if other.engine() == at.name || !strings.Contains(other.body, `"cached_tokens":0`) {
		t.Errorf("another tenant: %v at %s", other, other.engine())
	}
	at.speed(t, hasty)
	busy.end(t)
	b.idle()
}

// longSalt: vLLM takes 128 characters.
func longSalt(t *testing.T) {
	b := lay(t, setup{})
	for _, salt := range []string{strings.Repeat("x", 200), "with a / inside"} {
		if _, message := refusal(t, b.post(http.StatusBadRequest, chats, chat("Hello"), "X-Tenant-Id", salt)); !strings.Contains(message, "salt") {
			t.Errorf("%q", message)
		}
	}
	b.awaitMetric(`select_service_gateway_requests_total{outcome="invalid"}`, 2)
	b.idle()
}

// adapter: a request names a LoRA adapter as its model. Its blocks are the adapter's,
// and the tokenizer, which has no adapters, is asked for the base model.
func adapter(t *testing.T) {
	text := words(16, 200)
	r := newRenderer(t, says(http.StatusOK, tokenized(promptOf(text))))
	b := lay(t, setup{
		adapters: []string{"poet"}, tokenizer: r,
		worker: func(_ int, record object) { record["adapters"] = []string{"poet"} },
	})
	b.warm(b.engines[0], chats, chat(text, object{"model": "poet"}))
	b.warm(b.engines[1], chats, chat(text))
	for _, tc := range []struct{ model, want string }{{"poet", "A"}, {model, "B"}} {
		a := b.post(http.StatusOK, chats, chat(text, object{"model": tc.model}))
		if a.engine() != tc.want || !strings.Contains(a.body, `"cached_tokens":192`) {
			t.Errorf("%s: %s answers %v, want %s", tc.model, a.engine(), a, tc.want)
		}
		for _, asked := range r.takeAsked() {
			if asked.field("model") != model {
				t.Errorf("the tokenizer was asked for %v", asked.field("model"))
			}
		}
		if _, got := only(t, b.engines); got.field("model") != tc.model {
			t.Errorf("the engine was asked for %v", got.field("model"))
		}
	}
	b.idle()
}

func unknownModel(t *testing.T) {
	b := lay(t, setup{})
	if code, message := refusal(t, b.post(http.StatusNotFound, chats, chat("Hello", object{"model": "x"}))); code != "model_not_found" || !strings.Contains(message, "x") {
		t.Errorf("%s: %s", code, message)
	}
	b.idle()
}

// subset: the gateway allows only engine B, and A has the prefix.
func subset(t *testing.T) {
	engines := make(chan string, 1)
	b := lay(t, setup{envoy: []edit{func(c config) {
		subsetOf([]any{endpointOf(c, 1)})(c)
		engines <- endpointOf(c, 1)
	}}})
	text := words(17, 200)
	b.warm(b.engines[0], chats, chat(text))
	if a := b.post(http.StatusOK, chats, chat(text)); a.engine() != "B" {
		t.Errorf("%s answers", a.engine())
	}
	if a := b.ask(http.StatusOK, http.MethodGet, "/v1/models", nil); a.engine() != "B" {
		t.Errorf("GET: %s answers", a.engine())
	}
	if allowed := <-engines; allowed != b.engines[1].address {
		t.Errorf("the subset was %s", allowed)
	}
	b.idle()
}

// endpointOf is the address of an engine in Envoy's configuration, from 0.
func endpointOf(c config, i int) string {
	a := objectAt(c.cluster("engines"), "load_assignment", "endpoints", 0, "lb_endpoints", i, "endpoint", "address", "socket_address")
	return a["address"].(string) + ":" + strconv.Itoa(a["port_value"].(int))
}

// emptySubset: no worker is in the subset, so none is chosen.
func emptySubset(t *testing.T) {
	for name, endpoints := range map[string]any{"empty": []any{}, "foreign": "192.0.2.1:8000"} {
		t.Run(name, func(t *testing.T) {
			b := lay(t, setup{envoy: []edit{subsetOf(endpoints)}})
			refusal(t, b.post(http.StatusServiceUnavailable, chats, chat("Hello")))
			refusal(t, b.ask(http.StatusServiceUnavailable, http.MethodGet, "/v1/models", nil))
			for _, e := range b.engines {
				if all := e.takeSeen(); len(all) > 0 {
					t.Errorf("%s got a request", e.name)
				}
			}
			b.idle()
		})
	}
}

// ownHeaders: what the picker tells Envoy and engines no client can say.
func ownHeaders(t *testing.T) {
	b := lay(t, setup{engines: 1}) // no other one that could be a fallback
	foreign := []string{
		destination, "192.0.2.1:8000", "X-Gateway-Destination-Endpoint-Served", "192.0.2.1:8000",
		"X-Prefiller-Host-Port", "192.0.2.1:8000", rankHeader, "7", "X-Gateway-Model-Name-Rewrite", "x",
		"X-Gateway-Inference-Objective", "x", "X-Gateway-Inference-Fairness-Id", "x", "X-Gateway-Destination-Endpoint-Subset", "192.0.2.1:8000",
	}
	for _, method := range []string{http.MethodPost, http.MethodGet} {
		path, body := chats, any(chat("Hello"))
		if method == http.MethodGet {
			path, body = "/v1/models", nil
		}
		b.ask(http.StatusOK, method, path, body, foreign...)
		at, got := only(t, b.engines)
		for i := 0; i < len(foreign); i += 2 {
			want := []string(nil)
			if foreign[i] == destination {
				want = []string{at.address}
			}
			if values := got.header.Values(foreign[i]); !slices.Equal(values, want) {
				t.Errorf("%s: %s is %q, want %q", method, foreign[i], values, want)
			}
		}
	}
	b.idle()
}

// ranksByHeader: four ranks behind one port. The engine is told the rank that is booked.
func ranksByHeader(t *testing.T) {
	b := lay(t, setup{engines: 1, ranks: 4})
	e := b.engines[0]
	e.speed(t, still)
	met := make(map[string]bool)
	for i := range 4 {
		r := b.begin(chats, chat(words(uint32(20+i), 100), streamed))
		defer func() { _, _ = r.rest() }()
		_, got := only(t, b.engines)
		rank := got.header.Get(rankHeader)
		n, err := strconv.Atoi(rank)
		if err != nil || met[rank] {
			t.Fatalf("rank %q, after %v", rank, met)
		}
		met[rank] = true
		b.awaitLoad(1, n, "is booked", func(l e2e.Load) bool { return l.Requests == 1 })
	}
	e.speed(t, hasty)
	b.idle()
}

// localRanks: an engine whose ranks are 2 and 3 is told 0 and 1, as its own frontend numbers them
// and refuses others; by its record, or because that is the default for such an engine.
func localRanks(t *testing.T) {
	b := lay(t, setup{ranks: 2, firstRank: 2, worker: func(worker int, record object) {
		record["data_parallel_start_rank"] = 2
		if worker == 1 {
			record["rank_header"] = "local"
		}
	}})
	for rank := range 2 {
		for i, e := range b.engines {
			prompt := words(uint32(90+10*i+rank), 200)
			b.warmRank(e, rank, chats, chat(prompt))
			e.speed(t, still)
			r := b.begin(chats, chat(prompt, streamed), rankHeader, "1")
			if at, got := only(t, b.engines); at != e || got.header.Get(rankHeader) != strconv.Itoa(rank) {
				t.Errorf("rank %d of engine %s: %s got %v", rank, e.name, at.name, got.header)
			}
			b.awaitLoad(i+1, 2+rank, "is booked", func(l e2e.Load) bool { return l.Requests == 1 && l.Prefill < 100 })
			e.speed(t, hasty)
			r.end(t)
			b.idle()
		}
	}
}

// ranksByPort: each rank has a port of its own, which is how the engine is told.
func ranksByPort(t *testing.T) {
	b := lay(t, setup{ports: true})
	prompts := []string{words(24, 200), words(25, 200)}
	for rank, prompt := range prompts {
		b.warm(b.engines[rank], chats, chat(prompt))
	}
	for rank, prompt := range prompts {
		b.engines[rank].speed(t, still)
		r := b.begin(chats, chat(prompt, streamed))
		at, got := only(t, b.engines)
		if at != b.engines[rank] || got.header.Get(rankHeader) != "" {
			t.Errorf("rank %d: %s answers, with %v", rank, at.name, got.header)
		}
		b.awaitLoad(1, rank, "is booked", func(l e2e.Load) bool { return l.Requests == 1 })
		b.engines[rank].speed(t, hasty)
		r.end(t)
		b.idle()
	}
}
