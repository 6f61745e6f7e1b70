package openapi

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/select-service/select-service/api"
	"github.com/select-service/select-service/test/checks/e2e"
	"github.com/select-service/select-service/test/helpers/length"
	"github.com/select-service/select-service/test/helpers/zmqtest"
)

// exchange is a request with its answer, as one listener gave it.
type exchange struct {
	step
	listener *Validator
	header   http.Header
	answer   []byte
}

func (e *exchange) check(status int, header http.Header, answer []byte) error {
	return e.listener.Answer(e.method, e.target, status, header, answer)
}

// listener is an address with what is described of it.
type listener struct {
	v       *Validator
	address string
	client  *http.Client
	token   string
}

// call sends a step and reads its answer.
func (l listener) call(t *testing.T, s step) exchange {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), s.method, "http://"+l.address+s.target, strings.NewReader(s.body))
	if err != nil {
		t.Fatal(err)
	}
	if s.body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if s.status != http.StatusUnauthorized {
		req.Header.Set("Authorization", "Bearer "+l.token)
	}
	if s.status == http.StatusForbidden { // as from a page of another site
		req.Header.Set("Origin", "null")
	}
	resp, err := l.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != s.status {
		t.Errorf("%s %s %.200s: %d %.300s, want %d", s.method, s.target, s.body, resp.StatusCode, answer, s.status)
	}
	s.status = resp.StatusCode
	return exchange{s, l.v, resp.Header, answer}
}

// server is a service with all its listeners.
type server struct {
	contract                    string
	selection, slots, conductor listener
	publisher                   *zmqtest.Publisher
	sent                        uint64 // events
}

func start(t *testing.T, contract string) *server {
	t.Helper()
	v := load(t, contract)
	ports := make([]string, 4)
	for i := range ports {
		ports[i] = strconv.Itoa(e2e.FreePort(t))
	}
	tokens, token := newToken(t)
	at := func(i int, v *Validator) listener {
		return listener{v, "127.0.0.1:" + ports[i], &http.Client{Timeout: time.Minute}, token}
	}
	s := &server{
		contract: contract, selection: at(0, v), slots: at(1, v.Under("/slots")), conductor: at(2, v.Under("/conductor")),
		publisher: zmqtest.NewPublisher(t, ""),
	}
	t.Cleanup(s.publisher.Close)
	tokenizer := httptest.NewServer(http.HandlerFunc(tokenize))
	t.Cleanup(tokenizer.Close)
	e2e.New(t, e2e.Options{
		Command: []string{
			e2e.Binary(t), "--contract", contract, "--port", ports[0], "--slots-port", ports[1], "--conductor-port", ports[2],
			"--replica-sync-port", ports[3], "--session-affinity-ttl-secs", "60", "--tokens-file", tokens,
			"--tokenizer-url", tokenizer.URL,
		},
		Env: map[string]string{
			"DYN_ROUTER_CONDITIONAL_DISAGG_DECODE_BUSY_THRESHOLD":  "0.5",
			"DYN_ROUTER_CONDITIONAL_DISAGG_PREFILL_BUSY_THRESHOLD": "0.5",
		},
		Address: s.selection.address,
	}).Run()
	return s
}

