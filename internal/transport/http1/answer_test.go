package http1

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"net"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"
)

// manyChunks has more bytes of chunks' lines than a chunked body may have.
var manyChunks = "HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n" + strings.Repeat("1;"+strings.Repeat("b", maxChunkLine-9)+"\r\nx\r\n", 17<<10/maxChunkLine*2) + "0\r\n\r\n"

// answers has answers to GET, and what readText makes of them, or what the error says.
var answers = map[string]string{
	"HTTP/1.1 200 OK\r\nA: 1\r\nb:2\r\na:\t3 \r\nContent-Length: 2\r\n\r\nok":       "200 OK [{A 1} {b 2} {a 3} {Content-Length 2}] 2 ok [] kept",
	"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n":                                     "200  [{Content-Length 0}] 0  [] kept",
	"HTTP/1.1 200 \r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok":             "200  [{Content-Length 2} {Content-Length 2}] 2 ok [] kept",
	"HTTP/1.1 999 x y\r\n\r\nok":                                                    "999 x y [] -1 ok []",
	"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok":                                "200 OK [{Content-Length 2}] 2 ok []",
	"HTTP/1.1 204 x\r\n\r\n":                                                        "204 x [] -1  [] kept",
	"HTTP/1.1 204 x\r\nTransfer-Encoding: chunked\r\n\r\n":                          "204 x [{Transfer-Encoding chunked}] -1  []",
	"HTTP/1.1 304 x\r\nContent-Length: 5\r\n\r\n":                                   "304 x [{Content-Length 5}] 5  [] kept",
	"HTTP/1.1 100 x\r\n\r\nHTTP/1.1 103 x\r\nLink: y\r\n\r\nHTTP/1.1 204 x\r\n\r\n": "103 [{Link y}]; 204 x [] -1  [] kept",
	"HTTP/1.1 200 x\r\nTransfer-Encoding: Chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n":      "200 x [{Transfer-Encoding Chunked}] -1 ok [] kept",
	"HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n1;a=\"b\"\r\no\r\n01 \r\nk\r\n0;x\r\nT: 1\r\nContent-Length: 3\r\nTrailer: x\r\nu: 2\r\n\r\n": "200 x [{Transfer-Encoding chunked}] -1 ok [{T 1} {u 2}] kept",
	"HTTP/1.1 200 x\r\nConnection: x, Close\r\nContent-Length: 2\r\n\r\nok":                                                                            "200 x [{Connection x, Close} {Content-Length 2}] 2 ok []",
	"HTTP/1.1 200 x\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 x\r\n\r\n":                                                                              "200 x [{Content-Length 2}] 2 ok []",
	"HTTP/1.1 200 x\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n\x1f\x8b":                                                                    "200 x [{Content-Encoding gzip} {Content-Length 2}] 2 \x1f\x8b []  kept",
	"HTTP/1.1 200 x\r\nX: " + strings.Repeat("y", 60<<10) + "\r\nContent-Length: 2\r\n\r\nok":                                                          "200 x [{X " + strings.Repeat("y", 60<<10) + "} {Content-Length 2}] 2 ok [] kept",
	"HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nT: " + strings.Repeat("y", 60<<10) + "\r\n\r\n":                                          "200 x [{Transfer-Encoding chunked}] -1  [{T " + strings.Repeat("y", 60<<10) + "}] kept",
	"HTTP/1.1 200 x\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n":                                                               "both",
	"HTTP/1.1 200 x\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok":                                                                               "Content-Length",
	"HTTP/1.1 200 x\r\nContent-Length: 2, 2\r\n\r\nok":                                                                                                 "Content-Length",
	"HTTP/1.1 200 x\r\nContent-Length: +2\r\n\r\nok":                                                                                                   "Content-Length",
	"HTTP/1.1 200 x\r\nContent-Length: -1\r\n\r\nok":                                                                                                   "Content-Length",
	"HTTP/1.1 200 x\r\nContent-Length:\r\n\r\nok":                                                                                                      "Content-Length",
	"HTTP/1.1 200 x\r\nContent-Length: 99999999999999999999\r\n\r\nok":                                                                                 "Content-Length",
	"HTTP/1.1 200 x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n":                                                                              "Transfer-Encoding",
	"HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n":                                                      "Transfer-Encoding",
	"HTTP/1.0 200 x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n":                                                                                    "Transfer-Encoding",
	"HTTP/1.1 200 x\r\nTransfer-Encoding: identity\r\n\r\nok":                                                                                          "Transfer-Encoding",
	"HTTP/1.1 200 x\nContent-Length: 2\n\nok":                                                                                                          "LF alone",
	"HTTP/1.1 200 x\r\nA: b\nC: d\r\n\r\n":                                                                                                             "LF alone",
	"HTTP/1.1 200 x\r\nA: b\rC: d\r\n\r\n":                                                                                                             "control",
	"HTTP/1.1 200 x\r\nA: b\r\n c\r\n\r\n":                                                                                                             "field",
	"HTTP/1.1 200 x\r\nA : b\r\n\r\n":                                                                                                                  "field",
	"HTTP/1.1 200 x\r\n: b\r\n\r\n":                                                                                                                    "field",
	"HTTP/1.1 200 x\r\nA\r\n\r\n":                                                                                                                      "field",
	"HTTP/1.1 200 x\r\nA: \x00\r\n\r\n":                                                                                                                "control",
	"HTTP/1.1 200 \x00\r\n\r\n":                                                                                                                        "status line",
	"HTTP/1.1 20 OK\r\n\r\n":                                                                                                                           "status line",
	"HTTP/1.1 099 OK\r\n\r\n":                                                                                                                          "status line",
	"HTTP/1.1  200 OK\r\n\r\n":                                                                                                                         "status line",
	"HTTP/1.1 2000 OK\r\n\r\n":                                                                                                                         "status line",
	"HTTP/1.2 200 OK\r\n\r\n":                                                                                                                          "status line",
	"HTTP/2.0 200 OK\r\n\r\n":                                                                                                                          "begins with",
	"http/1.1 200 OK\r\n\r\n":                                                                                                                          "begins with",
	"\r\nHTTP/1.1 200 OK\r\n\r\n":                                                                                                                      "begins with",
	"x":                                                                                                                                                "begins with",
	"HTTP/1.1 101 x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n":                                                                              "without a request",

	"HTTP/1.1 200 x\r\n" + strings.Repeat("A: b\r\n", maxFields+1) + "\r\n":                                              "fields",
	"HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + strings.Repeat("A: b\r\n", maxFields+1) + "\r\n":       "fields",
	"HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: " + strings.Repeat("b", maxHead) + "\r\n\r\n":           "too long",
	"HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n2;" + strings.Repeat("b", maxChunkLine) + "\r\nok\r\n0\r\n\r\n": "too long",
	manyChunks: "more bytes",

	"HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n2\nok\r\n0\r\n\r\n":                  "LF alone",
	"HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\n0\r\n\r\n":                  "LF alone",
	"HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nokk\r\n0\r\n\r\n":               "behind",
	"HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n2x\r\nok\r\n0\r\n\r\n":               "size",
	"HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n0x2\r\nok\r\n0\r\n\r\n":              "size",
	"HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n-2\r\nok\r\n0\r\n\r\n":               "size",
	"HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n\r\nok\r\n0\r\n\r\n":                 "size",
	"HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n;\r\nok\r\n0\r\n\r\n":                "size",
	"HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nok\r\n0\r\n\r\n": "size",
	"HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA : b\r\n\r\n":                  "field",
}

