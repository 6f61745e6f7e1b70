package docs

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/select-service/select-service/test/e2e"
)

// TestReadme proves that the README's calls work as they are printed. Building
// the program is left to the test.
func TestReadme(t *testing.T) {
	t.Parallel()
	root := rootOf(t)
	text := section(t, read(t, root, "README.md"), "One call each way")
	playText(t, root, "README.md", strings.Replace(text, "make build\n", "", 1), "8092")
}

// TestTwoEngines proves that the README's three lines lead from two running engines to a choice:
// engines that describe themselves as vLLM does, and as SGLang does.
func TestTwoEngines(t *testing.T) {
	t.Parallel()
	root := rootOf(t)
	text := section(t, read(t, root, "README.md"), "From two engines to a choice")
	_, vllm := e2e.Engines(t, 2, "--model", "MODEL")
	for name, urls := range map[string][]string{
		"vLLM":   {vllm[0].URL, vllm[1].URL},
		"SGLang": {sglang(t), sglang(t)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ours := strings.NewReplacer("http://gpu-1:30000", urls[0], "http://gpu-2:30000", urls[1]).Replace(text)
			dir := playText(t, root, "README.md", ours, "8092")
			answers, err := values(read(t, dir, "output.0"))
			if err != nil || len(answers) == 0 {
				t.Fatalf("%v %v", answers, err)
			}
			choice, _ := answers[len(answers)-1].(map[string]any)
			if endpoint, _ := choice["endpoint"].(string); !slices.Contains(urls, endpoint) || choice["model_name"] != "MODEL" {
				t.Errorf("the choice is %v, the engines are at %v", choice, urls)
			}
		})
	}
}

// sglang starts a server with SGLang's answers about itself, and returns its URL.
func sglang(t *testing.T) string {
	t.Helper()
	answers := map[string]string{
		"/v1/models": `{"data": [{"id": "MODEL", "parent": null}]}`,
		"/server_info": `{"version": "0.5.23", "page_size": 64, "dp_size": 1, "kv_events": {"publisher": "zmq", "endpoint_host": "*",
			"endpoint_port_base": 9, "topic": "", "block_size": 64, "dp_size": 1}}`,
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, known := answers[r.URL.Path]
		if !known {
			http.NotFound(w, r)
			return
		}
		_, _ = io.WriteString(w, text)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// TestFromGo proves that the section for Go programs works as it is printed: its
// program is that of examples/lease, which runs against the service and prints
// what the section says.
func TestFromGo(t *testing.T) {
	t.Parallel()
	const page = "docs/clients.md"
	root := rootOf(t)
	text := section(t, read(t, root, page), "From Go")
	if program := block(t, text, "go"); program != read(t, root, "examples/lease/main.go") {
		t.Error("the program of the page is not that of examples/lease/main.go")
	}
	dir := playText(t, root, page, strings.ReplaceAll(text, "go run ", "go -C '"+root+"' run "), "8092")
	if want, got := block(t, text, ""), read(t, dir, "output.0"); got != want {
		t.Errorf("the program printed %q, the page says %q", got, want)
	}
}

// section is the part of a page below a heading, up to the next one.
func section(t *testing.T, page, heading string) string {
	t.Helper()
	_, text, found := strings.Cut(page, fmt.Sprintf("\n## %s\n", heading))
	if !found {
		t.Fatalf("the page has no section %q", heading)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	return text
}

// block is the content of the first code block of a language.
func block(t *testing.T, text, language string) string {
	t.Helper()
	for i, part := range strings.Split(text, "```") {
		if i%2 == 0 {
			continue
		}
		if named, body, _ := strings.Cut(part, "\n"); named == language {
			return body
		}
	}
	t.Fatalf("no block in %q", language)
	return ""
}
