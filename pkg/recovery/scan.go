package recovery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"
)

// Bounds of what the scanner holds or follows.
const (
	windowSize = 256 << 10
	// maxText is the longest string that is read: the key of an entry has a
	// model's and a tenant's name. Longer ones are passed.
	maxText = 64 << 10
	// maxDepth is how deep values that nobody wants may nest (serde_json, which
	// reads dumps in dynamo-kv-router 1.3.1, stops there too).
	maxDepth = 128
)

// errSyntax is the error of a dump that is no JSON.
var errSyntax = errors.New("malformed JSON")

// scanner reads JSON from a stream through a window of fixed size. Readers of a
// value pass it if it is of another type, so that a reader can go on behind a
// value that it cannot use. The first error sticks: then readers return zero
// values and loops end.
type scanner struct {
	ctx      context.Context // of the one Read that the scanner serves
	in       io.Reader
	buf      []byte
	pos, end int   // of what is not read yet
	base     int64 // offset of the window in the stream
	keepFrom int   // from here on the window must not move; -1 for none
	atStart  bool  // a container was entered and nothing read of it
	eof      bool  // the stream has ended, not broken off
	err      error
}

func newScanner(ctx context.Context, in io.Reader, window int) *scanner {
	return &scanner{ctx: ctx, in: in, buf: make([]byte, window), keepFrom: -1}
}

func (s *scanner) offset() int64 { return s.base + int64(s.pos) }

func (s *scanner) fail(err error) {
	if s.err == nil {
		s.err = fmt.Errorf("offset %d: %w", s.offset(), err)
	}
}

// fill brings more of the stream into the window; pos may move with it. It is
// false, and err set, if there is no more. Whoever calls it has read everything,
// or a part that is shorter than the window.
func (s *scanner) fill() bool {
	if s.err != nil {
		return false
	}
	if err := s.ctx.Err(); err != nil {
		s.fail(err)
		return false
	}
	if s.end == len(s.buf) {
		s.slide()
	}
	for range 100 { // empty reads in a row
		n, err := s.in.Read(s.buf[s.end:])
		s.end += n
		if n > 0 {
			return true
		}
		if err == io.EOF { // a wrapped one is an error of the stream
			s.eof = true
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			s.fail(err)
			return false
		}
	}
	s.fail(io.ErrNoProgress)
	return false
}

// slide makes room at the window's end. What is kept goes if it fills the window.
func (s *scanner) slide() {
	from := s.pos
	if s.keepFrom > 0 {
		from = s.keepFrom
	} else if s.keepFrom == 0 {
		s.keepFrom = -1
	}
	s.end = copy(s.buf, s.buf[from:s.end])
	s.pos -= from
	s.base += int64(from)
	if s.keepFrom > 0 {
		s.keepFrom = 0
	}
}

// finish checks that nothing follows the value that was read.
func (s *scanner) finish() {
	switch {
	case s.err != nil:
	case s.next() != 0 || s.err == nil:
		s.fail(errSyntax)
	case s.eof:
		s.err = nil
	}
}

// next passes white space and returns the byte after it, 0 at the end.
func (s *scanner) next() byte {
	for {
		for s.pos < s.end {
			switch c := s.buf[s.pos]; c {
			case ' ', '\t', '\n', '\r':
				s.pos++
			default:
				return c
			}
		}
		if !s.fill() {
			return 0
		}
	}
}

// enter goes into an array or object. If the value is something else, it is
// passed and the answer false.
func (s *scanner) enter(bracket byte) bool {
	if s.next() != bracket {
		s.skip()
		return false
	}
	s.pos++
	s.atStart = true
	return s.err == nil
}

// more goes on to the next entry of the container that bracket closes; it leaves
// the container and is false behind the last one.
func (s *scanner) more(bracket byte) bool {
	c := s.next()
	fresh := s.atStart
	s.atStart = false
	switch {
	case s.err != nil:
		return false
	case c == bracket:
		s.pos++
		return false
	case fresh:
		return true
	case c == ',':
		s.pos++
		return true
	}
	s.fail(errSyntax)
	return false
}

// name reads the name of a member and the colon behind it. It is borrowed until
// the next reader is called. A name that is too long, or no text, is empty.
func (s *scanner) name() []byte {
	if s.next() != '"' {
		s.fail(errSyntax)
		return nil
	}
	text, ok := s.text()
	if !ok {
		text = nil
	}
	if s.pos < s.end && s.buf[s.pos] == ':' {
		s.pos++
		return text
	}
	text = append([]byte(nil), text...) // the window may move
	if s.next() != ':' {
		s.fail(errSyntax)
		return nil
	}
	s.pos++
	return text
}

// text reads a string, which is borrowed until the next reader is called.
func (s *scanner) text() (text []byte, ok bool) {
	if s.next() != '"' {
		s.skip()
		return nil, false
	}
	escaped := false
	for n := 1; ; n++ {
		if s.pos+n == s.end && !s.fill() {
			return nil, false
		}
		switch c := s.buf[s.pos+n]; {
		case c == '"':
			raw := s.buf[s.pos : s.pos+n+1]
			s.pos += n + 1
			return unquote(raw, escaped)
		case c < ' ':
			s.fail(errSyntax)
			return nil, false
		case c == '\\':
			escaped = true
			n++ // a quote behind it is none
			if s.pos+n == s.end && !s.fill() {
				return nil, false
			}
		}
		if n >= maxText {
			s.pos += n
			s.pos++
			s.skipText()
			return nil, false
		}
	}
}

// unquote decodes a string with its quotes.
func unquote(raw []byte, escaped bool) (text []byte, ok bool) {
	if !escaped {
		text = raw[1 : len(raw)-1]
		return text, utf8.Valid(text)
	}
	var decoded string
	if json.Unmarshal(raw, &decoded) != nil {
		return nil, false
	}
	return []byte(decoded), true
}

// skipText passes the rest of a string.
func (s *scanner) skipText() {
	for {
		for s.pos < s.end {
			switch c := s.buf[s.pos]; {
			case c == '"':
				s.pos++
				return
			case c < ' ':
				s.fail(errSyntax)
				return
			case c == '\\':
				s.pos++
				if s.pos == s.end && !s.fill() {
					return
				}
			}
			s.pos++
		}
		if !s.fill() {
			return
		}
	}
}

// skip passes a value of any type and size. It checks brackets and strings only.
func (s *scanner) skip() {
	var open [maxDepth]byte
	depth := 0
	for {
		switch c := s.next(); c {
		case '{', '[':
			if depth == maxDepth {
				s.fail(errSyntax)
				return
			}
			open[depth] = c + 2 // the bracket that closes it, in ASCII
			depth++
			s.pos++
		case '}', ']':
			if depth == 0 || open[depth-1] != c {
				s.fail(errSyntax)
				return
			}
			depth--
			s.pos++
		case ',', ':':
			if depth == 0 {
				s.fail(errSyntax)
				return
			}
			s.pos++
		case '"':
			s.pos++
			s.skipText()
		default:
			s.skipWord()
		}
		if s.err != nil || depth == 0 {
			return
		}
	}
}

// skipWord passes a number or a literal.
func (s *scanner) skipWord() {
	for n := 0; ; n++ {
		if s.pos == s.end && !s.fill() {
			return
		}
		switch c := s.buf[s.pos]; {
		case '0' <= c && c <= '9', 'a' <= c && c <= 'z', c == '-', c == '+', c == '.', c == 'E':
			s.pos++
		case n == 0:
			s.fail(errSyntax)
			return
		default:
			return
		}
	}
}
