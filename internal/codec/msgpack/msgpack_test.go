package msgpack_test

import (
	"bytes"
	"math"
	"strings"
	"testing"

	library "github.com/vmihailenco/msgpack/v5"

	"github.com/select-service/select-service/internal/codec/msgpack"
)

func packed(t testing.TB, v any) []byte {
	t.Helper()
	b, err := library.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestIntegers proves that an integer is read whatever its width, with its sign.
func TestIntegers(t *testing.T) {
	tests := map[string]struct {
		data     []byte
		want     int64
		negative bool
	}{
		"fixint":          {[]byte{0x7f}, 127, false},
		"negative fixint": {[]byte{0xe0}, -32, true},
		"uint8":           {[]byte{0xcc, 0xff}, 255, false},
		"uint16":          {[]byte{0xcd, 1, 0}, 256, false},
		"uint32":          {[]byte{0xce, 0xff, 0xff, 0xff, 0xff}, math.MaxUint32, false},
		"uint64":          {[]byte{0xcf, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, math.MaxInt64, false},
		"int8":            {[]byte{0xd0, 0x80}, -128, true},
		"int8 above 0":    {[]byte{0xd0, 5}, 5, false},
		"int16":           {[]byte{0xd1, 0x80, 0}, math.MinInt16, true},
		"int32":           {[]byte{0xd2, 0x80, 0, 0, 0}, math.MinInt32, true},
		"int64":           {[]byte{0xd3, 0x80, 0, 0, 0, 0, 0, 0, 0}, math.MinInt64, true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r := msgpack.Reader{Data: tc.data}
			bits, negative, ok := r.Integer()
			if int64(bits) != tc.want || negative != tc.negative || !ok || r.Pos != len(tc.data) {
				t.Errorf("Integer() = %d, %v, %v at %d of %d", int64(bits), negative, ok, r.Pos, len(tc.data))
			}
			fits := tc.want >= 0 && tc.want <= math.MaxUint32
			r.Pos = 0
			if n, ok := r.Uint32(); ok != fits || ok && int64(n) != tc.want {
				t.Errorf("Uint32() = %d, %v, want ok %v", n, ok, fits)
			}
			r.Pos = 0
			if f, ok := r.Float(); f != float64(tc.want) || !ok {
				t.Errorf("Float() = %v, %v", f, ok)
			}
			for cut := range len(tc.data) {
				r := msgpack.Reader{Data: tc.data[:cut]}
				if _, _, ok := r.Integer(); ok {
					t.Errorf("read of %d bytes", cut)
				}
			}
		})
	}
}

// TestValues proves what is read of the other types, and that the Is methods
// look without moving.
func TestValues(t *testing.T) {
	for _, n := range []int{0, 1, 31, 32, 255, 256, 65535, 65536} {
		text := strings.Repeat("x", n)
		r := msgpack.Reader{Data: packed(t, text)}
		if !r.IsText() || r.IsArray() || r.IsMap() {
			t.Errorf("text of %d bytes is taken for another type", n)
		}
		if got, ok := r.Text(); string(got) != text || !ok {
			t.Errorf("Text() of %d bytes = %d bytes, %v", n, len(got), ok)
		}
		r = msgpack.Reader{Data: packed(t, []byte(text))}
		if got, ok := r.Bytes(); string(got) != text || !ok || r.IsText() {
			t.Errorf("Bytes() of %d bytes = %d bytes, %v", n, len(got), ok)
		}
		r = msgpack.Reader{Data: packed(t, make([]bool, n))}
		if !r.IsArray() || r.IsMap() || r.IsText() {
			t.Errorf("array of %d is taken for another type", n)
		}
		if got, ok := r.ArrayLen(); got != n || !ok {
			t.Errorf("ArrayLen() of %d = %d, %v", n, got, ok)
		}
		m := make(map[int]bool, n)
		for i := range n {
			m[i] = true
		}
		r = msgpack.Reader{Data: packed(t, m)}
		if !r.IsMap() || r.IsArray() || r.IsText() {
			t.Errorf("map of %d is taken for another type", n)
		}
		if got, ok := r.MapLen(); got != n || !ok {
			t.Errorf("MapLen() of %d = %d, %v", n, got, ok)
		}
	}
	for _, f := range []any{1.5, float32(1.5)} {
		r := msgpack.Reader{Data: packed(t, f)}
		if got, ok := r.Float(); got != 1.5 || !ok {
			t.Errorf("Float() of %T = %v, %v", f, got, ok)
		}
	}
	r := msgpack.Reader{Data: []byte{msgpack.CodeNil, 1}}
	if !r.Nil() || r.Nil() || r.Pos != 1 {
		t.Errorf("Nil() left the cursor at %d", r.Pos)
	}
}

// TestUnbelievableLengths proves that no length is returned which the rest of
// the message could not hold.
func TestUnbelievableLengths(t *testing.T) {
	for name, data := range map[string]string{
		"array32": "\xdd\xff\xff\xff\xff\x01", "array16": "\xdc\x00\x02\x01", "fixarray": "\x92\x01",
		"map32": "\xdf\xff\xff\xff\xff\x01", "map16": "\xde\x00\x01\x01", "fixmap": "\x81\x01",
		"str32": "\xdb\xff\xff\xff\xffx", "fixstr": "\xa2x", "bin32": "\xc6\xff\xff\xff\xffx", "ext32": "\xc9\xff\xff\xff\xfftx",
	} {
		reads := map[string]func(*msgpack.Reader) bool{
			"ArrayLen": func(r *msgpack.Reader) bool { _, ok := r.ArrayLen(); return ok },
			"MapLen":   func(r *msgpack.Reader) bool { _, ok := r.MapLen(); return ok },
			"Text":     func(r *msgpack.Reader) bool { _, ok := r.Text(); return ok },
			"Bytes":    func(r *msgpack.Reader) bool { _, ok := r.Bytes(); return ok },
			"Skip":     (*msgpack.Reader).Skip,
		}
		for method, read := range reads {
			if read(&msgpack.Reader{Data: []byte(data)}) {
				t.Errorf("%s of %s succeeds", method, name)
			}
		}
	}
}

// TestSkipDepth proves that nesting is bounded: 64 arrays in each other, the
// innermost empty, are passed over, one more is not.
func TestSkipDepth(t *testing.T) {
	for depth, want := range map[int]bool{1: true, 64: true, 65: false, 1 << 20: false} {
		data := append(bytes.Repeat([]byte{0x91}, depth-1), 0x90)
		r := msgpack.Reader{Data: data}
		if got := r.Skip(); got != want {
			t.Errorf("Skip of %d arrays in each other: %v, want %v", depth, got, want)
		}
	}
}

// FuzzReader proves that no method reads outside the message, and that each that
// succeeds ends where Skip ends.
func FuzzReader(f *testing.F) {
	for _, v := range []any{nil, 1, -70000, "text", []byte("bytes"), 1.5, []any{1, "x", nil}, map[string]any{"a": []int{1}}} {
		f.Add(packed(f, v))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		skip := msgpack.Reader{Data: data}
		skipped := skip.Skip()
		elements := func(n int, ok bool, r *msgpack.Reader) bool {
			for range n {
				ok = ok && r.Skip()
			}
			return ok
		}
		for name, read := range map[string]func(r *msgpack.Reader) bool{
			"Nil":     (*msgpack.Reader).Nil,
			"Integer": func(r *msgpack.Reader) bool { _, _, ok := r.Integer(); return ok },
			"Uint32":  func(r *msgpack.Reader) bool { _, ok := r.Uint32(); return ok },
			"Float":   func(r *msgpack.Reader) bool { _, ok := r.Float(); return ok },
			"Text":    func(r *msgpack.Reader) bool { _, ok := r.Text(); return ok },
			"Bytes":   func(r *msgpack.Reader) bool { _, ok := r.Bytes(); return ok },
			"array":   func(r *msgpack.Reader) bool { n, ok := r.ArrayLen(); return elements(n, ok, r) },
			"map":     func(r *msgpack.Reader) bool { n, ok := r.MapLen(); return elements(2*n, ok, r) },
		} {
			r := msgpack.Reader{Data: data}
			if ok := read(&r); r.Pos < 0 || r.Pos > len(data) {
				t.Fatalf("%s left the cursor at %d of %d", name, r.Pos, len(data))
			} else if ok && skipped && r.Pos != skip.Pos {
				t.Errorf("%s ended at %d, Skip at %d", name, r.Pos, skip.Pos)
			}
		}
	})
}
