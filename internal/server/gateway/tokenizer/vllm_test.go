package tokenizer

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"testing"

	"github.com/select-service/select-service/internal/server/gateway/openai"
)

// vllm names a real vLLM (0.32.0, --enable-scale-out, --served-model-name m, with the model of
// testdata/model.py), whose answers are then recorded.
var vllm = flag.String("vllm", "", "base URL of a vLLM to record the answers of")

const recordFile = "testdata/vllm-0.32.0.json"

// exchange is what vLLM was asked and what it said.
type exchange struct {
	Path   string          `json:"path"`
	Asked  json.RawMessage `json:"asked"`
	Answer json.RawMessage `json:"answer"`
}

// recorded is what vLLM said to one request: on the render route of its own API, and to
// each protocol's question.
type recorded struct {
	Own      []uint32 `json:"own"`
	Render   exchange `json:"render"`
	Tokenize exchange `json:"tokenize"`
}

// vllmCases are requests that vLLM renders by itself, so that the conversions can be
// compared with its own.
var vllmCases = []struct {
	name string
	kind openai.Kind
	body string
}{
	{"chat", openai.Chat, `{"model":"m","messages":[{"role":"system","content":"w21"},{"role":"user","content":"w22 w23"}],"max_tokens":5}`},
	{"chat of parts", openai.Chat, `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"w22"},{"type":"text","text":"w23"}]}]}`},
	{"continued", openai.Chat, `{"model":"m","messages":[{"role":"user","content":"w22"},{"role":"assistant","content":"w23"}],"add_generation_prompt":false,"continue_final_message":true}`},
	{"special tokens", openai.Chat, `{"model":"m","messages":[{"role":"user","content":"w22"}],"add_special_tokens":true}`},
	{"effort", openai.Chat, `{"model":"m","messages":[{"role":"user","content":"w22"}],"reasoning_effort":"low","documents":[{"title":"w25","text":"w26"}]}`},
	{"no effort", openai.Chat, `{"model":"m","messages":[{"role":"user","content":"w22"}],"reasoning_effort":"none"}`},
	{"thinking", openai.Chat, `{"model":"m","messages":[{"role":"user","content":"w22"}],"chat_template_kwargs":{"enable_thinking":false}}`},
	{"tools", openai.Chat, `{"model":"m","messages":[{"role":"user","content":"w22"},{"role":"assistant","tool_calls":[{"id":"a","type":"function","function":{"name":"w27","arguments":"{\"q\":\"w28\"}"}}]},
		{"role":"tool","tool_call_id":"a","content":"w29"}],"tools":[{"type":"function","function":{"name":"w27","description":"w30","parameters":{"title":"w31","type":"object"}}}]}`},
	{"text", openai.Completions, `{"model":"m","prompt":"w21 w22","max_tokens":3}`},
	{"list of a text", openai.Completions, `{"model":"m","prompt":["w21 w22"],"add_special_tokens":false}`},
	{"input", openai.Responses, `{"model":"m","input":"w21","instructions":"w22"}`},
	{"items", openai.Responses, `{"model":"m","input":[{"role":"user","content":"w21"},{"type":"message","role":"user","content":[{"type":"input_text","text":"w22"},{"type":"input_text","text":"w23"}]},
		{"type":"message","id":"msg_1","status":"completed","role":"assistant","content":[{"type":"output_text","text":"w24","annotations":[]}]},{"role":"user","content":"w25"}]}`},
	{"calls", openai.Responses, `{"model":"m","input":[{"role":"user","content":"w21"},{"type":"reasoning","id":"rs_1","summary":[],"content":[{"type":"reasoning_text","text":"w22"}]},
		{"type":"function_call","call_id":"a","name":"w27","arguments":"{\"q\":\"w28\"}"},{"type":"function_call_output","call_id":"a","output":"w29"}],
		"tools":[{"type":"function","name":"w27","description":"w30","parameters":{"title":"w31","type":"object"}}]}`},
	{"messages", openai.Messages, `{"model":"m","max_tokens":5,"system":"w21","messages":[{"role":"user","content":"w22"},{"role":"assistant","content":"w23"},{"role":"user","content":[{"type":"text","text":"w24"}]}]}`},
	{"system of parts", openai.Messages, `{"model":"m","max_tokens":5,"system":[{"type":"text","text":"x-anthropic-billing-header: w29"},{"type":"text","text":"w21 "},{"type":"text","text":"w22"}],"messages":[{"role":"user","content":"w23"}]}`},
	{"messages with tools", openai.Messages, `{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"w21"},
		{"role":"assistant","content":[{"type":"thinking","thinking":"w22","signature":"s"},{"type":"text","text":"w23"},{"type":"tool_use","id":"a","name":"w27","input":{"q":"w28"}}]},
		{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":[{"type":"text","text":"w24"},{"type":"text","text":"w25"}]},{"type":"text","text":"w26"}]}],
		"tools":[{"name":"w27","description":"w30","input_schema":{"title":"w31","type":"object"}}]}`},
}

