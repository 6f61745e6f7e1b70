package proxy_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/select-service/select-service/internal/engines/routes"
	"github.com/select-service/select-service/internal/server/access"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/memory"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// TestPaths: engines' routes that stop, change or show them are nobody's business, nor are this service's own; and no way
// of writing one of them makes it another.
func TestPaths(t *testing.T) {
	w := start(t)
	e := answering(t, jsonAnswer("{}"))
	w.put(e)
	for _, tt := range []struct {
		method, path string
		want         int
	}{
		{"POST", "/flush_cache", 404},
		{"GET", "/flush_cache", 404},
		{"POST", "/pause", 404},
		{"POST", "/v1/load_lora_adapter", 404},
		{"POST", "/collective_rpc", 404},
		{"GET", "/metrics", 404},
		{"POST", "/start_profile", 404},
		{"GET", "/workers", 404},
		{"PUT", "/policies", 404},
		{"POST", "/v1/../flush_cache", 404},
		{"POST", "//flush_cache", 404},
		{"POST", "/flush_cache#/v1/embeddings", 404},
		{"POST", "/flush_cache/v1/embeddings", 404},
		{"POST", "/metrics/v1/embeddings", 404},
		{"POST", "/v1/models/../../flush_cache", 404},
		{"POST", "/v1/models/%2e%2e/%2e%2e/flush_cache", 404},
		{"POST", "/v1%2fchat%2fcompletions", 404},
		{"POST", "/flush_cache?x=/v1/embeddings", 404},
		{"POST", "/v1/chat/completions/", 404},
		{"POST", "/", 404},
		{"POST", "http://evil.example/flush_cache", 404},
		{"OPTIONS", "*", 404},
		{"CONNECT", "evil.example:443", 404},
		{"GET", chatPath, 405},
		{"TRACE", chatPath, 405},
		{"OPTIONS", chatPath, 405},
		{"DELETE", "/v1/models", 405},
		{"POST", "/v1/realtime", 405},
		{"GET", "/v1/responses/resp_1", 200},
		{"DELETE", "/v1/responses/resp_1", 200},
		{"POST", "/v1/responses/resp_1/cancel", 200},
		{"GET", "/v1/responses/resp_1/input_items?limit=2", 200},
		{"GET", "/v1/files", 200},
		{"POST", "/v1/files", 200},
		{"GET", "/v1/files/file-1/content", 200},
		{"GET", "/v1/batches/b/", 200},
		{"POST", "/v1/images/edits", 200},
		{"GET", "/v1/files/../flush_cache", 404},
		{"GET", "/v1/files/%2e%2e", 404},
		{"POST", "/v1/files/f/flush_cache", 404},
		{"GET", "/v1/files/..", 404},
		{"GET", "/v1/responses/", 404},
		{"TRACE", "/v1/files", 405},
		{"GET", "/health", 200},
		{"HEAD", "/health", 200},
		{"GET", "/ready", 200},
		{"GET", "/v1/models", 200},
		{"POST", "http://evil.example/v1/embeddings", 200},
		{"POST", "/v1/embeddings", 200},
		{"POST", "/v1/embeddings?x=1", 200},
		{"POST", "/rerank", 200},
	} {
		body := ""
		if tt.want == 200 && tt.method == "POST" {
			body = `{"model":"m","input":"x"}`
		}
		before := e.conns.Load()
		a := w.ask(requestOf(tt.method, tt.path, body))
		if a.StatusCode != tt.want || tt.want == 405 && a.Header.Get("Allow") == "" {
			t.Errorf("%s %s: %d %q, want %d", tt.method, tt.path, a.StatusCode, a.body, tt.want)
		}
		if tt.want != 200 && e.conns.Load() != before {
			t.Errorf("%s %s reached the engine", tt.method, tt.path)
		}
	}
}

// TestAllowedPaths: further ones can be named.
func TestAllowedPaths(t *testing.T) {
	for further, want := range map[string]int{"/flush_cache": 200, "/flush": 404, "/v1/": 404, "all": 200} {
		paths, err := routes.Parse([]string{further})
		if err != nil {
			t.Fatal(err)
		}
		w := start(t, func(s *settings) { s.Paths = paths })
		w.put(answering(t, jsonAnswer("{}")))
		if a := w.ask(request("/flush_cache", "")); a.StatusCode != want {
			t.Errorf("with %s: %d", further, a.StatusCode)
		}
		if a := w.ask(requestOf("TRACE", "/v1/videos", "")); a.StatusCode != 405 { // it would show the engines' token
			t.Errorf("TRACE with %s: %d", further, a.StatusCode)
		}
		if a := w.ask(request("/v1/videos", "{}")); (a.StatusCode == 200) != (further == "/v1/" || further == "all") {
			t.Errorf("with %s: %d", further, a.StatusCode)
		}
	}
	for _, bad := range []string{"flush_cache", "/a/../b", "/a?b", "/%2e", "//", ""} {
		if _, err := routes.Parse([]string{bad}); err == nil {
			t.Errorf("%q is a path", bad)
		}
	}
}

