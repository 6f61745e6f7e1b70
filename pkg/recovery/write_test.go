package recovery_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/recovery"
)

// run is n blocks in a row that slots 0, on the device, and 2, on disk, hold.
func run(n int) *indexer.Run {
	r := &indexer.Run{Seed: hashing.Seed}
	for i := range uint64(n) {
		r.EngineHashes, r.Local = append(r.EngineHashes, 1000+i), append(r.Local, 5000+i)
	}
	r.Slots[indexer.Device], r.Slots[indexer.Disk] = []uint32{0}, []uint32{2}
	return r
}

var ranks = map[uint32]catalog.Rank{0: {Worker: 7}, 2: {Worker: 1<<64 - 1, DP: 3}}

func source(model string, runs ...*indexer.Run) recovery.Source {
	return recovery.Source{Scope: catalog.Scope{Model: model, Tenant: "t"}, BlockSize: 16, Ranks: ranks, Runs: slices.Values(runs)}
}

// TestWriteFormat pins the text of a dump.
func TestWriteFormat(t *testing.T) {
	salted := run(1)
	salted.Parent, salted.HasParent, salted.Seed = 17, true, 99
	salted.Slots = [indexer.NumTiers][]uint32{indexer.Host: {1, 2}, indexer.External: {0}} // slot 1 has no rank
	cases := []struct {
		name    string
		sources []recovery.Source
		want    string
	}{
		{"no scope", nil, `{}`},
		{"no blocks", []recovery.Source{source(`q"`)}, `{"q\":t":{"block_size":16,"events":[]}}`},
		{"two scopes", []recovery.Source{source("a", run(2), salted), source("b:c", run(1))}, `{` +
			`"a:t":{"block_size":16,"events":[` +
			`{"worker_id":7,"storage_tier":"device","event":{"event_id":0,"dp_rank":0,"data":{"stored":{"parent_hash":null,"start_position":null,"blocks":[` +
			`{"block_hash":1000,"tokens_hash":5000,"mm_extra_info":null},{"block_hash":1001,"tokens_hash":5001,"mm_extra_info":null}]}}}},` +
			`{"worker_id":18446744073709551615,"storage_tier":"disk","event":{"event_id":1,"dp_rank":3,"data":{"stored":{"parent_hash":null,"start_position":null,"blocks":[` +
			`{"block_hash":1000,"tokens_hash":5000,"mm_extra_info":null},{"block_hash":1001,"tokens_hash":5001,"mm_extra_info":null}]}}}},` +
			`{"worker_id":18446744073709551615,"storage_tier":"host_pinned","event":{"event_id":2,"dp_rank":3,"data":{"stored":{"parent_hash":17,"start_position":null,"seed":99,"blocks":[` +
			`{"block_hash":1000,"tokens_hash":5000,"mm_extra_info":null}]}}}},` +
			`{"worker_id":7,"storage_tier":"external","event":{"event_id":3,"dp_rank":0,"data":{"stored":{"parent_hash":17,"start_position":null,"seed":99,"blocks":[` +
			`{"block_hash":1000,"tokens_hash":5000,"mm_extra_info":null}]}}}}` +
			`]},` +
			`"b:c:t":{"block_size":16,"events":[` +
			`{"worker_id":7,"storage_tier":"device","event":{"event_id":4,"dp_rank":0,"data":{"stored":{"parent_hash":null,"start_position":null,"blocks":[` +
			`{"block_hash":1000,"tokens_hash":5000,"mm_extra_info":null}]}}}},` +
			`{"worker_id":18446744073709551615,"storage_tier":"disk","event":{"event_id":5,"dp_rank":3,"data":{"stored":{"parent_hash":null,"start_position":null,"blocks":[` +
			`{"block_hash":1000,"tokens_hash":5000,"mm_extra_info":null}]}}}}` +
			`]}}`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var buf bytes.Buffer
			d := recovery.NewWriter(&buf)
			for _, s := range c.sources {
				if err := d.Scope(t.Context(), s); err != nil {
					t.Fatal(err)
				}
			}
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
			if got := buf.String(); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}

			var with bytes.Buffer
			d = recovery.NewWriter(&with)
			d.ResidencyDomain = true
			for _, s := range c.sources {
				if err := d.Scope(t.Context(), s); err != nil {
					t.Fatal(err)
				}
			}
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
			if got, want := with.String(), strings.ReplaceAll(c.want, `,"event":`, `,"residency_domain":"worker","event":`); got != want {
				t.Errorf("with domains got  %s\nwant %s", got, want)
			}
		})
	}
}

