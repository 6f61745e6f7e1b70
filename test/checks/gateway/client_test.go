package gateway

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"

	"github.com/select-service/select-service/demo/sim/tokenizer"
	"github.com/select-service/select-service/test/checks/e2e"
)

// Paths of the API.
const (
	chats       = "/v1/chat/completions"
	completions = "/v1/completions"
)

// words returns a text of n tokens; seeds make different ones.
func words(seed uint32, n int) string {
	all, _ := tokenizer.Answer([]uint32{seed}, n)
	return strings.Join(all, "")
}

// chat is the body of a request with one message and an answer of four tokens, plus
// other fields.
func chat(text string, fields ...object) object {
	body := object{"model": model, "max_tokens": 4, "messages": []any{object{"role": "user", "content": text}}}
	for _, f := range fields {
		maps.Copy(body, f)
	}
	return body
}

// streamed is the field of a request for a streamed answer.
var streamed = object{"stream": true}

// promptOf returns the tokens of a chat with one message.
func promptOf(text string) []uint32 {
	return tokenizer.Chat([]tokenizer.Message{{Role: "user", Content: text}}, tokenizer.Template{Open: true})
}

// client sends the requests.
var client = &http.Client{Timeout: e2e.Patience, Transport: &http.Transport{MaxIdleConnsPerHost: 1024}}

// reply is an answer that is being read.
type reply struct {
	*http.Response
	lines *bufio.Reader
}

// open sends a request through Envoy and returns when the head of the answer has come.
func (b *bed) open(ctx context.Context, method, path string, body any, header ...string) (*reply, error) {
	text, ok := body.([]byte)
	if !ok && body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			return nil, err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, b.envoy.url+path, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	if text != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := client.Do(req) //nolint:bodyclose // rest does, and the test's end
	if err != nil {
		return nil, err
	}
	return &reply{Response: resp, lines: bufio.NewReader(resp.Body)}, nil
}

// event returns the data of the next event of a streamed answer; io.EOF after the last.
func (r *reply) event() (string, error) {
	for {
		line, err := r.lines.ReadString('\n')
		if err != nil {
			return "", err
		}
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			return strings.TrimSpace(data), nil
		}
	}
}

// rest reads the answer to its end and returns what was left of it.
func (r *reply) rest() ([]byte, error) {
	defer func() { _ = r.Body.Close() }()
	return io.ReadAll(r.lines)
}

// engine is the name of the engine that answers.
func (r *reply) engine() string { return r.Header.Get(engineHeader) }

// answered is an answer that was read to its end.
type answered struct {
	status  int
	header  http.Header
	trailer http.Header
	body    string
}

func (a answered) engine() string { return a.header.Get(engineHeader) }

func (a answered) String() string { return fmt.Sprintf("%d %.300s", a.status, a.body) }

// send sends a request through Envoy and reads the answer.
func (b *bed) send(ctx context.Context, method, path string, body any, header ...string) (answered, error) {
	r, err := b.open(ctx, method, path, body, header...)
	if err != nil {
		return answered{}, err
	}
	text, err := r.rest()
	return answered{r.StatusCode, r.Header, r.Trailer, string(text)}, err
}

// post sends a request that has to be answered with a status.
func (b *bed) post(status int, path string, body any, header ...string) answered {
	b.t.Helper()
	return b.ask(status, http.MethodPost, path, body, header...)
}

func (b *bed) ask(status int, method, path string, body any, header ...string) answered {
	b.t.Helper()
	a, err := b.send(b.t.Context(), method, path, body, header...)
	if err != nil || a.status != status {
		b.t.Fatalf("%s %s: want %d, got %v, %v", method, path, status, a, err)
	}
	return a
}

// begin opens a streamed answer, which has to come.
func (b *bed) begin(path string, body any, header ...string) *reply {
	b.t.Helper()
	r, err := b.open(b.t.Context(), http.MethodPost, path, body, header...)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = r.Body.Close() })
	if r.StatusCode != http.StatusOK {
		text, err := r.rest()
		b.t.Fatalf("%s: %d %s, %v", path, r.StatusCode, text, err)
	}
	return r
}

// end reads a streamed answer to its end, which has to be [DONE].
func (r *reply) end(t *testing.T) {
	t.Helper()
	text, err := r.rest()
	if err != nil || !bytes.HasSuffix(bytes.TrimSpace(text), []byte("data: [DONE]")) {
		t.Fatalf("the end of the answer: %.300s, %v", text, err)
	}
}

// refusal checks that an answer is an error in OpenAI's form.
func refusal(t *testing.T, a answered) (kind, message string) {
	t.Helper()
	var body struct {
		Error struct {
			Message string `json:"message"`
			Type    string `json:"type"`
			Code    any    `json:"code"`
		} `json:"error"`
	}
	if err := json.Unmarshal([]byte(a.body), &body); err != nil || body.Error.Message == "" || body.Error.Type == "" {
		t.Errorf("no error in OpenAI's form: %v, %v", a, err)
	}
	if kind := a.header.Get("Content-Type"); !strings.HasPrefix(kind, "application/json") {
		t.Errorf("the content type of an error is %q", kind)
	}
	return fmt.Sprint(body.Error.Code), body.Error.Message
}
