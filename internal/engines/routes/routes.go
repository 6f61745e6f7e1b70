// Package routes says which paths of engines requests may name. All others are refused: engines have routes that
// stop, load and profile them, on the same port and without a password.
package routes

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
)

// Set is a set of allowed paths. It does not change.
type Set struct {
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

// All among the further paths of Parse allows every path.
const All = "all"

// Check returns why a text is no further path for Parse: it is a path, all paths below one, which ends with a slash,
// or All.
func Check(path string) error {
	if path != All && (!strings.HasPrefix(path, "/") || !isPlain(path)) {
		return fmt.Errorf("%q: want a path such as /v1/videos, all paths below one such as /v1/videos/, or %s", path, All)
	}
	return nil
}

// Parse returns the paths that are allowed anyway and further ones. The error is that of Check.
func Parse(further []string) (*Set, error) {
	s := &Set{exact: enginePaths}
	for _, path := range further {
		switch err := Check(path); {
		case err != nil:
			return nil, err
		case path == All:
			s.all = true
		case strings.HasSuffix(path, "/"):
			s.prefixes = append(s.prefixes, path)
		default:
			if len(s.exact) == len(enginePaths) {
				s.exact = maps.Clone(enginePaths)
			}
			s.exact[path] = ""
		}
	}
	return s, nil
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

// Allows reports whether a request may name a path. If it may not, allow has the methods of which the path wants one;
// "": there is no such path. routed tells that the path may have something before it, by which a gateway has routed the
// request and which it takes away. A nil Set allows every path.
func (s *Set) Allows(method, path string, routed bool) (allow string, ok bool) {
	path, _, _ = strings.Cut(path, "?")
	switch {
	case s == nil:
		return "", true
	case method == http.MethodTrace:
		return "GET, POST", false // its answer would show what is added to requests, such as the engines' token
	case s.all:
		return "", true
	case method == http.MethodConnect && path == "":
		return "", true // it names a host, and gateways forward it only if they are told to
	}
	allow, ok = s.methodOf(path, routed)
	switch {
	case !ok:
		return "", false
	case allow == "", allow == method, allow == http.MethodGet && (method == http.MethodHead || method == http.MethodConnect):
		return "", true
	}
	return allow, false
}

// methodOf returns the method of a path, "" for any; ok: it is allowed.
func (s *Set) methodOf(path string, routed bool) (method string, ok bool) {
	if method, ok = s.exact[path]; ok {
		return method, true
	}
	if name, below := strings.CutPrefix(path, modelPaths); below && isModelName(name) {
		return http.MethodGet, true
	}
	if !strings.HasPrefix(path, "/") || !isPlain(path) {
		return "", false
	}
	if slices.ContainsFunc(s.prefixes, func(prefix string) bool { return strings.HasPrefix(path, prefix) }) {
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
			if method, ok = s.methodOf(path[i:], false); ok {
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
