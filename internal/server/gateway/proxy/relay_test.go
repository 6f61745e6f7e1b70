package proxy_test

import (
	"io"
	"net"
	"strings"
	"testing"
)

// TestChat: a request arrives as it was sent, under the engine's name, and its answer as the engine wrote it.
func TestChat(t *testing.T) {
	w := start(t)
	got := make(chan *engineRequest, 1)
	w.put(startEngine(t, func(c *served) {
		got <- c.read()
		c.write(jsonAnswer(`{"choices":[]}`))
		c.read()
	}))
	text := chatBody(`, "temperature" : 0.50 `)
	a := w.ask(request(chatPath+"?api-version=1", text))
	if a.StatusCode != 200 || a.body != `{"choices":[]}` || a.err != nil || a.Header.Get("Content-Type") != "application/json" || a.ContentLength != 14 {
		t.Errorf("%v %q %v", a.Response, a.body, a.err)
	}
	r := <-got
	if r.body != text || r.RequestURI != chatPath+"?api-version=1" || r.ContentLength != int64(len(text)) {
		t.Errorf("the engine got %v %q", r.Request, r.body)
	}
	w.wantLoads("1:0")
	w.wantCount("gateway_requests_total", `outcome="booked",via="proxy"`, "1")
	w.wantCount("gateway_served_total", `endpoint="chosen",via="proxy"`, "1")
}

// TestOneWrite: what an engine sends at once, a head and the first piece, is one write to the client as well. Two
// would be two packets and two system calls for each answer.
func TestOneWrite(t *testing.T) {
	for name, head := range map[string]string{"events": eventsHead, "json": jsonHead + "transfer-encoding: chunked\r\n\r\n"} {
		t.Run(name, func(t *testing.T) {
			writes := make(chan string, 10)
			w := start(t, func(s *settings) {
				s.Wrap = func(c net.Conn) net.Conn { return &writing{c, writes} }
			})
			next := make(chan struct{})
			w.put(startEngine(t, func(c *served) {
				c.read()
				c.write(head + chunk(event("a")))
				<-next
				c.write(chunk(event("b")) + lastChunk)
			}))
			c := w.dial()
			c.send(request(chatPath, chatBody(`,"stream":true`)))
			first := <-writes
			if !strings.HasPrefix(first, "HTTP/1.1 200 ") || !strings.HasSuffix(first, chunk(event("a"))) {
				t.Errorf("the first write is %q", first)
			}
			close(next)
			if second := <-writes; second != chunk(event("b"))+lastChunk {
				t.Errorf("the second write is %q", second)
			}
		})
	}
}

// writing tells what is written to a connection.
type writing struct {
	net.Conn
	writes chan string
}

func (w *writing) Write(p []byte) (int, error) {
	w.writes <- string(p)
	return w.Conn.Write(p)
}

// TestStream: each piece of a stream is with the client before the engine sends the next one, whatever its type, and
// the engine is booked until its end.
func TestStream(t *testing.T) {
	for name, kind := range map[string]string{"events": "text/event-stream", "json": "application/json", "none": "", "audio": "audio/wav"} {
		t.Run(name, func(t *testing.T) {
			w := start(t)
			next := make(chan struct{})
			w.put(startEngine(t, func(c *served) {
				c.read()
				head := "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n"
				if kind != "" {
					head += "content-type: " + kind + "\r\n"
				}
				c.write(head + "\r\n")
				for range 3 {
					<-next
					c.write(chunk(event("a")))
				}
				<-next
				c.write(lastChunk)
				<-next
			}))
			c := w.dial()
			c.send(request(chatPath, chatBody(`,"stream":true`)))
			line, err := c.in.ReadString('\n') // the head comes before the first piece
			if err != nil || !strings.HasPrefix(line, "HTTP/1.1 200 ") {
				t.Fatalf("%q, %v", line, err)
			}
			for line != "\r\n" {
				if line, err = c.in.ReadString('\n'); err != nil {
					t.Fatal(err)
				}
				if name, value, _ := strings.Cut(line, ": "); name == "Content-Type" && value != kind+"\r\n" {
					t.Errorf("the type is %q", value)
				}
			}
			for range 3 {
				next <- struct{}{}
				piece := make([]byte, len(chunk(event("a"))))
				if _, err := io.ReadFull(c.in, piece); err != nil || string(piece) != chunk(event("a")) {
					t.Fatalf("%q, %v", piece, err)
				}
			}
			w.wantLoads("1:1")
			next <- struct{}{}
			rest, err := io.ReadAll(io.LimitReader(c.in, int64(len(lastChunk))))
			if err != nil || string(rest) != lastChunk {
				t.Errorf("the end is %q, %v", rest, err)
			}
			w.wantLoads("1:0")
			close(next)
		})
	}
}
