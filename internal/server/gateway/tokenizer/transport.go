package tokenizer

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"
)

// transport asks servers over HTTP/1.1, on the goroutine of the caller. http.Transport hands each request
// and each answer over between three goroutines, and copies what it sends. It is safe for concurrent
// use.
type transport struct {
	dial func(ctx context.Context, network, address string) (net.Conn, error)

	mu     sync.Mutex         // guards idle and closed
	idle   map[string][]*conn // by scheme and host; the one used last is the last
	closed bool               // connections are not kept any more
}

const (
	idlePerHost = 64
	idleFor     = 90 * time.Second
	// connBuffer is the size of a connection's buffer, in bytes: most answers fit.
	connBuffer = 8 << 10
	// maxHead bounds the head of an answer, in bytes.
	maxHead = 64 << 10
)

// newTransport returns a transport that connects within a timeout.
func newTransport(timeout time.Duration) *transport {
	return &transport{dial: (&net.Dialer{Timeout: timeout}).DialContext, idle: make(map[string][]*conn)}
}

// conn is a connection to a server. It serves one question at a time.
type conn struct {
	net.Conn
	raw net.Conn // below TLS, else the same
	of  *transport
	key string // in transport.idle
	in  *bufio.Reader

	left     int64       // bytes that may still be read
	answered bool        // something has come since the question
	unwatch  func() bool // ends the watch of the question's context, and reports whether it had not ended
	expiry   *time.Timer // closes the connection if it is idle
}

// post sends a question and returns the head of its answer with the body to read and close. header has
// further header fields. A question that meets a connection which the server has closed while it was idle
// is sent again on a new one: questions change nothing.
func (t *transport) post(ctx context.Context, to *url.URL, header http.Header, body [][]byte) (*http.Response, error) {
	text := question(to, header, body)
	key := to.Scheme + "://" + to.Host
	for c := t.take(key); c != nil; c = t.take(key) {
		if !isQuiet(c.raw) { // it has ended, or an answer has come to nobody's question
			c.drop()
			continue
		}
		resp, err := c.ask(ctx, text)
		if err == nil || c.answered || ctx.Err() != nil {
			return resp, err
		}
		break
	}
	c, err := t.connect(ctx, to, key)
	if err != nil {
		return nil, err
	}
	return c.ask(ctx, text)
}

// question returns the text of a POST of JSON, in pieces.
func question(to *url.URL, header http.Header, body [][]byte) [][]byte {
	size := 0
	for _, piece := range body {
		size += len(piece)
	}
	head := make([]byte, 0, 512)
	head = append(append(append(head, "POST "...), to.RequestURI()...), " HTTP/1.1\r\nHost: "...)
	head = append(append(head, to.Host...), "\r\nContent-Type: application/json\r\nAccept: application/json\r\nContent-Length: "...)
	head = append(strconv.AppendInt(head, int64(size), 10), "\r\n"...)
	if u := to.User; u != nil {
		password, _ := u.Password()
		head = append(append(head, "Authorization: Basic "...), base64.StdEncoding.EncodeToString([]byte(u.Username()+":"+password))...)
		head = append(head, "\r\n"...)
	}
	for name, values := range header {
		for _, value := range values {
			head = append(append(append(append(head, name...), ": "...), value...), "\r\n"...)
		}
	}
	return append([][]byte{append(head, "\r\n"...)}, body...)
}

// close closes the connections that are not in use now, and those in use after their answers.
func (t *transport) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for _, list := range t.idle {
		for _, c := range list {
			c.expiry.Stop()
			c.drop()
		}
	}
	clear(t.idle)
}

// take returns an idle connection, nil if there is none.
func (t *transport) take(key string) *conn {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := t.idle[key]
	if len(list) == 0 {
		return nil
	}
	c := list[len(list)-1]
	t.removeLocked(c)
	c.expiry.Stop()
	return c
}

// put keeps a connection for the next question.
func (t *transport) put(c *conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || len(t.idle[c.key]) >= idlePerHost {
		c.drop()
		return
	}
	t.idle[c.key] = append(t.idle[c.key], c)
	if c.expiry == nil {
		c.expiry = time.AfterFunc(idleFor, func() { t.expire(c) })
	} else {
		c.expiry.Reset(idleFor)
	}
}

