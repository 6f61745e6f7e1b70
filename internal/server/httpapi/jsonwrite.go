package httpapi

import (
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/select-service/select-service/pkg/catalog"
)

// The append functions write JSON by hand: answers are few and flat, and encoding/json would
// cost more than the selection itself.

func appendOK(out []byte) []byte { return append(out, `{"status":"ok"}`...) }

const hexDigits = "0123456789abcdef"

// appendString appends s as a JSON string. Bytes that are not UTF-8 become
// U+FFFD.
func appendString(out []byte, s string) []byte {
	out = append(out, '"')
	start := 0 // offset in s of what is not yet written
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, n := utf8.DecodeRuneInString(s[i:])
			if r == utf8.RuneError && n == 1 {
				out = append(append(out, s[start:i]...), "\ufffd"...)
				start = i + 1
			}
			i += n
			continue
		}
		if c >= ' ' && c != '"' && c != '\\' {
			i++
			continue
		}
		out = append(out, s[start:i]...)
		switch c {
		case '"', '\\':
			out = append(out, '\\', c)
		case '\n':
			out = append(out, '\\', 'n')
		case '\r':
			out = append(out, '\\', 'r')
		case '\t':
			out = append(out, '\\', 't')
		default:
			out = append(out, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
		i++
		start = i
	}
	out = append(out, s[start:]...)
	return append(out, '"')
}

// appendKey appends a member's name, which needs no escapes, and the colon.
// The comma goes in front of all but an object's first member.
func appendKey(out []byte, name string) []byte {
	if out[len(out)-1] != '{' {
		out = append(out, ',')
	}
	out = append(out, '"')
	out = append(out, name...)
	return append(out, '"', ':')
}

func appendStringField(out []byte, name, v string) []byte {
	return appendString(appendKey(out, name), v)
}

func appendUintField[U uint32 | uint64](out []byte, name string, v U) []byte {
	return strconv.AppendUint(appendKey(out, name), uint64(v), 10)
}

// appendOptString appends a string, null for nil.
func appendOptString(out []byte, name string, v *string) []byte {
	if v == nil {
		return appendNull(out, name)
	}
	return appendStringField(out, name, *v)
}

// appendOptUint appends a number, null for nil.
func appendOptUint[U uint32 | uint64](out []byte, name string, v *U) []byte {
	if v == nil {
		return appendNull(out, name)
	}
	return appendUintField(out, name, *v)
}

// appendOptFloat appends a number, null for nil.
func appendOptFloat(out []byte, name string, v *float64) []byte {
	if v == nil {
		return appendNull(out, name)
	}
	return appendFloatField(out, name, *v)
}

func appendFloatField(out []byte, name string, v float64) []byte {
	return appendFloat(appendKey(out, name), v, 64)
}

func appendBoolField(out []byte, name string, v bool) []byte {
	return strconv.AppendBool(appendKey(out, name), v)
}

// appendBoolIf appends a boolean, no member for nil.
func appendBoolIf(out []byte, name string, v *bool) []byte {
	if v == nil {
		return out
	}
	return appendBoolField(out, name, *v)
}

// appendRank appends the members that name a rank.
func appendRank(out []byte, r catalog.Rank) []byte {
	return appendUintField(appendUintField(out, "worker_id", r.Worker), "dp_rank", r.DP)
}

func appendNull(out []byte, name string) []byte {
	return append(appendKey(out, name), "null"...)
}

// appendList appends a JSON array.
func appendList[E any](out []byte, list []E, element func([]byte, E) []byte) []byte {
	out = append(out, '[')
	for i, e := range list {
		if i > 0 {
			out = append(out, ',')
		}
		out = element(out, e)
	}
	return append(out, ']')
}

// appendFloat appends a number in the shortest form that reads back the same at the given
// precision in bits, with a fraction even if it is whole, as serde_json does. NaN and
// infinities, which JSON lacks, become null.
func appendFloat(out []byte, f float64, bits int) []byte {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return append(out, "null"...)
	}
	if f == math.Trunc(f) && math.Abs(f) < 1e15 {
		return strconv.AppendFloat(out, f, 'f', 1, bits)
	}
	format := byte('f')
	if a := math.Abs(f); a < 1e-6 || a >= 1e15 {
		format = 'e'
	}
	return strconv.AppendFloat(out, f, format, -1, bits)
}