// TestModels: the list has what the caller may use, with adapters and further names.
func TestModels(t *testing.T) {
	token := access.NewToken()
	entry, err := access.Grant{Name: "scoped", Roles: []access.Role{access.Call}, Model: "other"}.Entry(token)
	if err != nil {
		t.Fatal(err)
	}
	all := access.NewToken()
	more, err := access.Grant{Name: "all", Roles: []access.Role{access.Call}}.Entry(all)
	if err != nil {
		t.Fatal(err)
	}
	guard := guardOf(t, "tokens:\n"+entry+more)
	w := start(t, func(s *settings) {
		s.Models["other"] = catalog.Scope{Model: "other", Tenant: servicetest.Scope.Tenant}
		s.Proxy.Guard = guard
	})
	w.Put(servicetest.Record(1, 1, func(r *catalog.Record) { r.Adapters = []string{"tuned"} }))
	w.Put(servicetest.Record(2, 1, func(r *catalog.Record) { r.Scope.Model, r.Aliases = "other", []string{"further"} }))
	for key, want := range map[string]string{all: "further m other tuned", token: "further other"} {
		a := w.ask(requestOf("GET", "/v1/models", "", "Authorization", "Bearer "+key))
		var list struct {
			Object string
			Data   []struct{ ID, Object string }
		}
		if err := json.Unmarshal([]byte(a.body), &list); err != nil || list.Object != "list" {
			t.Fatal(a.StatusCode, a.body)
		}
		var names []string
		for _, m := range list.Data {
			names = append(names, m.ID)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("models are %q, want %q", got, want)
		}
	}
	if a := w.ask(requestOf("GET", "/v1/models", "")); a.StatusCode != 401 {
		t.Error(a.StatusCode)
	}
	if a := w.ask(requestOf("GET", "/v1/models/tuned", "", "Authorization", "Bearer "+token)); a.StatusCode != 404 {
		t.Error(a.StatusCode, a.body)
	}
	if a := w.ask(requestOf("GET", "/v1/models/other", "", "Authorization", "Bearer "+token)); a.StatusCode != 200 || !strings.Contains(a.body, `"id":"other"`) {
		t.Error(a.StatusCode, a.body)
	}
}

