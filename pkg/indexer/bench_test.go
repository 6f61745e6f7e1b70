package indexer_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/indexer"
)

// conversation is a chat that grows turn by turn on one rank: a shared system
// prompt, then blocks of its own.
type conversation struct {
	names, local []uint64
}

func grow(rnd *rand.Rand, c *conversation, n int) (names, local []uint64) {
	at := len(c.names)
	for range n {
		l := rnd.Uint64()
		c.local = append(c.local, l)
		c.names = append(c.names, l*0x9e3779b97f4a7c15)
	}
	return c.names[at:], c.local[at:]
}

// BenchmarkStore measures one event of 32 blocks that continues a conversation,
// on an index that is held at 100,000 blocks a rank by eviction.
func BenchmarkStore(b *testing.B) {
	for _, ranks := range []int{8, 64} {
		b.Run(fmt.Sprintf("ranks=%d", ranks), func(b *testing.B) {
			const blocks, capacity = 32, 100_000
			rnd := rand.New(rand.NewPCG(1, 2))
			s := indexer.New()
			system := &conversation{}
			grow(rnd, system, 64)
			chats := make([][]*conversation, ranks)
			held := make([]int, ranks)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				r := i % ranks
				ev := &indexer.Store{Slot: uint32(r), SeedKnown: true, Seed: 1337, Counted: true}
				var c *conversation
				if n := len(chats[r]); n > 0 && rnd.IntN(4) > 0 {
					c = chats[r][rnd.IntN(n)]
					ev.Parent, ev.HasParent = c.names[len(c.names)-1], true
					ev.EngineHashes, ev.Local = grow(rnd, c, blocks)
				} else {
					c = &conversation{names: append([]uint64(nil), system.names...), local: append([]uint64(nil), system.local...)}
					grow(rnd, c, blocks)
					ev.EngineHashes, ev.Local = c.names, c.local
					chats[r] = append(chats[r], c)
				}
				s.Store(ev)
				for held[r] += blocks; held[r] > capacity; {
					old := chats[r][0]
					chats[r] = chats[r][1:]
					s.Remove(uint32(r), indexer.Device, old.names[64:])
					held[r] -= len(old.names) - 64
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/blocks, "ns/block")
			st := s.Stats()
			b.ReportMetric(float64(st.Bytes)/float64(st.Blocks[indexer.Device]), "B/entry")
		})
	}
}

// BenchmarkOverlap measures a query that matches fully on one rank and on the
// shared system prompt everywhere.
func BenchmarkOverlap(b *testing.B) {
	for _, ranks := range []int{8, 64, 256} {
		for _, depth := range []int{64, 512, 4096} {
			b.Run(fmt.Sprintf("ranks=%d/depth=%d", ranks, depth), func(b *testing.B) {
				rnd := rand.New(rand.NewPCG(1, 2))
				s := indexer.New()
				system := &conversation{}
				grow(rnd, system, 32)
				var prompts [][]uint64
				for r := range ranks {
					for range 20 {
						c := &conversation{names: append([]uint64(nil), system.names...), local: append([]uint64(nil), system.local...)}
						grow(rnd, c, depth-32)
						s.Store(&indexer.Store{Slot: uint32(r), EngineHashes: c.names, Local: c.local})
						prompts = append(prompts, c.local)
					}
				}
				var o indexer.Overlap
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					s.Overlap(prompts[i%len(prompts)], &o)
				}
			})
		}
	}
}

