package conductor

import (
	"fmt"
	"slices"
	"testing"

	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/test/helpers/length"
)

// benchWorld has 64 instances that share a system prompt of 1,024 tokens; each
// has the first part of the prompt on the device (so that the walk loses one
// after the other), all of it in memory for every eighth, and other prompts.
func benchWorld(b *testing.B, tokens int) (*world, Identity, []uint32, []uint64) {
	const blockSize, instances = 16, 64
	w := newWorld(b)
	prompt := make([]uint32, tokens)
	for i := range prompt {
		prompt[i] = uint32(i)
	}
	h := rollingSeed(prompt, blockSize, hashing.Seed)
	shared := 1024 / blockSize
	var id Identity
	for i := range instances {
		reg := base(fmt.Sprintf("instance-%02d", i), 0)
		reg.BlockSize = blockSize
		id = reg.Identity
		p := w.add(reg)
		mine := shared + (len(h)-shared)*i/(instances-1)
		w.apply(p, stored(h[:mine], "gpu"))
		if i%8 == 0 {
			w.apply(p, stored(h, "cpu"))
		}
		for k := range 4 {
			other := slices.Clone(prompt[:8192])
			other[1024] = uint32(1<<24 + i*4 + k)
			w.apply(p, stored(rollingSeed(other, blockSize, hashing.Seed), "gpu"))
		}
	}
	return w, id, prompt, h
}

func BenchmarkQueryTokens(b *testing.B) {
	for _, tokens := range []int{8192, 65536} {
		b.Run(fmt.Sprintf("tokens=%d", tokens), func(b *testing.B) {
			w, id, prompt, _ := benchWorld(b, tokens)
			var a Answer
			b.ReportAllocs()
			for b.Loop() {
				w.queryTokens(id, prompt, "", &a)
			}
			wantWhole(b, &a, tokens)
		})
	}
}

func BenchmarkQueryHashes(b *testing.B) {
	for _, tokens := range []int{8192, 65536} {
		b.Run(fmt.Sprintf("tokens=%d", tokens), func(b *testing.B) {
			w, id, _, h := benchWorld(b, tokens)
			var a Answer
			b.ReportAllocs()
			for b.Loop() {
				w.queryHashes(id, h, "", &a)
			}
			wantWhole(b, &a, tokens)
		})
	}
}

// BenchmarkQueryMiss is a query that matches nothing.
func BenchmarkQueryMiss(b *testing.B) {
	w, id, prompt, _ := benchWorld(b, 8192)
	prompt[0]++
	var a Answer
	b.ReportAllocs()
	for b.Loop() {
		w.queryTokens(id, prompt, "", &a)
	}
}

func wantWhole(b *testing.B, a *Answer, tokens int) {
	if len(a.Instances) != 64 || a.Instances[0].Longest != uint64(tokens) || a.Instances[1].Longest == 0 {
		b.Fatalf("answer: %s", a.text())
	}
}

// BenchmarkApply is a batch with one store, and the removal of its blocks: 64, as
// of a prompt, or one, as of an answer under way.
func BenchmarkApply(b *testing.B) {
	for _, blocks := range []uint64{1, 64} {
		tokens := prompt(1, int(blocks))
		h := rolling(tokens)
		b.Run(fmt.Sprintf("engine/blocks=%d", blocks), func(b *testing.B) {
			benchApply(b, engineStored(from(1, blocks), nil, tokens, "GPU"), engineRemoved(from(1, blocks), "GPU"))
		})
		b.Run(fmt.Sprintf("envelope/blocks=%d", blocks), func(b *testing.B) {
			benchApply(b, stored(h, "gpu"), removed(h, "gpu"))
		})
	}
}

func benchApply(b *testing.B, events ...event) {
	w := newWorld(b)
	p := w.add(base("i", 0))
	w.apply(p, stored(rolling(prompt(2, 4096)), "gpu")) // an index of some size
	payload := w.payload(nil, events...)
	b.ReportAllocs()
	for b.Loop() {
		if err := p.Apply(payload, &w.work); err != nil {
			b.Fatal(err)
		}
	}
}

// TestQueryAllocates: a query on warm memory allocates a handful of times,
// however long the prompt is.
func TestQueryAllocates(t *testing.T) {
	if length.Race {
		t.Skip("pools are not kept under the race detector")
	}
	w := newWorld(t)
	tokens := prompt(1, 2000)
	for i := range 8 {
		w.apply(w.add(base(fmt.Sprint("i", i), 0)), stored(rolling(tokens)[:100*(i+1)], "gpu"))
	}
	id := base("", 0).Identity
	h := rolling(tokens)
	var a Answer
	n := testing.AllocsPerRun(20, func() {
		w.queryTokens(id, tokens, "", &a)
		w.queryHashes(id, h, "", &a)
	})
	if n > 8 {
		t.Errorf("%v allocations for two queries", n)
	}
}