// TestExpect: 100 comes when the body is wanted and never before a refusal, and goes to no engine.
func TestExpect(t *testing.T) {
	w, got := asking(t, jsonAnswer("{}"))
	body := chatBody("")
	c := w.dial()
	c.send(fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", chatPath, len(body)))
	if line, err := c.in.ReadString('\n'); err != nil || !strings.HasPrefix(line, "HTTP/1.1 100 ") {
		t.Fatalf("%q, %v", line, err)
	}
	_, _ = c.in.ReadString('\n')
	c.send(body)
	if a := c.receive("POST"); a.StatusCode != 200 {
		t.Error(a.StatusCode)
	}
	if r := <-got; r.Header.Get("Expect") != "" || r.body != body {
		t.Errorf("%v %q", r.Header, r.body)
	}
	for name, head := range map[string]string{
		"413": fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", chatPath, 2<<20),
		"404": "POST /flush_cache HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n",
	} {
		c := w.dial()
		c.send(head)
		if line, err := c.in.ReadString('\n'); err != nil || !strings.HasPrefix(line, "HTTP/1.1 "+name) {
			t.Errorf("%s: %q, %v", name, line, err)
		}
	}
}

// TestEarlyAnswer: an engine that answers before it has read the whole request is heard.
func TestEarlyAnswer(t *testing.T) {
	w := start(t, func(s *settings) { s.MaxBody = 64 << 20 })
	w.put(startEngine(t, func(s *served) {
		_, _ = s.in.ReadString('\n')
		s.write("HTTP/1.1 413 too long\r\ncontent-length: 3\r\nconnection: close\r\n\r\nno\n")
		_ = s.CloseWrite()
		_, _ = io.Copy(io.Discard, s.in)
	}))
	a := w.ask(request("/v1/embeddings", `{"model":"m","input":"`+strings.Repeat("x", 20<<20)+`"}`))
	if a.StatusCode != 413 || a.body != "no\n" {
		t.Errorf("%d %q %v", a.StatusCode, a.body, a.err)
	}
	w.wantLoads("1:0")
}

// TestFraming: a request that two servers could read in two ways reaches the engine in one, or not at all.
func TestFraming(t *testing.T) {
	body := chatBody("")
	for name, tt := range map[string]struct {
		text string
		want int // 0: no answer at all
	}{
		"chunks":                  {"Transfer-Encoding: chunked\r\n\r\n" + chunk(body[:10]) + chunk(body[10:]) + lastChunk, 200},
		"extensions":              {"Transfer-Encoding: chunked\r\n\r\n" + strings.Replace(chunk(body), "\r\n", ";a=b\r\n", 1) + lastChunk, 200},
		"length and chunks":       {"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(body) + lastChunk, 200},
		"two lengths":             {"Content-Length: 5\r\nContent-Length: 6\r\n\r\n" + body, 400},
		"another coding":          {"Transfer-Encoding: gzip\r\n\r\n" + body, 501},
		"bad chunk":               {"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400},
		"chunk without its end":   {"Transfer-Encoding: chunked\r\n\r\n5\r\nabcdefgh\r\n", 400},
		"signed length":           {"Content-Length: +5\r\n\r\nabcde", 400},
		"space before the colon":  {"Content-Length : 5\r\n\r\nabcde", 400},
		"folded line":             {"X-A: b\r\n c\r\nContent-Length: 0\r\n\r\n", 400},
		"control character":       {"X-A: b\x00c\r\nContent-Length: 0\r\n\r\n", 400},
		"head of 100 KB":          {"X-A: " + strings.Repeat("x", 100_000) + "\r\n\r\n", 431},
		"chunks with a bare line": {"Transfer-Encoding: chunked\r\n\r\n" + fmt.Sprintf("%x\n%s\r\n", len(body), body) + lastChunk, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t)
			e := startEngine(t, func(s *served) {
				for r := s.read(); r != nil; r = s.read() {
					if r.body != body || r.ContentLength != int64(len(body)) || len(r.TransferEncoding) > 0 {
						t.Errorf("the engine got %q", r.body)
					}
					s.write(jsonAnswer("{}"))
				}
			})
			w.put(e)
			text := "POST " + chatPath + " HTTP/1.1\r\nHost: x\r\n" + tt.text
			if tt.want == 0 { // one way or the other
				c := w.dial()
				c.send(text)
				_, _ = c.tryReceive("POST")
				return
			}
			if a := w.askPart(text); a.StatusCode != tt.want {
				t.Errorf("%v", a.Response)
			}
			if tt.want != 200 && e.conns.Load() > 0 {
				t.Error("it reached the engine")
			}
		})
	}
}

// TestConnectionEnds: behind a request that another server may have taken for a shorter one, the connection ends, as RFC
// 9112, section 6.1, wants it: what follows is no request. Other requests keep it.
func TestConnectionEnds(t *testing.T) {
	body := chatBody("")
	long := fmt.Sprintf("Content-Length: %d\r\n", len(body))
	smuggled := request("/v1/embeddings", `{"model":"m","input":"smuggled"}`)
	for name, tt := range map[string]struct {
		text string
		kept bool
	}{
		"length":                  {"POST " + chatPath + " HTTP/1.1\r\nHost: x\r\n" + long + "\r\n" + body, true},
		"length and chunks":       {"POST " + chatPath + " HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(body) + lastChunk, false},
		"chunks and length":       {"POST " + chatPath + " HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n" + chunk(body) + lastChunk, false},
		"chunks, refused":         {"POST " + chatPath + " HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n" + chunk("{") + lastChunk, false},
		"chunks of HTTP/1.0":      {"POST " + chatPath + " HTTP/1.0\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n" + long + "\r\n" + body, false},
		"chunks and a path of us": {"GET /ready HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(body) + lastChunk, false},
		"chunks and a wrong path": {"POST /pause HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(body) + lastChunk, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t)
			w.put(answering(t, jsonAnswer("{}")))
			c := w.dial()
			c.send(tt.text + smuggled)
			method, _, _ := strings.Cut(tt.text, " ")
			c.receive(method)
			if second, err := c.tryReceive("POST"); tt.kept != (err == nil) {
				t.Errorf("behind it came %v, %v", second.Response, err)
			}
		})
	}
}

// TestRefusals: what is refused before an engine is asked.
func TestRefusals(t *testing.T) {
	w := start(t, func(s *settings) { s.MaxBody = 1000 })
	w.put(answering(t, jsonAnswer("{}")))
	long := chatBody(`,"user":"` + strings.Repeat("x", 1000) + `"`)
	head := "POST " + chatPath + " HTTP/1.1\r\nHost: x\r\n"
	for name, tt := range map[string]struct {
		text string
		want int
		code string
	}{
		"too long":         {request(chatPath, long), 413, "body_too_large"},
		"too long, unsaid": {head + "Transfer-Encoding: chunked\r\n\r\n" + chunk(long) + lastChunk, 413, "body_too_large"},
		"no JSON":          {request(chatPath, "{"), 400, "invalid_request_body"},
		"no body":          {request(chatPath, ""), 400, "invalid_request_body"},
		"unknown model":    {request(chatPath, `{"model":"x","messages":[]}`), 404, "model_not_found"},
		"Anthropic's":      {request("/v1/messages", `{"model":"x","messages":[]}`), 404, `{"type":"error"`},
	} {
		if a := w.ask(tt.text); a.StatusCode != tt.want || !strings.Contains(a.body, tt.code) || a.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: %d %q", name, a.StatusCode, a.body)
		}
	}
	w.wantLoads("1:0")
}

// TestBodyDoesNotCome: a request whose body does not come is given up.
func TestBodyDoesNotCome(t *testing.T) {
	w := start(t, func(s *settings) { s.PickTimeout = 200 * time.Millisecond })
	a := w.ask("POST " + chatPath + " HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
	if a.StatusCode != 408 || !strings.Contains(a.body, "body_timeout") || a.Header.Get("Content-Type") != "application/json" {
		t.Errorf("%d %q", a.StatusCode, a.body)
	}
}

// TestFull: beyond the limits a request is told to come again.
func TestFull(t *testing.T) {
	w := start(t, func(s *settings) { s.MaxStreams = 1 })
	asked, answer := make(chan struct{}), make(chan struct{})
	w.put(startEngine(t, func(s *served) {
		s.read()
		asked <- struct{}{}
		<-answer
		s.write(jsonAnswer("{}"))
	}))
	c := w.dial()
	c.send(request(chatPath, chatBody("")))
	<-asked
	a := w.ask(request(chatPath, chatBody("")))
	if a.StatusCode != 503 || a.Header.Get("Retry-After") != "1" {
		t.Errorf("%d %v", a.StatusCode, a.Header)
	}
	close(answer)
	c.receive("POST")
}

// TestMemory: requests, their bodies and the streams of answers are in accounts, and given back.
func TestMemory(t *testing.T) {
	budget := memory.New(64 << 20)
	w := start(t, withMemory(budget))
	w.put(answering(t, jsonAnswer("{}")))
	answers := budget.Account(memory.Answers)
	left := answers.Limit() - 10<<10
	answers.Reserve(left)
	if a := w.ask(request(chatPath, chatBody(""))); a.StatusCode != 503 || a.Header.Get("Retry-After") == "" || !strings.Contains(a.body, "no_memory") {
		t.Errorf("%d %q", a.StatusCode, a.body)
	}
	answers.Release(left)
	large := request("/v1/embeddings", `{"model":"m","input":"`+strings.Repeat("x", 500<<10)+`"}`)
	if a := w.ask(large); a.StatusCode != 200 {
		t.Errorf("%d %q", a.StatusCode, a.body)
	}
	for _, name := range []string{memory.Requests, memory.Bodies, memory.Answers, memory.Serving} {
		await(t, func() string {
			if n := budget.Account(name).Used(); n != 0 {
				return fmt.Sprintf("%d bytes of %s are in use", n, name)
			}
			return ""
		})
	}
	bodies := budget.Account(memory.Bodies)
	bodies.Reserve(bodies.Limit() - 100<<10)
	if a := w.askPart(large); a.StatusCode != 503 {
		t.Errorf("%d %q", a.StatusCode, a.body)
	}
}

// TestSlowReader: a client that reads nothing stops its engine, costs no memory, and is cut in the end.
func TestSlowReader(t *testing.T) {
	w := start(t, func(s *settings) { s.Proxy.WriteTimeout = time.Second })
	ended := make(chan int64)
	w.put(startEngine(t, func(s *served) {
		s.read()
		s.write(jsonHead, "content-length: 1000000000\r\n\r\n")
		sent := int64(0)
		piece := make([]byte, 1<<20)
		for {
			n, err := s.Write(piece)
			if sent += int64(n); err != nil {
				ended <- sent
				return
			}
		}
	}))
	c := w.dial()
	c.send(request(chatPath, chatBody("")))
	if sent := <-ended; sent > 100<<20 { // what the sockets hold
		t.Errorf("the engine could send %d bytes", sent)
	}
	w.wantLoads("1:0")
	w.wantCount("proxy_gone_total", "", "1")
}

// TestKeepalive: while an engine is silent between events, its client gets a comment; within an event it does not.
func TestKeepalive(t *testing.T) {
	for name, tt := range map[string]struct{ path, first, want string }{
		"before the first event": {chatPath, "", ": keepalive\n\n"},
		"between events":         {chatPath, event("a"), ": keepalive\n\n"},
		"Anthropic's":            {"/v1/messages", "", "event: ping\ndata: {\"type\": \"ping\"}\n\n"},
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t, func(s *settings) { s.Proxy.Keepalive = 100 * time.Millisecond })
			goOn := make(chan struct{})
			w.put(startEngine(t, func(s *served) {
				s.read()
				s.write(eventsHead)
				if tt.first != "" {
					s.write(chunk(tt.first))
				}
				<-goOn
				s.write(chunk("data: {}\n\n"), lastChunk)
				s.read()
			}))
			c := w.dial()
			c.send(request(tt.path, chatBody(`,"stream":true`)))
			var text []byte
			for !strings.Contains(string(text), tt.want) {
				if _, err := c.in.Peek(c.in.Buffered() + 1); err != nil {
					t.Fatalf("%q, %v", text, err)
				}
				text, _ = c.in.Peek(c.in.Buffered())
			}
			close(goOn)
			a := c.receive("POST")
			if rest := strings.ReplaceAll(a.body, tt.want, ""); a.err != nil || rest != tt.first+"data: {}\n\n" {
				t.Errorf("%q, %v", a.body, a.err)
			}
		})
	}
}

