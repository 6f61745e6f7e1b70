package selection_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/overload"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// bed is a service with that many ranks, 8 to a worker, of which every fourth
// holds the first half of the prompt that is asked for.
func bed(b *testing.B, ranks int, tokens []uint32, change ...func(*node.Config)) *servicetest.World {
	return bedOf(b, ranks, servicetest.BlockSize, tokens, change...)
}

// bedOf is bed with blocks of that many tokens.
func bedOf(b *testing.B, ranks, blockSize int, tokens []uint32, change ...func(*node.Config)) *servicetest.World {
	w := servicetest.Start(b, change...)
	for id := range uint64(ranks / 8) {
		w.Put(servicetest.Record(id, 8, func(r *catalog.Record) { r.BlockSize = new(uint32(blockSize)) }))
		for dp := uint32(0); dp < 8; dp += 4 {
			e := w.Engine(id, dp)
			e.Publish(dp, e.Stored(tokens[:len(tokens)/2], blockSize, nil), e.Stored(servicetest.Prompt(uint32(id)+10, len(tokens)), blockSize, nil))
		}
	}
	w.Settle()
	return w
}

// BenchmarkSelect is /select by hashes, without HTTP.
func BenchmarkSelect(b *testing.B) {
	for _, blocks := range []int{64, 512} {
		for _, ranks := range []int{8, 64, 256} {
			b.Run(fmt.Sprintf("blocks=%d/ranks=%d", blocks, ranks), func(b *testing.B) {
				tokens := servicetest.Prompt(1, blocks*servicetest.BlockSize)
				w := bed(b, ranks, tokens)
				req := &selection.SelectRequest{Scope: servicetest.Scope, Prompt: servicetest.Hashes(tokens)}
				b.ReportAllocs()
				for b.Loop() {
					if _, err := w.Select(context.Background(), req, false); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkSelectTokens is /select by token ids, 16 times as many as blocks of
// BenchmarkSelect's 64.
func BenchmarkSelectTokens(b *testing.B) {
	tokens := servicetest.Prompt(1, 1024)
	w := bed(b, 8, tokens)
	req := servicetest.Ask(tokens)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := w.Select(context.Background(), req, false); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkSelectPolicy is BenchmarkSelectTokens with 8,192 tokens in blocks of 16, by the
// built-in cost and by a policy that predicts, with work on every rank.
func BenchmarkSelectPolicy(b *testing.B) {
	for _, policy := range []string{"", "predicted-ttft"} {
		b.Run("policy="+policy, func(b *testing.B) {
			tokens := servicetest.Prompt(1, 8192)
			change := func(*node.Config) {}
			if policy != "" {
				change = servicetest.Policy(b, policy, "")
			}
			w := bedOf(b, 8, 16, tokens, change)
			for i := range uint64(8) {
				w.Burden(fmt.Sprint(i), 0, uint32(i), 100, 1000)
			}
			req := servicetest.Ask(tokens)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := w.Select(context.Background(), req, false); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkReserveFree is /select_and_reserve by hashes and the DELETE, without
// HTTP; with a queue in which no one waits it shows what that costs.
func BenchmarkReserveFree(b *testing.B) {
	for _, queue := range []bool{false, true} {
		for _, ranks := range []int{8, 64, 256} {
			b.Run(fmt.Sprintf("queue=%t/ranks=%d", queue, ranks), func(b *testing.B) {
				tokens := servicetest.Prompt(1, 64*servicetest.BlockSize)
				change := func(*node.Config) {}
				if queue {
					change = servicetest.Queueing(1000)
				}
				w := bed(b, ranks, tokens, change)
				req := &selection.SelectRequest{Scope: servicetest.Scope, Prompt: servicetest.Hashes(tokens), ReservationID: new("r")}
				b.ReportAllocs()
				for b.Loop() {
					if _, err := w.Select(context.Background(), req, true); err != nil {
						b.Fatal(err)
					}
					if err := w.Free("r"); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkReserveFair is BenchmarkReserveFree with the end of the prefill, in a class of the queue that is fair and in one that
// is not: what it costs to charge engine seconds.
func BenchmarkReserveFair(b *testing.B) {
	for _, by := range []string{"none", "tenant", "program"} {
		b.Run("by="+by, func(b *testing.B) {
			tokens := servicetest.Prompt(1, 64*servicetest.BlockSize)
			w := bed(b, 64, tokens, fairQueue(b, by))
			req := &selection.SelectRequest{
				Scope: servicetest.Scope, Prompt: servicetest.Hashes(tokens), ReservationID: new("r"), FairTenant: "gold", FairnessID: "agent",
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := w.Select(context.Background(), req, true); err != nil {
					b.Fatal(err)
				}
				if err := w.PrefillComplete("r"); err != nil {
					b.Fatal(err)
				}
				if err := w.Free("r"); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkRefuse is /select by 8,192 token ids in blocks of 16, without HTTP:
// answered without thresholds and with some that no one exceeds, and refused
// because every rank exceeds one. A refusal does not look at the prompt.
func BenchmarkRefuse(b *testing.B) {
	tokens := servicetest.Prompt(1, 8192)
	for _, ranks := range []int{8, 256} {
		for _, limit := range []*uint64{nil, new(uint64(1 << 40)), new(uint64(0))} {
			name := "answered"
			switch {
			case limit != nil && *limit == 0:
				name = "refused"
			case limit != nil:
				name = "judged"
			}
			b.Run(fmt.Sprintf("%s/ranks=%d", name, ranks), func(b *testing.B) {
				w := bedOf(b, ranks, 16, tokens, servicetest.Limits(overload.Thresholds{PrefillTokens: limit}))
				for i := range uint64(ranks) {
					w.Burden(fmt.Sprint(i), i/8, uint32(i%8), 1, 1)
				}
				req := servicetest.Ask(tokens)
				b.ReportAllocs()
				for b.Loop() {
					if _, err := w.Select(context.Background(), req, false); (err != nil) != (name == "refused") {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkParallel is what one scope of 64 ranks takes from as many callers as there are
// processors (-cpu 1,2), each with a prompt of its own of 512 blocks by hashes: only
// selections; only reservations that are booked, completed and freed; and of eight
// operations five selections, two such reservations and a message of an engine with
// eight blocks. An operation is one of these. Where -cpu 2 does not halve the time, a
// lock does.
func BenchmarkParallel(b *testing.B) {
	const blocks = 512
	for _, bc := range []struct {
		name                string
		selects, lifecycles int // of eight operations
	}{{"select", 8, 0}, {"lifecycle", 0, 8}, {"mixed", 5, 2}} {
		b.Run(bc.name, func(b *testing.B) {
			w := bedOf(b, 64, 16, servicetest.Prompt(1, 16*blocks))
			var callers atomic.Uint32
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				n := callers.Add(1)
				tokens := servicetest.Prompt(100+n, 16*blocks)
				id := fmt.Sprint(n)
				req := &selection.SelectRequest{Scope: servicetest.Scope, ReservationID: &id}
				req.Prompt.BlockHashes, req.Prompt.HasBlockHashes = servicetest.Local(tokens, 16), true
				req.Prompt.SequenceHashes, req.Prompt.HasSequenceHashes = servicetest.Sequence(tokens, 16), true
				req.Prompt.ISLTokens, req.Prompt.HasISLTokens = 16*blocks, true
				engine := w.Engine(uint64(n%8), 1)
				some := servicetest.Prompt(1000+n, 8*16)
				events := [][]byte{
					servicetest.Batch(1, engine.Stored(some, 16, nil)),
					servicetest.Batch(1, engine.Removed(some, 16, 0, "GPU")),
				}
				for i := 0; pb.Next(); i++ {
					switch of := i % 8; {
					case of < bc.selects:
						if _, err := w.Select(context.Background(), req, false); err != nil {
							b.Error(err)
						}
					case of < bc.selects+bc.lifecycles:
						if _, err := w.Select(context.Background(), req, true); err != nil {
							b.Error(err)
						}
						if err := w.PrefillComplete(id); err != nil {
							b.Error(err)
						}
						if err := w.Free(id); err != nil {
							b.Error(err)
						}
					default:
						engine.Deliver(events[i/8%2])
					}
				}
			})
		})
	}
}
