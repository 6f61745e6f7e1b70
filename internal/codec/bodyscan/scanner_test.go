package bodyscan

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// doc has a field of every kind that the scanner reads.
type doc struct {
	Tokens []uint32
	Hashes []uint64
	IDs    []uint64
	Name   string
	Alias  *string
	Count  uint64
	Small  uint32
	Ratio  float64
	Weight float32
	Flag   bool
	Tags   []string
	Ports  map[string]uint32
	Inner  *inner
	Ranks  map[uint32]bool
}

type inner struct{ ID uint64 }

var innerShape = NewObject(Field[inner]{Name: "id", Required: true, Read: func(s *Scanner, v *inner) { v.ID = s.Uint64() }})

var docShape = NewObject(
	Field[doc]{Name: "tokens", Read: func(s *Scanner, d *doc) { d.Tokens = s.AppendUint32s(d.Tokens[:0]) }},
	Field[doc]{Name: "hashes", Read: func(s *Scanner, d *doc) { d.Hashes = s.AppendHash64s(d.Hashes[:0]) }},
	Field[doc]{Name: "ids", Read: func(s *Scanner, d *doc) { d.IDs = s.AppendUint64s(d.IDs[:0]) }},
	Field[doc]{Name: "name", Read: Set(func(d *doc) *string { return &d.Name }, (*Scanner).String)},
	Field[doc]{Name: "alias", Read: Optional(func(d *doc) **string { return &d.Alias }, (*Scanner).String)},
	Field[doc]{Name: "count", Read: Set(func(d *doc) *uint64 { return &d.Count }, (*Scanner).Uint64)},
	Field[doc]{Name: "small", Read: Set(func(d *doc) *uint32 { return &d.Small }, (*Scanner).Uint32)},
	Field[doc]{Name: "ratio", Read: Set(func(d *doc) *float64 { return &d.Ratio }, (*Scanner).Float64)},
	Field[doc]{Name: "weight", Read: Set(func(d *doc) *float32 { return &d.Weight }, (*Scanner).Float32)},
	Field[doc]{Name: "flag", Read: Set(func(d *doc) *bool { return &d.Flag }, (*Scanner).Bool)},
	Field[doc]{Name: "tags", Read: func(s *Scanner, d *doc) {
		for range s.Array() {
			d.Tags = append(d.Tags, s.String())
		}
	}},
	Field[doc]{Name: "ports", Read: func(s *Scanner, d *doc) {
		d.Ports = map[string]uint32{}
		for name := range s.Map() {
			key := string(name)
			d.Ports[key] = s.Uint32()
		}
	}},
	Field[doc]{Name: "ranks", Read: func(s *Scanner, d *doc) {
		d.Ranks = map[uint32]bool{}
		for rank := range s.MapUint32() {
			d.Ranks[rank] = s.Bool()
		}
	}},
	Field[doc]{Name: "inner", Read: Optional(func(d *doc) **inner { return &d.Inner }, func(s *Scanner) inner {
		var v inner
		innerShape.Read(s, &v)
		return v
	})},
)

func decode(text string) (doc, error) {
	var d doc
	var s Scanner
	err := docShape.Decode(&s, JSON, []byte(text), &d)
	return d, err
}

func TestDecode(t *testing.T) {
	text := ` {
		"tokens" : [ 1, 0,4294967295 , 1234567, 12345678,9 ],
		"hashes":[-1,18446744073709551615,-9223372036854775808,0, 9223372036854775807 ,-0],
		"ids":[0,18446744073709551615], "name":"a\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00é",
		"alias": null, "count":18446744073709551615, "small": 4294967295,
		"ratio":-12.5e-1, "weight":0.1, "flag":true, "tags":["x","","y z"],
		"ports":{"1":1,"\u0032":2}, "inner":{"id":7,"id2":[{}]}, "ranks":{"0":true,"4294967295":false,"\u0037":true,"0":false},
		"unknown":{"a":[1.5e+3,-0,"\u0000",true,false,null,{}]} } ` + "\r\n\t "
	got, err := decode(text)
	if err != nil {
		t.Fatal(err)
	}
	if want := []uint32{1, 0, math.MaxUint32, 1234567, 12345678, 9}; !slices.Equal(got.Tokens, want) {
		t.Errorf("tokens = %v, want %v", got.Tokens, want)
	}
	if want := []uint64{math.MaxUint64, math.MaxUint64, 1 << 63, 0, math.MaxInt64, 0}; !slices.Equal(got.Hashes, want) {
		t.Errorf("hashes = %v, want %v", got.Hashes, want)
	}
	if want := []uint64{0, math.MaxUint64}; !slices.Equal(got.IDs, want) {
		t.Errorf("ids = %v, want %v", got.IDs, want)
	}
	if want := "a\"\\/\b\f\n\r\t\u00e9\U0001f600\u00e9"; got.Name != want {
		t.Errorf("name = %q, want %q", got.Name, want)
	}
	if got.Alias != nil || got.Count != math.MaxUint64 || got.Small != math.MaxUint32 || got.Ratio != -1.25 ||
		got.Weight != 0.1 || !got.Flag || !slices.Equal(got.Tags, []string{"x", "", "y z"}) ||
		got.Ports["1"] != 1 || got.Ports["2"] != 2 || len(got.Ranks) != 3 || got.Ranks[0] || !got.Ranks[7] || got.Inner == nil || got.Inner.ID != 7 {
		t.Errorf("decoded %+v", got)
	}
}

