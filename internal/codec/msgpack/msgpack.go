package msgpack

import (
	"encoding/binary"
	"math"
)

// maxDepth bounds the nesting of values for Skip. KV events nest six levels (batch, events,
// event, extra keys, block, key).
const maxDepth = 64

// Reader is a cursor over one message.
//
// Every method that reads a value reports whether the value was of the right type and complete.
// If not, Pos is undefined: set it back to the start of the value and call Skip, which succeeds
// for a value of another type and fails for a broken message.
type Reader struct {
	Data []byte // the message
	Pos  int    // of the next byte to read, 0 to len(Data)
}

// Peek returns the first byte of the next value, or CodeNever at the end of the
// message.
func (r *Reader) Peek() byte {
	if r.Pos < len(r.Data) {
		return r.Data[r.Pos]
	}
	return CodeNever
}

// next consumes the first byte of the next value. At the end of the message it
// consumes nothing and returns CodeNever.
func (r *Reader) next() byte {
	c := r.Peek()
	if r.Pos < len(r.Data) {
		r.Pos++
	}
	return c
}

// First bytes of values, as the specification names them. Those that stand for
// a value or a length themselves are not listed.
const (
	CodeNil     = 0xc0
	CodeNever   = 0xc1 // has no meaning
	CodeFalse   = 0xc2
	CodeTrue    = 0xc3
	CodeBin8    = 0xc4
	CodeBin16   = 0xc5
	CodeBin32   = 0xc6
	CodeExt8    = 0xc7
	CodeExt32   = 0xc9
	CodeFloat32 = 0xca
	CodeFloat64 = 0xcb
	CodeUint8   = 0xcc
	CodeUint16  = 0xcd
	CodeUint32  = 0xce
	CodeUint64  = 0xcf
	CodeInt8    = 0xd0
	CodeInt16   = 0xd1
	CodeInt32   = 0xd2
	CodeInt64   = 0xd3
	CodeFixExt1 = 0xd4 // to 0xd8, of 1, 2, 4, 8 and 16 bytes
	CodeStr8    = 0xd9
	CodeStr16   = 0xda
	CodeStr32   = 0xdb
	CodeArray16 = 0xdc
	CodeArray32 = 0xdd
	CodeMap16   = 0xde
	CodeMap32   = 0xdf
)

// IsArray reports whether the next value is an array.
func (r *Reader) IsArray() bool {
	c := r.Peek()
	return c&0xf0 == 0x90 || c == CodeArray16 || c == CodeArray32
}

// IsMap reports whether the next value is a map.
func (r *Reader) IsMap() bool {
	c := r.Peek()
	return c&0xf0 == 0x80 || c == CodeMap16 || c == CodeMap32
}

// IsText reports whether the next value is a string.
func (r *Reader) IsText() bool {
	c := r.Peek()
	return c&0xe0 == 0xa0 || c >= CodeStr8 && c <= CodeStr32
}

// take returns the next n bytes.
func (r *Reader) take(n uint64) ([]byte, bool) {
	if n > uint64(len(r.Data)-r.Pos) {
		return nil, false
	}
	p := r.Data[r.Pos : r.Pos+int(n)]
	r.Pos += int(n)
	return p, true
}

