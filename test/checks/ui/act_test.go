package ui

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
)

// register adds a worker to a service, with the token of its operator if there is one.
func register(t *testing.T, base string, id int, token string) {
	t.Helper()
	post(t, base+"/workers", token, fmt.Sprintf(`{"worker_id": %d, "model_name": "llama", "endpoint": "http://127.0.0.1:1", "block_size": 16, "total_kv_blocks": 100}`, id))
}

// post sends a request that changes something, which must succeed.
func post(t *testing.T, address, token, body string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, address, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if text, _ := io.ReadAll(resp.Body); resp.StatusCode >= 300 {
		t.Fatalf("%d %s", resp.StatusCode, text)
	}
}

// newTokens writes a tokens file with a token of each role, and returns it and the tokens.
func newTokens(t *testing.T, roles ...string) (file string, tokens []string) {
	t.Helper()
	text := "tokens:\n"
	for _, role := range roles {
		token, entry := newToken(t, role)
		tokens, text = append(tokens, token), text+entry
	}
	file = filepath.Join(t.TempDir(), "tokens.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file, tokens
}

// newToken returns a token of a role with its entry in a tokens file.
func newToken(t *testing.T, role string) (token, entry string) {
	t.Helper()
	program := os.Getenv("SELECT_SERVICE_BIN")
	if program == "" {
		program = "../../../bin/select-service"
	}
	out, err := exec.CommandContext(t.Context(), program, "token", "new", "--name", role, "--roles", role).Output()
	if err != nil {
		t.Skip(err)
	}
	token, entry, _ = strings.Cut(string(out), "\n")
	return regexp.MustCompile(`\S+$`).FindString(strings.TrimSpace(token)), entry
}

const typeToken = `(() => { const box = document.querySelector("dialog input"); box.value = %q; box.dispatchEvent(new Event("input", {bubbles: true})); })()`

// TestLogin: with tokens on, the page asks for one, refuses a wrong one, and shows the data with the
// right one, which is nowhere but in memory: a page that is loaded again asks again. Who closes the
// question finds it again, and a token that may see nothing is told so. An operator may drain, a reader
// may not.
func TestLogin(t *testing.T) {
	file, tokens := newTokens(t, "operate", "read", "metrics")
	token, reader, scraper := tokens[0], tokens[1], tokens[2]
	base, _ := start(t, "--tokens-file", file)
	register(t, base, 1, token)
	p := open(t, base, "#/fleet?worker=1", 1440, 900, false)
	p.expects("401")
	p.expects("403")
	p.says("asks for a token")
	p.audit("login")
	p.shoot("login", false)
	p.press("Close")
	p.await(`!document.querySelector("dialog")`)
	p.says("Sign in to see the fleet.")
	p.press("Sign in …")
	p.await(`document.querySelector("dialog input") !== null`)
	p.is(fmt.Sprintf(typeToken, scraper))
	p.press("Sign in")
	p.says("Cannot read the fleet.")
	p.press("Sign out")
	p.await(`document.querySelector("dialog input") !== null`)
	p.is(fmt.Sprintf(typeToken, "wrong"))
	p.press("Sign in")
	p.says("not valid")
	p.is(fmt.Sprintf(typeToken, token))
	p.press("Sign in")
	p.says("Drain …")
	if kept := p.is(`JSON.stringify(localStorage) + JSON.stringify(sessionStorage) + document.cookie + location.href`).(string); strings.Contains(kept, token) {
		t.Errorf("the token is kept: %s", kept)
	}
	do(p, chromedp.Reload())
	p.says("asks for a token")
	p.await(`document.querySelector("dialog input") !== null`)
	p.is(fmt.Sprintf(typeToken, reader))
	p.press("Sign in")
	p.says("Worker 1")
	if text := p.text(); strings.Contains(text, "Drain …") {
		t.Errorf("a reader is shown the operator's buttons: %s", text)
	}
	d := open(t, base, "#/doctor", 1440, 900, false)
	d.expects("401")
	d.await(`document.querySelector("dialog input") !== null`)
	d.is(fmt.Sprintf(typeToken, reader))
	d.press("Sign in")
	d.says("What was looked at")
	d.press("Sign out")
	d.await(`!document.body.innerText.includes("What was looked at")`) // it is not for whoever comes next
}

// TestLateRefusal: two calls of the page are refused because it has no token, the second one late. The fleet's refusal stays on
// the page: nothing asks again before a login.
func TestLateRefusal(t *testing.T) {
	file, _ := newTokens(t, "operate")
	service, _ := start(t, "--tokens-file", file)
	at, err := url.Parse(service)
	if err != nil {
		t.Fatal(err)
	}
	inner := httputil.NewSingleHostReverseProxy(at)
	late := make(chan struct{})
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/doctor") {
			select {
			case <-late:
			case <-t.Context().Done():
			}
		}
		inner.ServeHTTP(w, r)
	}))
	t.Cleanup(proxy.Close)
	p := open(t, proxy.URL, "", 1440, 900, false)
	p.expects("401")
	p.press("Close")
	p.says("Sign in to see the fleet.")
	close(late)
	p.says("asks for a token") // again, because of the late refusal
	p.press("Close")
	p.says("Sign in to see the fleet.")
}

