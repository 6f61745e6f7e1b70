package jsonscan

import (
	"iter"
	"math"
)

// MaxDepth is how deep arrays and objects may nest (serde_json, the reader of
// dynamo-kv-router 1.3.1, stops there too).
const MaxDepth = 128

// Scanner reads one JSON text from memory, front to back. Every reader takes
// the next value. The first fault sticks: after it the readers return zero
// values, loops end, and Err returns the fault. The zero Scanner reads an empty
// text; Reset makes it ready for another one. A Scanner is not safe for
// concurrent use.
type Scanner struct {
	data  []byte
	pos   int
	depth int
	err   *Error
	text  []byte // the last string that had escapes, decoded
}

// maxKeptText bounds the buffer for decoded strings that survives Reset.
const maxKeptText = 4 << 10

// Reset starts over with another text. The scanner reads it in place; it must
// not change until the last reader has returned.
func (s *Scanner) Reset(data []byte) {
	text := s.text[:0]
	if cap(text) > maxKeptText {
		text = nil
	}
	*s = Scanner{data: data, text: text}
}

// Err returns the first fault, an *Error, or nil.
func (s *Scanner) Err() error {
	if s.err == nil {
		return nil
	}
	return s.err
}

// End checks that only white space follows, and returns the first fault of the
// whole text.
func (s *Scanner) End() error {
	if s.err == nil {
		if s.peek(); s.pos < len(s.data) {
			s.fail(Syntax, s.pos, "trailing characters")
		}
	}
	return s.Err()
}

// Fail reports a fault of the value that was just read: it is well formed but
// not acceptable.
func (s *Scanner) Fail(reason string) { s.fail(Shape, s.pos, reason) }

// FailLimit is Fail for a value that exceeds the named limit.
func (s *Scanner) FailLimit(limit, reason string) {
	if s.err == nil {
		s.fail(Shape, s.pos, reason)
		s.err.Limit = limit
	}
}

// Next passes white space and returns the first byte of the next value, which says of
// what type it is; 0 at the end of the text and after a fault.
func (s *Scanner) Next() byte {
	if s.err != nil {
		return 0
	}
	return s.peek()
}

// Offset returns where in the text the scanner stands: after Next at the next value,
// after a reader behind the value that it has read.
func (s *Scanner) Offset() int { return s.pos }

// peek passes white space and returns the byte after it, 0 at the end of the
// text. (A NUL byte in the text is no JSON anywhere, so it cannot be mistaken.)
func (s *Scanner) peek() byte {
	for s.pos < len(s.data) {
		switch c := s.data[s.pos]; c {
		case ' ', '\t', '\n', '\r':
			s.pos++
		default:
			return c
		}
	}
	return 0
}

// open enters an array or object.
func (s *Scanner) open(bracket byte, want string) bool {
	if s.err != nil {
		return false
	}
	if s.peek() != bracket {
		s.failType(want)
		return false
	}
	if s.depth == MaxDepth {
		s.fail(Syntax, s.pos, "recursion limit exceeded")
		return false
	}
	s.depth++
	s.pos++
	return true
}

// more goes on to the next entry of the array or object that bracket closes; it
// leaves the container and returns false behind the last one.
func (s *Scanner) more(bracket byte, first bool) bool {
	if s.err != nil {
		return false
	}
	switch c := s.peek(); {
	case c == bracket:
		s.pos++
		s.depth--
		return false
	case first:
		return true
	case c == ',':
		s.pos++
		return true
	}
	s.failSyntax("`,` or `" + string(rune(bracket)) + "`")
	return false
}

// key reads a member's name and the colon behind it. The name is borrowed until
// the next string is read.
func (s *Scanner) key() []byte {
	if s.peek() != '"' {
		s.failSyntax("a member name")
		return nil
	}
	k := s.Text()
	if s.err != nil {
		return nil
	}
	if s.peek() != ':' {
		s.failSyntax("`:`")
		return nil
	}
	s.pos++
	return k
}

// Null takes the next value if it is null and reports whether it was.
func (s *Scanner) Null() bool {
	if s.err != nil || s.peek() != 'n' {
		return false
	}
	return s.literal("null")
}

// Bool reads true or false.
func (s *Scanner) Bool() bool {
	if s.err != nil {
		return false
	}
	switch s.peek() {
	case 't':
		return s.literal("true")
	case 'f':
		s.literal("false")
	default:
		s.failType("a boolean")
	}
	return false
}

func (s *Scanner) literal(word string) bool {
	rest := s.data[s.pos:]
	if len(rest) >= len(word) && string(rest[:len(word)]) == word {
		s.pos += len(word)
		return true
	}
	s.failSyntax("`" + word + "`")
	return false
}

// Array yields the index of each element of the next value, which must be an
// array. The loop's body reads exactly one value and never breaks.
func (s *Scanner) Array() iter.Seq[int] {
	return func(yield func(int) bool) {
		if !s.open('[', "an array") {
			return
		}
		for i := 0; s.more(']', i == 0); i++ {
			if !yield(i) {
				return
			}
			if s.err != nil {
				s.err.insideElement(i)
				return
			}
		}
	}
}

// Map yields the name of each member of the next value, which must be an
// object with names of the caller's choosing; a name may come twice. The name
// is borrowed until the next string is read. The loop's body reads exactly one
// value and never breaks.
func (s *Scanner) Map() iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		if !s.open('{', "an object") {
			return
		}
		for first := true; s.more('}', first); first = false {
			at := s.pos
			k := s.key()
			if s.err != nil || !yield(k) {
				return
			}
			if s.err != nil {
				s.err.inside(s.nameAt(at))
				return
			}
		}
	}
}

// MapUint32 is Map for names that are unsigned 32-bit integers. As serde_json
// has it, a name that is no number at all is a fault of syntax.
func (s *Scanner) MapUint32() iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		for name := range s.Map() {
			n := s.nameUint32(name)
			if s.err != nil {
				continue // Map ends the loop
			}
			if !yield(n) {
				return
			}
		}
	}
}

func (s *Scanner) nameUint32(name []byte) uint32 {
	in := Scanner{data: name}
	if len(name) == 0 || name[0] != '-' && !isDigit(name[0]) {
		s.fail(Syntax, s.pos, "member name is not a number")
		return 0
	}
	n := in.number()
	switch {
	case in.err != nil || in.pos < len(name):
		s.fail(Syntax, s.pos, "member name is not a number")
	case n.fraction || n.negative || n.overflow || n.magnitude > math.MaxUint32:
		s.fail(Shape, s.pos, "member name is not an unsigned 32-bit integer")
	}
	return uint32(n.magnitude)
}

// nameAt reads the member name at an offset again, for a fault's path.
func (s *Scanner) nameAt(at int) string {
	again := Scanner{data: s.data, pos: at}
	again.peek()
	return again.String()
}

// Skip passes the next value, whatever it is; it must be well formed.
func (s *Scanner) Skip() {
	if s.err != nil {
		return
	}
	switch c := s.peek(); c {
	case '{':
		s.open('{', "")
		for first := true; s.more('}', first); first = false {
			s.key()
			s.Skip()
		}
	case '[':
		s.open('[', "")
		for first := true; s.more(']', first); first = false {
			s.Skip()
		}
	case '"':
		s.skipText()
	case 't':
		s.literal("true")
	case 'f':
		s.literal("false")
	case 'n':
		s.literal("null")
	default:
		if c != '-' && !isDigit(c) {
			s.failSyntax("a value")
			return
		}
		s.number()
	}
}
