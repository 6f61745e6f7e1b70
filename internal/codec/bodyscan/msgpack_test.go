package bodyscan

import (
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	peer "github.com/vmihailenco/msgpack/v5"

	"github.com/select-service/select-service/internal/codec/msgpack"
	"github.com/select-service/select-service/test/helpers/length"
)

// packed decodes a msgpack document.
func packed(body []byte) (doc, error) {
	var d doc
	var s Scanner
	err := docShape.Decode(&s, Msgpack, body, &d)
	return d, err
}

// sameFault reports whether two faults of one value in two formats are the same but
// for their places.
func sameFault(a, b error) bool {
	var x, y *Error
	if !errors.As(a, &x) || !errors.As(b, &y) {
		return a == nil && b == nil
	}
	return x.Class == y.Class && x.Path == y.Path && x.Field == y.Field && x.Missing == y.Missing && x.Limit == y.Limit && x.Reason == y.Reason
}

// checkTranscoded checks that JSON text that is well formed reads the same in msgpack:
// the same values, or the same fault. Integers that no 64 bits hold are floats there.
func checkTranscoded(t *testing.T, text string) {
	t.Helper()
	var s Scanner
	s.Reset(JSON, []byte(text))
	if s.Skip(); s.End() != nil {
		return
	}
	want, wantErr := decode(text)
	got, err := packed(AppendMsgpack(nil, []byte(text)))
	if wantErr != nil && (strings.Contains(wantErr.Error(), "out of range") || err != nil && strings.Contains(err.Error(), "fraction or exponent")) {
		if err == nil {
			t.Fatalf("%q: read from msgpack, but not from JSON: %v", text, wantErr)
		}
		return
	}
	if !sameFault(err, wantErr) {
		t.Fatalf("%q: %v, from JSON %v", text, err, wantErr)
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Fatalf("%q (-JSON +msgpack):\n%s", text, diff)
	}
}

// TestTranscoded: every kind of member, and every kind of value where another is due.
func TestTranscoded(t *testing.T) {
	length.Sequential(t)
	values := []string{
		`null`, `true`, `false`, `0`, `127`, `128`, `255`, `256`, `65535`, `65536`, `4294967295`, `4294967296`, `18446744073709551615`,
		`-1`, `-32`, `-33`, `-128`, `-129`, `-32769`, `-2147483649`, `-9223372036854775808`, `1.5`, `1e3`, `0.1`, `1e300`, `""`, `"é\n\u0000"`, `"1"`,
		`"` + strings.Repeat("a", 40) + `"`, `"` + strings.Repeat("b", 300) + `"`, `"` + strings.Repeat("c", 70000) + `"`,
		`[]`, `[1,2]`, `[-1]`, `[1,"a"]`, `[null]`, `["a","b"]`, `[` + strings.Repeat("1,", 20) + `300]`, `[` + strings.Repeat("1,", 70000) + `70000]`,
		`{}`, `{"id":7}`, `{"id":7,"id":8}`, `{"1":2}`, `{"1":true,"-2":true}`, `{"a":1,"b":4294967296}`, `{"x":[{}]}`,
	}
	for _, f := range docShape.fields {
		for _, v := range values {
			checkTranscoded(t, `{"unknown":`+v+`,"`+f.Name+`":`+v+`}`)
		}
	}
	for _, v := range values {
		checkTranscoded(t, v)
	}
	deep := strings.Repeat("[", MaxDepth-1) + strings.Repeat("]", MaxDepth-1)
	checkTranscoded(t, `{"unknown":`+deep+`}`)
	if _, err := packed([]byte("\x81\xa1x" + strings.Repeat("\x91", MaxDepth) + "\xc0")); err == nil || !strings.Contains(err.Error(), "recursion limit exceeded at byte") {
		t.Errorf("too deep: %v", err)
	}
}

