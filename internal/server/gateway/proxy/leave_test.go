package proxy_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// TestClientLeaves: the engine's request ends as soon as its client leaves, before the first byte and within the
// answer, however the client leaves, and nothing stays booked.
func TestClientLeaves(t *testing.T) {
	for name, leave := range map[string]func(c *client){
		"closes":          func(c *client) { _ = c.Close() },
		"resets":          func(c *client) { _ = c.SetLinger(0); _ = c.Close() },
		"shuts its half":  func(c *client) { _ = c.CloseWrite() },            // golang/go#18527: it counts as having left
		"after a newline": func(c *client) { c.send("\r\n"); _ = c.Close() }, // golang/go#37145
	} {
		for _, streams := range []bool{false, true} {
			t.Run(name+map[bool]string{true: ", streams"}[streams], func(t *testing.T) {
				w := start(t)
				asked, ended := make(chan struct{}), make(chan struct{})
				w.put(startEngine(t, func(s *served) {
					s.read()
					if streams {
						s.write(eventsHead, chunk(event("a")))
					}
					close(asked)
					_, _ = io.Copy(io.Discard, s) // until the proxy closes
					close(ended)
				}))
				c := w.dial()
				c.send(request(chatPath, chatBody(`,"stream":true`)))
				<-asked
				if streams {
					if _, err := c.in.ReadString('\n'); err != nil {
						t.Fatal(err)
					}
				}
				w.wantLoads("1:1")
				leave(c)
				select {
				case <-ended:
				case <-time.After(patience):
					t.Fatal("the engine's connection is still open")
				}
				w.wantLoads("1:0")
				w.wantCount("proxy_gone_total", "", "1")
			})
		}
	}
}

// TestHTTP2ClientLeaves: a request of HTTP/2 ends with its stream, and with its connection.
func TestHTTP2ClientLeaves(t *testing.T) {
	for name, closes := range map[string]bool{"stream": false, "connection": true} {
		t.Run(name, func(t *testing.T) {
			w := start(t)
			asked, ended := make(chan struct{}), make(chan struct{})
			w.put(startEngine(t, func(s *served) {
				s.read()
				close(asked)
				_, _ = io.Copy(io.Discard, s)
				close(ended)
			}))
			c, err := net.Dial("tcp", w.address)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			_, _ = io.WriteString(c, http2.ClientPreface)
			frames := http2.NewFramer(c, bufio.NewReader(c))
			_ = frames.WriteSettings()
			var head writer
			fields := hpack.NewEncoder(&head)
			for _, f := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", chatPath}, {":authority", "proxy"}} {
				_ = fields.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
			}
			_ = frames.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: head, EndHeaders: true})
			_ = frames.WriteData(1, true, []byte(chatBody("")))
			<-asked
			if closes {
				_ = c.Close()
			} else {
				_ = frames.WriteRSTStream(1, http2.ErrCodeCancel)
			}
			<-ended
			w.wantLoads("1:0")
		})
	}
}

type writer []byte

func (w *writer) Write(p []byte) (int, error) {
	*w = append(*w, p...)
	return len(p), nil
}

// TestHTTP2: requests of HTTP/2 by prior knowledge, several at once on a connection.
func TestHTTP2(t *testing.T) {
	w := start(t)
	w.put(answering(t, jsonAnswer("{}")))
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	defer transport.CloseIdleConnections()
	for range 3 {
		r, err := (&http.Client{Transport: transport}).Post("http://"+w.address+chatPath, "application/json", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		_ = r.Body.Close()
		if r.ProtoMajor != 2 || r.StatusCode != 400 { // no body is no chat
			t.Errorf("%s %d", r.Proto, r.StatusCode)
		}
	}
}
