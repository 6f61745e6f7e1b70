package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/select-service/select-service/internal/codec/bodyscan"
)

func TestKindOf(t *testing.T) {
	for path, want := range map[string]Kind{
		"POST /v1/chat/completions":             Chat,
		"POST /tenant/v1/chat/completions?x=/y": Chat,
		"POST /v1/completions":                  Completions,
		"POST /v1/responses":                    Responses,
		"POST /v1/messages":                     Messages,
		"POST /v1/messages/count_tokens":        Other,
		"POST /v1/embeddings":                   Other,
		"POST /v1/completions/":                 Other,
		"GET /v1/responses":                     Other,
		"GET /v1/models":                        Other,
	} {
		method, path, _ := strings.Cut(path, " ")
		if got := KindOf(method, path); got != want {
			t.Errorf("KindOf(%s, %s) = %v, want %v", method, path, got, want)
		}
	}
}

// TestParseRequest proves what is read of each kind of body.
func TestParseRequest(t *testing.T) {
	for name, tc := range map[string]struct {
		kind Kind
		body string
		want Request
	}{
		"chat": {
			Chat, `{"model":"m","messages":[{"role":"user","content":"héllo"}],"stream":true,"stream_options":{"include_usage":true},"max_tokens":7}`,
			Request{Model: "m", Stream: true, IncludeUsage: true, MaxTokens: 7, Prompts: 1, FirstBytes: 6, TextBytes: 6},
		},
		"hints": {
			Chat, `{"nvext":{"agent_hints":{"priority":-2147483648,"strict_priority":3,"osl":9,"latency_sensitivity":0.5},"cache_salt":" a "},"cache_salt":"b"}`,
			Request{Salt: "a", Hints: Hints{Priority: new(int32(-2147483648)), StrictPriority: new(uint32(3)), OutputTokens: new(uint32(9)), LatencySensitivity: new(0.5)}},
		},
		"nulls": {
			Chat, `{"model":null,"nvext":null,"cache_salt":null,"stream":null,"stream_options":null,"max_tokens":null,"messages":[{"content":null}]}`,
			Request{Prompts: 1},
		},
		"what an engine may take": {
			Chat, `{"model":"m","stream":"true","stream_options":7,"max_tokens":"5","max_completion_tokens":1e3,"messages":[{"content":7}]}`,
			Request{Model: "m", Prompts: 1},
		},
		"the smaller limit": {Chat, `{"max_tokens":9,"max_completion_tokens":99999999999}`, Request{MaxTokens: 9}},
		"SGLang's keys":     {Chat, `{"extra_key":"x","lora_path":"l","cache_salt":"s"}`, Request{ExtraKey: "x", Adapter: "l", Salt: "s"}},
		"keys of a batch":   {Completions, `{"extra_key":["x","y"],"lora_path":[null,"l"],"cache_salt":["s","t"]}`, Request{ExtraKey: "x", Salt: "s"}},
		"keys of no type":   {Chat, `{"extra_key":null,"lora_path":7}`, Request{}},
		"a response's keys": {Responses, `{"extra_key":"x","lora_path":"l"}`, Request{ExtraKey: "x"}},
		"salt of the body":  {Chat, `{"nvext":{"cache_salt":"  "},"cache_salt":" b\n"}`, Request{Salt: "b"}},
		"parts": {
			Chat, `{"messages":[{"content":[{"type":"text","text":"ab"},"cd",{"text":"e"}]},{"content":[{"type":"refusal","refusal":"f"}]}]}`,
			Request{Prompts: 1, FirstBytes: 6, TextBytes: 6},
		},
		"an image":        {Chat, `{"messages":[{"content":[{"type":"image_url","image_url":{"url":"data:"}}]}]}`, Request{Prompts: 1, Media: true}},
		"an untyped one":  {Chat, `{"messages":[{"content":[{"image_url":"data:"}]}]}`, Request{Prompts: 1, Media: true}},
		"a text":          {Completions, `{"prompt":"abc","max_tokens":1}`, Request{Prompts: 1, MaxTokens: 1, FirstBytes: 3, TextBytes: 3}},
		"texts":           {Completions, `{"prompt":["abc","de"]}`, Request{Prompts: 2, FirstBytes: 3, TextBytes: 5}},
		"tokens":          {Completions, `{"prompt": [ 1,2 , 4294967295]}`, Request{Prompts: 1, Tokens: []uint32{1, 2, 4294967295}}},
		"lists of tokens": {Completions, `{"prompt":[ [1,2],[3],[4,5]]}`, Request{Prompts: 3, Tokens: []uint32{1, 2}, FurtherTokens: 3}},
		"no prompt":       {Completions, `{"prompt":[]}`, Request{}},
		"embeddings":      {Completions, `{"prompt":null,"prompt_embeds":"AA"}`, Request{Media: true}},
		"a session":       {Chat, `{"messages":[],"session_params":{"id":"s"}}`, Request{Prompts: 1, Media: true}},
		"no session":      {Completions, `{"prompt":"a","session_params":null}`, Request{Prompts: 1, FirstBytes: 1, TextBytes: 1}},
		"input":           {Responses, `{"input":"abc","max_output_tokens":3,"instructions":null,"previous_response_id":null}`, Request{Prompts: 1, MaxTokens: 3, FirstBytes: 3, TextBytes: 3}},
		"items": {
			Responses, `{"input":[{"type":"message","content":[{"type":"input_text","text":"ab"}]},{"type":"function_call_output","output":"cd"}]}`,
			Request{Prompts: 1, FirstBytes: 4, TextBytes: 4},
		},
		"kept elsewhere": {Responses, `{"input":"a","previous_response_id":"r"}`, Request{Prompts: 1, Media: true, Refers: "r", FirstBytes: 1, TextBytes: 1}},
		"a file":         {Responses, `{"input":[{"content":[{"type":"input_file"}]}]}`, Request{Prompts: 1, Media: true}},
		"anthropic": {
			Messages, `{"system":[{"type":"text","text":"ab"}],"messages":[{"role":"user","content":[{"type":"tool_result","content":[{"type":"text","text":"cd"}]}]}],"max_tokens":4}`,
			Request{Prompts: 1, MaxTokens: 4, FirstBytes: 4, TextBytes: 4},
		},
		"an image in a result": {
			Messages, `{"messages":[{"role":"user","content":[{"type":"tool_result","content":[{"type":"image","source":{}}]}]}]}`,
			Request{Prompts: 1, Media: true},
		},
		"another route": {Other, `{"model":"e","input":[1]}`, Request{Model: "e"}},
		"no JSON there": {Other, `--boundary`, Request{}},
		"no object":     {Other, `{"model":7}`, Request{}},
	} {
		got, err := ParseRequest(tc.kind, []byte(tc.body))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got.body, got.open, got.idLists, got.members = nil, 0, 0, [memberCount]span{}
		if got.Kind != tc.kind && tc.kind != Other {
			t.Errorf("%s: kind %v", name, got.Kind)
		}
		if got.Kind = 0; !reflect.DeepEqual(*got, tc.want) {
			t.Errorf("%s: %+v, want %+v", name, *got, tc.want)
		}
	}
}

