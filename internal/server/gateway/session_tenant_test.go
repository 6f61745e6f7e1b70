package gateway_test

import (
	"testing"
	"time"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// TestSessionsOfTenants: a client's header neither follows, binds nor ends the session of another tenant, whether the
// tenant stands in a header or is the salt of the body.
func TestSessionsOfTenants(t *testing.T) {
	for name, tt := range map[string]struct {
		body    string
		headers []string
	}{
		"header": {chat(servicetest.Prompt(7, 16), ""), []string{"x-tenant-id", "other"}},
		"salt":   {chat(servicetest.Prompt(7, 16), `,"cache_salt":"other"`), nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t, func(c *node.Config, _ *settings) { c.Selection.SessionTTL = time.Minute })
			w.put(1, 1)
			ask := func(body string, headers ...string) {
				e, _ := w.post(chatPath, body, append(headers, "x-session-id", "s")...)
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
			ask(tt.body, tt.headers...)
			if bound("") != (catalog.Rank{}) || bound("other").Worker != 1 {
				t.Fatalf("behind a tenant's request, a session without a tenant is on %v, the tenant's on %v", bound(""), bound("other"))
			}
			ask(chat(servicetest.Prompt(7, 16), ""))
			ask(tt.body, append(tt.headers, "x-dynamo-session-final", "true")...)
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