// tokenize is vLLM's /tokenize, which fails for one prompt.
func tokenize(w http.ResponseWriter, r *http.Request) {
	if body, err := io.ReadAll(r.Body); err != nil || bytes.Contains(body, []byte("broken")) {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	_, _ = io.WriteString(w, `{"count":2,"max_model_len":4096,"tokens":[1,2]}`)
}

// newToken returns a tokens file with one token, which may do everything.
func newToken(t *testing.T) (file, token string) {
	t.Helper()
	out, err := exec.Command(e2e.Binary(t), "token", "new", "--name", "tour", "--roles", "operate,peer,metrics").Output()
	if err != nil {
		t.Fatal(err)
	}
	token, entry, _ := strings.Cut(string(out), "\n")
	file = filepath.Join(t.TempDir(), "tokens.yaml")
	if err := os.WriteFile(file, []byte("tokens:\n"+entry), 0o600); err != nil {
		t.Fatal(err)
	}
	return file, token
}

// record plays all tours and returns what was said.
func (s *server) record(t *testing.T) []exchange {
	t.Helper()
	var said []exchange
	play := func(l listener, prefix string, steps []step) {
		for _, step := range steps {
			step.target = prefix + step.target
			said = append(said, l.call(t, step))
		}
	}
	for _, prefix := range []string{"", "/v1.3", "/v1.6"} {
		dialect := s.contract
		if prefix != "" {
			dialect = strings.TrimPrefix(prefix, "/v")
		}
		group := dialectNames[dialect].group
		said = append(said, s.warm(t, prefix, group)...)
		play(s.selection, prefix, selectionTour(dialect, s.publisher.Endpoint))
		play(s.slots, prefix, slotsTour(group))
		play(s.slots, prefix, replicaTour())
		play(s.selection, prefix, []step{{"DELETE", "/workers/" + big, "", 200}, {"GET", "/ready", "", 503}})
	}
	play(s.conductor, "", conductorTour(s.publisher.Endpoint))
	play(s.selection, "/conductor", conductorTour(s.publisher.Endpoint))
	play(s.selection, "", []step{{"GET", "/metrics", "", 200}, {"GET", "/openapi.yaml", "", 200}, {"GET", "/kubernetes", "", 200}, {"GET", "/replica_sync/status", "", 200}})
	return said
}

// warm registers the worker of the tours and waits until its block is indexed.
func (s *server) warm(t *testing.T, prefix, group string) []exchange {
	t.Helper()
	said := s.selection.call(t, step{"POST", prefix + "/workers", fmt.Sprintf(
		`{"worker_id":%s,"model_name":"m","%s":"g","endpoint":"http://w","block_size":4,"kv_events_endpoints":{"0":"%s"},`+
			`"total_kv_blocks":100,"max_num_batched_tokens":1000,"taints":["a"],"topology_domains":{"zone":"z"},`+
			`"kv_transfer_domain":"d","kv_transfer_enforcement":"preferred","kv_transfer_preferred_weight":0.5,"stable_routing_id":"w","is_eagle":false,`+
			`"role":"decode","rank_endpoints":{"0":"http://w:1"},"rank_header":"local","prefill_rank_header":true,"adapters":["l"],`+
			`"load_endpoint":"","load_endpoints":{"0":"tcp://127.0.0.1:1"},"load_metrics":{"url":"http://127.0.0.1:1/m","interval_seconds":60}}`,
		big, group, s.publisher.Endpoint), 201})
	scores := step{"POST", prefix + "/overlap_scores", fmt.Sprintf(`{"model_name":"m","%s":"g",%s}`, group, prompt), 200}
	e2e.Eventually(t, "the block is indexed", func() error {
		event := []any{"BlockStored", []uint64{7}, nil, []uint32{5, 6, 7, 8}, 4, nil}
		payload, err := msgpack.Marshal([]any{1.5, []any{event}, 0})
		if err != nil {
			return err
		}
		s.publisher.TrySend(s.sent, payload)
		s.sent++
		if e := s.selection.call(t, scores); !bytes.Contains(e.answer, []byte(`"device_blocks":1`)) {
			return fmt.Errorf("%s", e.answer)
		}
		return nil
	})
	engine := httptest.NewServer(http.HandlerFunc(describeEngine))
	defer engine.Close()
	described := s.selection.call(t, step{"POST", prefix + "/workers", fmt.Sprintf(
		`{"worker_id":5,"%s":"d","endpoint":"%s","describe":"sglang","total_kv_blocks":9,"max_num_batched_tokens":9}`, group, engine.URL), 201})
	s.selection.call(t, step{"DELETE", prefix + "/workers/5", "", 200})
	return []exchange{said, described}
}

// describeEngine is an SGLang server that describes itself.
func describeEngine(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/v1/models":
		_, _ = io.WriteString(w, `{"data":[{"id":"d"},{"id":"l","parent":"d"}]}`)
	case "/server_info":
		_, _ = io.WriteString(w, `{"version":"0.5.23","page_size":4,"max_total_num_tokens":400,"max_prefill_tokens":8,"kv_events":{"publisher":"zmq",`+
			`"endpoint_host":"*","endpoint_port_base":1,"block_size":4,"dp_size":1}}`)
	default:
		http.NotFound(w, r)
	}
}