// BenchmarkWalk passes over 1,000,000 entries: conversations of 512 blocks that
// share a system prompt of 32. With own names each rank has a hash seed of its
// own.
func BenchmarkWalk(b *testing.B) {
	for _, own := range []bool{false, true} {
		b.Run(fmt.Sprintf("ownNames=%v", own), func(b *testing.B) {
			const entries, ranks = 1_000_000, 64
			rnd := rand.New(rand.NewPCG(1, 2))
			s := indexer.New()
			system := &conversation{}
			grow(rnd, system, 32)
			for i := range entries / 480 {
				c := &conversation{names: append([]uint64(nil), system.names...), local: append([]uint64(nil), system.local...)}
				grow(rnd, c, 480)
				if own {
					for k := range c.names {
						c.names[k] += uint64(i%ranks) << 32
					}
				}
				s.Store(&indexer.Store{Slot: uint32(i % ranks), EngineHashes: c.names, Local: c.local})
			}
			b.ReportAllocs()
			blocks := 0
			for b.Loop() {
				for r := range s.Walk().Runs {
					blocks += len(r.EngineHashes)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(blocks), "ns/block")
		})
	}
}

// benchSpace returns an index of either mode and how it takes a chain.
func benchSpace(sequence bool) (s *indexer.Space, chain func(local []uint64) []uint64) {
	if !sequence {
		return indexer.New(), func(local []uint64) []uint64 { return local }
	}
	return indexer.NewSequence(hashing.Seed), func(local []uint64) []uint64 {
		return folded(hashing.AppendSequence(nil, local), hashing.Seed)
	}
}

func mode(sequence bool) string {
	if sequence {
		return "sequence"
	}
	return "local"
}

// BenchmarkMatch measures a query of 8k and 64k tokens in blocks of 16 over 64
// slots: all share the system prompt, neighbours ever more of a prompt, and each
// has the last eighth of its own.
func BenchmarkMatch(b *testing.B) {
	for _, sequence := range []bool{false, true} {
		for _, tokens := range []int{8192, 65536} {
			b.Run(fmt.Sprintf("mode=%s/tokens=%d", mode(sequence), tokens), func(b *testing.B) {
				const slots = 64
				blocks := tokens / 16
				rnd := rand.New(rand.NewPCG(1, 2))
				s, chain := benchSpace(sequence)
				var prompts [][]uint64
				for chat := range 100 {
					c := &conversation{names: number(1, 64), local: number(1, 64)}
					grow(rnd, c, blocks-64)
					for slot := range uint32(slots) {
						n := 64
						if off := (int(slot) + chat) % slots; off < 8 {
							n = blocks * (8 - off) / 8
						}
						s.Store(&indexer.Store{Slot: slot, EngineHashes: c.names[:n], Local: c.local[:n]})
					}
					prompts = append(prompts, chain(c.local))
				}
				var m indexer.Match
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					s.Match(prompts[i%len(prompts)], &m)
				}
				if m.Blocks() != blocks {
					b.Errorf("%d blocks", m.Blocks())
				}
				b.ReportMetric(float64(len(m.Steps)), "steps")
			})
		}
	}
}

// BenchmarkMatchSequence is BenchmarkMatch by sequence hashes in a local Space.
func BenchmarkMatchSequence(b *testing.B) {
	for _, tokens := range []int{8192, 65536} {
		b.Run(fmt.Sprintf("tokens=%d", tokens), func(b *testing.B) {
			rnd := rand.New(rand.NewPCG(1, 2))
			s := indexer.New()
			var prompts [][]uint64
			for chat := range uint32(100) {
				c := &conversation{names: number(1, 64), local: number(1, 64)}
				grow(rnd, c, tokens/16-64)
				s.Store(&indexer.Store{Slot: chat % 64, EngineHashes: c.names, Local: c.local})
				prompts = append(prompts, hashing.AppendSequence(nil, c.local))
			}
			var m indexer.Match
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				s.MatchSequence(prompts[i%len(prompts)], &m)
			}
		})
	}
}

// BenchmarkIngest measures one event of 32 blocks with tokens that continues a
// conversation, and the removal of as many, on an index of 1,000,000 blocks.
func BenchmarkIngest(b *testing.B) {
	for _, sequence := range []bool{false, true} {
		b.Run("mode="+mode(sequence), func(b *testing.B) {
			const blocks, slots, chats, length = 32, 64, 2000, 512
			rnd := rand.New(rand.NewPCG(1, 2))
			s, _ := benchSpace(sequence)
			all := make([]*conversation, chats)
			for i := range all {
				all[i] = &conversation{}
				grow(rnd, all[i], length)
				s.Store(&indexer.Store{Slot: uint32(i % slots), EngineHashes: all[i].names, Local: all[i].local})
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				c, slot := all[i%chats], uint32(i%chats%slots)
				if i/chats%2 == 0 {
					n := len(c.names) - blocks
					s.Remove(slot, indexer.Device, c.names[n:])
					c.names, c.local = c.names[:n], c.local[:n]
					continue
				}
				ev := &indexer.Store{Slot: slot, Parent: c.names[len(c.names)-1], HasParent: true, Counted: true}
				ev.EngineHashes, ev.Local = grow(rnd, c, blocks)
				s.Store(ev)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/blocks, "ns/block")
			st := s.Stats()
			b.ReportMetric(float64(st.Bytes)/float64(st.Unique), "B/block")
		})
	}
}
