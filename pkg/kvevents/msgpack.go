package kvevents

import (
	"encoding/binary"
	"math"
)

// maxDepth is how deep values may nest where they are skipped. Engines nest six
// levels (batch, events, event, extra keys, block, key).
const maxDepth = 64

// reader is a cursor over one msgpack message. It never reads outside b, and it
// believes no length that the rest of b could not hold, so that a caller may
// allocate in proportion to any length it returns.
//
// Every method that reads a value reports whether it was of the right type and
// complete; if not, the cursor is anywhere: go back and skip the value, which
// tells a wrong type (skip succeeds) from a broken message (it does not).
type reader struct {
	b []byte
	i int
}

// peek returns the first byte of the next value, or msgpack's one unused code
// at the end of the message.
func (r *reader) peek() byte {
	if r.i < len(r.b) {
		return r.b[r.i]
	}
	return codeNever
}

// next consumes the first byte of the next value; at the end of the message it
// stays and gives msgpack's one unused code.
func (r *reader) next() byte {
	c := r.peek()
	if r.i < len(r.b) {
		r.i++
	}
	return c
}

// Type codes of the msgpack specification.
const (
	codeNil    = 0xc0
	codeNever  = 0xc1
	codeFalse  = 0xc2
	codeTrue   = 0xc3
	codeBin8   = 0xc4
	codeBin16  = 0xc5
	codeBin32  = 0xc6
	codeExt8   = 0xc7
	codeExt32  = 0xc9
	codeFloat  = 0xca
	codeDouble = 0xcb
	codeUint8  = 0xcc
	codeUint16 = 0xcd
	codeUint32 = 0xce
	codeUint64 = 0xcf
	codeInt8   = 0xd0
	codeInt16  = 0xd1
	codeInt32  = 0xd2
	codeInt64  = 0xd3
	codeFixExt = 0xd4 // … 0xd8, for 1, 2, 4, 8, 16 bytes
	codeStr8   = 0xd9
	codeStr16  = 0xda
	codeStr32  = 0xdb
	codeArr16  = 0xdc
	codeArr32  = 0xdd
	codeMap16  = 0xde
	codeMap32  = 0xdf
)

// take returns the next n bytes.
func (r *reader) take(n uint64) ([]byte, bool) {
	if n > uint64(len(r.b)-r.i) {
		return nil, false
	}
	p := r.b[r.i : r.i+int(n)]
	r.i += int(n)
	return p, true
}

// big reads an n-byte big-endian number, n being 1, 2, 4 or 8.
func (r *reader) big(n uint64) (uint64, bool) {
	p, ok := r.take(n)
	if !ok {
		return 0, false
	}
	switch n {
	case 1:
		return uint64(p[0]), true
	case 2:
		return uint64(binary.BigEndian.Uint16(p)), true
	case 4:
		return uint64(binary.BigEndian.Uint32(p)), true
	}
	return binary.BigEndian.Uint64(p), true
}

// takeNil consumes a nil if that is the next value.
func (r *reader) takeNil() bool {
	if r.peek() != codeNil {
		return false
	}
	r.i++
	return true
}

// array reads an array's header and returns its length.
func (r *reader) array() (int, bool) {
	c := r.next()
	switch {
	case c&0xf0 == 0x90:
		return r.held(uint64(c&0x0f), 1)
	case c == codeArr16, c == codeArr32:
		n, ok := r.big(2 << (c - codeArr16))
		if !ok {
			return 0, false
		}
		return r.held(n, 1)
	}
	return 0, false
}

// dict reads a map's header and returns its number of pairs.
func (r *reader) dict() (int, bool) {
	c := r.next()
	switch {
	case c&0xf0 == 0x80:
		return r.held(uint64(c&0x0f), 2)
	case c == codeMap16, c == codeMap32:
		n, ok := r.big(2 << (c - codeMap16))
		if !ok {
			return 0, false
		}
		return r.held(n, 2)
	}
	return 0, false
}

// held passes n on if the rest of the message can hold n elements of at least
// width bytes.
func (r *reader) held(n, width uint64) (int, bool) {
	if n*width > uint64(len(r.b)-r.i) { // n < 2^32: no overflow
		return 0, false
	}
	return int(n), true
}