// TestAnswer: what is read of answers, and what is refused.
func TestAnswer(t *testing.T) {
	for text, want := range answers {
		got, err := readText(t, "GET", text, func() int { return len(text) })
		switch {
		case errors.Is(err, ErrProtocol):
			if !strings.Contains(err.Error(), want) || strings.HasPrefix(want, "200") {
				t.Errorf("%.80q: %v, want %.80q", text, err, want)
			}
		case err != nil:
			t.Errorf("%.80q: %v, want %.80q", text, err, want)
		case strings.Join(strings.Fields(got), " ") != strings.Join(strings.Fields(want), " "):
			t.Errorf("%.80q: %.200q, want %.200q", text, got, want)
		}
	}
}

// pieces is a connection that gives a text in pieces, and then its end.
type pieces struct {
	net.Conn
	text  string
	size  func() int // of the next piece
	reads int
	wrote strings.Builder
}

func (p *pieces) Read(b []byte) (int, error) {
	p.reads++
	if p.text == "" {
		return 0, io.EOF
	}
	n := copy(b[:min(len(b), p.size())], p.text)
	p.text = p.text[n:]
	return n, nil
}

func (p *pieces) Write(b []byte) (int, error)      { return p.wrote.Write(b) }
func (p *pieces) Close() error                     { return nil }
func (p *pieces) SetDeadline(time.Time) error      { return nil }
func (p *pieces) SetReadDeadline(time.Time) error  { return nil }
func (p *pieces) SetWriteDeadline(time.Time) error { return nil }

// readText returns what an answer is that comes in pieces: informational heads; status, reason,
// header, length, body, trailer, and whether the connection is kept.
func readText(t testing.TB, method, text string, size func() int) (string, error) {
	t.Helper()
	from := &pieces{text: text, size: size}
	c := New(Options{Dial: func(context.Context, string, string) (net.Conn, error) { return from, nil }})
	defer c.Close()
	got := ""
	resp, err := c.Do(t.Context(), &Request{
		Method: method, Origin: Origin{"http", "engine"}, Target: "/",
		Informational: func(status int, h Header) { got += fmt.Sprint(status, " ", h, "; ") },
	})
	if err != nil {
		return "", err
	}
	defer resp.Close()
	body, err := io.ReadAll(&waiting{resp, from, t})
	if err != nil {
		return "", err
	}
	got += fmt.Sprint(resp.Status, " ", resp.Reason, " ", resp.Header, " ", resp.Length, " ", string(body), " ", resp.Trailer)
	if _, idle := c.Connections(); idle > 0 {
		got += " kept"
	}
	return got, nil
}

