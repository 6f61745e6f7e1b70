package httpapi

import (
	"net/http"
	"testing"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/server/ui"
)

// TestPage: where the page is, who is sent to it, and that foreign sites may link to it but not
// call the service. Without it, every answer is as before.
func TestPage(t *testing.T) {
	const html = "text/html,application/xhtml+xml,*/*;q=0.8"
	f := &fake{}
	with := func(base string, part Part) http.Handler {
		return New(f, f.conductor(), Options{Log: zerolog.Nop(), Page: ui.New(base), Part: part})
	}
	none := New(f, f.conductor(), Options{Log: zerolog.Nop()})
	for _, tc := range []struct {
		name           string
		h              http.Handler
		method, target string
		header         []string
		status         int
		location       string
	}{
		{"a browser", with("", AllRoutes), "GET", "/", []string{"Accept", html}, 307, "/ui/"},
		{"a browser behind a proxy", with("/x", AllRoutes), "GET", "/", []string{"Accept", html}, 307, "/x/ui/"},
		{"a browser through a proxy that passes the base on", with("/x", AllRoutes), "GET", "/x/", []string{"Accept", html}, 307, "/x/ui/"},
		{"a program", with("", AllRoutes), "GET", "/", []string{"Accept", "*/*"}, 404, ""},
		{"a program that posts", with("", AllRoutes), "POST", "/", []string{"Accept", html}, 404, ""},
		{"the document", with("", AllRoutes), "GET", "/ui/", nil, 200, ""},
		{"the document through such a proxy", with("/x", AllRoutes), "GET", "/x/ui/", nil, 200, ""},
		{"the head of the document", with("", AllRoutes), "HEAD", "/ui/", nil, 200, ""},
		{"without slash", with("", AllRoutes), "GET", "/ui", nil, 307, "/ui/"},
		{"no such file", with("", AllRoutes), "GET", "/ui/nope", nil, 404, ""},
		{"out of the files", with("", AllRoutes), "GET", "/ui/../health", nil, 404, ""},
		{"no other method", with("", AllRoutes), "POST", "/ui/", nil, 405, ""},
		{"a link on another site", with("", AllRoutes), "GET", "/ui/", []string{"Sec-Fetch-Site", "cross-site"}, 200, ""},
		{"such a link to the root", with("", AllRoutes), "GET", "/", []string{"Accept", html, "Sec-Fetch-Site", "cross-site"}, 307, "/ui/"},
		{"such a link to data", with("", AllRoutes), "GET", "/workers", []string{"Sec-Fetch-Site", "cross-site"}, 403, ""},
		{"the operators' listener", with("", OperatorsRoutes), "GET", "/ui/", nil, 200, ""},
		{"the callers' listener beside it", with("", CallersRoutes), "GET", "/ui/", nil, 404, ""},
		{"its root", with("", CallersRoutes), "GET", "/", []string{"Accept", html}, 404, ""},
		{"off", none, "GET", "/ui/", nil, 404, ""},
		{"off, the root", none, "GET", "/", []string{"Accept", html}, 404, ""},
		{"off, a link", none, "GET", "/", []string{"Accept", html, "Sec-Fetch-Site", "cross-site"}, 403, ""},
	} {
		header := http.Header{}
		for i := 0; i < len(tc.header); i += 2 {
			header.Set(tc.header[i], tc.header[i+1])
		}
		w := call(t, tc.h, tc.method, tc.target, "", header)
		if w.Code != tc.status || w.Header().Get("Location") != tc.location {
			t.Errorf("%s: status %d, location %q", tc.name, w.Code, w.Header().Get("Location"))
		}
	}
}
