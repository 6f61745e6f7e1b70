package gateway

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/select-service/select-service/internal/server/gateway/counts"
	"github.com/select-service/select-service/internal/server/gateway/openai"
)

// Paths says which paths of engines requests may name. All others are refused: engines have routes that
// stop, load and profile them, on the same port and without a password.
type Paths struct {
	all      bool
	exact    map[string]string // the method of a path; "": any
	prefixes []string          // each ends with a slash
}

// enginePaths are those that requests may name anyway, with their method: the routes of vLLM's and SGLang's
// servers that compute something of the request's body, and those that say which models there are.
var enginePaths = map[string]string{
	"/v1/chat/completions": "POST", "/v1/completions": "POST", "/v1/responses": "POST", "/v1/messages": "POST",
	"/v1/messages/count_tokens": "POST", "/v1/embeddings": "POST", "/embed": "POST", "/encode": "POST", "/pooling": "POST",
	"/v1/rerank": "POST", "/v2/rerank": "POST", "/rerank": "POST", "/v1/score": "POST", "/score": "POST",
	"/v1/classify": "POST", "/classify": "POST", "/generate": "POST", "/inference/v1/generate": "POST",
	"/v1/audio/transcriptions": "POST", "/v1/audio/translations": "POST", "/v1/audio/speech": "POST",
	"/v1/images/generations": "POST", "/v1/images/edits": "POST", "/v1/images/variations": "POST",
	"/v1/files": "", "/v1/batches": "",
	"/tokenize": "POST", "/v1/tokenize": "POST", "/detokenize": "POST", "/v1/detokenize": "POST",
	"/v1/realtime": "GET", "/v1/models": "GET", "/health": "GET", "/ping": "GET",
}

// storedPaths are before the id of what an engine keeps, each with the routes of a member; "" is the member itself.
var storedPaths = map[string][]string{
	"/v1/responses/": {"", "/cancel", "/input_items"}, "/v1/files/": {"", "/content"}, "/v1/batches/": {"", "/cancel"},
}

// modelPaths is before the name of a model in its own path.
const modelPaths = "/v1/models/"

// AllPaths among the further paths of ParsePaths allows every path.
const AllPaths = "all"

// ParsePaths returns the paths that are allowed anyway and further ones: a path, all paths below one that
// ends with a slash, or AllPaths.
func ParsePaths(further []string) (*Paths, error) {
	p := &Paths{exact: enginePaths}
	for _, path := range further {
		switch {
		case path == AllPaths:
			p.all = true
			continue
		case !strings.HasPrefix(path, "/") || !isPlain(path):
			return nil, fmt.Errorf("%q: want a path such as /v1/videos, all paths below one such as /v1/videos/, or %s", path, AllPaths)
		case strings.HasSuffix(path, "/"):
			p.prefixes = append(p.prefixes, path)
			continue
		}
		if len(p.exact) == len(enginePaths) {
			p.exact = make(map[string]string)
			for known, method := range enginePaths {
				p.exact[known] = method
			}
		}
		p.exact[path] = ""
	}
	return p, nil
}

// isPlain reports whether every server takes a path for the same one: it has no segment that is empty or
// leads upwards, and no character that may be read as another one or as the path's end.
func isPlain(path string) bool {
	for i := range len(path) {
		if c := path[i]; c <= ' ' || c >= 0x7f || c == '#' || c == '\\' || c == '%' || c == '?' || c == ';' {
			return false
		}
	}
	for segment := range strings.SplitSeq(strings.Trim(path, "/"), "/") {
		if segment == "." || segment == ".." {
			return false
		}
	}
	return !strings.Contains(path, "//")
}

// check returns why a request may not name a path; nil: it may. routed tells that the path may have
// something before it, by which a gateway has routed the request and which it takes away.
func (p *Paths) check(method, path string, routed bool) *Problem {
	path, _, _ = strings.Cut(path, "?")
	if p == nil {
		return nil
	}
	if method == http.MethodTrace {
		return errMethod("GET, POST") // its answer would show what is added to requests, such as the engines' token
	}
	if p.all {
		return nil
	}
	if method == http.MethodConnect && path == "" {
		return nil // it names a host, and gateways forward it only if they are told to
	}
	switch allowed, ok := p.methodOf(path, routed); {
	case !ok:
		return errNoPath()
	case method == http.MethodTrace:
		return errMethod(http.MethodGet)
	case allowed != "" && allowed != method && (allowed != http.MethodGet || method != http.MethodHead && method != http.MethodConnect):
		return errMethod(allowed)
	}
	return nil
}

// methodOf returns the method of a path, "" for any; ok: it is allowed.
func (p *Paths) methodOf(path string, routed bool) (method string, ok bool) {
	if method, ok = p.exact[path]; ok {
		return method, true
	}
	if name, below := strings.CutPrefix(path, modelPaths); below && isModelName(name) {
		return http.MethodGet, true
	}
	if !strings.HasPrefix(path, "/") || !isPlain(path) {
		return "", false
	}
	if slices.ContainsFunc(p.prefixes, func(prefix string) bool { return strings.HasPrefix(path, prefix) }) {
		return "", true
	}
	for before, routes := range storedPaths {
		if id, below := strings.CutPrefix(path, before); below {
			id, route, _ := strings.Cut(id, "/")
			if route != "" {
				route = "/" + route
			}
			if id != "" && slices.Contains(routes, route) {
				return "", true
			}
		}
	}
	if !routed || strings.HasPrefix(path, mounted) {
		return "", false
	}
	for i := 1; i < len(path); i++ {
		if path[i] == '/' {
			if method, ok = p.methodOf(path[i:], false); ok {
				return method, true
			}
		}
	}
	return "", false
}

// mounted is where vLLM and SGLang have a program that takes all paths below for its own.
const mounted = "/metrics/"

// isModelName reports whether a name of a model, as a path has it, is one and nothing else. It may have
// slashes.
func isModelName(name string) bool {
	return name != "" && isPlain("/"+strings.ReplaceAll(strings.ReplaceAll(name, "%2F", "/"), "%2f", "/"))
}

func errNoPath() *Problem {
	return &Problem{
		status: http.StatusNotFound, kind: openai.TypeNotFound, code: "not_found", text: "There is no such route.", outcome: counts.GatewayPath,
	}
}

func errMethod(allow string) *Problem {
	p := errInvalid("method_not_allowed", "The route has another method.")
	p.status, p.allow, p.outcome = http.StatusMethodNotAllowed, allow, counts.GatewayPath
	return p
}
