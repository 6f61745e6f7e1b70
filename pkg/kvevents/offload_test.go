package kvevents_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/kvevents"
	"github.com/select-service/select-service/test/helpers/length"
)

// offloadWorld feeds a converter with map events as a stream does.
type offloadWorld struct {
	*testing.T
	space *indexer.Space
	conv  *kvevents.Converter
	dec   kvevents.Decoder
	batch kvevents.Batch
	tally kvevents.Tally
}

func newOffloadWorld(t *testing.T) *offloadWorld {
	w := &offloadWorld{T: t, space: indexer.New(), conv: kvevents.NewConverter(hashing.Layout{BlockSize: 4}, 0, nil)}
	w.conv.CountCopies(kvevents.CopyRule{Counted: true}, w.space)
	return w
}

func (w *offloadWorld) apply(rank int, events ...map[string]any) {
	w.Helper()
	payload, err := msgpack.Marshal([]any{0, events, rank})
	if err == nil {
		err = w.dec.Decode(payload, &w.batch)
	}
	if err != nil {
		w.Fatal(err)
	}
	w.conv.Apply(&w.batch, w.space, &w.tally)
}

// store is a stored event of whole blocks from the root.
func store(names []uint64, tokens []uint32, medium string, more ...any) map[string]any {
	ev := map[string]any{"type": "BlockStored", "block_hashes": names, "token_ids": tokens, "block_size": 4, "medium": medium}
	for i := 0; i < len(more); i += 2 {
		ev[more[i].(string)] = more[i+1]
	}
	return ev
}

func remove(names []uint64, medium string) map[string]any {
	return map[string]any{"type": "BlockRemoved", "block_hashes": names, "medium": medium}
}

// want compares the blocks of a prompt that rank 0 has on device, host and disk, each in
// the order of a cumulative walk.
func (w *offloadWorld) want(tokens []uint32, lora, salt string, device, host, disk uint32) {
	w.Helper()
	if got := w.overlap(0, tokens, lora, salt); got != [3]uint32{device, host, disk} {
		w.Errorf("lora %q, salt %q: %v blocks, want %v", lora, salt, got, [3]uint32{device, host, disk})
	}
}

func (w *offloadWorld) overlap(slot uint32, tokens []uint32, lora, salt string) [3]uint32 {
	var o indexer.Overlap
	w.space.Overlap(hashing.Layout{BlockSize: 4}.AppendLocal(nil, tokens, hashing.LocalSeed(lora, salt), nil), &o)
	d, h, k := o.At(slot)
	return [3]uint32{d, h, k}
}

// TestOffloadedCopies: a copy that is announced without keys is the block that the rank
// has announced under the name.
func TestOffloadedCopies(t *testing.T) {
	tokens := []uint32{1, 2, 3, 4, 5, 6, 7, 8}
	names := []uint64{1, 2}
	salted := []any{"extra_keys", []any{[]any{"s1"}, nil}}
	for name, tc := range map[string]struct {
		keys       []any
		lora, salt string
		opaque     bool
		more       []any // stated by the copy
		other      bool  // the copy is another block's
	}{
		"salt":           {keys: salted, salt: "s1"},
		"salt field":     {keys: []any{"cache_salt", "s1"}, salt: "s1"},
		"adapter":        {keys: []any{"lora_name", "a", "extra_keys", []any{[]any{"a"}, []any{"a"}}}, lora: "a", more: []any{"lora_name", "a"}},
		"adapter absent": {keys: []any{"lora_name", "a"}, lora: "a"},
		"both":           {keys: []any{"lora_name", "a", "extra_keys", []any{[]any{"a", "s1"}, []any{"a"}}}, lora: "a", salt: "s1", more: []any{"lora_name", "a"}},
		"image":          {keys: []any{"extra_keys", []any{[]any{[]any{"image", 3}}, nil}}, opaque: true},
		"other adapter":  {keys: salted, salt: "s1", more: []any{"lora_name", "b"}, other: true},
		"wrong adapter":  {keys: []any{"lora_name", "a"}, lora: "a", more: []any{"lora_name", "b"}, other: true},
	} {
		for _, medium := range []string{"CPU", "STORAGE"} {
			t.Run(name+" "+medium, func(t *testing.T) {
				w := newOffloadWorld(t)
				on := func(n uint32) (host, disk uint32) {
					if tc.opaque || tc.other {
						n = 0
					}
					if medium == "CPU" {
						return n, 0
					}
					return 0, n
				}
				more := append([]any{"extra_keys", nil}, tc.more...)
				w.apply(0, store(names, tokens, "GPU", tc.keys...))
				for range 2 { // two copies
					w.apply(0, store(names, tokens, medium, more...))
				}
				w.want(tokens, "", "", 0, 0, 0)
				w.want(tokens, "b", "", 0, 0, 0)
				w.apply(0, remove(names, "GPU"), remove(names, medium))
				host, disk := on(2)
				w.want(tokens, tc.lora, tc.salt, 0, host, disk)
				w.apply(0, store(names[:1], tokens[:4], "CPU_TIER2")) // known from the other medium
				w.apply(0, remove(names[:1], "DISK"))
				w.apply(0, remove(names, medium))
				w.want(tokens, tc.lora, tc.salt, 0, 0, 0)
				if got := w.space.Held(0); got != [indexer.NumTiers]int{} {
					t.Errorf("held at the end: %v", got)
				}
				// From the removed memory.
				w.apply(0, store(names, tokens, medium, "extra_keys", nil))
				if !tc.other {
					host, disk = on(2)
					w.want(tokens, tc.lora, tc.salt, 0, host, disk)
				}
				w.want(tokens, "", "", 0, 0, 0)
			})
		}
	}
}