// waiting reads a body, every second time after Wait. Then, and whenever Ready says so, Read needs no byte of the
// connection; the end alone may have come with the last bytes.
type waiting struct {
	*Response
	from *pieces
	t    testing.TB
}

func (w *waiting) Read(b []byte) (int, error) {
	if w.from.reads%2 == 0 {
		w.Wait()
	}
	ready, before := w.Ready(), w.from.reads
	n, err := w.Response.Read(b)
	if ready && w.from.reads > before {
		w.t.Errorf("%.80q: a read that is ready has waited", w.from.text)
	}
	if ready && n == 0 && err == nil {
		w.t.Errorf("%.80q: a read that is ready has nothing", w.from.text)
	}
	return n, err
}

// TestPieces: an answer is the same however its bytes come.
func TestPieces(t *testing.T) {
	for text := range answers {
		whole, wholeErr := readText(t, "GET", text, func() int { return len(text) })
		seed := time.Now().UnixNano()
		random := rand.New(rand.NewSource(seed))
		for name, size := range map[string]func() int{
			"1": func() int { return 1 }, "2": func() int { return 2 }, fmt.Sprint("seed ", seed): func() int { return 1 + random.Intn(40) },
		} {
			got, err := readText(t, "GET", text, size)
			// Bytes behind an answer are seen before its connection is kept, or before it is used again.
			if errors.Is(err, ErrProtocol) != errors.Is(wholeErr, ErrProtocol) || (err == nil) != (wholeErr == nil) || strings.TrimSuffix(got, " kept") != strings.TrimSuffix(whole, " kept") {
				t.Errorf("%.80q in pieces of %s: %.200q, %v, want %.200q, %v", text, name, got, err, whole, wholeErr)
			}
		}
	}
}

// FuzzAnswer: what is read as an answer is read by net/http too, and the same.
func FuzzAnswer(f *testing.F) {
	for text := range answers {
		if len(text) < 1<<10 {
			f.Add(text, uint8(7), false)
			f.Add(text, uint8(1), true)
		}
	}
	f.Fuzz(func(t *testing.T, text string, size uint8, head bool) {
		method := "GET"
		if head {
			method = "HEAD"
		}
		c := New(Options{Dial: func(context.Context, string, string) (net.Conn, error) {
			return &pieces{text: text, size: func() int { return int(size) + 1 }}, nil
		}})
		defer c.Close()
		got, err := c.Do(t.Context(), &Request{Method: method, Origin: Origin{"http", "engine"}, Target: "/"})
		if err != nil {
			return // stricter
		}
		defer got.Close()
		body, err := io.ReadAll(got)
		if err != nil {
			return
		}
		in := bufio.NewReaderSize(strings.NewReader(text), 128<<10)
		var want *http.Response
		for want == nil || want.StatusCode < 200 {
			if want, err = http.ReadResponse(in, &http.Request{Method: method}); err != nil {
				if strings.Contains(err.Error(), "bad trailer key") {
					return // it is announced, but it does not come: those that may not come are left out
				}
				t.Fatalf("net/http: %v", err)
			}
		}
		defer want.Body.Close()
		wantBody, err := io.ReadAll(want.Body)
		if err != nil {
			t.Fatalf("net/http, body: %v", err)
		}
		if got.Status != want.StatusCode || string(body) != string(wantBody) {
			t.Errorf("%d %q, net/http %d %q", got.Status, body, want.StatusCode, wantBody)
		}
		header, trailer := http.Header{}, http.Header{}
		got.Header.AddTo(header, nil)
		got.Trailer.AddTo(trailer, nil)
		for _, h := range []http.Header{header, want.Header} {
			// net/http takes these out, or changes them.
			for _, name := range []string{"Transfer-Encoding", "Trailer", "Content-Length", "Connection", "Pragma", "Cache-Control"} {
				h.Del(name)
			}
		}
		for name := range want.Trailer {
			if want.Trailer[name] == nil || ofConnection(name) {
				delete(want.Trailer, name)
			}
		}
		if !reflect.DeepEqual(header, want.Header) || len(trailer)+len(want.Trailer) > 0 && !reflect.DeepEqual(trailer, want.Trailer) {
			t.Errorf("%v %v, net/http %v %v", header, trailer, want.Header, want.Trailer)
		}
		if length := want.ContentLength; got.HasBody() && got.Length != length {
			t.Errorf("length %d, net/http %d", got.Length, length)
		}
	})
}
