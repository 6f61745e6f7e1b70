// Package faultproxy is a TCP proxy in front of an engine that breaks connections and answers in the ways in
// which engines and networks do.
package faultproxy

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/select-service/select-service/test/checks/e2e"
)

// Fault is what happens to each request that the proxy breaks.
type Fault string

// The faults, in the order in which a request meets them.
const (
	None         Fault = "none"
	Refuse       Fault = "refuse"        // no connection is accepted, and those that are open end
	ResetUnread  Fault = "reset unread"  // reset before the request is read
	ResetBefore  Fault = "reset before"  // reset behind the request, before a byte of the answer
	CloseBefore  Fault = "close before"  // the same with an orderly end
	CloseReused  Fault = "close reused"  // an orderly end before a byte, of a connection that served a request before
	ResetReused  Fault = "reset reused"  // the same with a reset
	Stall        Fault = "stall"         // no byte of an answer, for as long as the client stays
	Garbage      Fault = "garbage"       // bytes that are no HTTP
	ResetInHead  Fault = "reset in head" // half of the head, then a reset
	ResetBehind  Fault = "reset behind"  // the head, then a reset
	StallBehind  Fault = "stall behind"  // the head and the first piece (or half of it), then nothing, for as long as the client stays
	HalfPiece    Fault = "half a piece"  // half of the first piece, then an orderly end
	FirstPiece   Fault = "first piece"   // the first piece (of an answer with a length: half of it), then an orderly end
	WrongLength  Fault = "wrong length"  // a length (of the first chunk, of the body) that is too great
	GarbageChunk Fault = "garbage chunk" // the first chunk, then one whose length is none; only where there are chunks
)

// Proxy passes connections on to one engine. A piece of an answer is a chunk or, without chunks, what was read at
// once.
type Proxy struct {
	// Breaks says whether a request is broken; the others pass. It is set before Set.
	Breaks func(*http.Request) bool

	tb      testing.TB
	engine  string
	address string
	serving sync.WaitGroup

	mu       sync.Mutex // guards the rest
	fault    Fault
	listener net.Listener // nil while it refuses
	open     map[net.Conn]bool
	requests int
	ended    bool
}

// Start runs a proxy in front of an engine at host:port until the end of the test. It breaks POSTs below /v1 and
// changes of the protocol.
func Start(tb testing.TB, engine string) *Proxy {
	tb.Helper()
	// A port that nobody else takes while it refuses.
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(e2e.FreePort(tb)))
	p := &Proxy{tb: tb, engine: engine, address: address, fault: None, open: make(map[net.Conn]bool)}
	p.Breaks = func(r *http.Request) bool {
		return r.Method == http.MethodPost && strings.HasPrefix(r.URL.Path, "/v1/") || r.Header.Get("Upgrade") != ""
	}
	p.listen()
	tb.Cleanup(func() {
		p.mu.Lock()
		p.ended = true
		p.stopLocked()
		p.mu.Unlock()
		p.serving.Wait()
	})
	return p
}

// URL is the base URL of the engine behind the proxy.
func (p *Proxy) URL() string { return "http://" + p.address }

// Requests returns how many requests came that it breaks, with whatever fault.
func (p *Proxy) Requests() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.requests
}

// Open returns how many connections are open to it.
func (p *Proxy) Open() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.open)
}

// Set has requests broken from now on in a way, also those on connections that are open.
func (p *Proxy) Set(f Fault) {
	p.tb.Helper()
	p.mu.Lock()
	p.fault = f
	if f == Refuse {
		p.stopLocked()
	}
	refuses := p.listener == nil
	p.mu.Unlock()
	if refuses && f != Refuse {
		p.listen()
	}
}

// stopLocked ends the listener and all connections.
func (p *Proxy) stopLocked() {
	if p.listener != nil {
		_ = p.listener.Close()
		p.listener = nil
	}
	for c := range p.open {
		_ = c.Close()
	}
}

func (p *Proxy) listen() {
	p.tb.Helper()
	ln, err := (&net.ListenConfig{}).Listen(p.tb.Context(), "tcp", p.address)
	if err != nil {
		p.tb.Fatal(err)
	}
	p.mu.Lock()
	p.listener = ln
	p.mu.Unlock()
	p.serving.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			p.mu.Lock()
			if p.listener != ln || p.ended {
				_ = c.Close()
				p.mu.Unlock()
				continue
			}
			p.open[c] = true
			p.mu.Unlock()
			p.serving.Go(func() {
				defer func() {
					_ = c.Close()
					p.mu.Lock()
					delete(p.open, c)
					p.mu.Unlock()
				}()
				p.serve(c.(*net.TCPConn))
			})
		}
	})
}

func (p *Proxy) current() Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fault
}

// serve serves the requests of a connection.
func (p *Proxy) serve(c *net.TCPConn) {
	in := bufio.NewReader(c)
	for before := false; ; before = true {
		if _, err := in.Peek(1); err != nil {
			return
		}
		if p.current() == ResetUnread {
			reset(c)
			return
		}
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		fault := None
		if p.Breaks(r) {
			p.mu.Lock()
			p.requests++
			fault = p.fault
			p.mu.Unlock()
		}
		switch {
		case fault == ResetBefore, fault == ResetReused && before:
			reset(c)
			return
		case fault == CloseBefore, fault == CloseReused && before:
			return
		case fault == Garbage:
			_, _ = io.WriteString(c, "\x15\x03\x01\x00\x02\x02\x46garbage\r\n\r\n")
			return
		case fault == Stall:
			_, _ = in.Peek(1)
			return
		}
		if !p.forward(c, in, r, body, fault) {
			return
		}
	}
}

