package msgpack

import (
	"encoding/binary"
	"math"
	"slices"
)

// The Append functions write a value in its shortest form.

// AppendNil appends nil.
func AppendNil(dst []byte) []byte { return append(dst, CodeNil) }

// AppendBool appends a boolean.
func AppendBool(dst []byte, v bool) []byte {
	if v {
		return append(dst, CodeTrue)
	}
	return append(dst, CodeFalse)
}

// AppendUint appends an integer of 0 or more.
func AppendUint(dst []byte, v uint64) []byte {
	switch {
	case v < 0x80:
		return append(dst, byte(v))
	case v <= math.MaxUint8:
		return append(dst, CodeUint8, byte(v))
	case v <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(dst, CodeUint16), uint16(v))
	case v <= math.MaxUint32:
		return binary.BigEndian.AppendUint32(append(dst, CodeUint32), uint32(v))
	}
	return binary.BigEndian.AppendUint64(append(dst, CodeUint64), v)
}

// AppendInt appends an integer.
func AppendInt(dst []byte, v int64) []byte {
	switch {
	case v >= 0:
		return AppendUint(dst, uint64(v))
	case v >= -0x20:
		return append(dst, byte(v))
	case v >= math.MinInt8:
		return append(dst, CodeInt8, byte(v))
	case v >= math.MinInt16:
		return binary.BigEndian.AppendUint16(append(dst, CodeInt16), uint16(v))
	case v >= math.MinInt32:
		return binary.BigEndian.AppendUint32(append(dst, CodeInt32), uint32(v))
	}
	return binary.BigEndian.AppendUint64(append(dst, CodeInt64), uint64(v))
}

// AppendFloat appends a float, of 32 bits if that loses nothing.
func AppendFloat(dst []byte, v float64) []byte {
	if short := float32(v); float64(short) == v {
		return binary.BigEndian.AppendUint32(append(dst, CodeFloat32), math.Float32bits(short))
	}
	return binary.BigEndian.AppendUint64(append(dst, CodeFloat64), math.Float64bits(v))
}

// AppendText appends a string, which should be UTF-8.
func AppendText[S string | []byte](dst []byte, v S) []byte {
	switch n := len(v); {
	case n < 0x20:
		dst = append(dst, 0xa0|byte(n))
	case n <= math.MaxUint8:
		dst = append(dst, CodeStr8, byte(n))
	case n <= math.MaxUint16:
		dst = binary.BigEndian.AppendUint16(append(dst, CodeStr16), uint16(n))
	default:
		dst = binary.BigEndian.AppendUint32(append(dst, CodeStr32), uint32(n))
	}
	return append(dst, v...)
}

// AppendBytesLen appends the header of a byte string of n bytes, which follow.
func AppendBytesLen(dst []byte, n int) []byte {
	switch {
	case n <= math.MaxUint8:
		return append(dst, CodeBin8, byte(n))
	case n <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(dst, CodeBin16), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(dst, CodeBin32), uint32(n))
}

// AppendMapLen appends the header of a map of n pairs, which follow.
func AppendMapLen(dst []byte, n int) []byte { return appendLen(dst, n, 0x80, CodeMap16) }

// AppendArrayLen appends the header of an array of n elements, which follow.
func AppendArrayLen(dst []byte, n int) []byte { return appendLen(dst, n, 0x90, CodeArray16) }

func appendLen(dst []byte, n int, short, long byte) []byte {
	switch {
	case n < 0x10:
		return append(dst, short|byte(n))
	case n <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(dst, long), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(dst, long+1), uint32(n))
}

// InsertMapLen is AppendMapLen for pairs that are already there, from at to the end.
func InsertMapLen(dst []byte, at, n int) []byte {
	var header [5]byte
	return slices.Insert(dst, at, AppendMapLen(header[:0], n)...)
}

// InsertArrayLen is AppendArrayLen for elements that are already there, from at to the
// end.
func InsertArrayLen(dst []byte, at, n int) []byte {
	var header [5]byte
	return slices.Insert(dst, at, AppendArrayLen(header[:0], n)...)
}
