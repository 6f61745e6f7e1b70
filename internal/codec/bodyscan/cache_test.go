package bodyscan

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/select-service/select-service/test/helpers/length"
)

// scoped is an object with an array that a cache may know.
type scoped struct {
	tokens []uint32
	scope  string
	other  uint64
}

var scopedShape = NewObject(
	Field[scoped]{Name: "tokens", Required: true, Late: true, Read: func(s *Scanner, v *scoped) {
		v.tokens = AppendUint32sUnder(s, v.tokens, v.scope)
	}},
	Field[scoped]{Name: "scope", Read: Set(func(v *scoped) *string { return &v.scope }, (*Scanner).String)},
	Field[scoped]{Name: "other", Read: Set(func(v *scoped) *uint64 { return &v.other }, (*Scanner).Uint64)},
)

// decodeBoth reads a text with a cache and without; whatever the cache knows, both say the same.
func decodeBoth(t testing.TB, c *Cache, text []byte) {
	t.Helper()
	var cached, plain Scanner
	cached.UseCache(c)
	var got, want scoped
	gotErr := scopedShape.Decode(&cached, JSON, text, &got)
	wantErr := scopedShape.Decode(&plain, JSON, text, &want)
	if fmt.Sprint(gotErr) != fmt.Sprint(wantErr) {
		t.Fatalf("%.80s…: %v, without a cache %v", text, gotErr, wantErr)
	}
	if wantErr == nil && (!slices.Equal(got.tokens, want.tokens) || got.scope != want.scope || got.other != want.other) {
		t.Fatalf("%.80s…: %d tokens of %q, without a cache %d of %q, or others", text, len(got.tokens), got.scope, len(want.tokens), want.scope)
	}
}

// appendTokens appends n elements, of a sequence that begins the same way for each seed, in one of
// a few formats.
func appendTokens(b []byte, seed uint64, format, n int) []byte {
	rnd := rand.New(rand.NewPCG(seed, 0))
	separator := []string{",", ", ", " ,\n"}[format]
	for i := range n {
		if i > 0 {
			b = append(b, separator...)
		}
		b = strconv.AppendUint(b, rnd.Uint64()>>(64-1-rnd.IntN(20)), 10)
	}
	return b
}

// heap is room on the heap.
func heap(text, ids int, _ int64) ([]byte, []uint32) { return make([]byte, text), make([]uint32, ids) }

// TestCacheAgainstPlain plays random histories of arrays that grow, part, come under other scopes
// and in other formats, with faults in them, to a cache with room for few of them: results and
// faults are those of a scanner without a cache, and the cache takes no more than it may.
func TestCacheAgainstPlain(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	var used int64
	c := NewCache(120*pieceMemory, func(text, ids int, bytes int64) ([]byte, []uint32) {
		if used += bytes; int64(text+4*ids) > bytes {
			t.Errorf("%d bytes are taken for %d of text and %d ids", bytes, text, ids)
		}
		return heap(text, ids, bytes)
	})
	faults := []string{"x", "-", "]", "[", `"`, "4294967296", "1.5", "01", " ", ",", "}", "\x00", "null"}
	for i := range length.Of(1000, 300, 80) {
		b := fmt.Appendf(nil, `{"other":%d,`, i)
		scope := fmt.Sprintf(`"scope":"%d"`, rnd.IntN(2))
		before := rnd.IntN(2) == 0
		if before {
			b = append(append(b, scope...), ',')
		}
		b = append(b, `"tokens": [`...)
		begin := len(b)
		format := rnd.IntN(3)
		b = appendTokens(b, uint64(rnd.IntN(3)), format, 8_000+rnd.IntN(10_000))
		if rnd.IntN(3) == 0 { // another end
			b = appendTokens(append(b, ','), uint64(i)+100, format, rnd.IntN(3000)+1)
		}
		if rnd.IntN(3) == 0 {
			at := begin + rnd.IntN(len(b)-begin)
			b = slices.Insert(b, at, []byte(faults[rnd.IntN(len(faults))])...)
		}
		b = append(b, "] "...)
		if !before {
			b = append(append(b, ','), scope...)
		}
		if rnd.IntN(8) == 0 {
			b = append(b, `,"tokens":[]`...)
		}
		b = append(b, '}')
		decodeBoth(t, c, b)
		if used > 120*pieceMemory {
			t.Fatalf("%d bytes are used", used)
		}
	}
	if known, read := c.Bytes(); known < read/20 {
		t.Errorf("%d bytes were known, %d read", known, read)
	}
}

