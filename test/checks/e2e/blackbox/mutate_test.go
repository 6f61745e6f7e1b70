package blackbox_test

import (
	"encoding/binary"
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
)

// mutator breaks valid messages and bodies in every way that a bad network, a
// bad client or a bad engine does. The same seed gives the same faults.
type mutator struct{ rnd *rand.Rand }

func newMutator(seed uint64) *mutator { return &mutator{rand.New(rand.NewPCG(seed, 1))} }

// pick returns one of several things.
func pick[T any](m *mutator, list []T) T { return list[m.rnd.IntN(len(list))] }

// bytes returns a broken copy of text: cut, flipped, with a part missing, twice
// or replaced by one of tokens.
func (m *mutator) bytes(text []byte, tokens [][]byte) []byte {
	b := slices.Clone(text)
	for range 1 + m.rnd.IntN(3) {
		if len(b) == 0 {
			return b
		}
		i := m.rnd.IntN(len(b))
		j := min(len(b), i+1+m.rnd.IntN(8))
		switch m.rnd.IntN(6) {
		case 0:
			b = b[:i]
		case 1:
			b[i] ^= 1 << m.rnd.IntN(8)
		case 2:
			b = slices.Delete(b, i, j)
		case 3:
			b = slices.Insert(b, i, slices.Clone(b[i:j])...)
		case 4:
			b[i] = byte(m.rnd.Uint32())
		case 5:
			b = slices.Replace(b, i, j, pick(m, tokens)...)
		}
	}
	return b
}

// jsonTokens take the place of a part of a JSON text.
var jsonTokens = tokens("{", "}", "[", "]", ",", ":", `"`, `\`, "null", "true", "-", "1e999", "1.5", "-1",
	"18446744073709551616", "99999999999999999999999999", "\x00", "\xff\xfe", `"\ud800"`, " ", `{"a":`, strings.Repeat("[", 2000))

// msgpackTokens take the place of a part of a msgpack text: headers that
// promise 4 GiB, extensions, and the type that nobody may send.
var msgpackTokens = tokens("\xdd\xff\xff\xff\xff", "\xdb\xff\xff\xff\xff", "\xc6\xff\xff\xff\xff", "\xdf\xff\xff\xff\xff",
	"\xdc\xff\xff", "\xc0", "\xc1", "\xc3", "\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00", "\xcf\xff\xff\xff\xff\xff\xff\xff\xff",
	"\xd3\x80\x00\x00\x00\x00\x00\x00\x00", "\xd6\xff\x00\x00\x00\x00", "\x90", "\x80", "\xa0", strings.Repeat("\x91", 2000))

func tokens(list ...string) [][]byte {
	out := make([][]byte, len(list))
	for i, s := range list {
		out[i] = []byte(s)
	}
	return out
}

// oddValues take the place of a value inside a JSON document.
var oddValues = []any{
	nil, true, "", "x", "18446744073709551615",
	[]any{},
	[]any{nil},
	object{},
	object{"a": []any{1, "b"}},
	json.Number("0"), json.Number("-1"), json.Number("1.5"), json.Number("1e999"), json.Number("4294967296"),
	json.Number("18446744073709551615"), json.Number("18446744073709551616"), json.Number("-9223372036854775809"),
	strings.Repeat("long ", 5000), "\x00\u2028", slices.Repeat([]any{json.Number("7")}, 5000),
}

// document returns a JSON document in which a value has the wrong type, the
// wrong size or another place.
func (m *mutator) document(text []byte) []byte {
	dec := json.NewDecoder(strings.NewReader(string(text)))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return m.bytes(text, jsonTokens)
	}
	out, err := json.Marshal(m.value(v))
	if err != nil { // 1e999 is a number to JSON
		return m.bytes(text, jsonTokens)
	}
	return out
}

func (m *mutator) value(v any) any {
	switch c := v.(type) {
	case object:
		if len(c) == 0 || m.rnd.IntN(8) == 0 {
			break
		}
		keys := make([]string, 0, len(c))
		for k := range c {
			keys = append(keys, k)
		}
		slices.Sort(keys) // the same choice for the same seed
		k := pick(m, keys)
		switch m.rnd.IntN(8) {
		case 0:
			delete(c, k)
		case 1:
			c[k] = c[pick(m, keys)]
		default:
			c[k] = m.value(c[k])
		}
		return c
	case []any:
		if len(c) == 0 || m.rnd.IntN(8) == 0 {
			break
		}
		i := m.rnd.IntN(len(c))
		c[i] = m.value(c[i])
		return c
	}
	return pick(m, oddValues)
}

// json returns a broken copy of a request body.
func (m *mutator) json(text []byte) []byte {
	if m.rnd.IntN(2) == 0 {
		return m.document(text)
	}
	return m.bytes(text, jsonTokens)
}

// message returns the broken frames of a KV event message. Most keep the frames
// and break the payload: what breaks the frames is dropped early.
func (m *mutator) message(seq uint64, payload []byte) [][]byte {
	number := binary.BigEndian.AppendUint64(nil, seq)
	frames := [][]byte{nil, number, m.bytes(payload, msgpackTokens)}
	switch m.rnd.IntN(40) {
	case 0:
		frames[1] = number[:m.rnd.IntN(8)]
	case 1:
		frames[1] = append(number, 0)
	case 2:
		number[m.rnd.IntN(8)] ^= 1 << m.rnd.IntN(8)
	case 3:
		frames = frames[:1+m.rnd.IntN(2)]
	case 4:
		frames = append(frames, []byte("one too many"))
	case 5:
		frames = slices.Repeat(frames, 5)
	}
	return frames
}
