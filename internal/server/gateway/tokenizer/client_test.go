package tokenizer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/select-service/select-service/internal/server/gateway/openai"
	"github.com/select-service/select-service/pkg/memory"
)

// server answers every question the same, and keeps the last one.
type server struct {
	*httptest.Server
	asked chan string // method, path, header and body

	mu     sync.Mutex // guards the fields below
	status int
	answer string
}

// become changes the answer.
func (s *server) become(status int, answer string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status, s.answer = status, answer
}

func serve(t testing.TB, status int, answer string) *server {
	t.Helper()
	s := &server{status: status, answer: answer, asked: make(chan string, 100)}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		s.asked <- fmt.Sprint(r.Method, " ", r.URL.Path, " ", r.Header.Get("Content-Type"), r.Header.Get("Authorization"), " ", r.ContentLength, " ", string(body))
		s.mu.Lock()
		defer s.mu.Unlock()
		w.WriteHeader(s.status)
		_, _ = io.WriteString(w, s.answer)
	}))
	t.Cleanup(s.Close)
	return s
}

func client(t testing.TB, o Options) *Client {
	t.Helper()
	if o.Timeout == 0 {
		o.Timeout = time.Minute
	}
	if o.MaxResponse == 0 {
		o.MaxResponse = 16 << 20
	}
	c := New(o)
	t.Cleanup(c.Close)
	return c
}

