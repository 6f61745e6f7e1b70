package openai

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/select-service/select-service/demo/sim/node"
	"github.com/select-service/select-service/demo/sim/simapi"
	"github.com/select-service/select-service/internal/engines/describe"
	"github.com/select-service/select-service/internal/simulation/engine"
	"github.com/select-service/select-service/pkg/catalog"
)

type silent struct{ port int }

func (silent) Publish([]byte)   {}
func (s silent) Events() string { return fmt.Sprintf("tcp://127.0.0.1:%d", s.port) }
func (silent) Replay() string   { return "" }
func (silent) Subscribers() int { return 0 }
func (silent) Close() error     { return nil }

type server struct {
	*httptest.Server
	t *testing.T
}

// serve runs an engine with two ranks, which takes no time.
func serve(t *testing.T) *server {
	t.Helper()
	opt := Options{Model: "m", Adapters: []string{"poet"}, Render: true}
	for rank := range 2 {
		n, err := node.New(node.Options{
			Engine:  engine.Config{BlockSize: 4, CacheBlocks: 64, PrefillRate: 1e9, DecodeRate: 1e9},
			Speedup: 1, NewSeed: func() uint64 { return 1 },
			Publisher: func() (node.Publisher, error) { return silent{7000 + rank}, nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- n.Run(ctx) }()
		t.Cleanup(func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
		opt.Ranks = append(opt.Ranks, n)
	}
	s := &server{httptest.NewServer(New(opt).Handler()), t}
	t.Cleanup(s.Close)
	return s
}

type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Details    struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

// completion is an answer, or an event of one.
type completion struct {
	Object  string
	Choices []struct {
		Text           string
		Message, Delta struct{ Role, Content string }
		Finish         string `json:"finish_reason"`
	}
	Usage *usage
}

func (s *server) post(path, body string, header ...string) (int, string) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, s.URL+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return resp.StatusCode, string(text) + err.Error()
	}
	return resp.StatusCode, string(text)
}

func (s *server) complete(path, body string, header ...string) (c completion) {
	s.t.Helper()
	status, text := s.post(path, body, header...)
	if err := json.Unmarshal([]byte(text), &c); err != nil || status != http.StatusOK || len(c.Choices) != 1 {
		s.t.Fatalf("%s: %d %s", body, status, text)
	}
	return c
}

const question = `"model":"m","messages":[{"role":"user","content":"What does a router know of caches?"}],"max_tokens":5`

func TestChat(t *testing.T) {
	s := serve(t)
	whole := s.complete("/v1/chat/completions", "{"+question+"}", rankHeader, "1")
	_, text := s.post("/v1/chat/completions", "{"+question+`,"stream":true,"stream_options":{"include_usage":true}}`, rankHeader, "1")
	var said, finish strings.Builder
	var last *usage
	var lines []string
	for scan := bufio.NewScanner(strings.NewReader(text)); scan.Scan(); {
		if line, ok := strings.CutPrefix(scan.Text(), "data: "); ok {
			lines = append(lines, line)
		}
	}
	for _, line := range lines[:len(lines)-1] {
		var c completion
		if err := json.Unmarshal([]byte(line), &c); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		for _, choice := range c.Choices {
			said.WriteString(choice.Delta.Content)
			finish.WriteString(choice.Finish)
		}
		last = c.Usage
	}
	// The role, 5 tokens, the usage, and the end.
	if len(lines) != 8 || lines[7] != "[DONE]" || said.String() != whole.Choices[0].Message.Content || finish.String() != "length" {
		t.Errorf("streamed: %s\nwhole: %+v", text, whole)
	}
	// A mark, the role, 9 pieces, the end, the role of the answer: 3 blocks of 4 can be found again.
	want := &usage{Prompt: 13, Completion: 5}
	if diff := cmp.Diff(want, whole.Usage); diff != "" {
		t.Errorf("usage of the first (-want +got):\n%s", diff)
	}
	want.Details.Cached = 12
	if diff := cmp.Diff(want, last); diff != "" {
		t.Errorf("usage of the second (-want +got):\n%s", diff)
	}
}

// TestApart proves that ranks, adapters and salts share no blocks.
func TestApart(t *testing.T) {
	s := serve(t)
	ask := func(rank, model, salt string) int {
		body := strings.Replace("{"+question+fmt.Sprintf(`,"cache_salt":%q}`, salt), `"m"`, fmt.Sprintf("%q", model), 1)
		return s.complete("/v1/chat/completions", body, rankHeader, rank).Usage.Details.Cached
	}
	for _, first := range []bool{true, false} {
		for _, who := range [][3]string{{"0", "m", ""}, {"1", "m", ""}, {"0", "poet", ""}, {"0", "m", "tenant"}} {
			if cached := ask(who[0], who[1], who[2]); first != (cached == 0) {
				t.Errorf("first: %t, %v: %d tokens cached", first, who, cached)
			}
		}
	}
}

func TestTokenize(t *testing.T) {
	s := serve(t)
	list := func(tokens []uint32) string {
		text, err := json.Marshal(tokens)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	tokenized := func(body string) (tokens []uint32) {
		t.Helper()
		status, text := s.post("/tokenize", body)
		var answer struct {
			Count  int      `json:"count"`
			Max    int      `json:"max_model_len"`
			Tokens []uint32 `json:"tokens"`
		}
		if err := json.Unmarshal([]byte(text), &answer); err != nil || status != 200 || answer.Count != len(answer.Tokens) || answer.Max != 256 {
			t.Fatalf("/tokenize %s: %d %s", body, status, text)
		}
		return answer.Tokens
	}
	rendered := func(path, body string) (tokens []uint32) {
		t.Helper()
		type one struct {
			Tokens []uint32 `json:"token_ids"`
		}
		status, text := s.post(path, body)
		answer := make([]one, 1)
		if strings.Contains(path, "chat") {
			text = "[" + text + "]"
		}
		if err := json.Unmarshal([]byte(text), &answer); err != nil || status != 200 || len(answer) != 1 {
			t.Fatalf("%s %s: %d %s", path, body, status, text)
		}
		return answer[0].Tokens
	}
	chat := tokenized("{" + question + "}")
	if other := rendered("/v1/chat/completions/render", "{"+question+"}"); len(chat) != 13 || !slices.Equal(chat, other) {
		t.Errorf("a chat: tokenized %v, rendered %v", chat, other)
	}
	text := tokenized(`{"model":"m","prompt":"What does a router know?"}`)
	if other := rendered("/v1/completions/render", `{"prompt":["What does a router know?"]}`); len(text) != 8 || !slices.Equal(text, other) {
		t.Errorf("a text: tokenized %v, rendered %v", text, other)
	}
	s.complete("/v1/completions", `{"prompt":"What does a router know?"}`, rankHeader, "0")
	if again := s.complete("/v1/completions", `{"prompt":`+list(text)+`}`, rankHeader, "0"); again.Usage.Details.Cached != 4 || again.Usage.Completion != textAnswer {
		t.Errorf("the same as a list of tokens: %+v", again.Usage)
	}
}

func TestRefusals(t *testing.T) {
	s := serve(t)
	for _, tc := range []struct {
		path, body, rank string
		status           int
		message          string
	}{
		{"/v1/chat/completions", "{", "", 400, "unexpected EOF"},
		{"/v1/chat/completions", `{"model":"m"}`, "", 400, "messages"},
		{"/v1/chat/completions", `{"model":"x","messages":[{"role":"user","content":"a"}]}`, "", 404, "`x` does not exist"},
		{"/v1/chat/completions", `{"messages":[{"role":"user","content":7}]}`, "", 400, "messages[0].content"},
		{"/v1/chat/completions", "{" + question + "}", "2", 400, "none of 2 ranks"},
		{"/v1/chat/completions", "{" + question + "}", "one", 400, "none of 2 ranks"},
		{"/v1/completions", `{"prompt":["a","b"]}`, "", 400, "prompt"},
		{"/v1/completions", `{"prompt":[]}`, "", 400, "at least one"},
		{"/v1/completions", `{"prompt":"a","max_tokens":-1}`, "", 400, "max_tokens"},
		{"/v1/completions", `{"prompt":"a","max_tokens":256}`, "", 400, "does not fit"},
		{"/tokenize", `{"model":"x","prompt":"a"}`, "", 404, "does not exist"},
		{"/v1/completions/render", `{"model":"x","prompt":"a"}`, "", 404, "does not exist"},
	} {
		header := []string{}
		if tc.rank != "" {
			header = []string{rankHeader, tc.rank}
		}
		if status, text := s.post(tc.path, tc.body, header...); status != tc.status || !strings.Contains(text, tc.message) {
			t.Errorf("%s %s: %d %s, want %d with %q", tc.path, tc.body, status, text, tc.status, tc.message)
		}
	}
}

// TestFaults proves that each fault happens, and that none is left afterwards.
func TestFaults(t *testing.T) {
	s := serve(t)
	const streamed = "{" + question + `,"stream":true}`
	for _, tc := range []struct {
		faults simapi.Faults
		status int
		events int // that came
	}{
		{simapi.Faults{Status: 503}, 503, 0},
		{simapi.Faults{Reset: true}, 0, 0},
		{simapi.Faults{Reset: true, ResetTokens: 2}, 200, 3}, // the role and two tokens
		{simapi.Faults{DelayMS: 1}, 200, 7},
		{simapi.Faults{}, 200, 7},
	} {
		body, err := json.Marshal(tc.faults)
		if err != nil {
			t.Fatal(err)
		}
		if status, text := s.post(simapi.PathFaults, string(body)); status != 200 {
			t.Fatalf("%s: %d %s", body, status, text)
		}
		if status, text := s.post("/v1/chat/completions", streamed); status != tc.status || strings.Count(text, "data: ") != tc.events {
			t.Errorf("%+v: %d %s", tc.faults, status, text)
		}
	}
}

func TestModels(t *testing.T) {
	s := serve(t)
	for path, want := range map[string]string{
		"/v1/models":     `"id":"poet","object":"model","owned_by":"sim-engine","parent":"m"`,
		"/health":        `"ok"`,
		"/info":          `"block_size":4`,
		"/ranks/1/stats": `"requests":0`,
		"/version":       `{"version":"0.33.0"}`,
	} {
		resp, err := http.Get(s.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		if err = firstError(err, resp.Body.Close()); err != nil || resp.StatusCode != 200 || !strings.Contains(string(text), want) {
			t.Errorf("GET %s: %d %s, %v", path, resp.StatusCode, text, err)
		}
	}
}

// TestDescription proves that the service learns of an engine, its sockets and its load as it does
// from vLLM.
func TestDescription(t *testing.T) {
	s := serve(t)
	client := describe.New(describe.Options{})
	t.Cleanup(client.Close)
	told, err := client.Describe(t.Context(), s.URL, "")
	if err != nil {
		t.Fatal(err)
	}
	want := &catalog.Description{
		Engine: "vllm", Version: "0.33.0", Model: "m", Adapters: []string{"poet"}, BlockSize: 4, Size: 2, TotalKVBlocks: 64, MaxModelLen: 256,
		KVEventsEndpoints: map[uint32]string{0: "tcp://127.0.0.1:7000", 1: "tcp://127.0.0.1:7001"},
	}
	if diff := cmp.Diff(want, told, cmpopts.IgnoreFields(catalog.Description{}, "From", "Unknown")); diff != "" || len(told.Unknown) > 0 {
		t.Errorf("%s; unknown: %v", diff, told.Unknown)
	}
	resp, err := http.Get(s.URL + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	for _, line := range []string{
		`vllm:num_requests_running{engine="1",model_name="m"} 0`, `vllm:num_requests_waiting{engine="0",model_name="m"} 0`,
		`vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0`,
	} {
		if err != nil || !strings.Contains(string(page), line+"\n") {
			t.Errorf("the page has no %s: %v\n%s", line, err, page)
		}
	}
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
