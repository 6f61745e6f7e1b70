package kvevents

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/select-service/select-service/internal/wire/msgpack"
)

// reader reads the values that KV events consist of.
type reader struct{ msgpack.Reader }

// Nearly all bytes of a message are token ids and block hashes; these loops are
// what decoding costs.

// tokenForm says how to cut a token out of the 8 bytes at the cursor, by its
// first byte: shift left by drop, then right by keep. Size 0 is any form that
// encoders do not use for tokens.
type tokenForm struct{ size, drop, keep uint8 }

// tokenForms has the forms of unsigned integers below 2^32. The table takes the
// place of branches, which a mix of two- and four-byte tokens would mispredict.
var tokenForms = func() (forms [256]tokenForm) {
	for c := range 0x80 {
		forms[c] = tokenForm{size: 1, drop: 0, keep: 56}
	}
	forms[msgpack.CodeUint8] = tokenForm{size: 2, drop: 8, keep: 56}
	forms[msgpack.CodeUint16] = tokenForm{size: 3, drop: 8, keep: 48}
	forms[msgpack.CodeUint32] = tokenForm{size: 5, drop: 8, keep: 32}
	return forms
}()

// appendTokens reads the n token ids of a list whose header has been read. Each
// is an integer in [0, 2^32) in any form.
func (r *reader) appendTokens(dst []uint32, n int) ([]uint32, bool) {
	have := len(dst)
	dst = slices.Grow(dst, n)[:have+n]
	out := dst[have:]
	for k := 0; k < len(out); {
		b, i := r.Data, r.Pos
		for ; k < len(out) && i+8 <= len(b); k++ {
			word := binary.BigEndian.Uint64(b[i:])
			form := &tokenForms[word>>56]
			if form.size == 0 {
				break
			}
			out[k] = uint32(word << (form.drop & 63) >> (form.keep & 63))
			i += int(form.size)
		}
		r.Pos = i
		if k == len(out) {
			break
		}
		var ok bool
		if out[k], ok = r.Uint32(); !ok { // the last bytes of the message, or a rare form
			return dst[:have], false
		}
		k++
	}
	return dst, true
}

// appendPairs reads the n token pairs of a list whose header has been read
// (SGLang's bigrams): the first token of every pair and the second of the last,
// which makes n+1 tokens.
func (r *reader) appendPairs(dst []uint32, n int) ([]uint32, bool) {
	have := len(dst)
	dst = slices.Grow(dst, n+1)
	var last uint32
	for range n {
		size, isArray := r.ArrayLen()
		first, ok1 := r.Uint32()
		second, ok2 := r.Uint32()
		if !isArray || size != 2 || !ok1 || !ok2 {
			return dst[:have], false
		}
		dst = append(dst, first)
		last = second
	}
	return append(dst, last), true
}

// appendHashes reads a list of block hashes.
func (r *reader) appendHashes(dst []uint64) ([]uint64, bool) {
	n, ok := r.ArrayLen()
	if !ok {
		return dst, false
	}
	have := len(dst)
	dst = slices.Grow(dst, n)
	for range n {
		var h uint64
		if b := r.Data[r.Pos:]; len(b) >= 9 && b[0] == msgpack.CodeUint64 {
			h = binary.BigEndian.Uint64(b[1:])
			r.Pos += 9
		} else if h, ok = r.hash(); !ok {
			return dst[:have], false
		}
		dst = append(dst, h)
	}
	return dst, true
}

// hash reads one block hash: an integer of either sign, whose 64 bits count, or
// a byte string, whose last 8 bytes count (vLLM's own conversion of its SHA-256
// hashes; decision K2).
func (r *reader) hash() (uint64, bool) {
	if c := r.Peek(); c < msgpack.CodeBin8 || c > msgpack.CodeBin32 {
		bits, _, ok := r.Integer()
		return bits, ok
	}
	b, ok := r.Bytes()
	if !ok || len(b) < 8 {
		return 0, false
	}
	return binary.BigEndian.Uint64(b[len(b)-8:]), true
}

// optionalHash reads a block hash or nil.
func (r *reader) optionalHash() (h uint64, present, ok bool) {
	if r.Nil() {
		return 0, false, true
	}
	h, ok = r.hash()
	return h, true, ok
}

// optionalInt reads an integer in [0, 2^31) or nil, which is -1.
func (r *reader) optionalInt() (int32, bool) {
	if r.Nil() {
		return -1, true
	}
	v, ok := r.Uint32()
	return int32(v), ok && v <= math.MaxInt32
}

// optionalText reads a string or nil, which is empty.
func (r *reader) optionalText() ([]byte, bool) {
	if r.Nil() {
		return nil, true
	}
	return r.Text()
}
