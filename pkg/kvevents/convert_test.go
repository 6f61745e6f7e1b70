package kvevents_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/kvevents"
)

// The real index is an Index.
var _ kvevents.Index = (*indexer.Space)(nil)

// ranks 0 and 3 exist, in slots 10 and 13.
func twoRanks(dp uint32) (uint32, bool) { return 10 + dp, dp == 0 || dp == 3 }

// convert applies messages to a recorder, all on one stream of rank 0.
func convert(t testing.TB, layout hashing.Layout, messages ...any) (*recorder, *kvevents.Tally) {
	t.Helper()
	rec, tally := newRecorder(), &kvevents.Tally{}
	conv := kvevents.NewConverter(layout, 0, twoRanks)
	for _, m := range messages {
		conv.Apply(decode(t, m), rec, tally)
	}
	return rec, tally
}

// events lists the non-zero event counts of a tally as "kind tier reason n".
func events(tally *kvevents.Tally) []string {
	var out []string
	for k := range tally.Events {
		for tier := range tally.Events[k] {
			for r, n := range tally.Events[k][tier] {
				if n > 0 {
					out = append(out, fmt.Sprintf("%v %s %v %d", kvevents.Kind(k), kvevents.TierLabel(tier), kvevents.Reason(r), n))
				}
			}
		}
	}
	return out
}

func blocks(tally *kvevents.Tally) []string {
	var out []string
	for tier := range tally.Blocks {
		for o, n := range tally.Blocks[tier] {
			if n > 0 {
				out = append(out, fmt.Sprintf("%s %v %d", kvevents.TierLabel(tier), kvevents.BlockOutcome(o), n))
			}
		}
	}
	return out
}

var plain4 = hashing.Layout{BlockSize: 4}

// TestConvert shows what reaches the index, and what is counted, event by event.
func TestConvert(t *testing.T) {
	ab := []uint64{1, 2}
	pairs := list{list{1, 2}, list{2, 3}, list{3, 4}, list{4, 5}}
	tests := map[string]struct {
		layout hashing.Layout
		events list
		calls  []string
		counts []string
		blocks []string
	}{
		"store, remove, clear": {
			plain4,
			list{stored(ab, nil), list{"BlockRemoved", list{2, 99}, "GPU"}, list{"AllBlocksCleared"}},
			[]string{"store slot=10 device root<-[1 2] known=true", "remove slot=10 device [2 99]", "clear slot=10"},
			[]string{"stored device applied 1", "removed device applied 1", "cleared none applied 1"},
			[]string{"device stored 2", "device removed 1", "device unknown 1"},
		},
		"child": {
			plain4,
			list{stored(ab, dict{"parent_block_hash": 7})},
			[]string{"store slot=10 device 7<-[1 2] known=false"},
			[]string{"stored device applied 1"},
			[]string{"device stored 2"},
		},
		"tiers": {
			plain4,
			list{stored(ab, dict{"medium": "cpu"}), stored(ab, dict{"medium": "FS"}), stored(ab, dict{"medium": "shared"}), stored(ab, dict{"medium": "tape"})},
			[]string{"store slot=10 host_pinned root<-[1 2] known=true", "store slot=10 disk root<-[1 2] known=true", "store slot=10 external root<-[1 2] known=true"},
			[]string{"stored host_pinned applied 1", "stored disk applied 1", "stored external applied 1", "stored none unknown_medium 1"},
			[]string{"host_pinned stored 2", "disk stored 2", "external stored 2"},
		},
		"announced again": {
			plain4,
			list{stored(ab, nil), stored([]uint64{1, 2, 3}, nil)},
			[]string{"store slot=10 device root<-[1 2] known=true", "store slot=10 device root<-[1 2 3] known=true"},
			[]string{"stored device applied 2"},
			[]string{"device stored 3", "device known 2"},
		},
		"without tokens": {
			plain4,
			list{stored(ab, dict{"token_ids": list{}, "block_size": 0, "medium": "CPU"})},
			[]string{"named slot=10 host_pinned [1 2]"},
			[]string{"stored host_pinned applied 1"},
			[]string{"host_pinned unresolved 2"},
		},
		"incomplete tail": {
			plain4,
			list{stored(ab, dict{"token_ids": list{1, 2, 3, 4, 5}}), stored(ab, dict{"token_ids": list{1, 2, 3}})},
			[]string{"store slot=10 device root<-[1] known=true"},
			[]string{"stored device applied 1", "stored device incomplete 1"},
			[]string{"device stored 1", "device incomplete 1"},
		},
		"other block size": {
			plain4,
			list{stored(ab, dict{"block_size": 8}), stored(ab, dict{"block_size": 0})},
			nil,
			[]string{"stored device block_size_mismatch 2"},
			nil,
		},
		"repeated hashes": {
			plain4,
			list{stored([]uint64{1, 1}, nil), stored(ab, dict{"parent_block_hash": 2}), stored([]uint64{5}, dict{"parent_block_hash": 5})},
			nil,
			[]string{"stored device repeated_hash 3"},
			nil,
		},
		"pairs in a plain pool": {
			plain4,
			list{stored([]uint64{1}, dict{"token_ids": pairs})},
			nil,
			[]string{"stored device eagle_mismatch 1"},
			nil,
		},
		"pairs in an eagle pool": {
			hashing.Layout{BlockSize: 4, Eagle: true},
			list{stored([]uint64{1}, dict{"token_ids": pairs}), stored(ab, nil)},
			[]string{"store slot=10 device root<-[1] known=true"},
			[]string{"stored device applied 1", "stored device eagle_mismatch 1"},
			[]string{"device stored 1"},
		},
		"remote and foreign": {
			plain4,
			list{stored(ab, dict{"locality": "REMOTE"}), stored(ab, dict{"ownership": "kvcr"}), dict{"type": "AllBlocksCleared", "ownership": "kvcr"}},
			nil,
			[]string{"stored device remote 1", "stored device foreign_owner 1", "cleared none foreign_owner 1"},
			nil,
		},
		"no hashes": {
			plain4,
			list{stored([]uint64{}, nil), list{"BlockRemoved", list{}}},
			nil,
			[]string{"stored device empty 1", "removed device empty 1"},
			nil,
		},
		"envelope": {plain4, list{envelope(nil)}, nil, []string{"stored host_pinned envelope 1"}, nil},
		"bad": {
			plain4,
			list{nil, list{"BlockStored", list{1.5}, nil, list{}, 4}},
			nil,
			[]string{"stored none bad_hash 1", "unreadable none not_an_event 1"},
			nil,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			rec, tally := convert(t, tc.layout, message(tc.events...))
			if diff := cmp.Diff(tc.calls, rec.calls); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.counts, events(tally)); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.blocks, blocks(tally)); diff != "" {
				t.Errorf("blocks (-want +got):\n%s", diff)
			}
		})
	}
}

