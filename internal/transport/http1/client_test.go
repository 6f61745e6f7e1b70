package http1

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// script is a server that answers the requests of each connection with the next texts of a list, and
// then closes it.
type script struct {
	t *testing.T
	// answers has the texts for each connection, in the order in which they are made.
	answers [][]string
	hangs   bool       // connections stay open after their last answer
	mu      sync.Mutex // guards dialed
	dialed  int
}

// client returns one whose connections lead to the script.
func (s *script) client() *Client {
	return New(Options{Dial: func(context.Context, string, string) (net.Conn, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.dialed == len(s.answers) {
			return nil, errors.New("no further connection")
		}
		near, far := net.Pipe()
		s.t.Cleanup(func() { _ = near.Close() })
		go s.answer(far, s.answers[s.dialed])
		s.dialed++
		return near, nil
	}})
}

func (s *script) answer(c net.Conn, texts []string) {
	defer c.Close()
	in := bufio.NewReader(c)
	for _, text := range texts {
		req, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		if _, err := io.Copy(io.Discard, req.Body); err != nil {
			return
		}
		if _, err := io.WriteString(c, text); err != nil {
			return
		}
	}
	if s.hangs {
		_, _ = in.ReadByte()
	}
}

// post returns a POST.
func post() *Request {
	return &Request{Method: "POST", Origin: Origin{"http", "engine"}, Target: "/tokenize", Body: [][]byte{[]byte("ques"), []byte("tion")}}
}

// ask sends a request, and returns the answer or the error.
func ask(ctx context.Context, c *Client) string {
	resp, err := c.Do(ctx, post())
	if err != nil {
		return err.Error()
	}
	defer resp.Close()
	text, err := io.ReadAll(resp)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprint(resp.Status, " ", string(text))
}

// TestTransport proves how answers are read, and after which of them a connection serves the next
// request.
func TestTransport(t *testing.T) {
	const plain = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
	for name, tc := range map[string]struct {
		answers [][]string
		want    []string // of one question after the other
	}{
		"one connection":          {[][]string{{plain, plain, plain}}, []string{"200 ok", "200 ok", "200 ok"}},
		"chunks":                  {[][]string{{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\n\r\n", plain}}, []string{"200 ok", "200 ok"}},
		"no body":                 {[][]string{{"HTTP/1.1 204 No Content\r\n\r\n", plain}}, []string{"204 ", "200 ok"}},
		"to the end":              {[][]string{{"HTTP/1.1 200 OK\r\n\r\nok"}, {plain}}, []string{"200 ok", "200 ok"}},
		"closes":                  {[][]string{{"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", plain}, {plain}}, []string{"200 ok", "200 ok"}},
		"informational":           {[][]string{{"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + plain, plain}}, []string{"200 ok", "200 ok"}},
		"redirect":                {[][]string{{"HTTP/1.1 302 Found\r\nLocation: http://other/\r\nContent-Length: 0\r\n\r\n"}}, []string{"302 "}},
		"closed while idle":       {[][]string{{plain}, {plain}}, []string{"200 ok", "200 ok"}},
		"closed while idle, gone": {[][]string{{plain}}, []string{"200 ok", "connect: no further connection"}},
		"closed at once":          {[][]string{{""}, {plain}}, []string{"wait for an answer: unexpected EOF"}},
		"more than asked for":     {[][]string{{plain + plain, plain}, {plain}}, []string{"200 ok", "200 ok"}},
		"cut off":                 {[][]string{{"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok"}, {plain}}, []string{"read the answer's body: unexpected EOF", "200 ok"}},
		"cut off in its head":     {[][]string{{plain, "HTTP/1.1 200"}, {plain}}, []string{"200 ok", "read the answer's head: unexpected EOF", "200 ok"}},
		"a long head":             {[][]string{{"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", maxHead) + "\r\n\r\n"}, {plain}}, []string{"read the answer's head: " + errLongHead.Error(), "200 ok"}},
		"long heads":              {[][]string{{strings.Repeat("HTTP/1.1 100 Continue\r\nX: yy\r\n\r\n", maxHead/32+1)}}, []string{"read the answer's head: " + errLongHead.Error()}},
		"no HTTP":                 {[][]string{{"SSH-2.0\r\n"}}, []string{`read the answer's head: not HTTP/1.1: the answer begins with "SSH-2.0\r\n"`}},
	} {
		t.Run(name, func(t *testing.T) {
			s := &script{t: t, answers: tc.answers}
			c := s.client()
			defer c.Close()
			for i, want := range tc.want {
				if got := ask(t.Context(), c); got != want {
					t.Errorf("question %d: %s, want %s", i, got, want)
				}
			}
		})
	}
}

// TestIdle proves that a connection that nobody uses is closed after a time, and that after the end
// none is kept, also not that of an answer which was being read.
func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const plain = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
		s := &script{t: t, answers: [][]string{{plain, plain, plain}, {plain, plain}, {plain}}}
		c := s.client()
		for _, tc := range []struct {
			after  time.Duration
			dialed int
		}{{0, 1}, {defaultIdle - 1, 1}, {defaultIdle + 1, 2}} {
			time.Sleep(tc.after)
			if got := ask(t.Context(), c); got != "200 ok" || s.dialed != tc.dialed {
				t.Errorf("after %v: %s, %d connections", tc.after, got, s.dialed)
			}
		}
		resp, err := c.Do(t.Context(), post())
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		if text, err := io.ReadAll(resp); string(text) != "ok" || err != nil {
			t.Errorf("%q, %v", text, err)
		}
		_ = resp.Close()
		synctest.Wait() // the script ends with its connections; the test fails if it does not
	})
}

// TestCancelled proves that a caller who leaves ends a question at every point, and that the
// connection serves no other.
func TestCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const head = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"
		for _, text := range []string{"", "HTTP/1.1 100 Continue\r\n\r\n", head, head + "o"} {
			s := &script{t: t, answers: [][]string{{text}, {head + "ok"}}, hangs: true}
			c := s.client()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if got := ask(ctx, c); !strings.HasSuffix(got, ": "+context.DeadlineExceeded.Error()) {
				t.Errorf("after %q: %s", text, got)
			}
			cancel()
			if got := ask(t.Context(), c); got != "200 ok" {
				t.Errorf("the question after it: %s", got)
			}
			c.Close()
		}
	})
}

// TestStrayAnswer: what a server sends without a question is nobody's answer.
func TestStrayAnswer(t *testing.T) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	const text = "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n"
	stray := make(chan struct{})
	var serving sync.WaitGroup
	serving.Go(func() {
		for n := 1; ; n++ {
			c, err := server.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = c.Close() })
			req, err := http.ReadRequest(bufio.NewReader(c))
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, req.Body)
			_, _ = fmt.Fprintf(c, "%s%d", text, n)
			if n == 1 {
				<-stray
				_, _ = io.WriteString(c, text+"x")
				stray <- struct{}{}
			}
		}
	})
	defer serving.Wait()
	defer server.Close()
	tr := New(Options{})
	defer tr.Close()
	for n := 1; n <= 2; n++ {
		resp, err := tr.Do(t.Context(), &Request{Method: "POST", Origin: Origin{"http", server.Addr().String()}, Target: "/"})
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp)
		_ = resp.Close()
		if err != nil || string(got) != fmt.Sprint(n) {
			t.Errorf("answer %d is %q (%v)", n, got, err)
		}
		if n == 1 {
			stray <- struct{}{}
			<-stray
		}
	}
}