func request(t testing.TB, kind openai.Kind, body string) *Request {
	t.Helper()
	r, err := openai.ParseRequest(kind, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	return &Request{Request: r, Model: "base"}
}

const chat = `{"model":"lora","messages":[]}`

// What vLLM 0.32.0 answers, shortened.
const (
	rendered  = `{"request_id":"chatcmpl-1","token_ids":[1,2,3],"features":null,"sampling_params":{"n":1,"temperature":0.7},"model":"base","stream":false,"stream_options":null,"cache_salt":null,"priority":0,"kv_transfer_params":null}`
	tokenized = `{"count":3,"max_model_len":4096,"tokens":[1,2,3],"token_strs":null}`
)

// TestTokens proves what each protocol asks, and where the ids are in its answer.
func TestTokens(t *testing.T) {
	for _, tc := range []struct {
		protocol Protocol
		kind     openai.Kind
		body     string
		answer   string
		asked    string
	}{
		{VLLMRender, openai.Chat, chat, rendered, `POST /base/v1/chat/completions/render application/json 30 {"model":"base","messages":[]}`},
		{VLLMRender, openai.Completions, `{"prompt":"a"}`, "[" + rendered + "]", `POST /base/v1/completions/render application/json 29 {"model":"base","prompt":"a"}`},
		{VLLMRender, openai.Responses, `{"input":"a"}`, rendered, `POST /base/v1/responses/render application/json 28 {"model":"base","input":"a"}`},
		{VLLMRender, openai.Messages, `{"messages":[{"role":"user","content":"a"}]}`, rendered, `POST /base/v1/chat/completions/render application/json 59 {"model":"base","messages":[{"role":"user","content":"a"}]}`},
		{SGLangRenderer, openai.Chat, chat, strings.ReplaceAll(rendered, "token_ids", "input_ids"), `POST /base/v1/chat/completions/render application/json 30 {"model":"base","messages":[]}`},
		{VLLMTokenize, openai.Chat, chat, tokenized, `POST /base/tokenize application/json 30 {"model":"base","messages":[]}`},
		{VLLMTokenize, openai.Completions, `{"prompt":["a"]}`, tokenized, `POST /base/tokenize application/json 29 {"model":"base","prompt":"a"}`},
	} {
		s := serve(t, http.StatusOK, tc.answer)
		c := client(t, Options{URL: s.URL + "/base", Protocol: tc.protocol})
		ids, err := c.Tokens(t.Context(), request(t, tc.kind, tc.body))
		if err != nil || !slices.Equal(ids.IDs, []uint32{1, 2, 3}) {
			t.Errorf("%s of %s: %v, %v", tc.protocol, tc.kind, ids, err)
			continue
		}
		if got := <-s.asked; got != tc.asked {
			t.Errorf("%s of %s asks\n%s, want\n%s", tc.protocol, tc.kind, got, tc.asked)
		}
	}
}

// TestFailures proves which answer is which failure.
func TestFailures(t *testing.T) {
	for name, tc := range map[string]struct {
		status int
		answer string
		want   Reason
	}{
		"refused":        {400, `{"error":"x"}`, Rejected},
		"not read":       {422, ``, Rejected},
		"busy":           {429, ``, Unavailable},
		"stopping":       {503, ``, Unavailable},
		"no such route":  {404, ``, Broken},
		"redirect":       {302, ``, Broken},
		"fault":          {500, ``, Broken},
		"no json":        {200, `<html>`, Broken},
		"no ids":         {200, `{"count":3}`, Broken},
		"text ids":       {200, `{"tokens":["1"]}`, Broken},
		"negative":       {200, `{"tokens":[-1]}`, Broken},
		"nothing":        {200, ``, Broken},
		"no prompt":      {200, `[]`, Broken},
		"more than JSON": {200, `{"tokens":[1]} 1`, Broken},
		"too long":       {200, `{"tokens":[` + strings.Repeat("1,", 100_000) + `1]}`, TooLarge},
	} {
		s := serve(t, tc.status, tc.answer)
		c := client(t, Options{URL: s.URL, Protocol: VLLMTokenize, MaxResponse: 150_000})
		ids, err := c.Tokens(t.Context(), request(t, openai.Chat, chat))
		e, ok := errors.AsType[*Error](err)
		if ids.IDs != nil || !ok || e.Reason != tc.want {
			t.Errorf("%s: %v, want %s", name, err, tc.want)
			continue
		}
		if tc.status != 200 && e.Status != tc.status {
			t.Errorf("%s: status %d", name, e.Status)
		}
	}
	c := client(t, Options{URL: "http://127.0.0.1:1", Protocol: SGLangRenderer})
	for name, tc := range map[string]struct {
		request *Request
		want    Reason
	}{
		"no connection": {request(t, openai.Chat, chat), Unavailable},
		"no route":      {request(t, openai.Completions, `{"prompt":"a"}`), Unconvertible},
		"media":         {request(t, openai.Chat, `{"messages":[{"content":[{"type":"image_url"}]}]}`), Unconvertible},
	} {
		if _, err := c.Tokens(t.Context(), tc.request); reasonOf(err) != tc.want {
			t.Errorf("%s: %v, want %s", name, err, tc.want)
		}
	}
}

func reasonOf(err error) Reason {
	e, _ := errors.AsType[*Error](err)
	if e == nil {
		return ""
	}
	return e.Reason
}

// TestErrorText proves that of a refusal only the beginning is kept, on one line.
func TestErrorText(t *testing.T) {
	s := serve(t, 500, strings.Repeat("a\n", 10_000))
	_, err := client(t, Options{URL: s.URL, Protocol: VLLMTokenize}).Tokens(t.Context(), request(t, openai.Chat, chat))
	if text := err.Error(); len(text) > maxErrorText+200 || strings.Contains(text, "\n") {
		t.Errorf("%d bytes: %s", len(text), text)
	}
}

// TestLongAnswer proves that a long answer is read within its account, and that it gives
// all back.
func TestLongAnswer(t *testing.T) {
	const n = 100_000
	chat := `{"messages":[{"role":"user","content":"` + strings.Repeat("7", n) + `"}]}`
	s := serve(t, http.StatusOK, `{"tokens":[`+strings.Repeat("7,", n-1)+`7]}`)
	account := memory.NewAccount("x", 1<<20)
	c := client(t, Options{URL: s.URL, Protocol: VLLMTokenize, Memory: account})
	ids, err := c.Tokens(t.Context(), request(t, openai.Chat, chat))
	if err != nil || len(ids.IDs) != n || account.Used() != 0 {
		t.Errorf("%d ids, %v, %d bytes kept", len(ids.IDs), err, account.Used())
	}
	c = client(t, Options{URL: s.URL, Protocol: VLLMTokenize, Memory: memory.NewAccount("x", 1<<16)})
	if _, err := c.Tokens(t.Context(), request(t, openai.Chat, chat)); reasonOf(err) != NoMemory {
		t.Errorf("without memory: %v", err)
	}
}

// stalled accepts requests and answers none before the test ends.
func stalled(t *testing.T) (url string, asked <-chan struct{}) {
	t.Helper()
	over, arrived := make(chan struct{}), make(chan struct{}, 100)
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		select {
		case <-r.Context().Done():
		case <-over:
		}
	}))
	t.Cleanup(s.Close)
	t.Cleanup(func() { close(over) })
	return s.URL, arrived
}