// TestRanks shows that the batch's rank takes precedence over the registered one, and
// that a rank that the worker does not have is dropped and counted (K12).
func TestRanks(t *testing.T) {
	clearAll := list{"AllBlocksCleared"}
	rec, tally := convert(t, plain4,
		list{1.5, list{clearAll}}, list{1.5, list{clearAll}, nil}, list{1.5, list{clearAll}, 3},
		list{1.5, list{clearAll, stored([]uint64{1}, nil)}, 4})
	if want := []string{"clear slot=10", "clear slot=10", "clear slot=13"}; !slices.Equal(rec.calls, want) {
		t.Errorf("calls %v, want %v", rec.calls, want)
	}
	want := []string{"stored device unknown_rank 1", "cleared none applied 3", "cleared none unknown_rank 1"}
	if got := events(tally); !slices.Equal(got, want) {
		t.Errorf("events %v, want %v", got, want)
	}
}

// TestOwnRank shows that the stream's rank counts where engines that know nothing of one another all
// state the same.
func TestOwnRank(t *testing.T) {
	rec, clearAll := newRecorder(), list{"AllBlocksCleared"}
	a := kvevents.IndexApplier{Converter: kvevents.NewConverter(plain4, 3, twoRanks), Index: rec, OwnRank: true}
	for _, stated := range []any{nil, 0, 9} {
		if err := a.Apply(pack(t, list{1.5, list{clearAll}, stated}), new(kvevents.Workspace)); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{"clear slot=13", "clear slot=13", "clear slot=13"}; !slices.Equal(rec.calls, want) {
		t.Errorf("calls %v, want %v", rec.calls, want)
	}
}

// TestSparse shows that the blocks of a main attention group are placed only by events
// with one hash for each block of their tokens. Without a group the complete blocks
// count, as in dynamo-kv-router 1.6.1.
func TestSparse(t *testing.T) {
	tokens := func(n int) []uint32 { return make([]uint32, n) }
	full := dict{"group_idx": 0, "kv_cache_spec_kind": "full_attention"}
	mla := dict{"group_idx": 2, "kv_cache_spec_kind": "mla_attention"}
	tests := map[string]struct {
		hashes []uint64
		tokens int
		more   dict
		want   string
	}{
		"dense":                       {[]uint64{1, 2}, 8, full, "applied"},
		"hashes left out":             {[]uint64{1, 2}, 12, mla, "sparse"},
		"one hash of many":            {[]uint64{7}, 3840, mla, "sparse"},
		"part of a block behind":      {[]uint64{1, 2}, 9, full, "sparse"},
		"part of a block, no further": {[]uint64{1, 2}, 7, full, "sparse"},
		"hashes without tokens":       {[]uint64{1, 2, 3}, 8, full, "sparse"},
		"less than a block":           {[]uint64{1}, 3, full, "sparse"},
		"a kind without a group":      {[]uint64{1}, 8, dict{"kv_cache_spec_kind": "full_attention"}, "sparse"},
		"a group without a kind":      {[]uint64{1}, 8, dict{"group_idx": 0}, "sparse"},
		"other kinds are filtered":    {[]uint64{1}, 8, dict{"group_idx": 1, "kv_cache_spec_kind": "mamba"}, "filtered_group"},
		"no group, fewer hashes":      {[]uint64{1}, 8, nil, "applied"},
		"no group, fewer tokens":      {[]uint64{1, 2, 3}, 9, nil, "applied"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			more := dict{"token_ids": tokens(tc.tokens)}
			maps.Copy(more, tc.more)
			_, tally := convert(t, plain4, message(stored(tc.hashes, more)))
			if want := []string{"stored device " + tc.want + " 1"}; !slices.Equal(events(tally), want) {
				t.Errorf("events %v, want %v", events(tally), want)
			}
		})
	}
}

