package bodyscan

import (
	"bytes"
	"encoding/json"
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// surrogate finds escapes that encoding/json turns into U+FFFD if they are
// alone; the scanner refuses those.
var surrogate = regexp.MustCompile(`\\u[dD][89a-fA-F]`)

// depth returns the deepest nesting of brackets outside of strings.
func depth(text []byte) int {
	deepest, now, quoted := 0, 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case !quoted && (c == '{' || c == '['):
			now++
			deepest = max(deepest, now)
		case !quoted && (c == '}' || c == ']'):
			now--
		}
	}
	return deepest
}

// FuzzScanner asks the scanner and encoding/json the same questions: is this
// JSON, and what are its integers and strings?
func FuzzScanner(f *testing.F) {
	for _, seed := range []string{
		``, `null`, `[1,2,3]`, `[-1,18446744073709551615,-9223372036854775809]`, `["a\u00e9\n",""]`,
		`{"a":{"b":[1.5e3,true,false,null]}}`, `[1, 22, 333, 4444, 55555, 666666, 7777777, 88888888, 999999999]`,
		`[12345678901234567890,1234567890123456,123456789012345678901234567890]`, `[0,00,-0,-]`, `"\ud83d\ude00"`, `[1,]`, `{} {}`, `[1e308,-1e309,1e-400]`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if !utf8.Valid(text) || surrogate.Match(text) || depth(text) > MaxDepth {
			return // encoding/json is more lenient here
		}
		var s Scanner
		s.Reset(JSON, text)
		s.Skip()
		var value any // into which encoding/json takes no number beyond a float64's range either
		if err, want := s.End(), json.Unmarshal(text, &value); (err == nil) != (want == nil) {
			t.Fatalf("%q: %v, encoding/json says %v", text, err, want)
		}
		agree(t, text, (*Scanner).AppendUint32s)
		agree(t, text, (*Scanner).AppendUint64s)
		agree(t, text, func(s *Scanner, dst []string) []string {
			for range s.Array() {
				dst = append(dst, s.String())
			}
			return dst
		})
		agreeHashes(t, text)
	})
}

// agree compares one reader of arrays with encoding/json, which takes null for
// an empty value where the scanner does not.
func agree[T comparable](t *testing.T, text []byte, read func(*Scanner, []T) []T) {
	t.Helper()
	var s Scanner
	s.Reset(JSON, text)
	got := read(&s, nil)
	gotErr := s.End()
	var want []T
	wantErr := json.Unmarshal(text, &want)
	if bytes.Contains(text, []byte("null")) {
		if gotErr == nil && wantErr != nil {
			t.Fatalf("%q: accepted, encoding/json says %v", text, wantErr)
		}
		return
	}
	if (gotErr == nil) != (wantErr == nil) {
		t.Fatalf("%q: %v, encoding/json says %v", text, gotErr, wantErr)
	}
	if gotErr == nil && !slices.Equal(got, want) {
		t.Fatalf("%q: %v, encoding/json says %v", text, got, want)
	}
	if len(got) > len(text) {
		t.Fatalf("%d elements out of %d bytes", len(got), len(text))
	}
}

func agreeHashes(t *testing.T, text []byte) {
	t.Helper()
	var s Scanner
	s.Reset(JSON, text)
	got := s.AppendHash64s(nil)
	gotErr := s.End()
	var numbers []json.Number
	wantErr := json.Unmarshal(text, &numbers)
	if bytes.Contains(text, []byte("null")) || bytes.Contains(text, []byte(`"`)) {
		return // json.Number reads both
	}
	var want []uint64
	for _, n := range numbers {
		var signed int64
		var unsigned uint64
		switch {
		case json.Unmarshal([]byte(n), &unsigned) == nil:
		case json.Unmarshal([]byte(n), &signed) == nil:
			unsigned = uint64(signed)
		default:
			wantErr = &json.UnmarshalTypeError{}
		}
		want = append(want, unsigned)
	}
	if (gotErr == nil) != (wantErr == nil) || gotErr == nil && !slices.Equal(got, want) {
		t.Fatalf("%q: %v, %v; encoding/json says %v, %v", text, got, gotErr, want, wantErr)
	}
}

// FuzzObject reads a text into a struct with every kind of field: it never
// panics, a fault has a position inside the text, what it took is JSON, and it says the
// same of it in msgpack.
func FuzzObject(f *testing.F) {
	f.Add(`{"tokens":[1,2],"hashes":[-1],"name":"x","inner":{"id":1},"ports":{"a":1},"tags":["a"]}`)
	f.Add(`{"alias":null,"ratio":1e3,"flag":true,"unknown":[{}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		checkTranscoded(t, text)
		_, err := decode(text)
		if err == nil {
			if !json.Valid([]byte(text)) {
				t.Fatalf("%q: accepted, but it is not JSON", text)
			}
			return
		}
		var fault *Error
		if !errors.As(err, &fault) {
			t.Fatalf("%q: %#v is no fault", text, err)
		}
		lines := strings.Split(text, "\n")
		if fault.Line < 1 || fault.Line > len(lines) || fault.Column < 1 || fault.Column > len(lines[fault.Line-1])+1 {
			t.Fatalf("%q: position outside of the text: %v", text, err)
		}
	})
}