// TestTimeout proves that a server that does not answer is a timeout, which counts as a
// failure, and that a client who leaves is neither.
func TestTimeout(t *testing.T) {
	url, _ := stalled(t) // the request may not even come in time
	c := client(t, Options{URL: url, Protocol: VLLMTokenize, Timeout: 20 * time.Millisecond})
	if _, err := c.Tokens(t.Context(), request(t, openai.Chat, chat)); reasonOf(err) != Timeout {
		t.Errorf("%v", err)
	}
	if c.breakers.failing[url].failures != 1 {
		t.Error("a timeout is not counted")
	}
	url, asked := stalled(t)
	c = client(t, Options{URL: url, Protocol: VLLMTokenize})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-asked
		cancel()
	}()
	if _, err := c.Tokens(ctx, request(t, openai.Chat, chat)); !errors.Is(err, context.Canceled) || reasonOf(err) != "" {
		t.Errorf("a client who left: %v", err)
	}
	if c.breakers.failing[url] != nil {
		t.Error("a client who left is counted")
	}
}

// TestBreakerOpens proves that a server that fails is left alone, and asked again.
func TestBreakerOpens(t *testing.T) {
	s := serve(t, 500, ``)
	c := client(t, Options{URL: s.URL, Protocol: VLLMTokenize})
	for i := range 5 {
		if _, err := c.Tokens(t.Context(), request(t, openai.Chat, chat)); reasonOf(err) != Broken {
			t.Fatalf("question %d: %v", i, err)
		}
	}
	c.breakers.failing[s.URL].trial = time.Now().Add(time.Hour) // the second does not pass here
	if _, err := c.Tokens(t.Context(), request(t, openai.Chat, chat)); reasonOf(err) != Open {
		t.Errorf("%v", err)
	}
	if len(s.asked) != 5 {
		t.Errorf("asked %d times", len(s.asked))
	}
	c.breakers.failing[s.URL].trial = time.Time{}
	s.become(http.StatusOK, tokenized)
	for range 2 {
		if _, err := c.Tokens(t.Context(), request(t, openai.Chat, chat)); err != nil {
			t.Error(err)
		}
	}
}

// TestEngines proves that a live engine is asked, another one where it is gone, and that
// what an engine refuses is not asked elsewhere.
func TestEngines(t *testing.T) {
	good, bad := serve(t, 200, tokenized), serve(t, 400, ``)
	gone := "127.0.0.1:1"
	for name, tc := range map[string]struct {
		engines []string // in the order in which they are asked
		want    Reason
	}{
		"a live one":        {[]string{good.URL + "/"}, ""},
		"without a scheme":  {[]string{strings.TrimPrefix(good.URL, "http://")}, ""},
		"another one":       {[]string{gone, good.URL}, ""},
		"all gone":          {[]string{gone, "127.0.0.1:2", good.URL}, Unavailable},
		"the only one gone": {[]string{gone}, Unavailable},
		"none":              {nil, Unavailable},
		"refused":           {[]string{bad.URL, good.URL}, Rejected},
	} {
		c := client(t, Options{URL: Worker, Protocol: VLLMTokenize})
		r := request(t, openai.Chat, chat)
		r.Engines = slices.Values(tc.engines)
		if ids, err := c.Tokens(t.Context(), r); reasonOf(err) != tc.want || (err == nil) != (len(ids.IDs) == 3) {
			t.Errorf("%s: %v, %v", name, ids, err)
		}
	}
}

// TestEngineGone proves that no request fails while one engine of two is gone, before its
// breaker opens and after.
func TestEngineGone(t *testing.T) {
	good := serve(t, 200, tokenized)
	c := client(t, Options{URL: Worker, Protocol: VLLMTokenize})
	r := request(t, openai.Chat, chat)
	r.Engines = slices.Values([]string{"127.0.0.1:1", good.URL})
	for i := range 2 * opensAfter {
		if ids, err := c.Tokens(t.Context(), r); err != nil || len(ids.IDs) != 3 {
			t.Errorf("request %d: %v, %v", i, ids, err)
		}
	}
}