// expire closes a connection that is idle.
func (t *transport) expire(c *conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.removeLocked(c) {
		c.drop()
	}
}

// removeLocked reports whether the connection was idle. It is not afterwards.
func (t *transport) removeLocked(c *conn) bool {
	list := t.idle[c.key]
	i := slices.Index(list, c)
	if i < 0 {
		return false
	}
	if list = slices.Delete(list, i, i+1); len(list) > 0 {
		t.idle[c.key] = list
	} else {
		delete(t.idle, c.key)
	}
	return true
}

// connect opens a connection to the server of a URL.
func (t *transport) connect(ctx context.Context, to *url.URL, key string) (*conn, error) {
	port := to.Port()
	switch {
	case port != "":
	case to.Scheme == "https":
		port = "443"
	default:
		port = "80"
	}
	nc, err := t.dial(ctx, "tcp", net.JoinHostPort(to.Hostname(), port))
	if err != nil {
		return nil, err
	}
	raw := nc
	if to.Scheme == "https" {
		secured := tls.Client(nc, &tls.Config{ServerName: to.Hostname()})
		if err := secured.HandshakeContext(ctx); err != nil {
			_ = nc.Close()
			return nil, err
		}
		nc = secured
	}
	c := &conn{Conn: nc, raw: raw, of: t, key: key}
	c.in = bufio.NewReaderSize(c, connBuffer)
	return c, nil
}

var errLongHead = errors.New("the head of the answer is too long")

// Read reads from the connection what may still be read.
func (c *conn) Read(p []byte) (int, error) {
	if c.left <= 0 {
		return 0, errLongHead
	}
	n, err := c.Conn.Read(p[:min(int64(len(p)), c.left)])
	c.left -= int64(n)
	c.answered = c.answered || n > 0
	return n, err
}

// drop closes the connection. It does not say so within TLS, which may wait for a peer that reads nothing.
func (c *conn) drop() { _ = c.raw.Close() }

// ask sends a question and reads the head of its answer. The connection ends with the answer's body or is
// kept, and with an error it is closed.
func (c *conn) ask(ctx context.Context, text [][]byte) (*http.Response, error) {
	c.answered = false
	c.unwatch = context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	pieces := net.Buffers(slices.Clone(text))
	_, sent := pieces.WriteTo(c.Conn)
	resp, err := c.readHead() // also if not all was sent: the server may have refused the rest
	if err != nil {
		c.end(false)
		if sent != nil && !c.answered {
			err = sent
		}
		return nil, err
	}
	keep := sent == nil && !resp.Close
	if resp.Body == http.NoBody {
		c.end(keep)
		return resp, nil
	}
	resp.Body = &answerBody{ReadCloser: resp.Body, conn: c, keep: keep}
	return resp, nil
}

// readHead reads the head of the answer, past informational ones.
func (c *conn) readHead() (*http.Response, error) {
	for c.left = maxHead; ; {
		resp, err := http.ReadResponse(c.in, nil)
		if err != nil {
			return nil, err
		}
		if resp.StatusCode >= http.StatusOK {
			c.left = math.MaxInt64
			return resp, nil
		}
	}
}

// end ends a question. The connection is kept if its next byte is that of the next answer.
func (c *conn) end(keep bool) {
	if watched := c.unwatch(); keep && watched && c.in.Buffered() == 0 {
		c.of.put(c)
	} else {
		c.drop()
	}
}

// answerBody is the body of an answer. The connection is kept once it has been read to its end.
type answerBody struct {
	io.ReadCloser
	conn *conn // nil after the end
	keep bool
}

func (b *answerBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.end(b.keep && errors.Is(err, io.EOF))
	}
	return n, err
}

// Close closes the connection unless the body has been read.
func (b *answerBody) Close() error {
	b.end(false)
	return nil
}

func (b *answerBody) end(keep bool) {
	if b.conn != nil {
		b.conn.end(keep)
		b.conn = nil
	}
}
