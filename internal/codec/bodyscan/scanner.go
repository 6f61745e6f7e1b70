package bodyscan

import (
	"iter"
	"math"

	"github.com/select-service/select-service/internal/codec/msgpack"
)

// MaxDepth is how deep arrays and objects may nest (serde_json, the reader of
// dynamo-kv-router 1.3.1, stops there too).
const MaxDepth = 128

// Scanner reads one body from memory, front to back. Every reader takes
// the next value. The first fault sticks: after it the readers return zero
// values, loops end, and Err returns the fault. The zero Scanner reads an empty
// text; Reset makes it ready for another one. A Scanner is not safe for
// concurrent use.
type Scanner struct {
	data   []byte
	format Format
	pos    int
	depth  int
	err    *Error
	text   []byte // the last decoded string that had escapes
	// entries is the number of array elements announced so far in a msgpack body.
	entries int

	cache     *Cache
	postponed bool // a Late field was
	lateEnd   int  // where the array of a Late field ends, while it is read
}

// Format is the encoding of a body.
type Format uint8

// The formats. Byte strings, which stand for arrays of words, are the only values that msgpack
// has and JSON has not.
const (
	JSON Format = iota
	Msgpack
)

// String is the format's name in faults.
func (f Format) String() string {
	if f == Msgpack {
		return "msgpack"
	}
	return "JSON"
}

// maxKeptText bounds the buffer for decoded strings that survives Reset.
const maxKeptText = 4 << 10

// Reset starts over with another body. The scanner reads it in place; it must
// not change until the last reader has returned.
func (s *Scanner) Reset(format Format, data []byte) {
	text := s.text[:0]
	if cap(text) > maxKeptText {
		text = nil
	}
	*s = Scanner{data: data, format: format, text: text, cache: s.cache}
}

// Err returns the first fault, an *Error, or nil.
func (s *Scanner) Err() error {
	if s.err == nil {
		return nil
	}
	return s.err
}

// End checks that nothing follows (in JSON, except white space) and returns the first
// fault of the whole text.
func (s *Scanner) End() error {
	if s.err == nil {
		if s.format == JSON {
			s.peek()
		}
		if s.pos < len(s.data) {
			s.fail(Syntax, s.pos, "trailing characters")
		}
	}
	return s.Err()
}

// Fail sets a fault of the value that was just read: it is well formed but not acceptable.
func (s *Scanner) Fail(reason string) { s.fail(Shape, s.pos, reason) }

// FailLimit is Fail for a value that exceeds the named limit.
func (s *Scanner) FailLimit(limit, reason string) {
	if s.err == nil {
		s.fail(Shape, s.pos, reason)
		s.err.Limit = limit
	}
}

// FailRemoved is Fail for a member that the service no longer takes.
func (s *Scanner) FailRemoved(reason string) { s.fail(Removed, s.pos, reason) }

// Next skips white space and returns the first byte of the next value, which tells its type. It
// returns 0 at the end of the text and after a fault.
func (s *Scanner) Next() byte {
	if s.err != nil {
		return 0
	}
	return s.peek()
}

// Offset returns the scanner's position in the text: at the next value after Next, behind the
// value after a reader.
func (s *Scanner) Offset() int { return s.pos }

// peek skips white space and returns the byte after it, 0 at the end of the text. A NUL byte in
// the text returns 0 too, but is valid nowhere in JSON.
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

// container is an array or object while its entries are read.
type container struct {
	end   byte // JSON: the closing bracket
	begun bool // JSON: the first entry has come
	left  int  // msgpack: entries still to come
}

// open enters the next value, which must be an array or object as k says.
func (s *Scanner) open(k kind, want string) (c container, ok bool) {
	switch {
	case s.err != nil:
		return c, false
	case s.kind() != k:
		s.failType(want)
		return c, false
	case s.depth == MaxDepth:
		s.fail(Syntax, s.pos, "recursion limit exceeded")
		return c, false
	case s.format == Msgpack:
		return s.openCounted(k)
	case k == object:
		c.end = '}'
	default:
		c.end = ']'
	}
	s.depth++
	s.pos++
	return c, true
}

// more moves to the next entry of an array or object. After the last one it leaves the
// container and returns false.
func (s *Scanner) more(c *container) bool {
	if s.err != nil {
		return false
	}
	if s.format == Msgpack {
		if c.left == 0 {
			s.depth--
			return false
		}
		c.left--
		return true
	}
	switch next := s.peek(); {
	case next == c.end:
		s.pos++
		s.depth--
		return false
	case !c.begun:
		c.begun = true
		return true
	case next == ',':
		s.pos++
		return true
	}
	s.failSyntax("`,` or `" + string(rune(c.end)) + "`")
	return false
}

// key reads a member's name and, in JSON, the colon behind it. The name is valid until the
// next string is read.
func (s *Scanner) key() []byte {
	if s.format == Msgpack {
		return s.mapKey()
	}
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

// Null reads the next value if it is null and reports whether it was.
func (s *Scanner) Null() bool {
	switch {
	case s.err != nil:
		return false
	case s.format == Msgpack:
		r := s.reader()
		null := r.Nil()
		s.pos = r.Pos
		return null
	}
	return s.peek() == 'n' && s.literal("null")
}

// Bool reads true or false.
func (s *Scanner) Bool() bool {
	if s.err != nil {
		return false
	}
	if s.kind() != boolean {
		s.failType("a boolean")
		return false
	}
	if s.format == Msgpack {
		s.pos++
		return s.data[s.pos-1] == msgpack.CodeTrue
	}
	if s.data[s.pos] == 't' {
		return s.literal("true")
	}
	s.literal("false")
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
		c, ok := s.open(array, "an array")
		for i := 0; ok && s.more(&c); i++ {
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

// Map yields the name of each member of the next value, which must be an object with names of
// the caller's choosing; a name may come twice. The name is valid until the next string is
// read. The loop's body reads exactly one value and never breaks.
func (s *Scanner) Map() iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		c, ok := s.open(object, "an object")
		for ok && s.more(&c) {
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

// MapUint32 is Map for names that are unsigned 32-bit integers. As in serde_json, a name that
// is no number is a fault of syntax.
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
	again := Scanner{data: s.data, format: s.format, pos: at}
	return string(again.key())
}

// Value skips the next value, which must be well formed, and returns its text, so that another
// Scanner can read it later.
func (s *Scanner) Value() []byte {
	if s.err != nil {
		return nil
	}
	s.kind() // skip white space
	at := s.pos
	s.Skip()
	return s.data[at:s.pos]
}

// Skip skips the next value, of any type; it must be well formed.
func (s *Scanner) Skip() {
	if s.err != nil {
		return
	}
	switch k := s.kind(); k {
	case object:
		c, ok := s.open(k, "")
		for ok && s.more(&c) {
			s.key()
			s.Skip()
		}
	case array:
		c, ok := s.open(k, "")
		for ok && s.more(&c) {
			s.Skip()
		}
	case text:
		s.skipText()
	case boolean:
		s.Bool()
	case null:
		if !s.Null() {
			s.failSyntax("`null`")
		}
	case number:
		if s.format == Msgpack {
			s.skipScalar()
		} else {
			s.number()
		}
	case byteString, extension:
		s.skipScalar()
	case noValue:
		s.failSyntax("a value")
	}
}