// text reads a string; the bytes are those of the message.
func (r *reader) text() ([]byte, bool) {
	c := r.next()
	switch {
	case c&0xe0 == 0xa0:
		return r.take(uint64(c & 0x1f))
	case c >= codeStr8 && c <= codeStr32:
		n, ok := r.big(1 << (c - codeStr8))
		if !ok {
			return nil, false
		}
		return r.take(n)
	}
	return nil, false
}

// bin reads a byte string; the bytes are those of the message.
func (r *reader) bin() ([]byte, bool) {
	c := r.peek()
	if c < codeBin8 || c > codeBin32 {
		return nil, false
	}
	r.i++
	n, ok := r.big(1 << (c - codeBin8))
	if !ok {
		return nil, false
	}
	return r.take(n)
}

// integer reads an integer of any width: its 64 bits in two's complement, and
// whether it is below zero.
func (r *reader) integer() (bits uint64, negative, ok bool) {
	c := r.next()
	switch {
	case c < 0x80:
		return uint64(c), false, true
	case c >= 0xe0:
		return uint64(int64(int8(c))), true, true
	case c >= codeUint8 && c <= codeUint64:
		bits, ok = r.big(1 << (c - codeUint8))
		return bits, false, ok
	case c >= codeInt8 && c <= codeInt64:
		width := uint64(1) << (c - codeInt8)
		bits, ok = r.big(width)
		unused := 64 - 8*width
		v := int64(bits<<unused) >> unused
		return uint64(v), v < 0, ok
	}
	return 0, false, false
}

// u32 reads an integer in [0, 2^32).
func (r *reader) u32() (uint32, bool) {
	v, negative, ok := r.integer()
	return uint32(v), ok && !negative && v <= math.MaxUint32
}

// number reads an integer or a float as a float.
func (r *reader) number() (float64, bool) {
	switch r.peek() {
	case codeFloat:
		r.i++
		v, ok := r.big(4)
		return float64(math.Float32frombits(uint32(v))), ok
	case codeDouble:
		r.i++
		v, ok := r.big(8)
		return math.Float64frombits(v), ok
	}
	v, negative, ok := r.integer()
	if negative {
		return float64(int64(v)), ok
	}
	return float64(v), ok
}

// skip passes over one value of any type. It fails at the end of the message,
// at the unused code, and below maxDepth.
func (r *reader) skip() bool {
	var open [maxDepth]uint64 // values still to come in each open container
	depth := 0
	open[0] = 1
	for depth >= 0 {
		if open[depth] == 0 {
			depth--
			continue
		}
		open[depth]--
		inner, ok := r.skipOne()
		if !ok {
			return false
		}
		if inner > 0 {
			if depth++; depth == maxDepth {
				return false
			}
			open[depth] = inner
		}
	}
	return true
}

// skipOne passes over a scalar, or over a container's header, whose number of
// inner values it returns.
func (r *reader) skipOne() (inner uint64, ok bool) {
	c := r.peek()
	switch {
	case c < 0x80, c >= 0xe0, c == codeNil, c == codeFalse, c == codeTrue:
		r.i++
		return 0, true
	case c&0xf0 == 0x80, c == codeMap16, c == codeMap32:
		n, ok := r.dict()
		return 2 * uint64(n), ok
	case c&0xf0 == 0x90, c == codeArr16, c == codeArr32:
		n, ok := r.array()
		return uint64(n), ok
	case c&0xe0 == 0xa0, c >= codeStr8 && c <= codeStr32:
		_, ok = r.text()
	case c >= codeBin8 && c <= codeBin32:
		_, ok = r.bin()
	case c >= codeUint8 && c <= codeInt64:
		_, _, ok = r.integer()
	case c == codeFloat, c == codeDouble:
		_, ok = r.number()
	case c >= codeExt8 && c <= codeExt32:
		r.i++
		var n uint64
		if n, ok = r.big(1 << (c - codeExt8)); ok {
			_, ok = r.take(n + 1) // the extension's type comes first
		}
	case c >= codeFixExt && c < codeStr8:
		r.i++
		_, ok = r.take(1 + 1<<(c-codeFixExt))
	}
	return 0, ok
}
