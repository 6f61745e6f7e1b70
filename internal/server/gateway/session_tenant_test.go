package gateway_test

import (
	"testing"
	"time"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection/identity"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// TestSessionsOfTenants: a client neither follows, binds nor ends the session of another tenant, whether the tenant stands in a
// header or is the salt of the body, and whether a header or the body names the session.
func TestSessionsOfTenants(t *testing.T) {
	for name, tt := range map[string]struct {
		members string   // of the tenant's body
		headers []string // of the tenant
		named   string   // member by which all name the session; "": a header does
	}{
		"header":             {"", []string{"x-tenant-id", "other"}, ""},
		"salt":               {`,"cache_salt":"other"`, nil, ""},
		"header, and a body": {"", []string{"x-tenant-id", "other"}, `,"session_id":"s"`},
		"salt, and a body":   {`,"cache_salt":"other"`, nil, `,"vllm_xargs":{"agentic_context":{"program_id":"s"}}`},
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t, func(c *node.Config, _ *settings) { c.Selection.SessionTTL = time.Minute })
			w.put(1, 1)
			ask := func(members string, headers ...string) {
				if tt.named == "" {
					headers = append(headers, "x-session-id", "s")
				}
				e, _ := w.post(chatPath, chat(servicetest.Prompt(7, 16), members+tt.named), headers...)
				e.response(200, "application/json", false)
				e.chunk("{}", true)
				e.close()
			}
			bound := func(tenant string) catalog.Rank {
				r, ok := w.SessionRank(servicetest.Scope, tenant, "s")
				if !ok {
					return catalog.Rank{}
				}
				return r
			}
			ask(tt.members, tt.headers...)
			if bound("") != (catalog.Rank{}) || bound("other").Worker != 1 {
				t.Fatalf("behind a tenant's request, a session without a tenant is on %v, the tenant's on %v", bound(""), bound("other"))
			}
			ask("")
			ask(tt.members, append(tt.headers, "x-dynamo-session-final", "true")...)
			if bound("").Worker != 1 || bound("other") != (catalog.Rank{}) {
				t.Errorf("behind the tenant's last request, a session without a tenant is on %v, the tenant's on %v", bound(""), bound("other"))
			}
		})
	}
}

// TestLastRequestGone: the last request of a session ends its binding also where the client leaves before the answer.
func TestLastRequestGone(t *testing.T) {
	w := start(t, func(c *node.Config, _ *settings) { c.Selection.SessionTTL = time.Minute })
	w.put(1, 1)
	e, _ := w.post(chatPath, chat(servicetest.Prompt(7, 16), ""), "x-session-id", "s", "x-dynamo-session-final", "true")
	e.close()
	if _, ok := w.SessionRank(servicetest.Scope, "", "s"); ok {
		t.Error("the session is still bound")
	}
}

// TestConfiguredOfOtherUse: a header that the gateway reads for something else may name the session as well, by
// --gateway-session-headers.
func TestConfiguredOfOtherUse(t *testing.T) {
	for _, header := range []string{"x-llm-d-inference-fairness-id", "x-tenant-id", "x-dynamo-policy-class", "tracestate"} {
		w := start(t, func(n *node.Config, c *settings) {
			n.Selection.SessionTTL = time.Minute
			table, err := identity.New(header)
			if err != nil {
				t.Fatal(err)
			}
			c.Sessions = table
		})
		w.put(1, 1)
		e, _ := w.post(chatPath, chat(servicetest.Prompt(7, 16), ""), header, "s=1", "x-session-id", "other")
		e.response(200, "application/json", false)
		e.chunk("{}", true)
		e.close()
		tenant := ""
		if header == "x-tenant-id" {
			tenant = "s=1"
		}
		if _, bound := w.SessionRank(servicetest.Scope, tenant, "s=1"); !bound {
			t.Errorf("%s names no session", header)
		}
	}
}
