package http1

import (
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Origin says where requests go. Origins are compared as they are written: connections to one are not used
// for another one.
type Origin struct {
	Scheme string // "http" or "https"
	Host   string // host or host:port; IPv6 addresses in brackets
}

// OriginOf returns the origin of a URL.
func OriginOf(u *url.URL) Origin { return Origin{Scheme: u.Scheme, Host: u.Host} }

// address returns the host's name, and host:port.
func (o Origin) address() (name, address string, err error) {
	port := "80"
	switch o.Scheme {
	case "http":
	case "https":
		port = "443"
	default:
		return "", "", fmt.Errorf("%w: scheme %q of the origin", ErrRequest, o.Scheme)
	}
	name = o.Host
	if host, given, err := net.SplitHostPort(o.Host); err == nil {
		name = host
		if given != "" {
			port = given
		}
	} else if strings.HasPrefix(name, "[") && strings.HasSuffix(name, "]") {
		name = name[1 : len(name)-1]
	}
	if name == "" || strings.ContainsAny(name, "/?#@[]") {
		return "", "", fmt.Errorf("%w: host %q of the origin", ErrRequest, o.Host)
	}
	return name, net.JoinHostPort(name, port), nil
}

// Request is a request. It is not changed, and may be sent again once its answer is closed, unless it has a
// Reader.
type Request struct {
	Method string // not CONNECT
	Origin Origin
	Target string // path and query as they are sent: "/v1/models?x=1", or "*"
	Host   string // of the Host field; "": the origin's

	// Header has the fields to send, in order. Those about the connection or the framing (Connection and
	// its kin, Host, Content-Length, Transfer-Encoding, Trailer, TE, Upgrade, Expect) are left out: the
	// client writes its own. Nothing else is added.
	Header Header

	// Body has the pieces of the body. Content-Length is their sum; it is not sent for no bytes unless
	// the method is POST, PUT or PATCH.
	Body [][]byte

	// Reader is the body if it is not nil: Length bytes, or chunks if Length is negative. It is read by
	// another goroutine until the answer is closed. It is closed in any case, once or more and maybe while
	// a Read runs, which must return then. Such a request has a new connection, and is never sent twice.
	Reader io.ReadCloser
	Length int64

	// Upgrade is the protocol to change to ("websocket"); "": none. See Response.Upgraded.
	Upgrade string

	// Informational is called, on the caller's goroutine, for each answer before the last one (103 and
	// others, but not 100); nil: they are ignored. header is valid until it returns.
	Informational func(status int, header Header)

	// HeadTimeout bounds the time until the head of the answer has come, from when a connection is there;
	// 0: no bound but the context's.
	HeadTimeout time.Duration
}

// check returns an error that wraps ErrRequest if the request cannot be sent.
func (r *Request) check() error {
	switch {
	case !isToken(r.Method), r.Method == "CONNECT":
		return fmt.Errorf("%w: method %q", ErrRequest, r.Method)
	case r.Target == "" || r.Target[0] != '/' && r.Target != "*" || !isText(r.Target):
		return fmt.Errorf("%w: target %q", ErrRequest, r.Target)
	case !isText(r.Host) || !isText(r.Origin.Host):
		return fmt.Errorf("%w: host %q of %q", ErrRequest, r.Host, r.Origin.Host)
	case r.Upgrade != "" && !isToken(strings.Replace(r.Upgrade, "/", "", 1)):
		return fmt.Errorf("%w: upgrade %q", ErrRequest, r.Upgrade)
	case r.Reader != nil && len(r.Body) > 0:
		return fmt.Errorf("%w: two bodies", ErrRequest)
	}
	for i := range r.Header {
		if f := &r.Header[i]; !isToken(f.Name) || !isValue(f.Value) {
			return fmt.Errorf("%w: field %q", ErrRequest, f.Name)
		}
	}
	return nil
}

// isText reports whether a text has visible characters only.
func isText(text string) bool {
	for i := range len(text) {
		if c := text[i]; c <= ' ' || c == 0x7f {
			return false
		}
	}
	return true
}

// size returns the length of the body's pieces.
func (r *Request) size() (n int64) {
	for _, piece := range r.Body {
		n += int64(len(piece))
	}
	return n
}

// appendHead appends the head.
func (r *Request) appendHead(b []byte, size int64) []byte {
	b = append(append(append(append(b, r.Method...), ' '), r.Target...), " HTTP/1.1\r\n"...)
	host := r.Host
	if host == "" {
		host = withoutZone(r.Origin.Host)
	}
	b = appendField(b, "Host", host)
	for i := range r.Header {
		if f := &r.Header[i]; !ofConnection(f.Name) {
			b = appendField(b, f.Name, f.Value)
		}
	}
	if r.Upgrade != "" {
		b = appendField(appendField(b, "Connection", "Upgrade"), "Upgrade", r.Upgrade)
	}
	switch {
	case r.Reader != nil && r.Length < 0:
		b = appendField(b, "Transfer-Encoding", "chunked")
	case r.Reader != nil, size > 0, r.Method == "POST", r.Method == "PUT", r.Method == "PATCH":
		if r.Reader != nil {
			size = r.Length
		}
		b = append(strconv.AppendInt(append(b, "Content-Length: "...), size, 10), "\r\n"...)
	}
	return append(b, "\r\n"...)
}

func appendField(b []byte, name, value string) []byte {
	return append(append(append(append(b, name...), ": "...), value...), "\r\n"...)
}

// withoutZone returns a host without the zone of its IPv6 address, which means nothing elsewhere.
func withoutZone(host string) string {
	if i := strings.IndexByte(host, '%'); i >= 0 {
		if end := strings.IndexByte(host[i:], ']'); end >= 0 {
			return host[:i] + host[i+end:]
		}
	}
	return host
}