// TestParseRequestRefuses proves that a fault says what is wrong and where, and never
// what the body says.
func TestParseRequestRefuses(t *testing.T) {
	for body, want := range map[string]string{
		``:                          "end of text, expected a value at line 1 column 1",
		`[]`:                        "invalid type: array, expected an object at line 1 column 1",
		`{"messages":"x"}`:          "messages: invalid type: string, expected an array at line 1 column 13",
		`{"messages":[7]}`:          "messages[0]: invalid type: number, expected an object at line 1 column 14",
		`{"model":7}`:               "model: invalid type: number, expected a string at line 1 column 10",
		`{"model":"a","model":"b"}`: "duplicate field `model` at line 1 column 22",
		`{"messages":[]} x`:         "trailing characters at line 1 column 17",
		`{"cache_salt":true}`:       "cache_salt: invalid type: boolean, expected a string at line 1 column 15",
		`{"nvext":{"agent_hints":{"priority":2147483648}}}`:           "nvext.agent_hints.priority: integer out of range, expected a signed 32-bit integer at line 1 column 47",
		`{"nvext":{"agent_hints":{"priority":18446744073709551615}}}`: "nvext.agent_hints.priority: integer out of range, expected a signed 32-bit integer at line 1 column 57",
		`{"nvext":{"agent_hints":{"osl":-1}}}`:                        "nvext.agent_hints.osl: integer out of range, expected an unsigned 32-bit integer at line 1 column 32",
	} {
		_, err := ParseRequest(Chat, []byte(body))
		if fault, ok := errors.AsType[*bodyscan.Error](err); !ok || fault.Error() != want {
			t.Errorf("%s: %v, want %s", body, err, want)
		}
	}
	if _, err := ParseRequest(Completions, []byte(`{"prompt":[1,-2]}`)); err == nil {
		t.Error("a negative token is taken")
	}
}

