package reservations

import (
	"fmt"
	"testing"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/hashing"
)

// chain returns the sequence hashes of a prompt of n blocks; equal prefixes of
// locals give equal prefixes of hashes.
func chain(n int, local func(i int) uint64) []uint64 {
	locals := make([]uint64, n)
	for i := range locals {
		locals[i] = local(i)
	}
	return hashing.AppendSequence(nil, locals)
}

// loaded returns a ledger with slots ranks, each with 8 standing reservations
// of 512 blocks: half of them common to all, the rest their own.
func loaded(b *testing.B, slots int) (*Ledger, catalog.Scope) {
	b.Helper()
	sc := catalog.Scope{Model: "m", Tenant: "t"}
	clock := newFakeClock()
	l := New(1, clock.now, nil)
	for slot := range slots {
		rank := catalog.Rank{Worker: uint64(slot)}
		l.PutRank(sc, uint32(slot), rank)
		for i := range 8 {
			hashes := chain(512, func(at int) uint64 {
				if at < 256 {
					return uint64(at)
				}
				return uint64(slot)<<40 | uint64(i)<<32 | uint64(at)
			})
			bookOn(b, l, sc, fmt.Sprintf("standing-%d-%d", slot, i), uint32(slot), hashes)
		}
	}
	return l, sc
}

func bookOn(tb testing.TB, l *Ledger, sc catalog.Scope, id string, slot uint32, hashes []uint64) {
	tb.Helper()
	_, err := l.Book(sc, Request{ID: id, Hashes: hashes, TrackPrefill: true}, func(*View) (Placement, error) {
		return Placement{Slot: slot, Rank: catalog.Rank{Worker: uint64(slot)}, PrefillTokens: 100}, nil
	})
	if err != nil {
		tb.Fatal(err)
	}
}

// BenchmarkBookFree books and frees one prompt on top of standing load: fresh
// ones share nothing, shared ones lie on blocks that all ranks hold.
func BenchmarkBookFree(b *testing.B) {
	for _, slots := range []int{8, 256} {
		l, sc := loaded(b, slots)
		for _, kind := range []string{"fresh", "shared"} {
			for _, n := range []int{64, 512, 4096} {
				hashes := chain(n, func(i int) uint64 {
					if kind == "shared" && i < 256 {
						return uint64(i)
					}
					return 1<<60 | uint64(i)
				})
				b.Run(fmt.Sprintf("slots=%d/%s/blocks=%d", slots, kind, n), func(b *testing.B) {
					b.ReportAllocs()
					for b.Loop() {
						bookOn(b, l, sc, "x", 3, hashes)
						if err := l.Free("x"); err != nil {
							b.Fatal(err)
						}
					}
				})
			}
		}
	}
}

// BenchmarkBookFreeShared books and frees a prompt of which all but the last blocks are held by
// a prompt of the same rank.
func BenchmarkBookFreeShared(b *testing.B) {
	l, sc := loaded(b, 8)
	prompt := func(own uint64) []uint64 {
		return chain(3125, func(i int) uint64 {
			if i < 3000 {
				return 1<<50 | uint64(i)
			}
			return own<<52 | uint64(i)
		})
	}
	bookOn(b, l, sc, "standing", 3, prompt(1))
	for name, hashes := range map[string][]uint64{"same": prompt(1)[:3000], "tail": prompt(2)} {
		bookOn(b, l, sc, "before", 3, hashes) // the division of the run is not measured
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				bookOn(b, l, sc, "x", 3, hashes)
				if err := l.Free("x"); err != nil {
					b.Fatal(err)
				}
			}
		})
		if err := l.Free("before"); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkApply applies the events of one reservation of another process, on top of
// standing load.
func BenchmarkApply(b *testing.B) {
	l, sc := loaded(b, 64)
	x := Reservation{Origin: Origin{Process: 2}, Scope: sc, ID: "x", Hashes: chain(64, func(i int) uint64 { return 1<<60 | uint64(i) })}
	b.ReportAllocs()
	for b.Loop() {
		x.Origin.Sequence++
		if v := l.ApplyBooked(x); v != Applied {
			b.Fatal(v)
		}
		l.ApplyFreed(Ref{Origin: x.Origin, Scope: sc, ID: x.ID})
	}
}

// BenchmarkLook asks for the load and the shared prefix of all slots at once.
func BenchmarkLook(b *testing.B) {
	for _, slots := range []int{8, 64, 256, 2048} {
		l, sc := loaded(b, slots)
		for _, shared := range []int{0, 256} {
			hashes := chain(512, func(i int) uint64 {
				if i < shared {
					return uint64(i)
				}
				return 1<<60 | uint64(i)
			})
			b.Run(fmt.Sprintf("slots=%d/shared=%d", slots, shared), func(b *testing.B) {
				b.ReportAllocs()
				var sum uint64
				for b.Loop() {
					l.Look(sc, hashes, func(v *View) { sum += v.Load(0).Blocks })
				}
			})
		}
	}
}

// BenchmarkOutputBlock ages a reservation of 512 blocks of its own.
func BenchmarkOutputBlock(b *testing.B) {
	l, sc := loaded(b, 8)
	bookOn(b, l, sc, "x", 3, chain(512, func(i int) uint64 { return 1<<60 | uint64(i) }))
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		i++
		f := float64(i%100) / 100
		if err := l.OutputBlock("x", &f); err != nil {
			b.Fatal(err)
		}
	}
}