// TestWords: a byte string of little-endian words is an array of integers of their width.
func TestWords(t *testing.T) {
	body := msgpack.AppendMapLen(nil, 3)
	body = msgpack.AppendBytesLen(msgpack.AppendText(body, "tokens"), 8)
	body = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(body, 1), math.MaxUint32)
	for _, name := range []string{"hashes", "ids"} {
		body = msgpack.AppendBytesLen(msgpack.AppendText(body, name), 16)
		body = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(body, 1), math.MaxUint64)
	}
	got, err := packed(body)
	wide := []uint64{1, math.MaxUint64}
	if err != nil || !slices.Equal(got.Tokens, []uint32{1, math.MaxUint32}) || !slices.Equal(got.Hashes, wide) || !slices.Equal(got.IDs, wide) {
		t.Errorf("%+v, %v", got, err)
	}
	for body, want := range map[string]string{
		"\x81\xa6tokens\xc4\x05abcde":                        "tokens: invalid length: 5 bytes, expected words of 4 at byte 9",
		"\x81\xa6hashes\xc4\x04abcd":                         "hashes: invalid length: 4 bytes, expected words of 8 at byte 9",
		"\x81\xa6hashes\xc4\x08abcd":                         "hashes: end of text, expected the rest of a value at byte 15",
		"\x81\xa4name\xc4\x01a":                              "name: invalid type: byte string, expected a string at byte 7",
		"\x81\xa4name\xd4\x01a":                              "name: invalid type: extension, expected a string at byte 7",
		"\x81\xa4name\xa1\xff":                               "name: invalid UTF-8 in a string at byte 7",
		"\x81\xa5ratio\xcb\x7f\xf0\x00\x00\x00\x00\x00\x00":  "ratio: number out of range at byte 8",
		"\x81\xa6weight\xcb\x7f\xe0\x00\x00\x00\x00\x00\x00": "weight: number out of range at byte 9",
		"\x81\xa6tokens\xdd\xff\xff\xff\xff":                 "tokens: end of text, expected the rest of a value at byte 14",
		"\x81\xc0\xc0":                                       "expected a member name at byte 2",
		"\x81\xca\x00\x00\x00\x00\xc0":                       "expected a member name at byte 2",
		"\x81\xa1x\xc1":                                      "expected a value at byte 4",
		"\x81":                                               "end of text, expected the rest of a value at byte 2",
		"\x80\x80":                                           "trailing characters at byte 2",
		"":                                                   "end of text, expected a value at byte 1",
	} {
		if _, err := packed([]byte(body)); err == nil || err.Error() != want {
			t.Errorf("%q: %v, want %s", body, err, want)
		}
	}
	// Encoders write the keys of a map from ranks as they are.
	if got, err := packed([]byte("\x81\xa5ranks\x82\x01\xc3\xcc\xff\xc2")); err != nil || !got.Ranks[1] || len(got.Ranks) != 2 {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestEntries: an array of elements of a byte each is no longer than one in JSON.
func TestEntries(t *testing.T) {
	array := msgpack.AppendArrayLen([]byte("\x82\xa1x\x90\xa6tokens"), maxEntries+1)
	if _, err := packed(append(array, make([]byte, maxEntries+1)...)); err == nil || !strings.Contains(err.Error(), "tokens: more than 4194304 elements") {
		t.Error(err)
	}
}

// FuzzMsgpack reads any bytes as a document: a fault is inside of them, memory stays in
// proportion, what is taken is msgpack for another reader too, and what that writes of
// it is read again.
func FuzzMsgpack(f *testing.F) {
	for _, seed := range []string{
		`{"tokens":[1,2],"hashes":[-1],"name":"x","inner":{"id":1},"ports":{"a":1},"tags":["a"]}`,
		`{"alias":null,"ratio":1e3,"flag":true,"unknown":[{}],"ranks":{"1":true},"weight":0.5}`,
	} {
		f.Add(AppendMsgpack(nil, []byte(seed)))
	}
	f.Add([]byte("\x82\xa6tokens\xc4\x04abcd\xa6hashes\xc4\x08abcdefgh"))
	f.Fuzz(func(t *testing.T, body []byte) {
		d, err := packed(body)
		if n := len(d.Tokens) + len(d.Hashes) + len(d.IDs) + len(d.Tags); n > len(body) {
			t.Fatalf("%d elements out of %d bytes", n, len(body))
		}
		var fault *Error
		switch {
		case err == nil:
			var any peer.RawMessage
			if err := peer.Unmarshal(body, &any); err != nil {
				t.Fatalf("%x: accepted, but another reader says %v", body, err)
			}
		case !errors.As(err, &fault) || fault.Line != 1 || fault.Column < 1 || fault.Column > len(body)+1:
			t.Fatalf("%x: %#v", body, err)
		}
	})
}
