package bodyscan

import (
	"encoding/binary"
	"math"
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
	return appendRest(s, dst, len(dst), &c, plain, read)
}

// appendRest reads the elements of an array that are left, at least one, and appends them to dst. The
// first element of the array is at base.
func appendRest[T any](s *Scanner, dst []T, base int, c *container, plain func(*Scanner, []T) []T, read func(*Scanner) T) []T {
	for {
		dst = plain(s, dst)
		v := read(s)
		if s.err != nil {
			s.err.insideElement(len(dst) - base)
			return dst
		}
		dst = append(dst, v)
		if !s.more(c) {
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

// plainHash64s reads elements of at least 16 digits that are in range and have a comma right
// behind them; of random hashes one in 900 has fewer digits. It reads eight digits at a time, and
// the sign without a branch, since it cannot be predicted.
func (s *Scanner) plainHash64s(dst []uint64) []uint64 {
	data, i := s.data, s.pos
	for i+longestHash < len(data) {
		var negative uint64
		if data[i] == '-' {
			negative = 1
		}
		at := i + int(negative)
		text := data[at : at+25 : at+25]
		first := binary.LittleEndian.Uint64(text) ^ zeros
		second := binary.LittleEndian.Uint64(text[8:]) ^ zeros
		if byte(first) == 0 || others(first)|others(second) != 0 {
			break
		}
		last, n := leadingDigits(binary.LittleEndian.Uint64(text[16:]))
		high, low := bits.Mul64(eightDigits(first)*1e8+eightDigits(second), pow10[n&15])
		v, carry := bits.Add64(low, last, 0)
		if high|carry != 0 || v > math.MaxUint64>>negative+negative || text[16+n] != ',' {
			break
		}
		dst = append(dst, (v^-negative)+negative)
		if i = at + 17 + int(n); data[i] == ' ' {
			i++
		}
	}
	s.pos = i
	return dst
}

// pow10 has 16 entries so that an index of four bits needs no check of bounds.
var pow10 = [16]uint64{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8}

// zeros is eight times '0': text of eight digits XOR zeros is their values.
const zeros = 0x3030303030303030

// others sets the high bit of every byte above 9. A carry out of such a byte can falsify only
// the bytes after it, so the first one is exact.
func others(digits uint64) uint64 {
	return (digits + 0x7676767676767676 | digits) & 0x8080808080808080
}

// leadingDigits parses the run of ASCII digits at the start of eight bytes of text, loaded
// little endian. It returns the run's value and length, 0 to 8. It has no branches, since the
// lengths of numbers cannot be predicted.
func leadingDigits(word uint64) (value, n uint64) {
	digits := word ^ zeros
	n = uint64(bits.TrailingZeros64(others(digits))) / 8
	// Drop what follows the run; zeros fill up in front of it.
	return eightDigits(digits << (8 * (8 - n))), n
}

// eightDigits returns the number of eight digits, of which the first is in the lowest byte. It
// joins neighbours: 1 to 2 digits, 2 to 4, 4 to 8.
func eightDigits(digits uint64) uint64 {
	digits = (digits*10 + digits>>8) & 0x00ff00ff00ff00ff
	digits = (digits*100 + digits>>16) & 0x0000ffff0000ffff
	return uint64(uint32(digits))*10000 + digits>>32
}
