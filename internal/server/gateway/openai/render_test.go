package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"testing"
)

// TestTokenizeBody proves what POST /tokenize is asked for each kind of request: what
// vLLM 0.32.0 makes of them itself.
func TestTokenizeBody(t *testing.T) {
	for name, tc := range map[string]struct {
		kind       Kind
		body, want string // want empty: it cannot be converted
	}{
		"chat": {
			Chat, `{"model":"lora","messages":[{"role":"user","content":"a"}],"tools":[{"x":1}],"temperature":1,"add_generation_prompt":false,"continue_final_message":true,"add_special_tokens":true,"chat_template":"t","chat_template_kwargs":{"k":1},"stream":true}`,
			`{"model":"m","messages":[{"role":"user","content":"a"}],"tools":[{"x":1}],"chat_template":"t","add_generation_prompt":false,"continue_final_message":true,"add_special_tokens":true,"chat_template_kwargs":{"k":1}}`,
		},
		"reasoning": {
			Chat, `{"messages":[],"reasoning_effort":"none","documents":[{"text":"d"}],"chat_template_kwargs":{"documents":1},"tools":null}`,
			`{"model":"m","messages":[],"chat_template_kwargs":{"documents":[{"text":"d"}],"enable_thinking":false,"reasoning_effort":"none"}}`,
		},
		"no messages": {Chat, `{"model":"m"}`, ``},
		"media":       {Chat, `{"messages":[{"content":[{"type":"image_url"}]}]}`, ``},
		"a text":      {Completions, `{"prompt":"a\"b","add_special_tokens":false}`, `{"model":"m","prompt":"a\"b","add_special_tokens":false}`},
		"texts":       {Completions, `{"prompt":["a","b"]}`, `{"model":"m","prompt":"a"}`},
		"no prompt":   {Completions, `{"prompt":[]}`, ``},
		"tokens":      {Completions, `{"prompt":[1]}`, ``},
		"embedded":    {Completions, `{"prompt_embeds":"A"}`, ``},
		"input":       {Responses, `{"input":"a","instructions":"i"}`, `{"model":"m","messages":[{"role":"system","content":"i"},{"role":"user","content":"a"}],"add_special_tokens":true}`},
		"reasoning of a response": {
			Responses, `{"input":[{"role":"assistant","content":"a","status":"incomplete"}],"reasoning":{"effort":"low"},"chat_template_kwargs":{"enable_thinking":false}}`,
			`{"model":"m","messages":[{"role":"assistant","content":"a"}],"add_special_tokens":true,"add_generation_prompt":false,"continue_final_message":true,
				"chat_template_kwargs":{"enable_thinking":false,"reasoning_effort":"low"}}`,
		},
		"messages before": {Responses, `{"input":"a","previous_input_messages":[{}]}`, ``},
		"a suffix":        {Completions, `{"prompt":"a","suffix":"b"}`, ``},
		"disabled thinking": {
			Messages, `{"messages":[{"role":"user","content":"a"}],"thinking":{"type":"disabled"},"output_config":{"effort":"high"},"tools":[{"name":"f","input_schema":{},"strict":true}]}`,
			`{"model":"m","messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","function":{"name":"f","parameters":{},"strict":true}}],
				"chat_template_kwargs":{"enable_thinking":false,"reasoning_effort":"none"}}`,
		},
		"effort of messages": {
			Messages, `{"messages":[{"role":"user","content":"a"}],"thinking":{"type":"adaptive"},"output_config":{"effort":"high"}}`,
			`{"model":"m","messages":[{"role":"user","content":"a"}],"chat_template_kwargs":{"enable_thinking":true,"reasoning_effort":"high"}}`,
		},
		"no input":          {Responses, `{"instructions":"i"}`, ``},
		"an earlier answer": {Responses, `{"input":"a","previous_response_id":"x"}`, ``},
		"items": {
			Responses, `{"input":[{"role":"user","content":"a"},{"type":"reasoning","summary":[{"type":"summary_text","text":"r"}]},{"type":"message","role":"assistant","content":[{"type":"output_text","text":"b"}]},
				{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"c","output":"o"},{"role":"user","content":[{"type":"input_text","text":"d"}]}],
				"tools":[{"type":"function","name":"f","parameters":{"p":1}}]}`,
			`{"model":"m","messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b","reasoning":"r","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},
				{"role":"tool","content":"o","tool_call_id":"c"},{"role":"user","content":[{"type":"text","text":"d"}]}],
				"tools":[{"type":"function","function":{"name":"f","parameters":{"p":1}}}],"add_special_tokens":true}`,
		},
		"an item of another type": {Responses, `{"input":[{"type":"computer_call"}]}`, ``},
		"a built-in tool":         {Responses, `{"input":"a","tools":[{"type":"web_search"}]}`, ``},
		"anthropic": {
			Messages, `{"model":"m","max_tokens":5,"system":[{"type":"text","text":"x-anthropic-billing-header: 1"},{"type":"text","text":"s"},{"type":"text","text":"t"}],"messages":[
				{"role":"user","content":"a"},
				{"role":"assistant","content":[{"type":"thinking","thinking":"h"},{"type":"text","text":"b"},{"type":"tool_use","id":"i","name":"f","input":{"q": "<1>"}}]},
				{"role":"user","content":[{"type":"tool_result","tool_use_id":"i","content":[{"type":"text","text":"r"},{"type":"text","text":"u"}]},{"type":"text","text":"c"},{"type":"text","text":"d"}]},
				{"role":"user","content":[{"type":"tool_result","tool_use_id":"j"}]},
				{"role":"system","content":"z"}],
				"tools":[{"name":"f","description":"d","input_schema":{"type":"object"}}],"chat_template_kwargs":{"k":1}}`,
			`{"model":"m","messages":[{"role":"system","content":"st"},{"role":"user","content":"a"},
				{"role":"assistant","content":"b","reasoning":"h","tool_calls":[{"id":"i","type":"function","function":{"name":"f","arguments":"{\"q\": \"<1>\"}"}}]},
				{"role":"tool","content":"r\nu","tool_call_id":"i"},{"role":"user","content":[{"type":"text","text":"c"},{"type":"text","text":"d"}]},
				{"role":"tool","content":"","tool_call_id":"j"},{"role":"system","content":"z"}],
				"tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object"}}}],"chat_template_kwargs":{"k":1}}`,
		},
		"a document":            {Messages, `{"messages":[{"role":"user","content":[{"type":"document"}]}]}`, ``},
		"an assistant's result": {Messages, `{"messages":[{"role":"assistant","content":[{"type":"tool_result","content":"x"}]}]}`, ``},
	} {
		r, err := ParseRequest(tc.kind, []byte(tc.body))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		pieces, err := r.TokenizeBody("m", false)
		got := bytes.Join(pieces, nil)
		if tc.want == "" {
			if !errors.Is(err, ErrNotConvertible) {
				t.Errorf("%s: %s, %v", name, got, err)
			}
			continue
		}
		if err != nil || !reflect.DeepEqual(decoded(t, got), decoded(t, []byte(tc.want))) {
			t.Errorf("%s: %v\n%s, want\n%s", name, err, got, tc.want)
		}
	}
}

