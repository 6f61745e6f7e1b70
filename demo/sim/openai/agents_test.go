package openai

import (
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// sse is the events of a stream: their types in order without repetitions, and an event of each type.
func sse(t *testing.T, text string) (types []string, byType map[string]map[string]any) {
	t.Helper()
	byType = make(map[string]map[string]any)
	for event := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		name, data, ok := strings.Cut(event, "\ndata: ")
		var members map[string]any
		if err := json.Unmarshal([]byte(data), &members); !ok || err != nil {
			t.Fatalf("%q: %v", event, err)
		}
		typ, _ := members["type"].(string)
		if name != "event: "+typ {
			t.Errorf("%q has the type %q", name, typ)
		}
		if len(types) == 0 || types[len(types)-1] != typ {
			types = append(types, typ)
		}
		byType[typ] = members
	}
	return types, byType
}

// keys are the names of all members, with their paths, but those of lists.
func keys(path string, v any) (all []string) {
	members, _ := v.(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(members)) {
		all = append(append(all, path+name), keys(path+name+".", members[name])...)
	}
	return all
}

// The answers that vLLM 0.32.0 gave to the gateway's own test requests.
const recorded = "../../../internal/server/gateway/openai/testdata/vllm-0.32.0-"

// TestAgents proves that messages and responses are answered in vLLM's form, with the tokens of the chat that
// they are, and that the second is served from the cache.
func TestAgents(t *testing.T) {
	const system = "You are an agent that has a long system prompt, which is cached."
	tools := func(schema string) string {
		return `[{"type":"function","name":"Bash","description":"Runs a command.","` + schema + `":{"type":"object","properties":{"command":{"type":"string"}}}}]`
	}
	const chatTools = `[{"type":"function","function":{"name":"Bash","description":"Runs a command.","strict":false,"parameters":{"type":"object","properties":{"command":{"type":"string"}}}}}]`
	messages := func(stream string) string {
		return `{"model":"m","max_tokens":32000,` + stream + `"system":[{"type":"text","text":"x-anthropic-billing-header: cc_version=1;"},{"type":"text","text":"` + system + `"}],
			"tools":` + tools("input_schema") + `,"messages":[{"role":"user","content":[{"type":"text","text":"Say"},{"type":"text","text":" hello."}]},
			{"role":"assistant","content":[{"type":"text","text":"I look."},{"type":"tool_use","id":"1","name":"Bash","input":{}}]},
			{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"found"}]}]}`
	}
	responses := func(stream string) string {
		return `{"model":"m",` + stream + `"instructions":"` + system + `","tools":` + tools("parameters") + `,
			"input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"Say"},{"type":"input_text","text":" hello."}]},
			{"type":"message","role":"assistant","content":[{"type":"output_text","text":"I look."}]},
			{"type":"function_call","call_id":"1","name":"Bash","arguments":"{}"},{"type":"function_call_output","call_id":"1","output":"found"}]}`
	}
	const chat = `{"model":"m","tools":` + chatTools + `,"messages":[{"role":"system","content":"` + system + `"},{"role":"user","content":"Say hello."},
		{"role":"assistant","content":"I look."},{"role":"tool","content":"found"}]}`
	for path, body := range map[string]func(string) string{"messages": messages, "responses": responses} {
		t.Run(path, func(t *testing.T) {
			s := serve(t)
			var counted struct{ Count float64 }
			if _, text := s.post("/tokenize", chat); json.Unmarshal([]byte(text), &counted) != nil || counted.Count < 20 {
				t.Fatal(text)
			}
			status, text := s.post("/v1/"+path, body(`"stream":true,`), rankHeader, "1")
			if status != 200 {
				t.Fatalf("%d %s", status, text)
			}
			types, events := sse(t, text)
			truth, err := os.ReadFile(recorded + path + ".sse")
			if err != nil {
				t.Fatal(err)
			}
			wantTypes, want := sse(t, string(truth))
			same := func(typ string) string { // the recorded answers are thoughts, these are texts
				return strings.Replace(typ, "reasoning_text", "output_text", 1)
			}
			for i := range wantTypes {
				wantTypes[i] = same(wantTypes[i])
			}
			if diff := cmp.Diff(wantTypes, types); diff != "" {
				t.Errorf("events (-vLLM +these): %s", diff)
			}
			for typ, event := range want {
				its := keys("", event)
				for _, key := range keys("", events[same(typ)]) {
					if !slices.Contains(its, key) && !slices.Contains([]string{
						"content_block.text", "delta.text", "logprobs", "part.annotations", "part.logprobs", "item.role",
					}, key) {
						t.Errorf("%s has the member %s, which vLLM's has not", typ, key)
					}
				}
			}
			status, text = s.post("/v1/"+path, body(""), rankHeader, "1")
			var whole struct {
				Stop   string `json:"stop_reason"`
				Status string
				Usage  struct {
					Input   float64 `json:"input_tokens"`
					Cached  float64 `json:"cache_read_input_tokens"`
					Output  int     `json:"output_tokens"`
					Details struct {
						Cached float64 `json:"cached_tokens"`
					} `json:"input_tokens_details"`
				}
			}
			if err := json.Unmarshal([]byte(text), &whole); err != nil || status != 200 {
				t.Fatalf("%d %s: %v", status, text, err)
			}
			u := whole.Usage
			if prompt := u.Input + u.Cached; prompt != counted.Count || u.Cached+u.Details.Cached < 16 || u.Output != chatAnswer || whole.Stop+whole.Status != map[string]string{
				"messages": "end_turn", "responses": "completed",
			}[path] {
				t.Errorf("%+v, want the %v tokens of the chat", whole, counted.Count)
			}
		})
	}
	s := serve(t)
	if _, text := s.post("/v1/messages", `{"model":"m","max_tokens":2,"messages":[{"role":"user","content":"a"}]}`); !strings.Contains(text, `"stop_reason":"max_tokens"`) {
		t.Error(text)
	}
	if _, text := s.post("/v1/responses", `{"model":"m","max_output_tokens":2,"input":"a"}`); !strings.Contains(text, `"status":"incomplete"`) {
		t.Error(text)
	}
}
