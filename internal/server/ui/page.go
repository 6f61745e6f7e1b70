package ui

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"
)

//go:embed dist
var dist embed.FS

// contentTypes are the types of the page's files, by the end of their names.
var contentTypes = map[string]string{
	".html": "text/html; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".svg":  "image/svg+xml",
	".txt":  "text/plain; charset=utf-8",
}

// policy lets the page load its own files and call its own service, and nothing else; no inline
// script or style is executed, and no page may frame it.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// file is a file of the page, as it is and compressed.
type file struct {
	contentType string
	text, gzip  []byte
	tag         string // of the text, without quotes
}

// Page serves the page's files.
type Page struct {
	base  string
	files func() map[string]file
}

// New returns the page. base is the path below which a proxy shows the service, without trailing
// slash; empty: there is none.
func New(base string) *Page { return &Page{base: base, files: sync.OnceValue(load)} }

// Base is the path below which a proxy shows the service, empty without one.
func (p *Page) Base() string { return p.base }

// Address is the path of the page as browsers see it.
func (p *Page) Address() string { return p.base + "/ui/" }

// ServeFile answers with a file of the page; the empty name is its document. It reports whether
// there is such a file.
func (p *Page) ServeFile(w http.ResponseWriter, r *http.Request, name string) bool {
	if name == "" {
		name = "index.html"
	}
	f, ok := p.files()[name]
	if !ok {
		return false
	}
	h := w.Header()
	h.Set("Content-Type", f.contentType)
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Frame-Options", "DENY")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-cache") // names are without versions: ask each time, by the tag
	h.Set("Vary", "Accept-Encoding")
	text := f.text
	h.Set("ETag", `"`+f.tag+`"`)
	if acceptsGzip(r) {
		text = f.gzip
		h.Set("Content-Encoding", "gzip")
		h.Set("ETag", `"`+f.tag+`-gzip"`)
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(text))
	return true
}

// acceptsGzip reports whether a request's Accept-Encoding names gzip and does not refuse it.
func acceptsGzip(r *http.Request) bool {
	for coding := range strings.SplitSeq(strings.Join(r.Header["Accept-Encoding"], ","), ",") {
		name, weight, _ := strings.Cut(coding, ";")
		if strings.EqualFold(strings.TrimSpace(name), "gzip") {
			weight = strings.ReplaceAll(weight, " ", "")
			return strings.Trim(strings.TrimPrefix(weight, "q="), "0.") != "" || weight == ""
		}
	}
	return false
}

func load() map[string]file {
	entries, err := dist.ReadDir("dist")
	if err != nil {
		panic(err) // the directory is embedded
	}
	files := make(map[string]file, len(entries))
	for _, e := range entries {
		text, err := dist.ReadFile("dist/" + e.Name())
		if err != nil {
			panic(err)
		}
		var packed bytes.Buffer
		z, _ := gzip.NewWriterLevel(&packed, gzip.BestCompression) // the level is valid
		_, _ = z.Write(text)                                       // into memory
		_ = z.Close()
		sum := sha256.Sum256(text)
		files[e.Name()] = file{contentTypes[path.Ext(e.Name())], text, packed.Bytes(), hex.EncodeToString(sum[:12])}
	}
	return files
}

// WantsPage reports whether a request for / comes from a browser that wants to show a page:
// programs do not ask for HTML.
func WantsPage(r *http.Request) bool {
	if r.URL.Path != "/" || r.Method != http.MethodGet && r.Method != http.MethodHead {
		return false
	}
	for kind := range strings.SplitSeq(strings.Join(r.Header["Accept"], ","), ",") {
		kind, _, _ = strings.Cut(kind, ";")
		if strings.EqualFold(strings.TrimSpace(kind), "text/html") {
			return true
		}
	}
	return false
}

// Within returns a handler that takes requests with the base before their path as those without
// it: a proxy may cut the base or pass it on.
func (p *Page) Within(h http.Handler) http.Handler {
	if p == nil || p.base == "" {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rest, ok := strings.CutPrefix(r.URL.Path, p.base)
		if !ok || rest != "" && rest[0] != '/' {
			h.ServeHTTP(w, r)
			return
		}
		inner := *r
		at := *r.URL
		at.Path = "/" + strings.TrimPrefix(rest, "/")
		if at.RawPath != "" {
			at.RawPath = "/" + strings.TrimPrefix(strings.TrimPrefix(at.RawPath, p.base), "/")
		}
		inner.URL = &at
		h.ServeHTTP(w, &inner)
	})
}