// TestAnswers proves that what a server says is described, and what it accepts
// too: every operation of both dialects, unprefixed and prefixed, on all
// listeners. It proves the reverse for every mutation of these answers: with a
// member too much or too few, of another type, status or content type, they are
// not described. With -short only answers without a prefix are altered.
func TestAnswers(t *testing.T) {
	inEach(t, func(t *testing.T, v *Validator) {
		t.Parallel()
		contract := v.doc.member(v.doc.root, "info")["version"].(string)
		said := start(t, contract).record(t)
		if t.Failed() {
			t.Fatal("the tour went wrong")
		}
		succeeded, altered := map[string]bool{}, 0
		for i := range said {
			e := &said[i]
			if err := e.check(e.status, e.header, e.answer); err != nil {
				t.Error(err)
				continue
			}
			if e.status/100 == 2 {
				if err := e.listener.Request(e.method, e.target, e.header, []byte(e.body)); err != nil {
					t.Error(err)
				}
				op, _ := e.listener.doc.find(e.method, e.listener.path(e.target))
				succeeded[op.id] = true
			}
			// Prefixed operations of the server's dialect are described as those without a
			// prefix are (TestPrefixes); those of the other dialect come from the same source
			// as the other document, whose operations without a prefix are altered.
			if testing.Short() && strings.HasPrefix(e.target, "/v1.") || length.Of(1, 1, 0) == 0 {
				continue
			}
			for _, m := range mutants(e) {
				altered++
				if err := e.check(m.status, m.header, m.answer); err == nil {
					t.Errorf("%s %s: %s is described: %d %.400s", e.method, e.target, m.name, m.status, m.answer)
				}
			}
			if e.target == "/openapi.yaml" && !bytes.Equal(e.answer, api.Document(contract)) {
				t.Error("the server has another document")
			}
		}
		t.Logf("%d answers, %d mutations", len(said), altered)
		v.doc.each(func(_ string, op *operation) {
			if !succeeded[op.id] {
				t.Errorf("%s was not called with success", op.id)
			}
		})
		if !slices.ContainsFunc(said, func(e exchange) bool { return bytes.Contains(e.answer, []byte(`"mm_extra_info"`)) }) {
			t.Error("no dump had a block")
		}
	})
}

// TestRefusals: every operation refuses a caller without a token, unless it is public,
// and a page of another site, and both answers are described.
func TestRefusals(t *testing.T) {
	inEach(t, func(t *testing.T, v *Validator) {
		s := start(t, v.doc.member(v.doc.root, "info")["version"].(string))
		v.doc.each(func(method string, op *operation) {
			target := strings.NewReplacer("{worker_id}", "7", "{reservation_id}", "r").Replace(strings.Join(op.path, "/"))
			steps := []step{{method, target, "", http.StatusForbidden}}
			if !strings.HasSuffix(target, "/health") && !strings.HasSuffix(target, "/ready") {
				steps = append(steps, step{method, target, "", http.StatusUnauthorized})
			}
			for _, st := range steps {
				e := s.selection.call(t, st)
				if err := e.check(e.status, e.header, e.answer); err != nil {
					t.Error(err)
				}
			}
		})
	})
}
