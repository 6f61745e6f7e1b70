package proxy_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/select-service/select-service/test/checks/e2e"
)

// recorder is an engine that keeps the last request for an answer.
type recorder struct {
	url, address string

	mu   sync.Mutex
	last *http.Request
	n    int
}

func record(t *testing.T) *recorder {
	t.Helper()
	r := &recorder{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, asked *http.Request) {
		_, _ = io.Copy(io.Discard, asked.Body)
		w.Header().Set("Content-Type", "application/json")
		if asked.URL.Path == "/tokenize" {
			_, _ = io.WriteString(w, `{"count":3,"max_model_len":4096,"tokens":[1,2,3]}`)
			return
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.last, r.n = asked, r.n+1
		_, _ = io.WriteString(w, `{"choices":[]}`)
	}))
	t.Cleanup(s.Close)
	r.url, r.address = s.URL, s.Listener.Addr().String()
	return r
}

// took returns how many requests have come since the last call, and the last one's header.
func (r *recorder) took() (n int, header http.Header) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n = r.n; n > 0 {
		header = r.last.Header
	}
	r.n = 0
	return n, header
}

// newToken makes a token and its entry of a tokens file.
func newToken(t *testing.T, name, roles string, args ...string) (token, entry string) {
	t.Helper()
	out, err := exec.Command(e2e.Binary(t), append([]string{"token", "new", "--name", name, "--roles", roles}, args...)...).Output()
	if err != nil {
		t.Fatal(err)
	}
	token, entry, _ = strings.Cut(string(out), "\n")
	return token, entry
}

// TestTenants: with a tokens file a client sees and asks the models of its tenant alone, whatever header names another
// one. Its token goes to no engine, which gets the engines' own, and neither do headers by which it would choose a
// prefiller.
func TestTenants(t *testing.T) {
	engines := map[string]*recorder{"a": record(t), "b": record(t)}
	folder := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	tokens, file := map[string]string{}, "tokens:\n"
	for name, args := range map[string][]string{
		"a": {"call", "--tenant", "a"}, "b": {"call", "--tenant", "b"}, "reader": {"read"}, "root": {"operate"}, "anyone": {"call"},
	} {
		token, entry := newToken(t, name, args[0], args[1:]...)
		tokens[name] = token
		file += entry
	}
	port := e2e.FreePort(t)
	proxy := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	s := e2e.Serve(t, nil, "--proxy-port", strconv.Itoa(port), "--use-kv-events=false", "--tokens-file", write("tokens.yaml", file),
		"--engine-token-file", write("engine", "engines-own\n"), "--allow-endpoints", "tcp://127.0.0.0/8:*",
		"--gateway-model", "one=m@a", "--gateway-model", "two=m@b")
	ask := func(token, method, path, body string, headers ...string) (int, string, http.Header) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		for i := 0; i < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		resp, err := s.HTTP.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(text), resp.Header
	}
	for tenant, e := range engines {
		worker := fmt.Sprintf(`{"worker_id":%d,"model_name":"m","tenant_id":%q,"endpoint":%q,"block_size":16,"max_num_batched_tokens":8192}`, tenant[0], tenant, e.url)
		if status, text, _ := ask(tokens["root"], http.MethodPost, s.URL()+"/workers", worker); status != http.StatusCreated {
			t.Fatal(status, text)
		}
	}
	chat := func(model string) string {
		return fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":"hello"}]}`, model)
	}
	const path = "/v1/chat/completions"
	for caller, want := range map[string]string{"a": "one", "b": "two", "root": "one two", "anyone": "one two"} {
		_, text, _ := ask(tokens[caller], http.MethodGet, "http://"+proxy+"/v1/models", "")
		var list struct{ Data []struct{ ID string } }
		if err := json.Unmarshal([]byte(text), &list); err != nil {
			t.Fatal(err, text)
		}
		var names []string
		for _, m := range list.Data {
			names = append(names, m.ID)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%s sees %q, want %q", caller, got, want)
		}
	}
	for name, tt := range map[string]struct {
		caller, model string
		headers       []string
		status        int
		code          string
	}{
		"its own":                   {"a", "one", nil, 200, ""},
		"its own, as another":       {"a", "one", []string{"X-Tenant-Id", "b", "X-Prefiller-Host-Port", "10.0.0.1:1", "X-Dynamo-Worker-Instance-Id", "98"}, 200, ""},
		"that of another":           {"a", "two", nil, 404, "model_not_found"},
		"another's, as that":        {"a", "two", []string{"X-Tenant-Id", "b"}, 404, "model_not_found"},
		"without the configuration": {"a", "m", nil, 404, "model_not_found"},
		"everybody's":               {"anyone", "two", nil, 200, ""},
		"a reader":                  {"reader", "one", nil, 403, "insufficient_scope"},
		"nobody":                    {"", "one", nil, 401, "invalid_api_key"},
		"a wrong token":             {"wrong", "one", nil, 401, "invalid_api_key"},
		"the engines' token":        {"engine", "one", nil, 401, "invalid_api_key"},
		"Anthropic's header":        {"", "one", []string{"X-Api-Key", tokens["a"]}, 200, ""},
	} {
		token := tokens[tt.caller]
		switch tt.caller {
		case "wrong":
			token = strings.ToUpper(tokens["a"])
		case "engine":
			token = "engines-own"
		}
		status, text, header := ask(token, http.MethodPost, "http://"+proxy+path, chat(tt.model), tt.headers...)
		if status != tt.status || !strings.Contains(text, tt.code) || status == 401 && header.Get("WWW-Authenticate") == "" {
			t.Errorf("%s: %d %s", name, status, text)
		}
		served := 0
		for tenant, e := range engines {
			n, got := e.took()
			served += n
			if n == 0 {
				continue
			}
			if tenant != map[string]string{"one": "a", "two": "b"}[tt.model] {
				t.Errorf("%s: tenant %s's engine was asked", name, tenant)
			}
			if auth := got.Values("Authorization"); len(auth) != 1 || auth[0] != "Bearer engines-own" || got.Get("X-Api-Key") != "" {
				t.Errorf("%s: the engine got the keys %q, %q", name, auth, got.Get("X-Api-Key"))
			}
			if got.Get("X-Prefiller-Host-Port") != "" || got.Get("X-Dynamo-Worker-Instance-Id") != "" {
				t.Errorf("%s: the engine got %v", name, got)
			}
		}
		if served != map[bool]int{true: 1}[tt.status == 200] {
			t.Errorf("%s: engines were asked %d times", name, served)
		}
		if shown := header.Get("X-Select-Worker") != ""; shown { // nobody here may operate
			t.Errorf("%s: the answer names its worker", name)
		}
	}
	if _, _, header := ask(tokens["root"], http.MethodPost, "http://"+proxy+path, chat("one")); header.Get("X-Select-Worker") == "" {
		t.Error("who operates is not told the worker")
	}
}

