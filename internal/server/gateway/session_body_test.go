package gateway_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/test/helpers/agents"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// TestAgents: requests of real agents are of the sessions that these mean, and Envoy is told to change none of their headers.
func TestAgents(t *testing.T) {
	for _, r := range agents.Requests(t) {
		t.Run(r.Name, func(t *testing.T) {
			w := start(t, func(c *node.Config, _ *settings) { c.Selection.SessionTTL = time.Minute })
			w.put(1, 1)
			fields := r.Fields()
			for i := 0; i < len(fields); i += 2 {
				fields[i] = strings.ToLower(fields[i]) // as Envoy has it
			}
			e, p := w.post(chatPath, chat(servicetest.Prompt(7, 16), ""), fields...)
			for i := 0; i < len(fields); i += 2 {
				if _, set := p.headers[fields[i]]; set || slices.Contains(p.removed, fields[i]) {
					t.Errorf("%s does not go to the engine as it came", fields[i])
				}
			}
			if _, bound := w.SessionRank(servicetest.Scope, "", r.Session); bound != (r.Session != "") {
				t.Errorf("session %q is bound: %t", r.Session, bound)
			}
			if n := servicetest.Sum(w.Metrics()["remembered_entries"], "sessions"); n > 1 || r.Session == "" && n > 0 {
				t.Errorf("%v sessions are bound", n)
			}
			e.response(200, "application/json", false)
			e.chunk("{}", true)
			e.close()
			if _, bound := w.SessionRank(servicetest.Scope, "", r.Session); r.Session != "" && bound == r.Final {
				t.Errorf("behind the request, session %q is bound: %t", r.Session, bound)
			}
		})
	}
}

// TestSessionsOfBodies: where no header names a session, the body does, on every route whose body is read; headers go before it. Names
// that cannot be used are counted, and the request is placed as without them.
func TestSessionsOfBodies(t *testing.T) {
	long := strings.Repeat("s", 257)
	for name, tt := range map[string]struct {
		path, members string
		headers       []string
		bound         string // the session that is bound behind the request
		ignored       string // why a name is not used
	}{
		"vLLM, SGLang":               {chatPath, `,"session_id":"s"`, nil, "s", ""},
		"completions":                {completionsPath, `,"prompt":[1,2,3,4],"session_id":"s"`, nil, "s", ""},
		"responses":                  {"/v1/responses", `,"input":"x","session_id":"s"`, nil, "s", ""},
		"messages":                   {"/v1/messages", `,"vllm_xargs":{"session_id":"s"}`, nil, "s", ""},
		"generate":                   {"/inference/v1/generate", `,"token_ids":[1,2,3,4],"session_id":"s"`, nil, "s", ""},
		"vllm-router":                {chatPath, `,"vllm_xargs":{"agentic_context":{"program_id":"p","parent_program_id":"q"}},"session_id":"s"`, nil, "p", ""},
		"vllm-router, as a text":     {chatPath, `,"vllm_xargs":{"agentic_context":"{\"program_id\":\"p\"}"}`, nil, "p", ""},
		"vllm-router, no program":    {chatPath, `,"session_id":"s","vllm_xargs":{"agentic_context":{"task_id":"t"}}`, nil, "s", ""},
		"vllm-router, it ends":       {chatPath, `,"vllm_xargs":{"agentic_context":{"program_id":"p","expected_resume":false}}`, nil, "", ""},
		"a header goes before":       {chatPath, `,"session_id":"s"`, []string{"x-session-affinity", "h"}, "h", ""},
		"an empty header does not":   {chatPath, `,"session_id":"s"`, []string{"x-session-affinity", " "}, "s", ""},
		"it ends by a header":        {chatPath, `,"session_id":"s"`, []string{"x-dynamo-session-final", "true"}, "", ""},
		"of another form":            {chatPath, `,"session_id":7,"vllm_xargs":[{"session_id":"s"}]`, nil, "", ""},
		"too long":                   {chatPath, `,"session_id":"` + long + `"`, nil, "", "too_long"},
		"a control character":        {chatPath, `,"session_id":"a\u0000"`, nil, "", "control_character"},
		"reserved":                   {chatPath, `,"session_id":"\u0002s"`, nil, "", "reserved"},
		"a header that is too long":  {chatPath, `,"session_id":"s"`, []string{"x-session-id", long}, "s", "too_long"},
		"a header of the service's":  {chatPath, ``, []string{"x-session-id", "\x01sg:x"}, "", "reserved"},
		"a parent that is too long":  {chatPath, ``, []string{"x-session-id", "s", "x-parent-session-id", long}, "s", "too_long"},
		"a program's, that is, too":  {chatPath, `,"vllm_xargs":{"agentic_context":{"program_id":"p","parent_program_id":"` + long + `"}}`, nil, "p", "too_long"},
		"a context that is too long": {chatPath, `,"vllm_xargs":{"agentic_context":"{\"program_id\":\"p\",\"x\":\"` + strings.Repeat("x", 17<<10) + `\"}"}`, nil, "", ""},
		"a context that is no JSON":  {chatPath, `,"vllm_xargs":{"agentic_context":"{\"program_id\":\"p\""}`, nil, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t, func(c *node.Config, _ *settings) { c.Selection.SessionTTL = time.Minute })
			w.put(1, 1)
			body := `{"model":"m"` + tt.members + `}`
			if tt.path == chatPath || tt.path == "/v1/messages" {
				body = chat(servicetest.Prompt(7, 16), tt.members)
			}
			e, p := w.post(tt.path, body, tt.headers...)
			if p.body != body {
				t.Errorf("the engine gets %s", p.body)
			}
			e.response(200, "application/json", false)
			e.chunk("{}", true)
			e.close()
			for _, session := range []string{"s", "p", "h"} {
				if r, ok := w.SessionRank(servicetest.Scope, "", session); ok != (session == tt.bound) {
					t.Errorf("session %s is bound to %v, %t", session, r, ok)
				}
			}
			if n := servicetest.Sum(w.Metrics()["remembered_entries"], "sessions"); n > 1 || (n == 1) != (tt.bound != "") {
				t.Errorf("%v sessions are bound", n)
			}
			for _, why := range []string{"too_long", "control_character", "reserved"} {
				want := 0.0
				if why == tt.ignored {
					want = 1
				}
				if n := servicetest.Sum(w.Metrics()["session_names_ignored_total"], why); n != want {
					t.Errorf("%v names are counted as %s, want %v", n, why, want)
				}
			}
		})
	}
}