// TestBody proves that only the salt and SGLang's hints change, that an equal salt changes nothing, and that no
// client says where the engine fetches KV caches from. The member is that of SGLang's GenerateReqInput
// (python/sglang/srt/managers/kv_hints.py).
func TestBody(t *testing.T) {
	for _, tc := range []struct{ body, salt, hints, want string }{
		{` { "model" : "m" }`, "", "", ` { "model" : "m" }`},
		{` { "model" : "m" }`, "s", "", ` {"cache_salt":"s", "model" : "m" }`},
		{`{"a":1,"cache_salt": "s" ,"b":2}`, "s", "", `{"a":1,"cache_salt": "s" ,"b":2}`},
		{`{"a":1,"cache_salt": "x" ,"b":2}`, `q"`, "", `{"a":1,"cache_salt": "q\"" ,"b":2}`},
		{`{"a":1,"cache_salt":null}`, "s", "", `{"a":1,"cache_salt":"s"}`},
		{`{ }`, "s", "", `{"cache_salt":"s" }`},
		{`{"a":1}`, "", `{"h":1}`, `{"kv_hints":{"h":1},"a":1}`},
		{`{"a":1,"kv_hints": {"x":[{}]} ,"b":2}`, "", `{"h":1}`, `{"a":1,"kv_hints": {"h":1} ,"b":2}`},
		{`{"a":1,"kv_hints": {"x":[{}]} ,"b":2}`, "", "", `{"a":1,"kv_hints": null ,"b":2}`},
		{`{"kv_\u0068ints":[1]}`, "", "", `{"kv_\u0068ints":null}`},
		{`{"a":1}`, "s", `{"h":1}`, `{"cache_salt":"s","kv_hints":{"h":1},"a":1}`},
		{`{}`, "s", `{"h":1}`, `{"cache_salt":"s","kv_hints":{"h":1}}`},
	} {
		for _, kind := range []Kind{Chat, Completions, Responses, Messages, Other} {
			r, err := ParseRequest(kind, []byte(tc.body))
			if err != nil {
				t.Fatal(err)
			}
			if got := string(bytes.Join(r.Body(tc.salt, []byte(tc.hints)), nil)); got != tc.want {
				t.Errorf("%d: %s with salt %s and hints %s: %s, want %s", kind, tc.body, tc.salt, tc.hints, got, tc.want)
			}
		}
	}
	r, _ := ParseRequest(Other, []byte("no JSON"))
	if got := string(bytes.Join(r.Body("", []byte("{}")), nil)); got != "no JSON" {
		t.Errorf("a body of another form is %s", got)
	}
}