// TestPrefillAndDecode: the decode worker's sidecar gets the request with the address of the prefill worker, whatever
// the client says; with the workers gone, so is the header.
func TestPrefillAndDecode(t *testing.T) {
	prefill, decode := record(t), record(t)
	tokens := startEngine(t)
	b := lay(t, tokens, nil)
	for id, e := range map[int]*recorder{1: prefill, 2: decode} {
		b.Must(t, http.StatusCreated, http.MethodPost, "/workers", e2e.Object{
			"worker_id": id, "model_name": "m", "endpoint": e.url, "role": map[int]string{1: "prefill", 2: "decode"}[id],
			"block_size": 16, "data_parallel_size": 1, "max_num_batched_tokens": 8192, "total_kv_blocks": 16384,
		}, nil)
	}
	for range 4 {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+b.proxy+"/v1/chat/completions", strings.NewReader(`{"model":"m","messages":[{"role":"user","content":"hello"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Prefiller-Host-Port", "10.0.0.1:1")
		resp, err := b.HTTP.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		n, header := decode.took()
		if resp.StatusCode != http.StatusOK || n != 1 || header.Get("X-Prefiller-Host-Port") != prefill.address {
			t.Errorf("%d; the sidecar was asked %d times, with %v", resp.StatusCode, n, header)
		}
		if n, _ := prefill.took(); n != 0 {
			t.Errorf("the prefill worker was asked %d times", n)
		}
	}
}

// TestCompressedBodies: a compressed body, which no engine reads, is refused as that; to paths whose bodies are not read
// it passes as it is.
func TestCompressedBodies(t *testing.T) {
	e := record(t)
	b := lay(t, startEngine(t), []string{e.url})
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, _ = io.WriteString(z, `{"model":"m","messages":[{"role":"user","content":"`+strings.Repeat("a", 10<<20)+`"}]}`) // to memory
	_ = z.Close()
	for path, want := range map[string]int{"/v1/chat/completions": 415, "/v1/completions": 415, "/v1/messages": 415, "/v1/files": 200} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+b.proxy+path, bytes.NewReader(zipped.Bytes()))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Encoding", "gzip")
		r.Header.Set("Content-Type", "application/json")
		resp, err := b.HTTP.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		n, header := e.took()
		if resp.StatusCode != want || (n == 1) != (want == 200) || n == 1 && header.Get("Content-Encoding") != "gzip" {
			t.Errorf("%s: %d %s, the engine was asked %d times", path, resp.StatusCode, text, n)
		}
	}
}