// TestGroups shows the attention-group filter: the event's own kind decides,
// else what its group was learned to be on this rank, else group 0 alone.
func TestGroups(t *testing.T) {
	store := func(more dict) dict { return stored([]uint64{1}, more) }
	remove := func(group any) dict {
		return dict{"type": "BlockRemoved", "block_hashes": []uint64{1}, "group_idx": group}
	}
	tests := map[string]struct {
		events list
		kept   int
	}{
		"no group":              {list{store(nil), remove(nil)}, 2},
		"main kinds":            {list{store(dict{"kv_cache_spec_kind": "full_attention"}), store(dict{"kv_cache_spec_kind": "mla_attention"}), store(dict{"kv_cache_spec_kind": "sink_full_attention"})}, 3},
		"other kinds":           {list{store(dict{"kv_cache_spec_kind": "sliding_window"}), store(dict{"kv_cache_spec_kind": "new"})}, 0},
		"group 0, unknown":      {list{store(dict{"group_idx": 0}), remove(0)}, 2},
		"group 1, unknown":      {list{store(dict{"group_idx": 1}), remove(1)}, 0},
		"learned as main":       {list{store(dict{"group_idx": 1, "kv_cache_spec_kind": "full_attention"}), store(dict{"group_idx": 1}), remove(1)}, 3},
		"learned as other":      {list{store(dict{"group_idx": 0, "kv_cache_spec_kind": "mamba"}), store(dict{"group_idx": 0}), remove(0)}, 0},
		"learned from a remote": {list{store(dict{"group_idx": 0, "kv_cache_spec_kind": "mamba", "locality": "REMOTE"}), remove(0)}, 0},
		"last lesson counts":    {list{store(dict{"group_idx": 1, "kv_cache_spec_kind": "mamba"}), store(dict{"group_idx": 1, "kv_cache_spec_kind": "full_attention"}), remove(1)}, 2},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			rec, _ := convert(t, plain4, message(tc.events...))
			if len(rec.calls) != tc.kept {
				t.Errorf("calls %v, want %d", rec.calls, tc.kept)
			}
		})
	}
	t.Run("per rank", func(t *testing.T) {
		rec, _ := convert(t, plain4,
			list{1.5, list{store(dict{"group_idx": 1, "kv_cache_spec_kind": "full_attention"})}, 3},
			list{1.5, list{remove(1)}, 0}, list{1.5, list{remove(1)}, 3})
		want := []string{"store slot=13 device root<-[1] known=true", "remove slot=13 device [1]"}
		if !slices.Equal(rec.calls, want) {
			t.Errorf("calls %v, want %v", rec.calls, want)
		}
	})
}

