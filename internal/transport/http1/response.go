package http1

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// Response is an answer: its head, and its body to read. It is used by one goroutine at a time. Its strings
// stay valid.
type Response struct {
	Status int    // 101, or 200 to 999
	Reason string // the phrase behind the status; "": none
	Header Header
	// Length is that of the body in bytes, as Content-Length says it; -1: it does not. An answer without a
	// body may have one too: see HasBody.
	Length int64
	// Trailer has the fields behind the body once Read has returned io.EOF, but for those that are not
	// allowed there (framing, and what is about the connection).
	Trailer Header

	conn    *conn // nil after the end
	framing framing
	left    int64 // bytes of the body, or of the chunk, that are to come
	next    next  // what stands behind the chunk, once left is 0
	excess  int64 // bytes of lines of chunks above what is usual
	old     bool  // HTTP/1.0
	keep    bool  // the connection may serve another request
	taken   bool  // Upgraded has returned the connection
	err     error // of the body, once it has ended
	fields  [16]Field
}

// framing is how the end of a body is known.
type framing uint8

const (
	noBody framing = iota
	byLength
	byChunks
	byEnd    // of the connection
	upgraded // it is no body
)

// protocolError returns an error that wraps ErrProtocol.
func protocolError(format string, a ...any) error {
	return fmt.Errorf("%w: %s", ErrProtocol, fmt.Sprintf(format, a...))
}

var errLongHead = protocolError("the head of the answer is too long")

// readAnswer reads the head of the answer, past informational ones.
func (cn *conn) readAnswer(r *Request) (*Response, error) {
	resp := &Response{conn: cn}
	resp.Header = resp.fields[:0]
	for {
		text, err := cn.readHead()
		if err != nil {
			return nil, err
		}
		if err := resp.parse(text); err != nil {
			return nil, err
		}
		switch {
		case resp.Status == http.StatusSwitchingProtocols:
			return resp, resp.change(r)
		case resp.Status >= http.StatusOK:
			return resp, resp.frame(r.Method)
		case resp.Status != http.StatusContinue && r.Informational != nil:
			r.Informational(resp.Status, resp.Header)
		}
	}
}

// readHead returns the lines of a head, each with its end, but for the empty one.
func (cn *conn) readHead() (string, error) {
	const version = "HTTP/1."
	line, seen := 0, 0 // where the line begins, and up to where it was looked through, from cn.r on
	for {
		b := cn.buf[cn.r:cn.w]
		if n := min(len(b), len(version)); string(b[:n]) != version[:n] {
			return "", protocolError("the answer begins with %q", b[:min(len(b), 32)])
		}
		for {
			i := bytes.IndexByte(b[seen:], '\n')
			if i < 0 {
				seen = len(b)
				break
			}
			end := seen + i
			if end+1 > cn.headers {
				return "", errLongHead
			}
			if end == line || b[end-1] != '\r' {
				return "", protocolError("a line of the head ends in LF alone")
			}
			if end-1 == line {
				text := string(b[:line])
				cn.r += end + 1
				cn.headers -= end + 1
				return text, nil
			}
			line, seen = end+1, end+1
		}
		if len(b) >= cn.headers {
			return "", errLongHead
		}
		if err := cn.fill(); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return "", err
		}
	}
}

// parse reads a head.
func (r *Response) parse(text string) error {
	line, rest, _ := strings.Cut(text, "\r\n")
	// HTTP/1.1 200 OK
	if len(line) < 12 || line[7] != '0' && line[7] != '1' || line[8] != ' ' || len(line) > 12 && line[12] != ' ' || !isValue(line) {
		return protocolError("status line %q", clip(line))
	}
	r.Status = 0
	for _, c := range []byte(line[9:12]) {
		if c < '0' || c > '9' {
			return protocolError("status line %q", clip(line))
		}
		r.Status = 10*r.Status + int(c-'0')
	}
	if r.Status < 100 {
		return protocolError("status line %q", clip(line))
	}
	r.Reason = ""
	if len(line) > 13 {
		r.Reason = line[13:]
	}
	r.old = line[7] == '0'
	r.keep = !r.old
	var err error
	r.Header, err = appendFields(r.Header[:0], rest)
	return err
}

// appendFields reads fields, a line each.
func appendFields(to Header, text string) (Header, error) {
	for text != "" {
		line, rest, _ := strings.Cut(text, "\r\n")
		text = rest
		name, value, found := strings.Cut(line, ":")
		value = strings.Trim(value, " \t")
		switch {
		case !found || !isToken(name): // a folded line too
			return to, protocolError("field %q", clip(line))
		case !isValue(value):
			return to, protocolError("the value of %s has a control character", clip(name))
		case len(to) == maxFields:
			return to, protocolError("more than %d fields", maxFields)
		}
		to = append(to, Field{name, value})
	}
	return to, nil
}

// clip shortens what is quoted in an error.
func clip(text string) string { return text[:min(len(text), 64)] }

// frame finds out how the answer's body ends (RFC 9112, section 6.3).
func (r *Response) frame(method string) error {
	r.Length = -1
	coded := false
	for i := range r.Header {
		f := &r.Header[i]
		switch len(f.Name) {
		case len("Connection"):
			if strings.EqualFold(f.Name, "Connection") && hasToken(f.Value, "close") {
				r.keep = false
			}
		case len("Content-Length"):
			if !strings.EqualFold(f.Name, "Content-Length") {
				continue
			}
			n, ok := parseLength(f.Value)
			if !ok || r.Length >= 0 && r.Length != n {
				return protocolError("Content-Length %q", clip(f.Value))
			}
			r.Length = n
		case len("Transfer-Encoding"):
			if !strings.EqualFold(f.Name, "Transfer-Encoding") {
				continue
			}
			if coded || r.old || !strings.EqualFold(f.Value, "chunked") {
				return protocolError("Transfer-Encoding %q", clip(f.Value))
			}
			coded = true
		}
	}
	if coded && r.Length >= 0 {
		return protocolError("both Content-Length and Transfer-Encoding")
	}
	switch {
	case method == http.MethodHead, r.Status == http.StatusNoContent, r.Status == http.StatusNotModified:
		if r.Status == http.StatusNoContent && (coded || r.Length > 0) {
			r.keep = false // bytes may follow that nobody expects
		}
	case coded:
		r.framing = byChunks
	case r.Length > 0:
		r.framing, r.left = byLength, r.Length
	case r.Length < 0:
		r.framing, r.keep = byEnd, false
	}
	return nil
}

// parseLength reads the value of Content-Length.
func parseLength(text string) (n int64, ok bool) {
	if text == "" || len(text) > 18 {
		return 0, false
	}
	for _, c := range []byte(text) {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = 10*n + int64(c-'0')
	}
	return n, true
}
