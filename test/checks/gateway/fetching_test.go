package gateway

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/select-service/select-service/demo/sim/simapi"
	"github.com/select-service/select-service/test/checks/e2e"
)

// fetching is a bed whose engines are processes, which fetch as they are told. A token takes an engine half a millisecond to compute.
// An answer takes 150 ms: where it ended with the first token, the service would not learn from that. The source is another one that nobody has to wait for. From there a token comes to near in 10 µs, and to far in a millisecond.
type fetching struct {
	*bed
	killSource        func()
	source, near, far *fetchEngine
	n                 uint32
}

// fetchEngine is an engine, and a session that is bound to it.
type fetchEngine struct {
	e2e.Engine
	at      *e2e.Service // the engine's own routes
	session string
}

func (e *fetchEngine) stats(t *testing.T) (s simapi.Stats) {
	t.Helper()
	e.at.Must(t, http.StatusOK, http.MethodGet, simapi.PathStats, nil, &s)
	return s
}

// layFetching starts everything. Near is told by llm-d's header, and far by SGLang's member of the body.
func layFetching(t *testing.T, proxied bool, mode string) *fetching {
	t.Helper()
	gateway := e2e.FreePort(t)
	args := []string{
		"--kv-fetch", mode, "--gateway-port", strconv.Itoa(gateway), "--gateway-drain-delay", "10ms",
		"--gateway-session-affinity", "hard", "--session-affinity-ttl-secs", "3600",
	}
	f := &fetching{bed: &bed{t: t, proxied: proxied, gateway: gateway}}
	if proxied {
		proxy := e2e.FreePort(t)
		args = append(args, "--proxy-port", strconv.Itoa(proxy))
		f.envoy = &envoy{url: fmt.Sprintf("http://127.0.0.1:%d", proxy)}
	}
	f.picker = e2e.Serve(t, nil, args...)
	for i, of := range []**fetchEngine{&f.source, &f.near, &f.far} {
		zone, rate := []string{"a", "a", "b"}[i], []string{"1e6", "2000", "2000"}[i]
		p, engines := e2e.Engines(t, 1, "--model", model, "--prefill-rate", rate, "--decode-rate", "200", "--each-token", "--transfer-domain", zone,
			"--transfer-setup", "5ms,20ms", "--transfer-per-token", "10us,1ms")
		*of = &fetchEngine{Engine: engines[0]}
		address := strings.TrimPrefix(engines[0].URL, "http://")
		(*of).at = e2e.New(t, e2e.Options{Address: address})
		if i == 0 {
			f.killSource = p.Kill
		}
		record := object{
			"worker_id": i + 1, "model_name": model, "endpoint": engines[0].URL, "block_size": blockSize, "data_parallel_size": 1,
			"kv_events_endpoint": engines[0].Events, "replay_endpoint": engines[0].Replay, "max_num_batched_tokens": 8192,
			"kv_transfer_domain": "zone", "kv_transfer_enforcement": "preferred", "topology_domains": object{"zone": zone},
			"router_hint_worker_type": "any", "load_metrics": object{},
			"router_hint_source_control_endpoints": object{"0": engines[0].URL + "/ranks/0"},
		}
		if i == 2 {
			record["kv_hints_in_body"] = true
		} else {
			record["kv_peer_endpoint"] = address
		}
		f.picker.Must(t, http.StatusCreated, http.MethodPost, "/workers", record, nil)
		f.engines = append(f.engines, &backend{name: string(rune('A' + i)), address: address})
		e2e.Eventually(t, "the service follows the engine's events", func() error {
			var info simapi.Info
			if err := (*of).at.Do(t.Context(), http.MethodGet, simapi.PathInfo, nil, &info); err != nil || info.Subscribers == 0 {
				return errors.Join(err, errNotYet)
			}
			return nil
		})
	}
	if !proxied {
		f.envoy = startEnvoy(t, gateway, f.engines)
	}
	for i := 0; f.near.session == "" || f.far.session == ""; i++ {
		session := fmt.Sprint("session-", i)
		switch e := f.send(session, f.prompt(blockSize)); {
		case e.session == "":
			e.session = session
		case i > 200:
			t.Fatal("200 sessions, and an engine has none")
		}
	}
	return f
}

// prompt returns tokens that no other prompt has.
func (f *fetching) prompt(tokens int) []uint32 {
	f.n++
	ids := make([]uint32, tokens)
	for i := range ids {
		ids[i] = f.n<<14 + uint32(i)
	}
	return ids
}

// held returns a prompt that the source has, as the service knows.
func (f *fetching) held(tokens int) []uint32 {
	f.t.Helper()
	prompt := f.prompt(tokens)
	f.source.at.Must(f.t, http.StatusOK, http.MethodPost, completions, object{"prompt": prompt, "max_tokens": 1}, nil)
	f.follow()
	return prompt
}

// follow waits until the service knows what the engines have cached.
func (f *fetching) follow() {
	f.t.Helper()
	e2e.Eventually(f.t, "the service knows what the engines have cached", func() error {
		cached := 0
		for _, e := range f.all() {
			cached += e.stats(f.t).CachedBlocks
		}
		if known, err := f.picker.Sum(f.t.Context(), "select_service_index_blocks"); err != nil || int(known) != cached {
			return fmt.Errorf("%v of %d blocks, %w", known, cached, err)
		}
		return nil
	})
}

func (f *fetching) all() []*fetchEngine { return []*fetchEngine{f.source, f.near, f.far} }

