package http1

import (
	"iter"
	"net/http"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// Field is a header field, or a trailer field.
type Field struct{ Name, Value string }

// Header has fields in the order in which they come. Names are compared without case.
type Header []Field

// Get returns the value of the first field of a name, "" if there is none.
func (h Header) Get(name string) string {
	for i := range h {
		if strings.EqualFold(h[i].Name, name) {
			return h[i].Value
		}
	}
	return ""
}

// Values yields the values of all fields of a name.
func (h Header) Values(name string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for i := range h {
			if strings.EqualFold(h[i].Name, name) && !yield(h[i].Value) {
				return
			}
		}
	}
}

// HasToken reports whether a field of a name, a list with commas, has a token. Both are compared without
// case.
func (h Header) HasToken(name, token string) bool {
	for value := range h.Values(name) {
		if hasToken(value, token) {
			return true
		}
	}
	return false
}

// hasToken reports whether a list with commas has a token.
func hasToken(list, token string) bool {
	for part := range strings.SplitSeq(list, ",") {
		if strings.EqualFold(strings.Trim(part, " \t"), token) {
			return true
		}
	}
	return false
}

// AddTo adds the fields to a header of net/http for which keep is true; nil: all.
func (h Header) AddTo(to http.Header, keep func(name string) bool) {
	for i := range h {
		if keep == nil || keep(h[i].Name) {
			to.Add(h[i].Name, h[i].Value)
		}
	}
}

// ofConnection reports whether a field is about one connection or the framing of one message (RFC 9110,
// section 7.6.1). A client writes these itself, if at all, and never passes on those that it is given.
func ofConnection(name string) bool {
	switch len(name) {
	case len("TE"):
		return strings.EqualFold(name, "TE")
	case len("Host"):
		return strings.EqualFold(name, "Host")
	case len("Expect"):
		return strings.EqualFold(name, "Expect")
	case len("Trailer"): // and Upgrade
		return strings.EqualFold(name, "Trailer") || strings.EqualFold(name, "Upgrade")
	case len("Connection"): // and Keep-Alive
		return strings.EqualFold(name, "Connection") || strings.EqualFold(name, "Keep-Alive")
	case len("Content-Length"):
		return strings.EqualFold(name, "Content-Length")
	case len("Proxy-Connection"):
		return strings.EqualFold(name, "Proxy-Connection")
	case len("Transfer-Encoding"):
		return strings.EqualFold(name, "Transfer-Encoding")
	}
	return false
}

// isToken reports whether a text is a token (RFC 9110, section 5.6.2), which names of fields and methods are.
func isToken(text string) bool { return httpguts.ValidHeaderFieldName(text) }

// isValue reports whether a text may be the value of a field: it has no control character but tabs.
func isValue(text string) bool {
	for i := range len(text) {
		if c := text[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}