// TestNoKeepaliveWithinEvent: an event that has not ended stays as it is while another stream gets comments.
func TestNoKeepaliveWithinEvent(t *testing.T) {
	w := start(t, func(s *settings) { s.Proxy.Keepalive = 20 * time.Millisecond })
	goOn := make(chan struct{})
	w.put(startEngine(t, func(s *served) {
		torn := strings.Contains(s.read().body, "torn")
		s.write(eventsHead)
		if torn {
			s.write(chunk("data: {"))
			<-goOn
			s.write(chunk("}\n\n"), lastChunk)
		}
		s.read()
	}))
	torn, other := w.dial(), w.dial()
	torn.send(request(chatPath, chatBody(`,"stream":true,"user":"torn"`)))
	if _, err := torn.in.Peek(1); err != nil {
		t.Fatal(err)
	}
	other.send(request(chatPath, chatBody(`,"stream":true`)))
	for comments := 0; comments < 5; {
		line, err := other.in.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if line == ": keepalive\n" {
			comments++
		}
	}
	close(goOn)
	if a := torn.receive("POST"); a.err != nil || strings.TrimLeft(strings.ReplaceAll(a.body, ": keepalive\n\n", ""), "") != "data: {}\n\n" || strings.Contains(a.body, "data: {:") {
		t.Errorf("%q %v", a.body, a.err)
	}
}

