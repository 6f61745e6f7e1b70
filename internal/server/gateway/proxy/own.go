package proxy

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"

	"github.com/select-service/select-service/internal/server/gateway"
	"github.com/select-service/select-service/internal/server/gateway/counts"
	"github.com/select-service/select-service/internal/telemetry/tracing"
)

// serveOwn answers a request for a route of this server itself, and reports whether it is one.
func (s *Server) serveOwn(w http.ResponseWriter, r *http.Request, target string) bool {
	path, _, _ := strings.Cut(target, "?")
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return false
	}
	switch {
	case path == "/health", path == "/ping":
		writeJSON(w, r, http.StatusOK, map[string]string{"status": "ok"})
	case path == "/ready":
		if s.draining.Load() || !s.gateway.Ready() {
			writeJSON(w, r, http.StatusServiceUnavailable, map[string]string{"status": "not ready"})
		} else {
			writeJSON(w, r, http.StatusOK, map[string]string{"status": "ready"})
		}
	case path == "/v1/models":
		s.serveModels(w, r, "")
	case strings.HasPrefix(path, "/v1/models/"):
		name, err := url.PathUnescape(strings.TrimPrefix(path, "/v1/models/"))
		if err != nil || name == "" {
			return false
		}
		s.serveModels(w, r, name)
	default:
		return false
	}
	return true
}

func writeJSON(w http.ResponseWriter, r *http.Request, status int, v any) {
	leaveBody(w, r)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the client may have left
}

// model is a model in OpenAI's form, with what Anthropic's has beside it.
type model struct {
	ID          string `json:"id"`
	Object      string `json:"object"`
	Type        string `json:"type"`
	DisplayName string `json:"display_name"`
	Created     int64  `json:"created"`
	CreatedAt   string `json:"created_at"`
	OwnedBy     string `json:"owned_by"`
	MaxModelLen int    `json:"max_model_len,omitempty"` // as vLLM has it, in tokens
}

func modelOf(name string, length int) model {
	return model{ID: name, Object: "model", Type: "model", DisplayName: name, CreatedAt: "1970-01-01T00:00:00Z", OwnedBy: "select-service", MaxModelLen: length}
}

// serveModels lists the models that the caller may use, or shows one of them.
func (s *Server) serveModels(w http.ResponseWriter, r *http.Request, only string) {
	caller, bad := s.identify(r)
	names, lengths := s.gateway.Models(caller)
	list := make([]model, 0, len(names))
	for i, name := range names {
		if only == "" || only == name {
			list = append(list, modelOf(name, lengths[i]))
		}
	}
	if bad == nil && only != "" && len(list) == 0 {
		bad = gateway.UnknownModel(only)
	}
	switch {
	case bad != nil:
		e := &exchange{Exchange: s.gateway.Open(counts.Proxy, caller), server: s, w: w, control: http.NewResponseController(w), r: r}
		defer e.Close()
		e.Begin(s.gateway.ReadHead(fieldsOf(r, r.URL.Path)), tracing.Context{})
		e.refuse(bad)
	case only != "":
		writeJSON(w, r, http.StatusOK, list[0])
	default:
		writeJSON(w, r, http.StatusOK, struct {
			Object  string  `json:"object"`
			Data    []model `json:"data"`
			HasMore bool    `json:"has_more"`
		}{"list", list, false})
	}
}
