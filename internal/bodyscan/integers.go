package bodyscan

import (
	"encoding/binary"
	"math/bits"
	"slices"
)

// AppendUint32s reads an array of unsigned 32-bit integers and appends it to dst. It allocates
// only to grow dst, in proportion to the elements read.
func (s *Scanner) AppendUint32s(dst []uint32) []uint32 {
	if s.format == Msgpack {
		return s.packedUint32s(dst)
	}
	return appendElements(s, dst, (*Scanner).plainUint32s, (*Scanner).Uint32)
}

// appendElements reads an array and appends it to dst. plain quickly reads a run of simple
// elements, perhaps none; read reads the element after the run, of any form.
func appendElements[T any](s *Scanner, dst []T, plain func(*Scanner, []T) []T, read func(*Scanner) T) []T {
	c, ok := s.open(array, "an array")
	if !ok || !s.more(&c) {
		return dst
	}
	base := len(dst)
	for {
		dst = plain(s, dst)
		v := read(s)
		if s.err != nil {
			s.err.insideElement(len(dst) - base)
			return dst
		}
		dst = append(dst, v)
		if !s.more(&c) {
			return dst
		}
	}
}

// plainUint32s reads elements of at most 7 digits with a comma right behind them, so that one
// load of 8 bytes holds both. Token ids are like that.
func (s *Scanner) plainUint32s(dst []uint32) []uint32 {
	data, i := s.data, s.pos
	for i+8 < len(data) {
		word := binary.LittleEndian.Uint64(data[i:])
		v, n := leadingDigits(word)
		if n == 0 || n == 8 || n > 1 && byte(word) == '0' || byte(word>>(8*n)) != ',' {
			break
		}
		dst = append(dst, uint32(v))
		i += int(n) + 1
		if data[i] == ' ' {
			i++
		}
	}
	s.pos = i
	return dst
}

// AppendArray reads an array, each element with read, and appends it to dst. If the format has
// the number of elements (msgpack), dst grows once, to just that size: an element of one byte
// may take many bytes in dst.
func AppendArray[T any](s *Scanner, dst []T, read func(*Scanner) T) []T {
	c, ok := s.open(array, "an array")
	dst = slices.Grow(dst, c.left)
	base := len(dst)
	for ok && s.more(&c) {
		v := read(s)
		if s.err != nil {
			s.err.insideElement(len(dst) - base)
			break
		}
		dst = append(dst, v)
	}
	return dst
}

// AppendUint64s reads an array of unsigned 64-bit integers and appends it to dst. It
// allocates only to grow dst.
func (s *Scanner) AppendUint64s(dst []uint64) []uint64 {
	if words, ok := s.words(8); ok {
		return appendUint64s(dst, words)
	}
	return AppendArray(s, dst, (*Scanner).Uint64)
}

// AppendHash64s reads an array of hashes (see Hash64) and appends it to dst. It allocates only
// to grow dst.
func (s *Scanner) AppendHash64s(dst []uint64) []uint64 {
	if s.format == Msgpack {
		return s.packedHash64s(dst)
	}
	return appendElements(s, dst, (*Scanner).plainHash64s, (*Scanner).Hash64)
}

// longestHash is the most bytes that plainHash64s reads for one element: a sign, three loads of
// 8 digits, and a comma or space.
const longestHash = 1 + 3*8 + 1

// plainHash64s reads elements that are in range and have a comma right behind them. It reads
// eight digits at a time.
func (s *Scanner) plainHash64s(dst []uint64) []uint64 {
	data, i := s.data, s.pos
	for i+longestHash < len(data) {
		at := i
		negative := data[at] == '-'
		if negative {
			at++
		}
		v, n := leadingDigits(binary.LittleEndian.Uint64(data[at:]))
		if n == 0 || n > 1 && data[at] == '0' {
			break
		}
		if n == 8 {
			more, m := leadingDigits(binary.LittleEndian.Uint64(data[at+8:]))
			v, n = v*pow10[m]+more, n+m
		}
		if n == 16 {
			more, m := leadingDigits(binary.LittleEndian.Uint64(data[at+16:]))
			high, low := bits.Mul64(v, pow10[m])
			sum, carry := bits.Add64(low, more, 0)
			if high|carry != 0 {
				break
			}
			v, n = sum, n+m
		}
		if negative {
			if v > 1<<63 {
				break
			}
			v = -v
		}
		at += int(n)
		if data[at] != ',' { // also a 25th digit
			break
		}
		dst = append(dst, v)
		if i = at + 1; data[i] == ' ' {
			i++
		}
	}
	s.pos = i
	return dst
}

var pow10 = [9]uint64{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8}

// leadingDigits parses the run of ASCII digits at the start of eight bytes of text, loaded
// little endian. It returns the run's value and length, 0 to 8. It has no branches, since the
// lengths of numbers cannot be predicted.
func leadingDigits(word uint64) (value, n uint64) {
	digits := word ^ 0x3030303030303030 // '0'..'9' become 0..9
	// The high bit of every byte above 9. A carry out of such a byte can spoil
	// only bytes behind it, and only the first one counts.
	other := (digits + 0x7676767676767676 | digits) & 0x8080808080808080
	n = uint64(bits.TrailingZeros64(other)) / 8
	// Drop what follows the run; zeros fill up in front of it.
	digits <<= 8 * (8 - n)
	// Join neighbours: 1 to 2 digits, 2 to 4, 4 to 8.
	digits = digits*10 + digits>>8
	const pairs = 0x000000ff000000ff
	value = (digits&pairs)*(100+1000000<<32) + (digits>>16&pairs)*(1+10000<<32)
	return value >> 32, n
}
