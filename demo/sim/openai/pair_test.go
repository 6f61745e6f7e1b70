package openai

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/select-service/select-service/demo/sim/node"
	"github.com/select-service/select-service/demo/sim/simapi"
	"github.com/select-service/select-service/internal/simulation/engine"
)

// startPart runs an engine of a part, whose links take a millisecond a token within its domain, and three between two.
func startPart(t *testing.T, role, domain string) *server {
	t.Helper()
	n, err := node.New(node.Options{
		Engine:  engine.Config{BlockSize: 4, CacheBlocks: 64, PrefillRate: 1e4, DecodeRate: 1e4},
		Speedup: 1, NewSeed: func() uint64 { return 1 },
		Publisher: func() (node.Publisher, error) { return silent{7000}, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = n.Run(t.Context()) }()
	pairing := Pairing{Role: role, Domain: domain, Within: engine.Link{PerToken: time.Millisecond}, Between: engine.Link{PerToken: 3 * time.Millisecond}}
	s := &server{httptest.NewServer(New(Options{Model: "m", Ranks: []*node.Node{n}, Pairing: pairing}).Handler()), t}
	t.Cleanup(s.Close)
	return s
}

func (s *server) stats() (of simapi.Stats) {
	s.t.Helper()
	resp, err := http.Get(s.URL + "/stats")
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&of); err != nil {
		s.t.Fatal(err)
	}
	return of
}

// TestPair proves that the engine in the header computes the prompt, and one token, that the answer is that of an engine that does
// all, and that the first token of the one that decodes comes after a transfer over the link of the two.
func TestPair(t *testing.T) {
	prompt := strings.TrimPrefix(strings.Repeat(",7", 31), ",")
	for _, path := range []string{"/v1/completions", "/v1/chat/completions"} {
		body := `{"prompt":[` + prompt + `],"max_tokens":9}`
		tokens := 31
		if strings.Contains(path, "chat") {
			body, tokens = `{"messages":[{"role":"user","content":"What does a router know?"}],"max_completion_tokens":9,"stream_options":{"include_usage":true}}`, 0
		}
		want := startPart(t, "", "").complete(path, body)
		for domain, per := range map[string]float64{"a": 1, "b": 3} {
			prefill, decode := startPart(t, RolePrefill, domain), startPart(t, RoleDecode, "a")
			got := decode.complete(path, body, prefillerHeader, strings.TrimPrefix(prefill.URL, "http://"))
			if got.Choices[0] != want.Choices[0] || got.Usage.Completion != 9 || got.Usage.Prompt != want.Usage.Prompt {
				t.Errorf("%s: the answer is %+v, that of one engine %+v", path, got, want)
			}
			if tokens == 0 {
				tokens = want.Usage.Prompt
			}
			first, second := prefill.stats(), decode.stats()
			if first.Requests != 1 || first.OutputTokens != 1 || second.OutputTokens != 9 {
				t.Errorf("%s: the engine that prefills has made %d tokens in %d requests, the other one %d", path, first.OutputTokens, first.Requests, second.OutputTokens)
			}
			// All but the last token are transferred; that one is computed in a tenth of a millisecond.
			if took, most := second.TTFTMS[0], per*float64(tokens-1)+0.1; took < most-0.01 || took > most+0.01 {
				t.Errorf("%s, a prompt from domain %s: a first token after %g ms, not %g", path, domain, took, most)
			}
			// Without the header the engine prefills itself.
			if decode.complete(path, body); prefill.stats().Requests != 1 {
				t.Errorf("%s: a prompt was sent to the other engine", path)
			}
		}
	}
}

// TestPairRefusals proves that an engine that prefills refuses answers, and what the sidecar answers if the prefill fails.
func TestPairRefusals(t *testing.T) {
	prefill, decode := startPart(t, RolePrefill, ""), startPart(t, RoleDecode, "")
	const body = `{"prompt":[1,2,3],"max_tokens":9}`
	if status, text := prefill.post("/v1/completions", body); status != http.StatusBadRequest || !strings.Contains(text, "only computes prompts") {
		t.Errorf("an answer of an engine that prefills: %d %s", status, text)
	}
	host := strings.TrimPrefix(prefill.URL, "http://")
	if status, text := decode.post("/v1/completions", `{"prompt":[1],"model":"other"}`, prefillerHeader, host); status != http.StatusNotFound || !strings.Contains(text, "other") {
		t.Errorf("a model that the engine that prefills does not have: %d %s", status, text)
	}
	prefill.Close()
	if status, text := decode.post("/v1/completions", body, prefillerHeader, host); status != http.StatusBadGateway || !strings.Contains(text, host) {
		t.Errorf("an engine that is gone: %d %s", status, text)
	}
}
