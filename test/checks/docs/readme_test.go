package docs

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/select-service/select-service/test/checks/e2e"
)

// TestReadme proves that the README's calls work as they are printed.
func TestReadme(t *testing.T) {
	t.Parallel()
	root := rootOf(t)
	playText(t, root, "README.md", section(t, read(t, root, "README.md"), "One call each way"), "8092")
}

// TestTwoEngines proves that the README's first block leads from two running engines to an answer
// through the proxy: engines that describe themselves as vLLM does, and, with the option that the
// README names for them, as SGLang does. Building the program is left to the test.
func TestTwoEngines(t *testing.T) {
	t.Parallel()
	root := rootOf(t)
	page := read(t, root, "README.md")
	first := strings.Replace(block(t, page, "sh"), "make build\n", "", 1)
	const renderless = "--tokenizer-protocol none"
	if !strings.Contains(page, renderless) {
		t.Errorf("the README does not name %s", renderless)
	}
	_, vllm := e2e.Engines(t, 2, "--model", "MODEL")
	for name, play := range map[string]struct{ one, two, options string }{
		"vLLM":   {vllm[0].URL, vllm[1].URL, ""},
		"SGLang": {sglang(t), sglang(t), " " + renderless},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const command = "--engines http://gpu-1:8000,http://gpu-2:8000 --proxy-port 8080"
			if !strings.Contains(first, command+" ") {
				t.Fatalf("the first block does not have %q:\n%s", command, first)
			}
			// The port of the API, 8092, is not written there.
			ours := strings.Replace(first, command, "--port 8092 --engines "+play.one+","+play.two+" --proxy-port 8080"+play.options, 1)
			dir := playText(t, root, "README.md", "```sh\n"+ours+"```\n", "8080", "8092")
			var answer struct {
				Model   string
				Choices []struct{ Message struct{ Content string } }
			}
			output := read(t, dir, "output.0")
			_, chat, _ := strings.Cut(output, `{"status":"ready"}`)
			if err := json.Unmarshal([]byte(chat), &answer); err != nil || answer.Model != "MODEL" ||
				len(answer.Choices) != 1 || answer.Choices[0].Message.Content == "" {
				t.Errorf("%v; the answer is %s\nlog of the service:\n%s", err, output, read(t, dir, "service.log"))
			}
		})
	}
}

// sglang starts a server with SGLang's answers about itself and an answer to chats, and returns its
// URL. It has no /tokenize, as an older SGLang whose route takes no messages.
func sglang(t *testing.T) string {
	t.Helper()
	answers := map[string]string{
		"/v1/models":           `{"data": [{"id": "MODEL", "parent": null}]}`,
		"/v1/chat/completions": `{"model": "MODEL", "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}]}`,
		"/server_info": `{"version": "0.5.23", "page_size": 64, "dp_size": 1, "kv_events": {"publisher": "zmq", "endpoint_host": "*",
			"endpoint_port_base": 9, "topic": "", "block_size": 64, "dp_size": 1}}`,
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, known := answers[r.URL.Path]
		if !known {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
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
	const page = "docs/start/clients.md"
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
