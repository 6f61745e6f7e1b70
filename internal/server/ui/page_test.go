package ui

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"testing"
)

// TestFiles: every file is served whole, plain and compressed, under headers that let the page do
// nothing but its work; all of them together are small.
func TestFiles(t *testing.T) {
	p := New("")
	total := 0
	for name, f := range p.files() {
		total += len(f.gzip)
		for _, packed := range []bool{false, true} {
			r := httptest.NewRequest("GET", "/", nil)
			if packed {
				r.Header.Set("Accept-Encoding", "br, gzip;q=0.5")
			}
			w := httptest.NewRecorder()
			if !p.ServeFile(w, r, name) || w.Code != http.StatusOK || f.contentType == "" {
				t.Fatalf("%s: status %d, type %q", name, w.Code, f.contentType)
			}
			body := io.Reader(w.Body)
			if packed != (w.Header().Get("Content-Encoding") == "gzip") {
				t.Errorf("%s: encoding %q", name, w.Header().Get("Content-Encoding"))
			}
			if packed {
				body, _ = gzip.NewReader(body)
			}
			if text, err := io.ReadAll(body); err != nil || !bytes.Equal(text, f.text) {
				t.Errorf("%s: another text: %v", name, err)
			}
			csp := w.Header().Get("Content-Security-Policy")
			if w.Header().Get("X-Frame-Options") != "DENY" || strings.Contains(csp, "unsafe") || !strings.HasPrefix(csp, "default-src 'none'") {
				t.Errorf("%s: headers %v", name, w.Header())
			}
			again := httptest.NewRequest("GET", "/", nil)
			again.Header = r.Header.Clone()
			again.Header.Set("If-None-Match", w.Header().Get("ETag"))
			w = httptest.NewRecorder()
			if p.ServeFile(w, again, name); w.Code != http.StatusNotModified {
				t.Errorf("%s: unchanged file gives %d", name, w.Code)
			}
		}
	}
	if total > 200_000 {
		t.Errorf("the files have %d bytes compressed, at most 200,000", total)
	}
	for _, name := range []string{"nope", "../page.go", "dist/app.js", "./app.js"} {
		if p.ServeFile(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil), name) {
			t.Errorf("there is a file %q", name)
		}
	}
}

// TestWithin: requests come with the base or without it.
func TestWithin(t *testing.T) {
	for _, tc := range []struct{ base, path, want string }{
		{"/a/b", "/a/b/ui/", "/ui/"},
		{"/a/b", "/a/b", "/"},
		{"/a/b", "/a/b/", "/"},
		{"/a/b", "/ui/", "/ui/"},
		{"/a/b", "/a/bc", "/a/bc"},
		{"/a/b", "/a/b/reservations/x%2Fy", "/reservations/x%2Fy"},
		{"", "/a/b/ui/", "/a/b/ui/"},
	} {
		var got string
		New(tc.base).Within(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r.URL.EscapedPath() })).
			ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", tc.path, nil))
		if got != tc.want {
			t.Errorf("base %q: %s arrives as %s, want %s", tc.base, tc.path, got, tc.want)
		}
	}
}

// TestBundle: the committed bundle is what its sources give. Compiling the bundler takes half a
// minute, so -short trusts that the one who changed the page has done it: `make lint` does it, too.
func TestBundle(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles the bundler")
	}
	build := exec.CommandContext(t.Context(), "go", "run", "-C", "build", ".")
	if out, err := build.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
