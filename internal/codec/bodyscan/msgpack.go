package bodyscan

import (
	"encoding/binary"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/select-service/select-service/internal/codec/msgpack"
)

// maxEntries bounds the elements of all arrays of a msgpack body. An element takes at least
// one byte in msgpack and two in JSON. Half of the longest body (8 MiB) makes the bound the
// same in both formats.
const maxEntries = 4 << 20

// reader returns a cursor at the next value of a msgpack body.
func (s *Scanner) reader() msgpack.Reader { return msgpack.Reader{Data: s.data, Pos: s.pos} }

// failIncomplete sets the fault that the text ends inside a value.
func (s *Scanner) failIncomplete() {
	s.fail(Syntax, len(s.data), "end of text, expected the rest of a value")
}

// openCounted enters an array or object of msgpack, which states the number of its entries.
func (s *Scanner) openCounted(k kind) (c container, ok bool) {
	r := s.reader()
	if k == array {
		c.left, ok = r.ArrayLen()
		s.entries += c.left
	} else {
		c.left, ok = r.MapLen()
	}
	switch {
	case !ok:
		s.failIncomplete()
	case s.entries > maxEntries:
		s.Fail("more than " + strconv.Itoa(maxEntries) + " elements of arrays in a body")
	default:
		s.pos = r.Pos
		s.depth++
		return c, true
	}
	return c, false
}

// mapKey reads a member's name. An integer stands for its decimal digits: encoders write maps
// that are keyed by rank like that.
func (s *Scanner) mapKey() []byte {
	switch s.kind() {
	case text:
		return s.packedText()
	case number:
		at := s.pos
		n := s.packedNumber()
		if !n.fraction && s.err == nil {
			s.text = s.text[:0]
			if n.negative {
				s.text = append(s.text, '-')
			}
			s.text = strconv.AppendUint(s.text, n.magnitude, 10)
			return s.text
		}
		s.fail(Syntax, at, "expected a member name")
	default:
		s.failSyntax("a member name")
	}
	return nil
}

// packedText is Text for msgpack. The next value must be a string.
func (s *Scanner) packedText() []byte {
	r := s.reader()
	got, ok := r.Text()
	switch {
	case !ok:
		s.failIncomplete()
		return nil
	case !utf8.Valid(got):
		s.fail(Syntax, s.pos, "invalid UTF-8 in a string")
		return nil
	}
	s.pos = r.Pos
	return got
}

// packedNumber reads a number. The next value must be one.
func (s *Scanner) packedNumber() (n parsed) {
	if s.isFloat() {
		n.fraction = true
		s.packedFloat(64)
		return n
	}
	r := s.reader()
	bits, negative, ok := r.Integer()
	if !ok {
		s.failIncomplete()
		return n
	}
	s.pos = r.Pos
	if n.negative = negative; negative {
		bits = -bits
	}
	n.magnitude = bits
	return n
}

func (s *Scanner) isFloat() bool {
	c := s.data[s.pos]
	return c == msgpack.CodeFloat32 || c == msgpack.CodeFloat64
}

// packedFloat reads a number. The next value must be one. NaN and infinities, which JSON cannot
// express, are faults of syntax, like numbers beyond a float64 in JSON.
func (s *Scanner) packedFloat(bits int) float64 {
	at, r := s.pos, s.reader()
	f, ok := r.Float()
	switch {
	case !ok:
		s.failIncomplete()
		return 0
	case math.IsNaN(f) || math.IsInf(f, 0):
		s.fail(Syntax, at, outOfRange)
		return 0
	case bits == 32 && math.IsInf(float64(float32(f)), 0):
		s.fail(Shape, at, outOfRange)
		return 0
	}
	s.pos = r.Pos
	return f
}

// skipScalar skips a value that is no container.
func (s *Scanner) skipScalar() {
	if s.kind() == number && s.isFloat() {
		s.packedFloat(64)
		return
	}
	r := s.reader()
	if !r.Skip() {
		s.failIncomplete()
		return
	}
	s.pos = r.Pos
}

