package recovery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"unicode/utf8"
)

// Bounds of what the scanner holds or follows.
const (
	defaultWindow = 256 << 10
	// maxText is the length of the longest string that is read, in bytes: the key of
	// an entry has a model's and a tenant's name. Longer ones are skipped.
	maxText = 64 << 10
	// maxDepth is how deep skipped values may nest (serde_json, which
	// reads dumps in dynamo-kv-router 1.3.1, stops there too).
	maxDepth = 128
)

// errSyntax is the error of a dump that is not JSON.
var errSyntax = errors.New("malformed JSON")

// scanner reads JSON from a stream through a window of fixed size. A method
// that reads a value of one type skips values of other types, so that reading
// can continue after a value that cannot be used. The first error is kept: from
// then on methods return zero values and loops end.
type scanner struct {
	ctx      context.Context // of the one Read that the scanner serves
	in       io.Reader
	buf      []byte
	pos, end int   // bounds of the part of buf that is not read yet
	base     int64 // offset of buf in the stream
	keepFrom int   // buf is kept from here on, so that it can be read again; -1: nothing is kept
	atStart  bool  // a container has been entered and none of its elements read
	eof      bool  // the stream has ended without an error
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

// fill reads more of the stream into the window; pos may change. If there is no
// more, it sets err and returns false. The unread part of the window must be shorter
// than the window.
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

// slide makes room at the end of the window. The part from keepFrom on is given
// up if it fills the window.
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

// finish checks that nothing but white space follows the value that was read.
func (s *scanner) finish() {
	switch {
	case s.err != nil:
	case s.next() != 0 || s.err == nil:
		s.fail(errSyntax)
	case s.eof:
		s.err = nil
	}
}

// next skips white space and returns the byte after it, 0 at the end.
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

// enter enters an array or object, given its opening bracket. If the next value is
// something else, it is skipped and the result is false.
func (s *scanner) enter(bracket byte) bool {
	if s.next() != bracket {
		s.skip()
		return false
	}
	s.pos++
	s.atStart = true
	return s.err == nil
}

// more goes to the next element of the container that bracket closes. After the
// last one it leaves the container and returns false.
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

// name reads the name of a member and the colon after it. The result is valid
// until the next call of a reading method. It is empty for a name that is too
// long or no valid text.
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

// text reads a string, which is valid until the next call of a reading method.
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
			n++ // the next byte is escaped, so that a quote does not end the string
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

// unquote decodes a string that is still in its quotes.
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

// skipText skips the rest of a string.
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

// skip skips a value of any type and size. It checks brackets and strings only.
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

// skipWord skips a number or a literal.
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

// uint reads an integer from 0 to limit.
func (s *scanner) uint(limit uint64) (v uint64, ok bool) {
	v, negative, ok := s.integer()
	return v, ok && !negative && v <= limit
}

// hash reads the 64 bits of a hash, written as a signed or as an unsigned
// integer: -1 and 18446744073709551615 are the same hash (decision D14).
func (s *scanner) hash() (v uint64, ok bool) {
	v, negative, ok := s.integer()
	if negative {
		return -v, ok && v <= 1<<63
	}
	return v, ok
}

// null skips the next value if it is null, and reports whether it was.
func (s *scanner) null() bool {
	if s.next() != 'n' {
		return false
	}
	s.skipWord()
	return true
}

// integer reads an integer. Any other value is skipped and not ok.
func (s *scanner) integer() (magnitude uint64, negative, ok bool) {
	c := s.next()
	if c == '-' {
		negative = true
		s.pos++
		if s.pos == s.end && !s.fill() {
			return 0, false, false
		}
		c = s.buf[s.pos]
	}
	if c-'0' > 9 {
		s.skip()
		return 0, false, false
	}
	ok = true
	for {
		if s.pos == s.end && !s.fill() {
			return 0, false, false
		}
		d := uint64(s.buf[s.pos]) - '0'
		if d > 9 {
			break
		}
		if magnitude > (math.MaxUint64-d)/10 {
			ok = false
		}
		magnitude = magnitude*10 + d
		s.pos++
	}
	switch s.buf[s.pos] {
	case '.', 'e', 'E', '+', '-':
		s.skipWord()
		ok = false
	}
	return magnitude, negative, ok
}

// A block as every known peer writes it.
const (
	blockStart  = `{"block_hash":`
	blockMiddle = `,"tokens_hash":`
	blockEnd    = `,"mm_extra_info":null}`
	longBlock   = len(blockStart) + 20 + len(blockMiddle) + 20 + len(blockEnd)
)

// block reads a block in the usual form. If the next value has another form or
// is not wholly in the window, it reads nothing and ok is false.
func (s *scanner) block() (name, local uint64, ok bool) {
	b := s.buf[s.pos:s.end]
	if len(b) < longBlock+1 || string(b[:len(blockStart)]) != blockStart {
		return 0, 0, false
	}
	at := len(blockStart)
	name, n := decimal(b[at:])
	at += n
	if n == 0 || string(b[at:at+len(blockMiddle)]) != blockMiddle {
		return 0, 0, false
	}
	at += len(blockMiddle)
	local, n = decimal(b[at:])
	at += n
	if n == 0 || string(b[at:at+len(blockEnd)]) != blockEnd {
		return 0, 0, false
	}
	s.pos += at + len(blockEnd)
	return name, local, true
}

// decimal reads the number at the beginning of b. n is its length in bytes, 0 if there
// is no number of at most 64 bits. The number must end before b does, unless b has at
// least 20 bytes.
func decimal(b []byte) (v uint64, n int) {
	b = b[:min(len(b), 20)]
	for n < len(b) && n < 19 {
		d := b[n] - '0'
		if d > 9 {
			return v, n
		}
		v = v*10 + uint64(d)
		n++
	}
	if n < len(b) && b[n]-'0' <= 9 {
		d := uint64(b[n] - '0')
		if v > (math.MaxUint64-d)/10 {
			return 0, 0
		}
		v = v*10 + d
		n++
	}
	return v, n
}