// TestHashes shows what enters a block's local hash: tokens, adapter, salt,
// multimodal objects, and a key that no prompt can express.
func TestHashes(t *testing.T) {
	tokens := []uint32{2, 3, 4, 5, 3, 4, 5, 6} // of stored({1, 2})
	local := func(lora, salt string, mm [][]uint64) []uint64 {
		return plain4.AppendLocal(nil, tokens, hashing.LocalSeed(lora, salt), mm)
	}
	tests := map[string]struct {
		fields dict
		want   []uint64
	}{
		"plain":      {nil, local("", "", nil)},
		"adapter":    {dict{"lora_name": "ad"}, local("ad", "", nil)},
		"salt":       {dict{"cache_salt": "s"}, local("", "s", nil)},
		"both":       {dict{"lora_name": "ad", "extra_keys": list{list{"ad", "s"}}}, local("ad", "s", nil)},
		"multimodal": {dict{"block_mm_infos": list{nil, dict{"mm_objects": list{dict{"mm_hash": 9}, dict{"mm_hash": 8}}}}}, local("", "", [][]uint64{nil, {8, 9}})},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			rec, _ := convert(t, plain4, message(stored([]uint64{1, 2}, tc.fields)))
			if got := rec.locals(10, 1, 2); !slices.Equal(got, tc.want) {
				t.Errorf("local hashes %v, want %v", got, tc.want)
			}
		})
	}
	t.Run("opaque", func(t *testing.T) {
		opaque := func(name uint64, key byte) any {
			return stored([]uint64{name, name + 1}, dict{"token_ids": tokens, "extra_keys": list{nil, list{[]byte{key}}}})
		}
		rec, tally := convert(t, plain4, message(opaque(1, 7), opaque(3, 7), opaque(5, 8)))
		a, same, other := rec.locals(10, 1, 2), rec.locals(10, 3, 4), rec.locals(10, 5, 6)
		want := local("", "", nil)
		if a[0] != want[0] || a[1] == want[1] {
			t.Errorf("locals %v of plain %v: only the second may differ", a, want)
		}
		if !slices.Equal(a, same) || a[1] == other[1] {
			t.Error("the digest does not stand for the key")
		}
		if got := blocks(tally); !slices.Contains(got, "device opaque 3") {
			t.Errorf("blocks %v", got)
		}
	})
}

// TestSaltInheritance shows that children take over their parent's salt, and
// that a stream without salts never asks for one.
func TestSaltInheritance(t *testing.T) {
	child := func(name, parent uint64, more dict) any {
		ev := stored([]uint64{name}, more)
		ev["parent_block_hash"] = parent
		return ev
	}
	seed := hashing.LocalSeed

	rec, _ := convert(t, plain4, message(stored([]uint64{1}, nil), child(2, 1, nil), child(3, 2, dict{"lora_name": "ad"})))
	if rec.asked != 0 {
		t.Errorf("a stream without salts asked for %d parents", rec.asked)
	}

	rec, _ = convert(t, plain4, message(
		stored([]uint64{1}, dict{"cache_salt": "s"}),
		child(2, 1, nil),                      // inherits
		child(3, 2, nil),                      // inherits what was inherited
		child(4, 1, dict{"cache_salt": "t"}),  // states its own
		stored([]uint64{5}, nil),              // no parent: no salt
		child(6, 5, dict{"lora_name": "ad"}),  // the parent's seed counts
		child(7, 99, dict{"lora_name": "ad"}), // unknown parent: assumed unsalted
		child(8, 0, nil),                      // root (K10)
	))
	want := map[uint64]uint64{
		1: seed("", "s"), 2: seed("", "s"), 3: seed("", "s"), 4: seed("", "t"),
		5: seed("", ""), 6: seed("", ""), 7: seed("ad", ""), 8: seed("", ""),
	}
	got := map[uint64]uint64{}
	for at, c := range rec.blocks {
		got[at.name] = c.seed
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("seeds (-want +got):\n%s", diff)
	}
	for _, call := range []string{"store slot=10 device 1<-[2] known=true", "store slot=10 device 99<-[7] known=false", "store slot=10 device 0<-[8] known=true"} {
		if !slices.Contains(rec.calls, call) {
			t.Errorf("no call %q in %q", call, rec.calls)
		}
	}
}

