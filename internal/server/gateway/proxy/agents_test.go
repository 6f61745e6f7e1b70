package proxy_test

import (
	"net/textproto"
	"slices"
	"testing"
	"time"

	"github.com/select-service/select-service/test/helpers/agents"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// TestAgents: requests of real agents are of the sessions that these mean, and their engine gets their headers as they came.
func TestAgents(t *testing.T) {
	for _, r := range agents.Requests(t) {
		t.Run(r.Name, func(t *testing.T) {
			w, got := asking(t, jsonAnswer("{}"), func(s *settings) { s.SessionTTL = time.Minute })
			w.ask(request(chatPath, chatBody(""), r.Fields()...))
			engine := <-got
			sent := map[string][]string{}
			for _, h := range r.Headers {
				name := textproto.CanonicalMIMEHeaderKey(h[0])
				sent[name] = append(sent[name], textproto.TrimString(h[1]))
			}
			for name, values := range sent {
				if !slices.Equal(engine.Header[name], values) {
					t.Errorf("the engine gets %s: %q, the client sent %q", name, engine.Header[name], values)
				}
			}
			if r.Session == "" {
				return
			}
			await(t, func() string {
				if _, bound := w.SessionRank(servicetest.Scope, "", r.Session); bound == r.Final {
					return "the session is not as the request leaves it"
				}
				return ""
			})
		})
	}
}