// TestUnknownCopies: a copy under a name that the rank has not announced is matched by its
// tokens until any key is shown, on any rank or by a prompt; then it is kept for its
// removal only, until the engine says what the name stands for.
func TestUnknownCopies(t *testing.T) {
	tokens := []uint32{1, 2, 3, 4, 5, 6, 7, 8}
	shows := map[string]func(w *offloadWorld){
		"salt":    func(w *offloadWorld) { w.apply(1, store([]uint64{9}, []uint32{9, 9, 9, 9}, "GPU", "cache_salt", "s")) },
		"adapter": func(w *offloadWorld) { w.apply(1, store([]uint64{9}, []uint32{9, 9, 9, 9}, "GPU", "lora_name", "a")) },
		"opaque": func(w *offloadWorld) {
			w.apply(1, store([]uint64{9}, []uint32{9, 9, 9, 9}, "GPU", "extra_keys", []any{[]any{7}}))
		},
		"prompt": func(w *offloadWorld) { w.space.ShowKeys() },
		"dump": func(w *offloadWorld) {
			w.space.Store(&indexer.Store{Slot: 2, EngineHashes: []uint64{9}, Local: []uint64{9}, Seed: 77, SeedKnown: true, Provisional: true})
		},
	}
	for name, show := range shows {
		t.Run(name, func(t *testing.T) {
			w := newOffloadWorld(t)
			w.apply(0, store([]uint64{1}, tokens[:4], "CPU"))
			w.want(tokens, "", "", 0, 1, 0)
			show(w)
			w.apply(0, store([]uint64{1, 2}, tokens, "CPU", "extra_keys", nil)) // 1 is known, 2 is not
			w.want(tokens, "", "", 0, 1, 0)
			w.apply(1, store([]uint64{1}, tokens[:4], "CPU")) // another rank's name
			if got := w.overlap(1, tokens, "", ""); got != [3]uint32{} {
				t.Errorf("rank 1 has %v", got)
			}
			w.apply(0, store([]uint64{3}, tokens[:4], "CPU", "extra_keys", []any{nil})) // states that there are none
			w.apply(0, store([]uint64{4}, []uint32{7, 7, 7, 7}, "GPU"))                 // on the device, too
			w.want([]uint32{7, 7, 7, 7}, "", "", 1, 0, 0)
			w.apply(0, remove([]uint64{3}, "CPU"), remove([]uint64{1}, "CPU"))
			w.want(tokens, "", "", 0, 1, 0)
			w.apply(0, store([]uint64{1, 2}, tokens, "GPU", "cache_salt", "s"))
			w.apply(0, store([]uint64{5}, []uint32{8, 8, 8, 8}, "GPU", "parent_block_hash", 2, "extra_keys", []any{nil}))
			w.want(append(tokens[:8:8], 8, 8, 8, 8), "", "s", 3, 0, 0)
			w.want(tokens, "", "", 0, 0, 0) // the host's copy of 1 is salted too
			w.apply(0, remove([]uint64{1, 2, 5}, "GPU"))
			w.want(tokens, "", "s", 0, 2, 0)
			w.apply(0, remove([]uint64{1, 2}, "CPU"))
			if got := w.space.Held(0); got[indexer.Host] != 0 {
				t.Errorf("held at the end: %v", got)
			}
		})
	}
}

