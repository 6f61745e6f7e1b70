package proxy_test

import (
	"strings"
	"testing"
)

// TestBrokenAnswers: an engine that breaks off its answer ends a stream of events with an error in the API's form,
// between two events, and anything else with a broken connection. The client never takes it for a whole answer
// (golang/go#23643, traefik/traefik#13568).
func TestBrokenAnswers(t *testing.T) {
	responses := "event: response.created\ndata: {\"type\":\"response.created\"}\n\n"
	messages := "event: message_start\ndata: {\"type\":\"message_start\"}\n\n"
	for name, tt := range map[string]struct {
		path, answer string
		reset        bool
		want         string // the end of the body, "": the connection is cut
	}{
		"chat":              {chatPath, eventsHead + chunk(event("a")), false, event("a") + `data: {"error":{"message":`},
		"chat, reset":       {chatPath, eventsHead + chunk(event("a")), true, event("a") + `data: {"error":{"message":`},
		"chat, no event":    {chatPath, eventsHead, false, `data: {"error":{"message":`},
		"chat, CRLF":        {chatPath, eventsHead + chunk("data: {}\r\n\r\n"), false, "data: {}\r\n\r\n" + `data: {"error":{"message":`},
		"chat, chunk torn":  {chatPath, eventsHead + "ff\r\n" + event("a"), false, event("a") + `data: {"error":{"message":`},
		"chat, bad chunk":   {chatPath, eventsHead + chunk(event("a")) + "zz\r\n", false, event("a") + `data: {"error":{"message":`},
		"completions":       {"/v1/completions", eventsHead + chunk(event("a")), false, event("a") + `data: {"error":{"message":`},
		"responses":         {"/v1/responses", eventsHead + chunk(responses), false, responses + "event: response.failed\ndata: {\"type\":\"response.failed\""},
		"messages":          {"/v1/messages", eventsHead + chunk(messages), false, messages + "event: error\ndata: {\"type\":\"error\",\"error\":{"},
		"within an event":   {chatPath, eventsHead + chunk(event("a")+"data: {"), false, ""},
		"behind one line":   {chatPath, eventsHead + chunk("data: {}\n"), false, ""},
		"compressed":        {chatPath, strings.Replace(eventsHead, "\r\n\r\n", "\r\ncontent-encoding: gzip\r\n\r\n", 1) + chunk("x\n\n"), false, ""},
		"events, length":    {chatPath, "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 500\r\n\r\n" + event("a"), false, ""},
		"json, length":      {chatPath, jsonHead + "content-length: 50\r\n\r\n{", false, ""},
		"json, chunks":      {chatPath, jsonHead + "transfer-encoding: chunked\r\n\r\n" + chunk("{"), false, ""},
		"json, reset":       {chatPath, jsonHead + "transfer-encoding: chunked\r\n\r\n" + chunk("{"), true, ""},
		"json, chunk torn":  {chatPath, jsonHead + "transfer-encoding: chunked\r\n\r\n5\r\n{", false, ""},
		"json, bad trailer": {chatPath, jsonHead + "transfer-encoding: chunked\r\n\r\n" + chunk("{}") + "0\r\nx\r\n\r\n", false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t)
			taken := make(chan struct{})
			w.put(startEngine(t, func(s *served) {
				s.read()
				s.write(tt.answer)
				if tt.reset {
					<-taken // what was sent before a reset may be lost
					s.reset()
				}
			}))
			body := chatBody(`,"stream":true`)
			switch tt.path {
			case "/v1/completions":
				body = `{"model":"m","prompt":"hello","stream":true}`
			case "/v1/responses":
				body = `{"model":"m","input":"hello","stream":true}`
			}
			c := w.dial()
			c.send(request(tt.path, body))
			if tt.reset {
				for n := 1; ; n = c.in.Buffered() + 1 {
					_, err := c.in.Peek(n)
					text, _ := c.in.Peek(c.in.Buffered())
					if strings.Contains(string(text), "{") {
						break
					}
					if err != nil {
						close(taken)
						t.Fatal(err)
					}
				}
			}
			close(taken)
			a := c.receive("POST")
			if a.StatusCode != 200 {
				t.Fatal(a.StatusCode, a.body)
			}
			switch {
			case tt.want == "" && a.err == nil:
				t.Errorf("the answer %q ends as a whole one", a.body)
			case tt.want != "" && (a.err != nil || !strings.HasPrefix(a.body, tt.want) || !strings.HasSuffix(a.body, "}\n\n") || strings.Contains(a.body, "[DONE]")):
				t.Errorf("%q, %v", a.body, a.err)
			}
			w.wantLoads("1:0")
			api := map[string]string{chatPath: "chat", "/v1/completions": "completions", "/v1/responses": "responses", "/v1/messages": "messages"}[tt.path]
			w.wantCount("proxy_broken_total", `api="`+api+`"`, "1")
			w.wantCount("gateway_cached_tokens_count", `via="proxy"`, "0")
		})
	}
}