// words reads the next value if it is a byte string: little-endian words of width bytes, in
// place of an array of unsigned integers. ok reports whether it is one.
func (s *Scanner) words(width int) ([]byte, bool) {
	if s.format != Msgpack || s.err != nil || s.kind() != byteString {
		return nil, false
	}
	r := s.reader()
	words, ok := r.Bytes()
	switch {
	case !ok:
		s.failIncomplete()
		return nil, true
	case len(words)%width != 0:
		s.fail(Shape, s.pos, "invalid length: "+strconv.Itoa(len(words))+" bytes, expected words of "+strconv.Itoa(width))
		return nil, true
	}
	s.pos = r.Pos
	return words, true
}

// packedUint32s is AppendUint32s for msgpack.
func (s *Scanner) packedUint32s(dst []uint32) []uint32 {
	if words, ok := s.words(4); ok {
		dst = slices.Grow(dst, len(words)/4)
		for ; len(words) >= 4; words = words[4:] {
			dst = append(dst, binary.LittleEndian.Uint32(words))
		}
		return dst
	}
	c, ok := s.open(array, "an array")
	if !ok {
		return dst
	}
	dst = slices.Grow(dst, c.left)
	for base := len(dst); ; {
		dst = s.plainPackedUint32s(dst, &c)
		if !s.more(&c) {
			return dst
		}
		v := s.Uint32()
		if s.err != nil {
			s.err.insideElement(len(dst) - base)
			return dst
		}
		dst = append(dst, v)
	}
}

// plainPackedUint32s reads elements that are unsigned integers of up to 32 bits, as long as at
// least 5 bytes of the body are left.
func (s *Scanner) plainPackedUint32s(dst []uint32, c *container) []uint32 {
	data, i := s.data, s.pos
loop:
	for ; c.left > 0 && i+5 <= len(data); c.left-- {
		switch b := data[i]; {
		case b == msgpack.CodeUint16:
			dst = append(dst, uint32(binary.BigEndian.Uint16(data[i+1:])))
			i += 3
		case b == msgpack.CodeUint32:
			dst = append(dst, binary.BigEndian.Uint32(data[i+1:]))
			i += 5
		case b < 0x80:
			dst = append(dst, uint32(b))
			i++
		case b == msgpack.CodeUint8:
			dst = append(dst, uint32(data[i+1]))
			i += 2
		default:
			break loop
		}
	}
	s.pos = i
	return dst
}

// packedHash64s is AppendHash64s for msgpack.
func (s *Scanner) packedHash64s(dst []uint64) []uint64 {
	if words, ok := s.words(8); ok {
		return appendUint64s(dst, words)
	}
	c, ok := s.open(array, "an array")
	if !ok {
		return dst
	}
	dst = slices.Grow(dst, c.left)
	for base := len(dst); ; {
		dst = s.plainPackedHash64s(dst, &c)
		if !s.more(&c) {
			return dst
		}
		v := s.Hash64()
		if s.err != nil {
			s.err.insideElement(len(dst) - base)
			return dst
		}
		dst = append(dst, v)
	}
}

// plainPackedHash64s reads elements that are encoded with 64 bits.
func (s *Scanner) plainPackedHash64s(dst []uint64, c *container) []uint64 {
	data, i := s.data, s.pos
	for ; c.left > 0 && i+9 <= len(data) && (data[i] == msgpack.CodeUint64 || data[i] == msgpack.CodeInt64); c.left-- {
		dst = append(dst, binary.BigEndian.Uint64(data[i+1:]))
		i += 9
	}
	s.pos = i
	return dst
}

func appendUint64s(dst []uint64, words []byte) []uint64 {
	dst = slices.Grow(dst, len(words)/8)
	for ; len(words) >= 8; words = words[8:] {
		dst = append(dst, binary.LittleEndian.Uint64(words))
	}
	return dst
}