// big reads a big-endian number of n bytes: 1, 2, 4 or 8.
func (r *Reader) big(n uint64) (uint64, bool) {
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

// Nil consumes a nil if that is the next value.
func (r *Reader) Nil() bool {
	if r.Peek() != CodeNil {
		return false
	}
	r.Pos++
	return true
}

// ArrayLen reads the header of an array and returns its length.
func (r *Reader) ArrayLen() (int, bool) {
	c := r.next()
	switch {
	case c&0xf0 == 0x90:
		return r.fits(uint64(c&0x0f), 1)
	case c == CodeArray16, c == CodeArray32:
		n, ok := r.big(2 << (c - CodeArray16))
		if !ok {
			return 0, false
		}
		return r.fits(n, 1)
	}
	return 0, false
}

// MapLen reads the header of a map and returns its number of pairs.
func (r *Reader) MapLen() (int, bool) {
	c := r.next()
	switch {
	case c&0xf0 == 0x80:
		return r.fits(uint64(c&0x0f), 2)
	case c == CodeMap16, c == CodeMap32:
		n, ok := r.big(2 << (c - CodeMap16))
		if !ok {
			return 0, false
		}
		return r.fits(n, 2)
	}
	return 0, false
}

// fits returns n if the rest of the message can hold n elements of at least
// width bytes each.
func (r *Reader) fits(n, width uint64) (int, bool) {
	if n*width > uint64(len(r.Data)-r.Pos) { // n < 2^32: no overflow
		return 0, false
	}
	return int(n), true
}

// Text reads a string, which need not be UTF-8. The bytes are those of the message.
func (r *Reader) Text() ([]byte, bool) {
	c := r.next()
	switch {
	case c&0xe0 == 0xa0:
		return r.take(uint64(c & 0x1f))
	case c >= CodeStr8 && c <= CodeStr32:
		n, ok := r.big(1 << (c - CodeStr8))
		if !ok {
			return nil, false
		}
		return r.take(n)
	}
	return nil, false
}

// Bytes reads a byte string. The bytes are those of the message.
func (r *Reader) Bytes() ([]byte, bool) {
	c := r.Peek()
	if c < CodeBin8 || c > CodeBin32 {
		return nil, false
	}
	r.Pos++
	n, ok := r.big(1 << (c - CodeBin8))
	if !ok {
		return nil, false
	}
	return r.take(n)
}

// Integer reads an integer of any width: its 64 bits in two's complement, and
// whether it is below zero.
func (r *Reader) Integer() (bits uint64, negative, ok bool) {
	c := r.next()
	switch {
	case c < 0x80:
		return uint64(c), false, true
	case c >= 0xe0:
		return uint64(int64(int8(c))), true, true
	case c >= CodeUint8 && c <= CodeUint64:
		bits, ok = r.big(1 << (c - CodeUint8))
		return bits, false, ok
	case c >= CodeInt8 && c <= CodeInt64:
		width := uint64(1) << (c - CodeInt8)
		bits, ok = r.big(width)
		unused := 64 - 8*width
		v := int64(bits<<unused) >> unused
		return uint64(v), v < 0, ok
	}
	return 0, false, false
}

// Uint32 reads an integer in [0, 2^32).
func (r *Reader) Uint32() (uint32, bool) {
	v, negative, ok := r.Integer()
	return uint32(v), ok && !negative && v <= math.MaxUint32
}

// Float reads an integer or a float of either width.
func (r *Reader) Float() (float64, bool) {
	switch r.Peek() {
	case CodeFloat32:
		r.Pos++
		v, ok := r.big(4)
		return float64(math.Float32frombits(uint32(v))), ok
	case CodeFloat64:
		r.Pos++
		v, ok := r.big(8)
		return math.Float64frombits(v), ok
	}
	v, negative, ok := r.Integer()
	if negative {
		return float64(int64(v)), ok
	}
	return float64(v), ok
}

// Skip passes over one value of any type. It fails if the value is not complete,
// contains CodeNever, or nests deeper than maxDepth.
func (r *Reader) Skip() bool {
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
func (r *Reader) skipOne() (inner uint64, ok bool) {
	c := r.Peek()
	switch {
	case c < 0x80, c >= 0xe0, c == CodeNil, c == CodeFalse, c == CodeTrue:
		r.Pos++
		return 0, true
	case c&0xf0 == 0x80, c == CodeMap16, c == CodeMap32:
		n, ok := r.MapLen()
		return 2 * uint64(n), ok
	case c&0xf0 == 0x90, c == CodeArray16, c == CodeArray32:
		n, ok := r.ArrayLen()
		return uint64(n), ok
	case c&0xe0 == 0xa0, c >= CodeStr8 && c <= CodeStr32:
		_, ok = r.Text()
	case c >= CodeBin8 && c <= CodeBin32:
		_, ok = r.Bytes()
	case c >= CodeUint8 && c <= CodeInt64:
		_, _, ok = r.Integer()
	case c == CodeFloat32, c == CodeFloat64:
		_, ok = r.Float()
	case c >= CodeExt8 && c <= CodeExt32:
		r.Pos++
		var n uint64
		if n, ok = r.big(1 << (c - CodeExt8)); ok {
			_, ok = r.take(n + 1) // the extension's type comes first
		}
	case c >= CodeFixExt1 && c < CodeStr8:
		r.Pos++
		_, ok = r.take(1 + 1<<(c-CodeFixExt1))
	}
	return 0, ok
}