// TestProbe proves that the start says what is wrong with a renderer.
func TestProbe(t *testing.T) {
	for name, tc := range map[string]struct {
		protocol Protocol
		status   int
		answer   string
		want     string // in the error; empty: none
	}{
		"right":     {VLLMRender, 200, rendered, ""},
		"no route":  {VLLMRender, 404, `{"detail":"Not Found"}`, "--tokenizer-protocol=vllm-tokenize"},
		"disabled":  {VLLMRender, 403, `{"error":{"message":"Scale-out endpoints are disabled."}}`, "--enable-scale-out"},
		"no model":  {VLLMTokenize, 404, `{"detail":"no model"}`, "no model"},
		"no tokens": {VLLMTokenize, 200, `{"tokens":[]}`, "has no tokens"},
	} {
		s := serve(t, tc.status, tc.answer)
		c := client(t, Options{URL: Worker, Protocol: tc.protocol})
		_, err := c.Probe(t.Context(), `m"`, s.URL)
		if len(c.breakers.failing) > 0 {
			t.Errorf("%s: the probe counts as a request", name)
		}
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzIDs proves that no answer is a reason to panic, and that what is read is what
// stands there.
func FuzzIDs(f *testing.F) {
	for _, seed := range []string{rendered, tokenized, "[" + rendered + "]", `[]`, `[1]`, `{"tokens":[4294967296]}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		for name := range shapes {
			got, err := answerWith(name)(text, 16)
			if err == nil && len(got.ids) > len(text) {
				t.Fatalf("%d ids in %q", len(got.ids), text)
			}
		}
	})
}

// TestShortened proves which tokens of /tokenize's answer vLLM 0.33 keeps, by its
// TokenizeParams: the text is 1 to 6, and 90 and 91 are the tokenizer's own.
func TestShortened(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		tokens := "[90,1,2,3,4,5,6,91]"
		if strings.Contains(string(body), `"add_special_tokens":false`) || strings.Contains(string(body), "messages") && !strings.Contains(string(body), `"add_special_tokens":true`) {
			tokens = "[1,2,3,4,5,6]"
		}
		_, _ = io.WriteString(w, `{"max_model_len":5,"tokens":`+tokens+`}`)
	}))
	t.Cleanup(s.Close)
	for _, tc := range []struct {
		kind openai.Kind
		body string
		want []uint32
	}{
		{openai.Completions, `{"prompt":"a","truncate_prompt_tokens":4}`, []uint32{90, 5, 6, 91}},
		{openai.Completions, `{"prompt":"a","truncate_prompt_tokens":4,"truncation_side":"left"}`, []uint32{4, 5, 6, 91}},
		{openai.Completions, `{"prompt":"a","truncate_prompt_tokens":4,"truncation_side":"right"}`, []uint32{90, 1, 2, 3}},
		{openai.Completions, `{"prompt":"a","truncate_prompt_tokens":4,"add_special_tokens":false}`, []uint32{3, 4, 5, 6}},
		{openai.Completions, `{"prompt":"a","truncate_prompt_tokens":-1}`, []uint32{90, 5, 6, 91}},
		{openai.Completions, `{"prompt":"a","truncate_prompt_tokens":-1,"max_tokens":0}`, []uint32{90, 4, 5, 6, 91}},
		{openai.Completions, `{"prompt":"a","truncate_prompt_tokens":null}`, []uint32{90, 1, 2, 3, 4, 5, 6, 91}},
		{openai.Completions, `{"prompt":"a","truncate_prompt_tokens":-2}`, []uint32{90, 1, 2, 3, 4, 5, 6, 91}},
		{openai.Chat, `{"messages":[],"truncate_prompt_tokens":2}`, []uint32{5, 6}},
		{openai.Chat, `{"messages":[],"truncate_prompt_tokens":"2","truncation_side":"right"}`, []uint32{1, 2}},
		{openai.Chat, `{"messages":[],"truncate_prompt_tokens":-1}`, []uint32{3, 4, 5, 6}},
		{openai.Responses, `{"input":"a","truncation":"auto"}`, []uint32{90, 5, 6, 91}},
		{openai.Responses, `{"input":"a","truncation":null}`, []uint32{90, 5, 6, 91}},
		{openai.Responses, `{"input":"a","truncation":"disabled"}`, []uint32{90, 1, 2, 3, 4, 5, 6, 91}},
		{openai.Messages, `{"messages":[{"role":"user","content":"a"}],"truncate_prompt_tokens":2}`, []uint32{1, 2, 3, 4, 5, 6}},
	} {
		got, err := client(t, Options{URL: s.URL, Protocol: VLLMTokenize}).Tokens(t.Context(), request(t, tc.kind, tc.body))
		if err != nil || !slices.Equal(got.IDs, tc.want) || got.ModelLength != 5 {
			t.Errorf("%s: %+v, %v, want %v", tc.body, got, err, tc.want)
		}
	}
}

// BenchmarkTokens: a chat of 5 kB whose answer has 1,000 tokens, over the loopback. Client and server
// share the processor.
func BenchmarkTokens(b *testing.B) {
	answer := []byte(`{"count":1000,"max_model_len":32768,"tokens":[` + strings.Repeat("12345,", 999) + `1]}`)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = w.Write(answer)
	}))
	b.Cleanup(s.Close)
	c := client(b, Options{URL: s.URL, Protocol: VLLMTokenize})
	r := request(b, openai.Chat, `{"messages":[{"role":"user","content":"`+strings.Repeat("word ", 1000)+`"}]}`)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Tokens(b.Context(), r); err != nil {
			b.Fatal(err)
		}
	}
}

// TestMoreThanThePrompt: a token has at least a byte of the body, or is the template's, so that an answer with
// more ids is the server's fault. It is neither read to its end nor parsed, and opens the breaker.
func TestMoreThanThePrompt(t *testing.T) {
	ids := func(n int) string { return `{"tokens":[` + strings.Repeat("1,", n-1) + `1],"max_model_len":4096}` }
	endless := ids(8 << 20) // 16 MiB, the limit of answers
	text := strings.Repeat("a", 1<<10)
	body := func(text, more string) string {
		return `{"messages":[{"role":"user","content":"` + text + `"}]` + more + `}`
	}
	for name, tc := range map[string]struct {
		body, answer string
		want         Reason
	}{
		"a token for each byte and of the template": {body(text, ""), ids(len(body(text, "")) + maxAdded), ""},
		"one more":                  {body(text, ""), ids(len(body(text, "")) + maxAdded + 1), Broken},
		"endless":                   {body(text, ""), endless, Broken},
		"endless text":              {body(text, ""), `{"x":"` + strings.Repeat("a", 16<<20) + `"}`, Broken},
		"the client's own template": {body(text, `,"chat_template":"{% for i in range(9999999) %}a{% endfor %}"`), endless, TooLarge},
		// NFC makes three letters of twelve bytes of this one of four.
		"text that grows in its normal form": {body(strings.Repeat("\U0001D160", 1<<10), ""), endless, TooLarge},
	} {
		s := serve(t, http.StatusOK, tc.answer)
		c := client(t, Options{URL: s.URL, Protocol: VLLMTokenize})
		for range opensAfter {
			r := request(t, openai.Chat, tc.body)
			reserved := int64(0)
			r.Reserve = func(n int64) bool { reserved += n; return true }
			got, err := c.Tokens(t.Context(), r)
			if reasonOf(err) != tc.want || err == nil && int64(len(got.IDs))*4 > reserved || reserved > int64(len(tc.body)*2+maxAdded)*bytesPerID {
				t.Fatalf("%s: %d ids, %d bytes reserved, %v; want reason %q", name, len(got.IDs), reserved, err, tc.want)
			}
		}
		want := tc.want
		if want == Broken {
			want = Open
		}
		if _, err := c.Tokens(t.Context(), request(t, openai.Chat, tc.body)); reasonOf(err) != want {
			t.Errorf("%s: after %d answers: %v, want reason %q", name, opensAfter, err, want)
		}
	}
	c := client(t, Options{URL: serve(t, http.StatusOK, ids(1<<10)).URL, Protocol: VLLMTokenize})
	r := request(t, openai.Chat, body(text, ""))
	r.Reserve = func(int64) bool { return false }
	if _, err := c.Tokens(t.Context(), r); reasonOf(err) != NoMemory {
		t.Errorf("without memory: %v", err)
	}
}