// TestWriteParts proves that a long run becomes events of at most 1,024 blocks,
// each rank's in the order of the chain, and is written chunk by chunk.
func TestWriteParts(t *testing.T) {
	const blocks = 10_000
	var buf bytes.Buffer
	longest := 0
	d := recovery.NewWriter(writer(func(p []byte) (int, error) {
		longest = max(longest, len(p))
		return buf.Write(p)
	}))
	if err := errors.Join(d.Scope(t.Context(), source("m", run(blocks))), d.Close()); err != nil {
		t.Fatal(err)
	}
	if longest > 256<<10 {
		t.Errorf("a chunk has %d bytes", longest)
	}
	var dump map[string]struct {
		Events []struct {
			Worker uint64 `json:"worker_id"`
			Event  struct {
				Data struct {
					Stored struct {
						Parent *uint64 `json:"parent_hash"`
						Blocks []struct {
							Name  uint64 `json:"block_hash"`
							Local uint64 `json:"tokens_hash"`
						} `json:"blocks"`
					} `json:"stored"`
				} `json:"data"`
			} `json:"event"`
		} `json:"events"`
	}
	if err := json.Unmarshal(buf.Bytes(), &dump); err != nil {
		t.Fatal(err)
	}
	at := map[uint64]uint64{} // blocks of each worker
	for _, ev := range dump["m:t"].Events {
		stored := ev.Event.Data.Stored
		n := at[ev.Worker]
		switch {
		case len(stored.Blocks) == 0 || len(stored.Blocks) > 1024:
			t.Fatalf("an event of %d blocks", len(stored.Blocks))
		case n == 0 && stored.Parent != nil, n > 0 && (stored.Parent == nil || *stored.Parent != 1000+n-1):
			t.Fatalf("wrong parent of block %d", n)
		}
		for _, b := range stored.Blocks {
			if b.Name != 1000+n || b.Local != 5000+n {
				t.Fatalf("block %d is %+v", n, b)
			}
			n++
		}
		at[ev.Worker] = n
	}
	if at[7] != blocks || at[1<<64-1] != blocks {
		t.Errorf("blocks by worker: %v, want %d of two", at, blocks)
	}
}

type writer func(p []byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

// TestWriteFails proves that the first error, of the writer or of the context,
// ends the reading of the runs, that nothing is written after it, and that it
// is what every later call returns.
func TestWriteFails(t *testing.T) {
	cases := []struct {
		name  string
		write func(stop func()) error
		want  error
	}{
		{"broken writer", func(func()) error { return io.ErrClosedPipe }, io.ErrClosedPipe},
		{"caller has left", func(stop func()) error { stop(); return nil }, context.Canceled},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			read, written := 0, 0
			s := source("m")
			s.Runs = func(yield func(*indexer.Run) bool) {
				for yield(run(3000)) {
					if read++; read > 10 {
						t.Error("runs are still read")
						return
					}
				}
			}
			d := recovery.NewWriter(writer(func(p []byte) (int, error) {
				written++
				return len(p), c.write(stop)
			}))
			for range 2 {
				if err := d.Scope(ctx, s); !errors.Is(err, c.want) {
					t.Errorf("Scope: %v, want %v", err, c.want)
				}
			}
			if err := d.Close(); !errors.Is(err, c.want) {
				t.Errorf("Close: %v, want %v", err, c.want)
			}
			if written != 1 {
				t.Errorf("%d chunks were written", written)
			}
		})
	}
}

// chats fills an index with entries blocks of 64 ranks: conversations of 512
// blocks that begin with a system prompt of 32.
func chats(entries int) (*indexer.Space, map[uint32]catalog.Rank) {
	rnd := rand.New(rand.NewPCG(1, 2))
	s := indexer.New()
	names, local := make([]uint64, 512), make([]uint64, 512)
	for i := range 32 {
		names[i], local[i] = rnd.Uint64(), rnd.Uint64()
	}
	ranks := make(map[uint32]catalog.Rank)
	for slot := range uint32(64) {
		ranks[slot] = catalog.Rank{Worker: uint64(slot / 8), DP: slot % 8}
		for range entries / 64 / 480 {
			for i := 32; i < 512; i++ {
				names[i], local[i] = rnd.Uint64(), rnd.Uint64()
			}
			s.Store(&indexer.Store{Slot: slot, EngineHashes: names, Local: local, Seed: hashing.Seed, SeedKnown: true})
		}
	}
	return s, ranks
}

// BenchmarkWrite writes the dump of an index. B/op is all memory that was made
// for it, which is more than was in use at a time.
func BenchmarkWrite(b *testing.B) {
	for _, entries := range []int{1_000_000, 3_200_000} {
		b.Run(fmt.Sprintf("entries=%d", entries), func(b *testing.B) {
			space, ranks := chats(entries)
			bytes := 0
			b.ReportAllocs()
			for b.Loop() {
				bytes = 0
				d := recovery.NewWriter(writer(func(p []byte) (int, error) {
					bytes += len(p)
					return len(p), nil
				}))
				src := recovery.Source{Scope: catalog.Scope{Model: "m", Tenant: "t"}, BlockSize: 16, Ranks: ranks, Runs: space.Walk().Runs}
				if err := d.Scope(context.Background(), src); err != nil {
					b.Fatal(err)
				}
				if err := d.Close(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(bytes)/1e6, "dump-MB")
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(entries), "ns/entry")
		})
	}
}
