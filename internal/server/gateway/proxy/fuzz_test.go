package proxy_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// FuzzHead sends what may be a request: it ends in an answer or with the connection, an engine gets whole requests
// alone, of allowed paths, with one length and without headers about the connection, and nothing stays booked.
func FuzzHead(f *testing.F) {
	body := chatBody("")
	for _, text := range []string{
		request(chatPath, body), request(chatPath, body, "Connection", "x-a, close", "X-A", "1"),
		"POST " + chatPath + " HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n" + chunk(body) + lastChunk,
		"GET http://x/v1/models HTTP/1.0\r\n\r\n", "CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nI * HT",
		realtime + "\r\nabc", "POST /flush_cache#/v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
	} {
		f.Add([]byte(text))
	}
	var fault atomic.Pointer[string]
	w := start(f)
	w.put(startEngine(f, func(s *served) {
		for {
			r := s.read()
			if r == nil {
				return
			}
			path, _, _ := strings.Cut(r.RequestURI, "?")
			if !strings.HasPrefix(path, "/") || strings.ContainsAny(path, "#%\\") || strings.Contains(path, "flush") {
				fault.Store(new("the engine got " + r.RequestURI))
			}
			if slices.ContainsFunc([]string{"Connection", "Te", "Keep-Alive", "Proxy-Connection", "Transfer-Encoding"}, func(name string) bool {
				return r.Header.Get(name) != "" && r.Header.Get("Upgrade") == ""
			}) || len(r.TransferEncoding) > 0 {
				fault.Store(new(fmt.Sprintf("the engine got %v %v", r.Header, r.TransferEncoding)))
			}
			s.write(jsonAnswer("{}"))
		}
	}))
	f.Fuzz(func(t *testing.T, text []byte) {
		w.T = t
		defer func() { w.T = f }()
		c := w.dial()
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(200 * time.Millisecond)) // for a request that is not whole
		if _, err := c.Write(text); err != nil {
			return
		}
		all, _ := io.ReadAll(c)
		if len(all) > 0 && !bytes.HasPrefix(all, []byte("HTTP/1.")) && all[0] != 0 { // or a frame of HTTP/2
			t.Errorf("%q is answered with %q", text, all)
		}
		if len(all) > 0 && all[0] != 0 {
			if _, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(all)), nil); err != nil { //nolint:bodyclose // it is read from memory
				t.Errorf("%q is answered with %q: %v", text, all, err)
			}
		}
		_ = c.Close()
		w.wantLoads("1:0")
		if text := fault.Load(); text != nil {
			t.Error(*text)
		}
	})
}
