package routes_test

import (
	"testing"

	"github.com/select-service/select-service/internal/engines/routes"
)

// TestAllows: further paths are allowed as they are written, with any method but TRACE; the methods of the others are
// those of vLLM's and SGLang's servers.
func TestAllows(t *testing.T) {
	for _, tt := range []struct {
		further, method, path string
		routed                bool
		allow                 string
		ok                    bool
	}{
		{"", "POST", "/v1/chat/completions?x=1", false, "", true},
		{"", "GET", "/v1/chat/completions", false, "POST", false},
		{"", "HEAD", "/v1/models", false, "", true},
		{"", "GET", "/v1/models/a%2Fb", false, "", true},
		{"", "POST", "/flush_cache", false, "", false},
		{"", "POST", "/team/v1/embeddings", false, "", false},
		{"", "POST", "/team/v1/embeddings", true, "", true},
		{"", "POST", "/metrics/v1/embeddings", true, "", false},
		{"", "CONNECT", "", true, "", true},
		{"/flush_cache", "PUT", "/flush_cache", false, "", true},
		{"/flush_cache", "POST", "/flush_cache/all", false, "", false},
		{"/v1/videos/", "GET", "/v1/videos/1", false, "", true},
		{"/v1/videos/", "GET", "/v1/videos/../../pause", false, "", false},
		{routes.All, "POST", "/pause", false, "", true},
		{routes.All, "TRACE", "/pause", false, "GET, POST", false},
	} {
		var further []string
		if tt.further != "" {
			further = []string{tt.further}
		}
		set, err := routes.Parse(further)
		if err != nil {
			t.Fatal(err)
		}
		if allow, ok := set.Allows(tt.method, tt.path, tt.routed); allow != tt.allow || ok != tt.ok {
			t.Errorf("with %q: %s %s: %q %t, want %q %t", tt.further, tt.method, tt.path, allow, ok, tt.allow, tt.ok)
		}
	}
}
