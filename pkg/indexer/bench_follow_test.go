package indexer_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/indexer"
)

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

// BenchmarkFollow measures a query of 8k and 64k tokens in blocks of 16 over 64
// slots: all share the system prompt, neighbours ever more of a prompt, and each
// has the last eighth of its own.
func BenchmarkFollow(b *testing.B) {
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

// BenchmarkFollowHashes is BenchmarkFollow by rolling hashes in a local Space.
func BenchmarkFollowHashes(b *testing.B) {
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
				ev := &indexer.Store{Slot: slot, Parent: c.names[len(c.names)-1], HasParent: true}
				ev.EngineHashes, ev.Local = grow(rnd, c, blocks)
				s.Store(ev)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/blocks, "ns/block")
			st := s.Stats()
			b.ReportMetric(float64(st.Bytes)/float64(st.Unique), "B/block")
		})
	}
}