// TestCopiesBehindUnknownParents: a copy without keys whose parent is unknown is not matched by
// its tokens either once keys were shown, and is the block that the device names, also if that
// waits for its parent.
func TestCopiesBehindUnknownParents(t *testing.T) {
	tokens := []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}
	child := func(medium string, more ...any) map[string]any {
		return store([]uint64{3}, tokens[8:], medium, append([]any{"parent_block_hash", 2}, more...)...)
	}
	t.Run("keys shown meanwhile", func(t *testing.T) {
		w := newOffloadWorld(t)
		w.apply(0, child("CPU"))
		w.space.ShowKeys()
		w.apply(0, store([]uint64{1, 2}, tokens[:8], "GPU"))
		w.want(tokens, "", "", 2, 0, 0)
		w.apply(0, remove([]uint64{3}, "CPU"))
		if got := w.space.Held(0); got != [indexer.NumTiers]int{2} {
			t.Errorf("held: %v", got)
		}
	})
	for name, first := range map[string]func(*offloadWorld){
		"unidentified": func(w *offloadWorld) { w.space.ShowKeys() },
		"waits":        func(*offloadWorld) {},
	} {
		t.Run(name, func(t *testing.T) {
			w := newOffloadWorld(t)
			first(w)
			w.apply(0, child("CPU", "extra_keys", nil))
			w.apply(0, child("GPU", "cache_salt", "s"))
			w.apply(0, store([]uint64{1, 2}, tokens[:8], "GPU", "cache_salt", "s"))
			w.want(tokens, "", "s", 3, 0, 0)
			w.apply(0, remove([]uint64{3}, "GPU"))
			w.want(tokens, "", "s", 2, 1, 0)
			w.want(tokens, "", "", 0, 0, 0)
			w.apply(0, remove([]uint64{3}, "CPU"))
			w.want(tokens, "", "s", 2, 0, 0)
		})
	}
}

// TestCopiesOfHybridModels: of an engine with attention groups, the main group's copies follow
// the same rule; names of further groups on the host are no copies of the main one's blocks.
func TestCopiesOfHybridModels(t *testing.T) {
	w := newOffloadWorld(t)
	w.conv.Groups.Exact = true
	tokens := []uint32{1, 2, 3, 4, 5, 6, 7, 8}
	full := []any{"group_idx", 0, "kv_cache_spec_kind", "full_attention"}
	window := []any{"group_idx", 1, "kv_cache_spec_kind", "sliding_window", "kv_cache_spec_sliding_window", 5}
	keys := []any{"extra_keys", []any{[]any{"s"}, nil}}
	names := []uint64{1, 2}
	w.apply(0,
		store(names, tokens, "GPU", append(full, keys...)...), store(names, tokens, "GPU", append(window, keys...)...),
		store(names, tokens, "CPU", append(full, "extra_keys", nil)...), store(names, nil, "CPU", window...))
	w.want(tokens, "", "", 0, 0, 0)
	w.want(tokens, "", "s", 2, 0, 0)
	w.apply(0, map[string]any{"type": "BlockRemoved", "block_hashes": names, "medium": "GPU", "group_idx": 0})
	w.want(tokens, "", "s", 0, 2, 0)
	w.apply(0, map[string]any{"type": "BlockRemoved", "block_hashes": names, "medium": "CPU", "group_idx": 1})
	w.want(tokens, "", "s", 0, 2, 0)
	w.apply(0, map[string]any{"type": "BlockRemoved", "block_hashes": names, "medium": "CPU", "group_idx": 0})
	w.want(tokens, "", "s", 0, 0, 0)
}