func TestCacheSalt(t *testing.T) {
	long := strings.Repeat("ä", 128)
	for _, tc := range []struct {
		own     string
		tenants []string
		tagged  bool
		salt    string
		told    string
		refused bool
	}{
		{own: "b", salt: "b", told: "b"},
		{own: "b", tenants: []string{"x", " a ", "", " "}, salt: "a", told: "a"},
		{own: "b", tagged: true, salt: "b", told: "dynamo-cache-salt:b"},
		{tenants: []string{"  "}},
		{own: long, salt: long, told: long},
		{own: long + "x", refused: true},
		{own: long[:110*2], tagged: true, salt: long[:110*2], told: SaltTag + long[:110*2]},
		{own: long[:111*2], tagged: true, refused: true},
		{own: "a/b", refused: true},
		{tenants: []string{"a@b"}, refused: true},
		{own: `a\b`, refused: true},
		{own: "a\x00b", refused: true},
		{tenants: []string{"a\xffb"}, refused: true},
	} {
		r := &Request{Salt: tc.own}
		salt, told, err := r.CacheSalt(tc.tenants, tc.tagged)
		if salt != tc.salt || told != tc.told || errors.Is(err, ErrSalt) != tc.refused {
			t.Errorf("%+v: %q, %q, %v", tc, salt, told, err)
		}
	}
}

func TestAppendError(t *testing.T) {
	got := string(AppendError(nil, Chat, `no "x"`, TypeNotFound, "model_not_found"))
	if want := `{"error":{"message":"no \"x\"","type":"not_found_error","param":null,"code":"model_not_found"}}`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got := AppendError(nil, Messages, "m", TypeServer, "c"); !json.Valid(got) || !strings.HasPrefix(string(got), `{"type":"error",`) {
		t.Errorf("%s", got)
	}
}

// FuzzParseRequest proves that no body is a reason to panic, that one without a fault
// is JSON, and that its copy with another salt says that salt and is otherwise the same.
func FuzzParseRequest(f *testing.F) {
	for _, seed := range []string{
		`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a\n"}]}],"cache_salt":"x","nvext":{"cache_salt":"y"}}`,
		`{"prompt":["a","b"],"model":"m"}`, `{"prompt":[[1,2],[3]]}`, `{"input":[{"role":"user","content":"a"}],"instructions":"i"}`, `{ }`,
		`{"input_ids":[[1,2]],"cache_salt":"x","input":"a"}`,
	} {
		for kind := range Messages + 1 {
			f.Add(uint8(kind), []byte(seed), "s")
		}
	}
	f.Fuzz(func(t *testing.T, k uint8, body []byte, salt string) {
		kind := Kind(k % uint8(Messages+1))
		r, err := ParseRequest(kind, body)
		if err != nil || kind == Other && r.PromptIDs() == nil {
			return
		}
		if !json.Valid(body) {
			t.Fatalf("%q is taken for JSON", body)
		}
		if kind != Other {
			tokenize, notTokenized := r.TokenizeBody("", false)
			_, render, notRendered := r.RenderBody("m")
			if out := bytes.Join(tokenize, nil); notTokenized == nil && !json.Valid(out) {
				t.Fatalf("%q becomes %q", body, out)
			}
			if out := bytes.Join(render, nil); notRendered == nil && !json.Valid(out) {
				t.Fatalf("%q becomes %q", body, out)
			}
		}
		_, told, err := (&Request{Salt: salt}).CacheSalt(nil, false)
		if err != nil || told == "" {
			return
		}
		var before, after map[string]any
		changed := bytes.Join(r.Body(told, nil), nil)
		if err := json.Unmarshal(body, &before); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(changed, &after); err != nil {
			t.Fatalf("%q: %v", changed, err)
		}
		if before["cache_salt"] = told; !reflect.DeepEqual(before, after) {
			t.Fatalf("%q becomes %q", body, changed)
		}
	})
}

// BenchmarkRequest reads a chat of about a thousand tokens and makes the question for its
// tokens of it.
func BenchmarkRequest(b *testing.B) {
	body := []byte(`{"model":"m","messages":[{"role":"system","content":"You are helpful.\n"},{"role":"user","content":"` + strings.Repeat("word ", 1000) +
		`"}],"stream":true,"stream_options":{"include_usage":true},"max_tokens":100,"temperature":0.7}`)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		r, err := ParseRequest(Chat, body)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := r.TokenizeBody("m", false); err != nil {
			b.Fatal(err)
		}
	}
}