// TestAgainstVLLM proves that both protocols ask for what vLLM itself makes of a request, and
// read its answers. What vLLM said is recorded; -vllm asks again.
func TestAgainstVLLM(t *testing.T) {
	all := make(map[string]recorded)
	if *vllm == "" {
		text, err := os.ReadFile(recordFile)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(text, &all); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range vllmCases {
		r, err := openai.ParseRequest(tc.kind, []byte(tc.body))
		if err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
		said := all[tc.name]
		if *vllm != "" {
			path := map[openai.Kind]string{
				openai.Chat: "/v1/chat/completions/render", openai.Completions: "/v1/completions/render",
				openai.Responses: "/v1/responses/render", openai.Messages: "/v1/messages/render",
			}[tc.kind]
			said.Own = idsOf(t, tc.name, post(t.Context(), t, path, []byte(tc.body)))
		}
		for protocol, e := range map[Protocol]*exchange{VLLMRender: &said.Render, VLLMTokenize: &said.Tokenize} {
			ids := askRecorded(t, tc.name, protocol, r, e)
			if !slices.Equal(ids, said.Own) || len(ids) == 0 {
				t.Errorf("%s, %s: %v, vLLM has %v", tc.name, protocol, ids, said.Own)
			}
		}
		all[tc.name] = said
	}
	if *vllm != "" && !t.Failed() {
		text, err := json.MarshalIndent(all, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(recordFile, append(text, '\n'), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// askRecorded asks by a protocol and gets the recorded answer, or records it. The question
// must be the recorded one.
func askRecorded(t *testing.T, name string, protocol Protocol, r *openai.Request, e *exchange) []uint32 {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		body, _ := io.ReadAll(q.Body)
		if *vllm != "" {
			*e = exchange{Path: q.URL.Path, Asked: body, Answer: post(q.Context(), t, q.URL.Path, body)}
		}
		var asked bytes.Buffer
		if err := json.Compact(&asked, e.Asked); err != nil {
			t.Errorf("%s, %s: %v", name, protocol, err)
		}
		if *vllm == "" && r.Kind == openai.Responses {
			// Not recorded yet. The recorded tokenizer adds no tokens of its own, so that the
			// answer is the same.
			body = bytes.Replace(body, []byte(`,"add_special_tokens":true`), nil, 1)
		}
		var got bytes.Buffer
		if err := json.Compact(&got, body); err != nil || q.URL.Path != e.Path || got.String() != asked.String() {
			t.Errorf("%s, %s asks %s\n%s, vLLM was asked %s\n%s", name, protocol, q.URL.Path, got.String(), e.Path, asked.String())
		}
		_, _ = w.Write(e.Answer)
	}))
	defer s.Close()
	got, err := client(t, Options{URL: s.URL, Protocol: protocol}).Tokens(t.Context(), &Request{Request: r, Model: "m"})
	if err != nil {
		t.Errorf("%s, %s: %v", name, protocol, err)
	}
	return got.IDs
}

// post asks the real vLLM.
func post(ctx context.Context, t *testing.T, path string, body []byte) []byte {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, *vllm+path, bytes.NewReader(body))
	if err != nil {
		t.Error(err)
		return nil
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Error(err)
		return nil
	}
	defer func() { _ = resp.Body.Close() }()
	text, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusOK {
		t.Errorf("%s %s: %s %s", path, body, resp.Status, text)
	}
	return text
}

func idsOf(t *testing.T, name string, text []byte) []uint32 {
	t.Helper()
	got, err := answerWith("token_ids")(text, 16)
	if err != nil {
		t.Errorf("%s: %v in %s", name, err, text)
	}
	return got.ids
}