func decoded(t *testing.T, text []byte) (v any) {
	t.Helper()
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return v
}

// TestRenderBody proves that a renderer gets the body as it came, but for the model,
// and Anthropic's as a chat.
func TestRenderBody(t *testing.T) {
	for _, tc := range []struct {
		kind, to Kind
		body     string
		want     string
	}{
		{Chat, Chat, `{ "model":"lora", "x":1}`, `{ "model":"m", "x":1}`},
		{Completions, Completions, `{"prompt":["a"],"model":"m"}`, `{"prompt":["a"],"model":"m"}`},
		{Responses, Responses, `{"input":[{"type":"computer_call"}]}`, `{"model":"m","input":[{"type":"computer_call"}]}`},
		{Messages, Chat, `{"messages":[{"role":"user","content":"a"}]}`, `{"model":"m","messages":[{"role":"user","content":"a"}]}`},
	} {
		r, err := ParseRequest(tc.kind, []byte(tc.body))
		if err != nil {
			t.Fatal(err)
		}
		to, pieces, err := r.RenderBody("m")
		if got := string(bytes.Join(pieces, nil)); to != tc.to || got != tc.want || err != nil {
			t.Errorf("%s: %v, %s, %v, want %s", tc.body, to, got, err, tc.want)
		}
	}
}