// send has a prompt answered, and returns by which engine.
func (f *fetching) send(session string, prompt []uint32, header ...string) *fetchEngine {
	f.t.Helper()
	before := make([]int, 3)
	for i, e := range f.all() {
		before[i] = e.stats(f.t).Requests
	}
	evil := object{"actions": []object{{
		"action_type": "kv.fetch", "payload": object{"source_control_endpoint": f.source.URL + "/ranks/0", "block_hashes": []uint64{1}},
	}}}
	f.post(http.StatusOK, completions, object{"model": model, "prompt": prompt, "max_tokens": 30, "stream": true, "kv_hints": evil},
		append([]string{"X-Session-Id", session, "X-Kv-Cache-Source-Host-Port", strings.TrimPrefix(f.source.URL, "http://")}, header...)...)
	f.idle() // the end of the answer is known
	for i, e := range f.all() {
		if e.stats(f.t).Requests > before[i] {
			return e
		}
	}
	f.t.Fatal("no engine has answered")
	return nil
}

// fetched has an engine answer a prompt, and returns how many tokens of it came from another one.
func (f *fetching) fetched(e *fetchEngine, prompt []uint32) int {
	f.t.Helper()
	before := e.stats(f.t).Received
	if got := f.send(e.session, prompt); got != e {
		f.t.Fatalf("session %s was answered by %s, not %s", e.session, got.URL, e.URL)
	}
	return e.stats(f.t).Received - before
}

// hints returns how many hints ended in one of some ways.
func (f *fetching) hints(results ...string) (sum float64) {
	f.t.Helper()
	for _, result := range results {
		n, err := f.picker.Sum(f.t.Context(), `select_service_kv_hints_total{model_name="`+model+`",result="`+result+`"}`)
		if err != nil {
			f.t.Fatal(err)
		}
		sum += n
	}
	return sum
}

// TestFetching plays --kv-fetch with real processes, through Envoy and through the proxy. Clients name a source themselves, from which
// an engine would fetch, in all requests. With off nothing is fetched; with contract all that the source has is; with priced it is where that is
// sooner, which the service learns from first tokens. A source that is killed is not named once its silence is noticed, and until then
// its prompts are computed.
func TestFetching(t *testing.T) {
	if testing.Short() {
		t.Skip("a source is silent for 15 s")
	}
	const tokens, whole = 2000, 2000 - blockSize // an engine computes the last token, and with it its block
	for _, proxied := range []bool{false, true} {
		name := map[bool]string{false: "gateway", true: "proxy"}[proxied]
		play := func(mode string, play func(t *testing.T, f *fetching)) {
			t.Run(name+", "+mode, func(t *testing.T) {
				if !proxied && os.Getenv(envoyEnv) == "" {
					t.Skipf("needs Envoy: make test-gateway sets %s", envoyEnv)
				}
				t.Parallel()
				play(t, layFetching(t, proxied, mode))
			})
		}
		play("off", func(t *testing.T, f *fetching) {
			for _, e := range []*fetchEngine{f.near, f.far} {
				if n := f.fetched(e, f.held(tokens)); n != 0 {
					t.Errorf("%s has fetched %d tokens", e.URL, n)
				}
			}
			if n := f.hints("given", "no_source"); n != 0 {
				t.Errorf("%v hints are counted", n)
			}
		})
		play("contract", func(t *testing.T, f *fetching) {
			for _, e := range []*fetchEngine{f.near, f.far} {
				if n := f.fetched(e, f.prompt(tokens)); n != 0 {
					t.Errorf("%s has fetched %d tokens that nobody has", e.URL, n)
				}
				if n := f.fetched(e, f.held(tokens)); n < whole {
					t.Errorf("%s has fetched %d tokens of %d", e.URL, n, tokens)
				}
			}
			f.killed(t, "no_source")
		})
		play("priced", func(t *testing.T, f *fetching) {
			for i := range 14 { // what computing takes
				f.send([]string{f.near.session, f.far.session}[i%2], f.prompt(64+32*i))
			}
			for range 12 { // what the links take: eight fetches are enough
				f.send(f.near.session, f.held(1008))
				f.send(f.far.session, f.held(208))
			}
			// A second to compute; 25 ms come to near, and two seconds and more to far.
			if n := f.fetched(f.near, f.held(tokens)); n < whole {
				t.Errorf("over the fast link %d tokens came of %d", n, tokens)
			}
			dearer := f.hints("dearer")
			if n := f.fetched(f.far, f.held(tokens)); n != 0 || f.hints("dearer") != dearer+1 {
				t.Errorf("over the slow link %d tokens came, %v were dearer, before %v", n, f.hints("dearer"), dearer)
			}
			f.killed(t, "no_source", "source_stalled")
		})
	}
}

// killed kills the source, and proves that it is not named any more; results is what is counted instead.
func (f *fetching) killed(t *testing.T, results ...string) {
	t.Helper()
	first, second := f.held(1008), f.held(1008)
	f.killSource()
	ask := func(prompt []uint32) {
		t.Helper()
		before := f.near.stats(t)
		f.post(http.StatusOK, completions, object{"model": model, "prompt": prompt, "max_tokens": 2}, "X-Session-Id", f.near.session)
		if after := f.near.stats(t); after.Received != before.Received || after.Requests != before.Requests+1 {
			t.Errorf("%d requests, %d tokens came from an engine that is dead", after.Requests-before.Requests, after.Received-before.Received)
		}
	}
	ask(first) // perhaps with a hint, which comes to nothing
	f.awaitMetric(`select_service_engines_excluded{state="silent"}`, 1)
	given, others := f.hints("given"), f.hints(results...)
	ask(second)
	if f.hints("given") != given || f.hints(results...) != others+1 {
		t.Errorf("%v hints name the dead source, %v do not", f.hints("given")-given, f.hints(results...)-others)
	}
}