// reset makes the end of a connection a reset.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}

// forward passes a request on and its answer back. It reports whether the connection may serve another one.
func (p *Proxy) forward(c *net.TCPConn, in *bufio.Reader, r *http.Request, body []byte, fault Fault) bool {
	raw, err := (&net.Dialer{}).DialContext(p.tb.Context(), "tcp", p.engine)
	if err != nil {
		return false
	}
	defer raw.Close()
	upgrade := r.Header.Get("Upgrade") != ""
	r.Body, r.ContentLength, r.TransferEncoding, r.Close = io.NopCloser(bytes.NewReader(body)), int64(len(body)), nil, !upgrade
	if r.Write(raw) != nil {
		return false
	}
	from := bufio.NewReader(raw)
	head, length, chunked, err := readHead(from)
	if err != nil {
		return false
	}
	upgraded := strings.HasPrefix(head, "HTTP/1.1 101 ")
	if fault == WrongLength && length >= 0 {
		head = strings.Replace(head, fmt.Sprintf("Content-Length: %d\r\n", length), fmt.Sprintf("Content-Length: %d\r\n", length+7), 1)
	}
	if fault == ResetInHead {
		_, _ = io.WriteString(c, head[:len(head)/2])
		reset(c)
		return false
	}
	if _, err := io.WriteString(c, head); err != nil {
		return false
	}
	if fault == ResetBehind {
		reset(c)
		return false
	}
	if upgraded {
		return p.change(c, in, raw, from, fault)
	}
	first, err := firstPiece(from, chunked)
	if err != nil && !errors.Is(err, io.EOF) {
		return false
	}
	switch fault {
	case HalfPiece:
		first = first[:len(first)/2]
	case FirstPiece, StallBehind:
		if !chunked {
			first = first[:len(first)/2]
		}
	case WrongLength:
		if chunked {
			size, rest, _ := bytes.Cut(first, []byte("\r\n"))
			n, _ := strconv.ParseUint(string(size), 16, 31)
			first = append(fmt.Appendf(nil, "%x\r\n", n+1), rest...)
		}
	case GarbageChunk:
		if chunked {
			first = append(first, "zz\r\ngarbage\r\n"...)
		}
	}
	if _, err := c.Write(first); err != nil {
		return false
	}
	switch fault {
	case HalfPiece, FirstPiece:
		return false
	case StallBehind:
		_, _ = in.Peek(1)
		return false
	}
	_, err = io.Copy(c, from)
	return err == nil && (length >= 0 || chunked) && fault != WrongLength && fault != GarbageChunk
}

// readHead reads the head of an answer, and takes out what it says of the connection.
func readHead(from *bufio.Reader) (head string, length int, chunked bool, err error) {
	length = -1
	for {
		line, err := from.ReadString('\n')
		if err != nil {
			return "", 0, false, err
		}
		name, value, _ := strings.Cut(strings.TrimRight(line, "\r\n"), ": ")
		switch strings.ToLower(name) {
		case "connection":
			if strings.EqualFold(value, "close") {
				continue
			}
		case "content-length":
			length, _ = strconv.Atoi(value)
			line = fmt.Sprintf("Content-Length: %d\r\n", length)
		case "transfer-encoding":
			chunked = true
		}
		if head += line; line == "\r\n" {
			return head, length, chunked, nil
		}
	}
}

// firstPiece reads the first chunk with its lines, or what comes at once.
func firstPiece(from *bufio.Reader, chunked bool) ([]byte, error) {
	if !chunked {
		buf := make([]byte, 16<<10)
		n, err := from.Read(buf)
		return buf[:n], err
	}
	line, err := from.ReadString('\n')
	if err != nil {
		return nil, err
	}
	n, err := strconv.ParseUint(strings.TrimRight(line, "\r\n"), 16, 20)
	if err != nil {
		return nil, err
	}
	rest := make([]byte, n+2)
	_, err = io.ReadFull(from, rest)
	return append([]byte(line), rest...), err
}

// change passes both directions of a changed protocol on. The first piece is the engine's.
func (p *Proxy) change(c *net.TCPConn, in *bufio.Reader, raw net.Conn, from *bufio.Reader, fault Fault) bool {
	var sending sync.WaitGroup
	defer sending.Wait()
	defer c.Close()
	sending.Go(func() {
		defer raw.Close() // the client has left
		_, _ = io.Copy(raw, in)
	})
	first, err := firstPiece(from, false)
	if err != nil {
		return false
	}
	switch fault {
	case HalfPiece, FirstPiece:
		_, _ = c.Write(first[:len(first)/2])
		return false
	case StallBehind:
		_, _ = c.Write(first)
		sending.Wait()
		return false
	}
	if _, err := c.Write(first); err == nil {
		_, _ = io.Copy(c, from)
	}
	return false
}