// TestPeerRows compares the blocks after every recorded message with what the
// newest peer had in its dump: tier, rank, engine hash and local hash.
func TestPeerRows(t *testing.T) {
	compared := 0
	for _, tc := range payloadCases(t) {
		if tc.Kind != "ok" || len(tc.Peer161) == 0 {
			continue // the peer has nothing, or reads garbage
		}
		if tc.Name == "vllm-0.33.0-extra-keys-lora-salt-bytes" {
			continue // the peer ignores plain salts (K11)
		}
		want := map[string]bool{}
		for _, row := range tc.Peer161 {
			want[fmt.Sprintln(row[0], row[1], row[3], row[4])] = true
		}
		var dec kvevents.Decoder
		var b kvevents.Batch
		if err := dec.Decode(tc.Payload, &b); err != nil {
			t.Fatal(err)
		}
		eagle := slices.ContainsFunc(b.Events, func(ev kvevents.Event) bool { return ev.Eagle })
		rec := newRecorder()
		kvevents.NewConverter(hashing.Layout{BlockSize: 4, Eagle: eagle}, 0, anyRank).Apply(&b, rec, &kvevents.Tally{})
		got := map[string]bool{}
		for at, c := range rec.blocks {
			got[fmt.Sprintln(at.tier.String(), float64(at.slot), text(at.name), text(c.local))] = true
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-peer +got):\n%s", tc.Name, diff)
		}
		compared++
	}
	if compared < 30 {
		t.Errorf("only %d cases compared", compared)
	}
}

// TestConvertAllocations shows that the way from bytes to the index allocates
// nothing in the steady state.
func TestConvertAllocations(t *testing.T) {
	names := []uint64{1, 2, 3}
	payload := pack(t, message(stored(names, dict{"lora_name": "ad"}),
		stored(names, dict{"cache_salt": "s", "group_idx": 0, "kv_cache_spec_kind": "full_attention"}),
		dict{"type": "BlockRemoved", "block_hashes": names, "group_idx": 0}))
	var dec kvevents.Decoder
	var b kvevents.Batch
	var tally kvevents.Tally
	conv, idx := kvevents.NewConverter(plain4, 0, anyRank), &sink{}
	if n := testing.AllocsPerRun(100, func() {
		if err := dec.Decode(payload, &b); err != nil {
			t.Fatal(err)
		}
		conv.Apply(&b, idx, &tally)
	}); n != 0 {
		t.Errorf("%v allocations a message, want 0", n)
	}
}

// TestTallyAdd shows that sums are complete.
func TestTallyAdd(t *testing.T) {
	var sum kvevents.Tally
	_, one := convert(t, plain4, message(stored([]uint64{1}, nil), stored([]uint64{1}, dict{"medium": "x"}), list{"AllBlocksCleared"}, nil))
	sum.Add(one)
	sum.Add(one)
	for _, line := range []string{"stored device applied 2", "stored none unknown_medium 2", "cleared none applied 2", "unreadable none not_an_event 2"} {
		if !slices.Contains(events(&sum), line) {
			t.Errorf("no %q in %q", line, events(&sum))
		}
	}
	if got := blocks(&sum); !slices.Equal(got, []string{"device stored 2"}) {
		t.Errorf("blocks %q", got)
	}
}

// seedNames writes down what seeds are called.
type seedNames []string

func (n *seedNames) NameSeed(seed uint64, lora, salt string) {
	if seed != hashing.LocalSeed(lora, salt) {
		lora = "wrong seed"
	}
	*n = append(*n, lora+"/"+salt)
}

// TestSeedNames shows that every adapter and salt of a stream is named once, and
// the plain seed never.
func TestSeedNames(t *testing.T) {
	var names seedNames
	conv := kvevents.NewConverter(plain4, 0, nil)
	conv.Seeds = &names
	one := []uint64{1}
	for range 2 {
		conv.Apply(decode(t, message(
			stored(one, nil), stored(one, dict{"lora_name": "ad"}), stored(one, dict{"cache_salt": "s"}),
			stored(one, dict{"lora_name": "ad", "cache_salt": "s"}), stored(one, dict{"lora_name": "child", "parent_block_hash": 9}),
		)), newRecorder(), &kvevents.Tally{})
	}
	if want := (seedNames{"ad/", "/s", "ad/s", "child/"}); !slices.Equal(names, want) {
		t.Errorf("named %q, want %q", names, want)
	}
}