// TestCopiesAgainstModel: for random histories of two ranks, salts, tiers, copies,
// evictions and clears, of which every key has been shown, each rank's overlap is what a
// model that knows blocks by the engine's name says.
func TestCopiesAgainstModel(t *testing.T) {
	length.Sequential(t)
	const names, salts, depth = 12, 3, 4
	salt := func(name int) string { return []string{"", "s1", "s2"}[name/depth] }
	tokens := []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}
	media := []string{"GPU", "CPU", "DISK"}
	for seed := range uint64(150) {
		rnd := rand.New(rand.NewPCG(seed, 29))
		w := newOffloadWorld(t)
		w.space.ShowKeys()
		type tiers [3]int
		var count [2][names]tiers        // copies
		var announced [2][names]bool     // on the device
		var unidentified [2][names]tiers // 1: the copies in the tier are of an unknown block
		for step := range 120 {
			rank, first := rnd.IntN(2), rnd.IntN(names)
			end := first/depth*depth + depth
			n := 1 + rnd.IntN(end-first)
			tier := rnd.IntN(3)
			hashes := make([]uint64, n)
			for i := range hashes {
				hashes[i] = uint64(first + i + 1)
			}
			at := first % depth
			ev := store(hashes, tokens[4*at:4*(at+n)], media[tier])
			if at > 0 {
				ev["parent_block_hash"] = uint64(first)
			}
			switch rnd.IntN(12) {
			case 0, 1, 2, 3:
				ev = remove(hashes, media[tier])
				for i := range n {
					c := &count[rank][first+i][tier]
					*c = max(0, *c-1)
				}
			case 4:
				if rnd.IntN(6) > 0 {
					continue
				}
				ev = map[string]any{"type": "AllBlocksCleared"}
				count[rank], announced[rank], unidentified[rank] = [names]tiers{}, [names]bool{}, [names]tiers{}
			default:
				if tier == 0 {
					if at > 0 && count[rank][first-1][0] == 0 {
						continue // an engine has the parent
					}
					if s := salt(first); s != "" {
						ev["cache_salt"] = s
					}
				}
				for i := range n {
					b := first + i
					count[rank][b][tier]++
					if tier == 0 {
						announced[rank][b], unidentified[rank][b] = true, tiers{}
					} else if !announced[rank][b] {
						unidentified[rank][b][tier] = 1
					}
				}
			}
			w.apply(rank, ev)
			for rank := range 2 {
				for s := range salts {
					var want [3]uint32
					d := 0
					for tier := range 3 {
						for d < depth && count[rank][s*depth+d][tier] > 0 && unidentified[rank][s*depth+d][tier] == 0 {
							d++
							want[tier]++
						}
					}
					if got := w.overlap(uint32(rank), tokens, "", salt(s*depth)); got != want {
						t.Fatalf("seed %d, step %d, rank %d, salt %q: %v, want %v after %v", seed, step, rank, salt(s*depth), got, want, ev)
					}
				}
			}
		}
	}
}

// TestRemovedMemoryOfCopies: the large memory of removed blocks is used once keys were
// shown, and only by ranks with copies that lack keys.
func TestRemovedMemoryOfCopies(t *testing.T) {
	length.Sequential(t)
	for _, shown := range []bool{false, true} {
		t.Run(fmt.Sprint(shown), func(t *testing.T) {
			w := newOffloadWorld(t)
			w.apply(0, store([]uint64{1 << 20}, []uint32{9, 9, 9, 9}, "CPU"))
			var more []any
			if shown {
				more = []any{"cache_salt", "s"}
			}
			const n = 10_000
			for i := uint64(1); i <= n; i++ {
				w.apply(0, store([]uint64{i}, []uint32{uint32(i), 0, 0, 0}, "GPU", more...), remove([]uint64{i}, "GPU"))
			}
			before := w.tally.Blocks[indexer.Host][kvevents.BlocksUnidentified]
			for i := uint64(1); i <= n; i++ {
				w.apply(0, store([]uint64{i}, []uint32{uint32(i), 0, 0, 0}, "CPU"))
			}
			if got := w.tally.Blocks[indexer.Host][kvevents.BlocksUnidentified] - before; got != 0 {
				t.Errorf("%d of %d copies are unidentified", got, n)
			}
			small := w.space.Stats().Bytes
			t.Logf("%d bytes", small)
		})
	}
}