// TestDrain: an operator drains a worker, after a question that names it; the page is behind a proxy that shows the service below a path.
func TestDrain(t *testing.T) {
	service, _ := start(t, "--ui", "/ops", "--use-kv-events=false")
	at, err := url.Parse(service)
	if err != nil {
		t.Fatal(err)
	}
	inner := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(at); r.Out.Host = r.In.Host }}
	for id, h := range map[int]http.Handler{7: http.StripPrefix("/ops", inner), 8: inner} { // a proxy that cuts the path, one that passes it on
		t.Run(fmt.Sprint("worker ", id), func(t *testing.T) {
			worker := fmt.Sprint("worker ", id)
			mux := http.NewServeMux()
			mux.Handle("/ops/", h)
			proxy := httptest.NewServer(mux)
			defer proxy.Close()
			register(t, service, id, "")
			p := open(t, proxy.URL+"/ops", fmt.Sprint("#/fleet?worker=", id), 1440, 900, false)
			p.press("Drain …")
			p.says("Drain " + worker + "?")
			p.shoot("drain", false)
			p.audit("drain")
			p.press("Drain " + worker)
			p.await(`!document.querySelector("dialog.confirm")`)
			p.await(`(document.body?.innerText ?? "").includes("Take the drain back …") || (document.body?.innerText ?? "").includes("no such worker")`)
		})
	}
}

// TestRestart: a page stays while its service is away, says so, and goes on when it is back.
func TestRestart(t *testing.T) {
	base, stop := start(t)
	register(t, base, 1, "")
	p := open(t, base, "", 1440, 900, false)
	p.expects("ERR_CONNECTION")
	p.expects("ERR_EMPTY_RESPONSE")
	p.says("1 · 0")
	stop()
	p.says("does not answer")
	if text := p.text(); !strings.Contains(text, "1 · 0") {
		t.Errorf("what was known has gone: %s", text)
	}
	p.shoot("lost", false)
	port := base[strings.LastIndex(base, ":")+1:]
	base, _ = start(t, "--port", port)
	register(t, base, 2, "")
	p.await(`!(document.body?.innerText ?? "").includes("does not answer") && [...document.querySelectorAll("tbody .link")].map((e) => e.innerText).join() === "2 · 0"`)
}

// TestText: Why takes text where the service has a tokenizer, in each form, and says what is missing where it
// has none, and says of a session where that is. The text is not in the address.
func TestText(t *testing.T) {
	tokenizer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		if !strings.Contains(string(text), "sky") {
			http.Error(w, "what?", http.StatusBadRequest)
			return
		}
		_, _ = io.WriteString(w, `{"tokens":[`+strings.Repeat("7,", 40)+`7],"max_model_len":4096}`)
	}))
	defer tokenizer.Close()
	with, _ := start(t, "--use-kv-events=false", "--tokenizer-url", tokenizer.URL, "--session-affinity-ttl-secs=60")
	without, _ := start(t, "--use-kv-events=false")
	fill := func(p *tab, text string) {
		p.is(fmt.Sprintf(`(() => { const box = document.querySelector("textarea"); box.value = %q; box.dispatchEvent(new Event("input", {bubbles: true})); })()`, text))
	}
	register(t, with, 1, "")
	register(t, without, 1, "")
	for form, text := range map[string]string{"message": "the sky", "text": "the sky", "request": `{"messages":[{"role":"user","content":"the sky"}]}`} {
		p := open(t, with, "#/why?as="+form, 1440, 900, false)
		p.says("The prompt is")
		p.await(`document.querySelector("button.primary").disabled`) // it is empty
		fill(p, text)
		p.press("Explain")
		p.says("41 tokens")
		if at := p.is("location.href").(string); strings.Contains(at, "sky") {
			t.Errorf("the text is in the address %s", at)
		}
		p.is(`(() => { const box = [...document.querySelectorAll("label.field")].find((e) => e.innerText.startsWith("Session")).querySelector("input"); box.value = "s-1"; box.dispatchEvent(new Event("input", {bubbles: true})); })()`)
		p.press("Explain")
		p.says("Session s-1: no request of it has been placed before.")
		p.shoot("text-"+form, false)
		p.audit("text")
		p.expects("400")
		fill(p, strings.ReplaceAll(text, "sky", "sea"))
		p.press("Explain")
		p.says("Cannot read the token ids.")
	}
	p := open(t, without, "#/why?as=text", 1440, 900, false)
	p.expects("501")
	p.says("The prompt is")
	fill(p, "the sky")
	p.press("Explain")
	p.says("No tokenizer is configured")
}