// TestDrain: the process is not ready at once, takes requests for a while, ends running answers well, and closes.
func TestDrain(t *testing.T) {
	w := start(t)
	asked, answer := make(chan struct{}, 1), make(chan struct{})
	w.put(startEngine(t, func(s *served) {
		s.read()
		s.write(eventsHead, chunk(event("a")))
		asked <- struct{}{}
		<-answer
		s.write(chunk(done), lastChunk)
		s.read()
	}))
	c := w.dial()
	c.send(request(chatPath, chatBody(`,"stream":true`)))
	<-asked
	const delay = 500 * time.Millisecond
	began := time.Now()
	stopped := make(chan struct{})
	go func() {
		w.stop(delay, patience)
		close(stopped)
	}()
	fresh := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for path, want := range map[string]int{"/ready": 503, "/v1/models": 200} {
		await(t, func() string {
			resp, err := fresh.Get("http://" + w.address + path)
			if err == nil {
				_ = resp.Body.Close()
			}
			switch {
			case time.Since(began) > delay: // it may be refused now
			case err != nil:
				return err.Error()
			case resp.StatusCode != want:
				return fmt.Sprintf("%s while it still takes requests: %d", path, resp.StatusCode)
			}
			return ""
		})
	}
	await(t, func() string {
		late, err := net.Dial("tcp", w.address)
		if err == nil {
			_ = late.Close()
			return "it still takes connections"
		}
		return ""
	})
	close(answer)
	if a := c.receive("POST"); a.err != nil || a.body != event("a")+done {
		t.Errorf("%q %v", a.body, a.err)
	}
	<-stopped
	if _, err := c.in.ReadByte(); err != io.EOF {
		t.Errorf("then %v", err)
	}
}