// FuzzCache repeats a text within a long array, before it and after it: twice with a cache, which
// then knows what it may, the result is that of a scanner without one.
func FuzzCache(f *testing.F) {
	for _, seed := range []string{"1,", "1, 22,", "12345,1234567,", "1,[2],", `"],`, "4294967295 ,", "1e3,", "],\"other\":1,\"x\":[", "99999999,00,"} {
		f.Add([]byte(seed), []byte("1"), []byte(`,"scope":"a"`))
	}
	f.Fuzz(func(t *testing.T, repeated, end, after []byte) {
		if len(repeated) == 0 {
			return
		}
		b := append([]byte(`{"tokens":[`), bytes.Repeat(repeated, (cachedBytes+pieceBytes)/len(repeated)+1)...)
		b = append(append(append(append(b, end...), ']'), after...), '}')
		c := NewCache(64*pieceMemory, heap)
		decodeBoth(t, c, b)
		decodeBoth(t, c, b)
	})
}

// TestCacheScopes: what was read under one scope is not known under another one, wherever the scope
// stands in the text; short arrays, other formats and a scanner without a cache leave it alone.
func TestCacheScopes(t *testing.T) {
	c := NewCache(4<<20, heap)
	array := append(appendTokens([]byte(`"tokens":[`), 1, 0, 20_000), ']')
	for _, step := range []struct {
		head, tail string
		known      bool
	}{
		{`"scope":"a",`, ``, false},
		{``, `,"scope":"b"`, false},
		{``, `,"scope":"a"`, true},
		{`"scope":"b",`, ``, true},
		{``, ``, false},
		{``, `,"other":1`, true},
	} {
		before, _ := c.Bytes()
		decodeBoth(t, c, slices.Concat([]byte("{"), []byte(step.head), array, []byte(step.tail), []byte("}")))
		if known, _ := c.Bytes(); (known > before) != step.known {
			t.Errorf("%s…%s: %d bytes were known, then %d", step.head, step.tail, before, known)
		}
	}
	var s Scanner
	s.UseCache(c)
	known, read := c.Bytes()
	var v scoped
	short := slices.Concat([]byte(`{"tokens":[`), appendTokens(nil, 1, 0, 1000), []byte("]}"))
	if err := scopedShape.Decode(&s, JSON, short, &v); err != nil || len(v.tokens) != 1000 {
		t.Errorf("%v, %d tokens", err, len(v.tokens))
	}
	long := AppendMsgpack(nil, slices.Concat([]byte("{"), array, []byte("}")))
	if err := scopedShape.Decode(&s, Msgpack, long, &v); err != nil || len(v.tokens) != 21_000 {
		t.Errorf("%v, %d tokens", err, len(v.tokens))
	}
	if k, r := c.Bytes(); k != known || r != read {
		t.Errorf("%d bytes known and %d read of arrays that are not for the cache", k-known, r-read)
	}
	if NewCache(pieceMemory, heap) != nil {
		t.Error("a cache without room for one set")
	}
}

// TestCacheComparesText: a text that has the key of another one is not that one.
func TestCacheComparesText(t *testing.T) {
	c := NewCache(1<<20, heap)
	c.keep(7, []byte("1,2,"), []uint32{1, 2})
	for text, want := range map[string]bool{"1,2,": true, "1,3,": false, "1,2,3,": false, "": false} {
		if ids, known := c.appendKnown(nil, 7, []byte(text)); known != want || known && !slices.Equal(ids, []uint32{1, 2}) {
			t.Errorf("%q: %v, known: %t", text, ids, known)
		}
	}
}

// TestCacheConcurrent: scanners at the same time, of arrays that push each other out, get what they
// would get alone.
func TestCacheConcurrent(t *testing.T) {
	c := NewCache(3*ways*pieceMemory, heap)
	var texts [][]byte
	for i := range 6 {
		texts = append(texts, slices.Concat([]byte(`{"tokens":[`), appendTokens(nil, uint64(i), i%3, 9_000+3000*(i%3)), []byte("]}")))
	}
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 20 {
				decodeBoth(t, c, texts[(i*(g+1)+g)%len(texts)])
			}
		})
	}
	wg.Wait()
}

// BenchmarkCache reads an array of 52,000 tokens without a cache, for the first time, and again.
func BenchmarkCache(b *testing.B) {
	var text []byte
	fill := func(i int) {
		rnd := rand.New(rand.NewPCG(uint64(i), 2))
		text = append(text[:0], `{"tokens":[1`...)
		for range 51_999 {
			text = strconv.AppendInt(append(text, ','), int64(rnd.IntN(128000)), 10)
		}
		text = append(text, "]}"...)
	}
	for _, name := range []string{"none", "fresh", "known"} {
		b.Run(name, func(b *testing.B) {
			var s Scanner
			var v scoped
			if name != "none" {
				s.UseCache(NewCache(64<<20, heap))
			}
			fill(0)
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if name == "fresh" {
					b.StopTimer()
					fill(i)
					b.StartTimer()
				}
				v.tokens = v.tokens[:0]
				if err := scopedShape.Decode(&s, JSON, text, &v); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