// TestFaults pins class, path, reason and position of faults.
func TestFaults(t *testing.T) {
	deep := func(n int) string { return `{"u":` + strings.Repeat("[", n) + strings.Repeat("]", n) + `}` }
	tests := []struct {
		text string
		want string // "" for none
	}{
		{``, "syntax end of text, expected a value at line 1 column 1"},
		{"\n \n", "syntax end of text, expected a value at line 3 column 1"},
		{`nonsense`, "syntax expected `null` at line 1 column 1"},
		{`{`, "syntax end of text, expected a member name at line 1 column 2"},
		{`{"a"`, "syntax end of text, expected `:` at line 1 column 5"},
		{`{"a":`, "syntax end of text, expected a value at line 1 column 6"},
		{`{"a":1`, "syntax end of text, expected `,` or `}` at line 1 column 7"},
		{`{"a":1,}`, "syntax expected a member name at line 1 column 8"},
		{`{"a":1 "b":2}`, "syntax expected `,` or `}` at line 1 column 8"},
		{`{a:1}`, "syntax expected a member name at line 1 column 2"},
		{`{} x`, "syntax trailing characters at line 1 column 4"},
		{`{}{}`, "syntax trailing characters at line 1 column 3"},
		{`[1]`, "shape invalid type: array, expected an object at line 1 column 1"},
		{`"x"`, "shape invalid type: string, expected an object at line 1 column 1"},
		{`"x`, "syntax end of text, expected the end of a string at line 1 column 3"},
		{`17`, "shape invalid type: number, expected an object at line 1 column 1"},
		{`null`, "shape invalid type: null, expected an object at line 1 column 1"},

		{`{"tokens":"abc"}`, "shape tokens: invalid type: string, expected an array at line 1 column 11"},
		{`{"tokens":null}`, "shape tokens: invalid type: null, expected an array at line 1 column 11"},
		{`{"tokens":[1,-1]}`, "shape tokens[1]: integer out of range, expected an unsigned 32-bit integer at line 1 column 14"},
		{`{"tokens":[4294967296]}`, "shape tokens[0]: integer out of range, expected an unsigned 32-bit integer at line 1 column 12"},
		{`{"tokens":[18446744073709551616]}`, "shape tokens[0]: integer out of range, expected an unsigned 32-bit integer at line 1 column 12"},
		{`{"tokens":[1.0]}`, "shape tokens[0]: invalid type: number with a fraction or exponent, expected an unsigned 32-bit integer at line 1 column 12"},
		{`{"tokens":[1e2]}`, "shape tokens[0]: invalid type: number with a fraction or exponent, expected an unsigned 32-bit integer at line 1 column 12"},
		{`{"tokens":[true]}`, "shape tokens[0]: invalid type: boolean, expected an unsigned 32-bit integer at line 1 column 12"},
		{`{"tokens":[null]}`, "shape tokens[0]: invalid type: null, expected an unsigned 32-bit integer at line 1 column 12"},
		{`{"tokens":[[1]]}`, "shape tokens[0]: invalid type: array, expected an unsigned 32-bit integer at line 1 column 12"},
		{`{"tokens":[01]}`, "syntax tokens[0]: number with a leading zero at line 1 column 12"},
		{`{"tokens":[1,007,12345678]}`, "syntax tokens[1]: number with a leading zero at line 1 column 14"},
		{`{"tokens":[1,]}`, "syntax tokens[1]: expected a value at line 1 column 14"},
		{`{"tokens":[,1]}`, "syntax tokens[0]: expected a value at line 1 column 12"},
		{`{"tokens":[1 2]}`, "syntax tokens: expected `,` or `]` at line 1 column 14"},
		{`{"tokens":[1x]}`, "syntax tokens: expected `,` or `]` at line 1 column 13"},
		{`{"tokens":[1.]}`, "syntax tokens[0]: expected a digit at line 1 column 14"},
		{`{"tokens":[1e]}`, "syntax tokens[0]: expected a digit at line 1 column 14"},
		{`{"tokens":[+1]}`, "syntax tokens[0]: expected a value at line 1 column 12"},
		{`{"tokens":[-]}`, "syntax tokens[0]: expected a digit at line 1 column 13"},
		{`{"tokens":[12345678,12345678,1`, "syntax tokens: end of text, expected `,` or `]` at line 1 column 31"},

		{`{"hashes":[18446744073709551616]}`, "shape hashes[0]: integer out of range, expected a 64-bit integer at line 1 column 12"},
		{`{"hashes":[-9223372036854775809]}`, "shape hashes[0]: integer out of range, expected a 64-bit integer at line 1 column 12"},
		{`{"hashes":[1,-9223372036854775809,1,1,1,1,1,1,1,1]}`, "shape hashes[1]: integer out of range, expected a 64-bit integer at line 1 column 14"},
		{`{"hashes":[18446744073709551616,1,1,1,1,1,1,1,1,1]}`, "shape hashes[0]: integer out of range, expected a 64-bit integer at line 1 column 12"},
		{`{"hashes":[99999999999999999999999999999,1,1,1,1,1]}`, "shape hashes[0]: integer out of range, expected a 64-bit integer at line 1 column 12"},
		{`{"hashes":[1.5]}`, "shape hashes[0]: invalid type: number with a fraction or exponent, expected a 64-bit integer at line 1 column 12"},
		{`{"hashes":[-01,1,1,1,1,1,1,1,1,1,1,1,1,1]}`, "syntax hashes[0]: number with a leading zero at line 1 column 13"},
		{`{"hashes":[--1,1,1,1,1,1,1,1,1,1,1,1,1,1]}`, "syntax hashes[0]: expected a digit at line 1 column 13"},
		{`{"ids":[-1]}`, "shape ids[0]: integer out of range, expected an unsigned 64-bit integer at line 1 column 9"},

		{`{"small":4294967296}`, "shape small: integer out of range, expected an unsigned 32-bit integer at line 1 column 10"},
		{`{"count":18446744073709551616}`, "shape count: integer out of range, expected an unsigned 64-bit integer at line 1 column 10"},
		{`{"count":"1"}`, "shape count: invalid type: string, expected an unsigned 64-bit integer at line 1 column 10"},
		{`{"ratio":1e400}`, "syntax ratio: number out of range at line 1 column 10"},
		{`{"ratio":-1.8e308}`, "syntax ratio: number out of range at line 1 column 10"},
		{`{"ratio":1` + strings.Repeat("0", 308) + `}`, ""},
		{`{"ratio":1` + strings.Repeat("0", 309) + `}`, "syntax ratio: number out of range at line 1 column 10"},
		{`{"ratio":1` + strings.Repeat("0", 309) + `.5}`, "syntax ratio: number out of range at line 1 column 10"},
		{`{"ratio":1` + strings.Repeat("0", 309) + `e-309}`, ""},
		{`{"ratio":1e-400}`, ""},
		{`{"ratio":0e99999999999999999999}`, ""},
		{`{"ratio":1e99999999999999999999}`, "syntax ratio: number out of range at line 1 column 10"},
		{`{"weight":1e400}`, "syntax weight: number out of range at line 1 column 11"},
		{`{"small":1e400}`, "syntax small: number out of range at line 1 column 10"},
		{`{"name":1e400}`, "syntax name: number out of range at line 1 column 9"},
		{`{"tokens":[1,1e400]}`, "syntax tokens[1]: number out of range at line 1 column 14"},
		{`{"unknown":{"a":[1e400]}}`, "syntax number out of range at line 1 column 18"},
		{`{"ranks":{"1e400":true}}`, "syntax ranks.1e400: member name is not a number at line 1 column 19"},
		{`{"weight":1e39}`, "shape weight: number out of range at line 1 column 11"},
		{`{"ratio":NaN}`, "syntax ratio: expected a value at line 1 column 10"},
		{`{"flag":1}`, "shape flag: invalid type: number, expected a boolean at line 1 column 9"},
		{`{"flag":truth}`, "syntax flag: expected `true` at line 1 column 9"},
		{`{"name":null}`, "shape name: invalid type: null, expected a string at line 1 column 9"},
		{`{"name":nul}`, "syntax name: expected `null` at line 1 column 9"},
		{`{"tags":["a",1]}`, "shape tags[1]: invalid type: number, expected a string at line 1 column 14"},
		{`{"ports":{"a b":"x"}}`, "shape ports.a b: invalid type: string, expected an unsigned 32-bit integer at line 1 column 17"},
		{"{\"inner\":\n {}}", "shape inner: missing field `id` at line 2 column 4"},
		{`{"inner":{"id":-1}}`, "shape inner.id: integer out of range, expected an unsigned 64-bit integer at line 1 column 16"},
		{`{"ranks":{"x":true}}`, "syntax ranks.x: member name is not a number at line 1 column 15"},
		{`{"ranks":{"":true}}`, "syntax ranks: member name is not a number at line 1 column 14"},
		{`{"ranks":{"01":true}}`, "syntax ranks.01: member name is not a number at line 1 column 16"},
		{`{"ranks":{"1 ":true}}`, "syntax ranks.1 : member name is not a number at line 1 column 16"},
		{`{"ranks":{"-1":true}}`, "shape ranks.-1: member name is not an unsigned 32-bit integer at line 1 column 16"},
		{`{"ranks":{"1.5":true}}`, "shape ranks.1.5: member name is not an unsigned 32-bit integer at line 1 column 17"},
		{`{"ranks":{"4294967296":true}}`, "shape ranks.4294967296: member name is not an unsigned 32-bit integer at line 1 column 24"},
		{`{"ranks":{"1":7}}`, "shape ranks.1: invalid type: number, expected a boolean at line 1 column 15"},
		{`{"name":"a","name":"b"}`, "shape duplicate field `name` at line 1 column 20"},
		{`{"alias":null,"alias":null}`, "shape duplicate field `alias` at line 1 column 23"},
		{`{"unknown":1,"unknown":2}`, ""},
		{`{"unknown":[1,}`, "syntax expected a value at line 1 column 15"},
		{`{"unknown":01}`, "syntax number with a leading zero at line 1 column 12"},

		// The first fault in the text counts.
		{`{"count":"x"`, "shape count: invalid type: string, expected an unsigned 64-bit integer at line 1 column 10"},
		{`{"count":"x`, "syntax count: end of text, expected the end of a string at line 1 column 12"},

		{`{"name":"` + "\x01" + `"}`, "syntax name: control character in a string at line 1 column 10"},
		{`{"name":"\q"}`, "syntax name: invalid escape at line 1 column 11"},
		{`{"name":"\u12g4"}`, "syntax name: invalid escape at line 1 column 12"},
		{`{"name":"\u12`, "syntax name: end of text, expected the end of a string at line 1 column 14"},
		{`{"name":"\`, "syntax name: end of text, expected the end of a string at line 1 column 11"},
		{`{"name":"\ud800"}`, "syntax name: lone surrogate in a string at line 1 column 11"},
		{`{"name":"\ud800\u0041"}`, "syntax name: lone surrogate in a string at line 1 column 11"},
		{`{"name":"\udc00"}`, "syntax name: lone surrogate in a string at line 1 column 11"},
		{"{\"name\":\"\xff\"}", "syntax name: invalid UTF-8 in a string at line 1 column 10"},
		{"{\"name\":\"\\n\xff\"}", "syntax name: invalid UTF-8 in a string at line 1 column 10"},
		{"{\"\xff\":1}", "syntax invalid UTF-8 in a string at line 1 column 3"},
		{"{\x00}", "syntax expected a member name at line 1 column 2"},
		{"\ufeff{}", "syntax expected a value at line 1 column 1"},
		{deep(127), ""},
		{deep(128), "syntax recursion limit exceeded at line 1 column 133"},
		{strings.Repeat("[", 1<<20), "shape invalid type: array, expected an object at line 1 column 1"},
		{`{"u":` + strings.Repeat(`{"u":`, 1<<20), "syntax recursion limit exceeded at line 1 column 641"},
	}
	for _, tc := range tests {
		_, err := decode(tc.text)
		got := ""
		var fault *Error
		if errors.As(err, &fault) {
			got = map[Class]string{Syntax: "syntax ", Shape: "shape "}[fault.Class] + fault.Error()
		}
		if got != tc.want {
			t.Errorf("%.60q:\n got %s\nwant %s", tc.text, got, tc.want)
		}
	}
}

// TestIntegerArrays reads numbers of every length in every layout of white
// space, at every distance from the end of the text, and compares with strconv.
func TestIntegerArrays(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for round := range 20000 {
		n := rnd.IntN(12)
		text, want := []byte("["), []uint64{}
		tokens := rnd.IntN(2) == 0
		for i := range n {
			if i > 0 {
				text = append(text, ',')
			}
			text = append(text, strings.Repeat(" ", rnd.IntN(3)*rnd.IntN(2))...)
			v := rnd.Uint64() >> rnd.IntN(64)
			switch {
			case tokens:
				v = uint64(uint32(v))
				text = strconv.AppendUint(text, v, 10)
			case rnd.IntN(2) == 0:
				text = strconv.AppendInt(text, int64(v), 10)
			default:
				text = strconv.AppendUint(text, v, 10)
			}
			want = append(want, v)
			text = append(text, strings.Repeat("\n", rnd.IntN(8)/7)...)
		}
		text = append(text, ']')
		var s Scanner
		s.Reset(JSON, text)
		got := []uint64{}
		if tokens {
			for _, v := range s.AppendUint32s(nil) {
				got = append(got, uint64(v))
			}
		} else {
			got = s.AppendHash64s(got)
		}
		if err := s.End(); err != nil || !slices.Equal(got, want) {
			t.Fatalf("round %d: %s = %v, %v; want %v", round, text, got, err, want)
		}
	}
}

// TestHashLimits: where others follow, a hash at the limits of its range or of its form is
// taken, or refused, as it is by itself.
func TestHashLimits(t *testing.T) {
	for _, number := range []string{
		"18446744073709551615", "18446744073709551616", "18446744073709551625", "99999999999999999999",
		"9223372036854775807", "-9223372036854775808", "-9223372036854775809", "-18446744073709551615",
		"999999999999999", "1000000000000000", "-1000000000000000", "9999999999999999", "-99999999999999999",
		"100000000000000000000", "184467440737095516150", "1844674407370955161500000", "-1844674407370955161500000",
		"0000000000000000", "0123456789012345678", "-01234567890123456", "--1234567890123456", "-",
		"1234567890123456.5", "1234567890123456e1", "12345678901234567a", "12345678:0123456", "1234567890123/56",
	} {
		read := func(text string) ([]uint64, error) {
			var s Scanner
			s.Reset(JSON, []byte(text))
			got := s.AppendHash64s(nil)
			return got, s.End()
		}
		const more = ",1234567890123456789"
		want, wantErr := read("[" + number + "]")
		got, err := read("[" + number + strings.Repeat(more, 3) + "]")
		if wantErr == nil {
			want = append(want, slices.Repeat([]uint64{1234567890123456789}, 3)...)
		}
		if (err == nil) != (wantErr == nil) || err == nil && !slices.Equal(got, want) {
			t.Errorf("%s: %v, %v, want %v, %v", number, got, err, want, wantErr)
		}
	}
}

// TestAppendKeepsPrefix: the readers of arrays append, and count faults from
// the array's own start.
func TestAppendKeepsPrefix(t *testing.T) {
	var s Scanner
	s.Reset(JSON, []byte(`[3,"x"]`))
	if got := s.AppendUint32s([]uint32{1, 2}); !slices.Equal(got, []uint32{1, 2, 3}) {
		t.Errorf("tokens = %v", got)
	}
	if err := s.Err(); err == nil || !strings.HasPrefix(err.Error(), "[1]: ") {
		t.Errorf("err = %v, want one at [1]", err)
	}
	s.Reset(JSON, []byte(`[]`))
	if got := s.AppendHash64s([]uint64{9}); !slices.Equal(got, []uint64{9}) || s.End() != nil {
		t.Errorf("hashes = %v, %v", got, s.Err())
	}
}

func TestNewObjectRefusesProgrammingErrors(t *testing.T) {
	refused := func(fields ...Field[doc]) {
		t.Helper()
		defer func() {
			if recover() == nil {
				t.Error("NewObject did not panic")
			}
		}()
		NewObject(fields...)
	}
	refused(Field[doc]{Name: "a"}, Field[doc]{Name: "a"})
	many := make([]Field[doc], 65)
	for i := range many {
		many[i].Name = strconv.Itoa(i)
	}
	refused(many...)
}

// TestNoGarbage: with grown buffers a body of integers costs no allocation.
func TestNoGarbage(t *testing.T) {
	text := benchBody(512)
	var s Scanner
	var d doc
	read := func() {
		if err := docShape.Decode(&s, JSON, text, &d); err != nil {
			t.Fatal(err)
		}
	}
	read()
	if n := testing.AllocsPerRun(50, read); n != 0 {
		t.Errorf("%v allocations per body, want none", n)
	}
}

func benchBody(n int) []byte {
	rnd := rand.New(rand.NewPCG(1, 2))
	hashes := func() []int64 {
		h := make([]int64, n)
		for i := range h {
			h[i] = int64(rnd.Uint64())
		}
		return h
	}
	text, err := json.Marshal(map[string]any{"hashes": hashes(), "more_hashes": nil, "count": n * 16})
	if err != nil {
		panic(err)
	}
	return text
}

func BenchmarkHash64s(b *testing.B) {
	for _, n := range []int{64, 512, 4096} {
		b.Run(fmt.Sprintf("hashes=%d", n), func(b *testing.B) {
			text := benchBody(n)
			var s Scanner
			var d doc
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				if err := docShape.Decode(&s, JSON, text, &d); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkUint32s(b *testing.B) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, sep := range []string{",", ", "} {
		var text strings.Builder
		text.WriteString(`{"tokens":[1`)
		for range 8191 {
			text.WriteString(sep + strconv.Itoa(rnd.IntN(128000)))
		}
		text.WriteString("]}")
		b.Run(fmt.Sprintf("tokens=8192/separator=%q", sep), func(b *testing.B) {
			body := []byte(text.String())
			var s Scanner
			var d doc
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				if err := docShape.Decode(&s, JSON, body, &d); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestVariant: one of the names is read, another string is a fault of shape, and
// what is no string is none of JSON.
func TestVariant(t *testing.T) {
	for text, want := range map[string]struct {
		got, reason string
		class       Class
	}{
		`"a"`:      {"a", "", 0},
		`"\u0062"`: {"b", "", 0},
		`"c"`:      {"", "unknown variant, expected `a` or `b`", Shape},
		`""`:       {"", "unknown variant, expected `a` or `b`", Shape},
		`7`:        {"", "expected a value", Syntax},
		`true`:     {"", "expected a value", Syntax},
		`["a"]`:    {"", "expected a value", Syntax},
		`{"a":1}`:  {"", "expected a value", Syntax},
		``:         {"", "end of text, expected a value", Syntax},
		`"a`:       {"", "end of text, expected the end of a string", Syntax},
	} {
		var s Scanner
		s.Reset(JSON, []byte(text))
		got := s.Variant("a", "b")
		err := s.End()
		if want.reason == "" {
			if got != want.got || err != nil {
				t.Errorf("%s: %q, %v", text, got, err)
			}
			continue
		}
		var fault *Error
		if !errors.As(err, &fault) || fault.Class != want.class || fault.Reason != want.reason || got != "" {
			t.Errorf("%s: %q, %+v, want %s", text, got, fault, want.reason)
		}
	}
	var s Scanner
	s.Reset(JSON, []byte(`"x"`))
	if s.Variant("a", "b", "c"); s.End() == nil || !strings.Contains(s.End().Error(), "expected `a`, `b` or `c`") {
		t.Errorf("three names: %v", s.End())
	}
}

// TestNext proves that a caller can see of what type the next value is, and where each
// value stands.
func TestNext(t *testing.T) {
	text := `{"a": [1, "x\n" ], "b" : null}`
	var s Scanner
	s.Reset(JSON, []byte(text))
	places := ""
	for range s.Map() {
		c := s.Next()
		start := s.Offset()
		s.Skip()
		places += string(c) + text[start:s.Offset()] + ";"
	}
	if want := `[[1, "x\n" ];nnull;`; places != want || s.End() != nil {
		t.Errorf("%s, %v, want %s", places, s.Err(), want)
	}
	if s.Next() != 0 {
		t.Error("there is a value behind the end")
	}
}
