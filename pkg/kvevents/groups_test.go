package kvevents_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/select-service/select-service/pkg/kvevents"
)

// TestFurtherGroups shows what becomes of the events of several attention groups, with
// the rule that notes them and without.
func TestFurtherGroups(t *testing.T) {
	group := func(i int, kind string, more dict) dict {
		ev := stored([]uint64{7, 8}, dict{"group_idx": i, "kv_cache_spec_kind": kind})
		for key, value := range more {
			ev[key] = value
		}
		return ev
	}
	remove := func(i int) dict {
		return dict{"type": "BlockRemoved", "block_hashes": []uint64{7}, "group_idx": i, "medium": "GPU"}
	}
	full := group(0, "full_attention", nil)
	const main = "store slot=10 device root<-[7 8] known=true"
	tests := map[string]struct {
		events list
		calls  []string
	}{
		"window": {
			list{full, group(1, "sliding_window", dict{"kv_cache_spec_sliding_window": 40}), remove(1)},
			[]string{main, "group slot=10 group=1 [7 8] dense=true {1 4 40}", "ungroup slot=10 group=1 [7]"},
		},
		"window of MLA, of unknown size": {
			list{group(1, "sliding_window_mla", dict{"kv_cache_spec_sliding_window": "x"})},
			[]string{"group slot=10 group=1 [7 8] dense=true {1 4 0}"},
		},
		"state, one block of many": {
			list{group(2, "mamba", dict{"block_hashes": []uint64{8}})},
			[]string{"group slot=10 group=2 [8] dense=false {2 4 0}"},
		},
		"chunks, whose size the worker states": {
			list{group(1, "chunked_local_attention", nil)},
			[]string{"group slot=10 group=1 [7 8] dense=true {3 4 8192}"},
		},
		"a kind of later versions needs all blocks": {
			list{group(1, "new", nil)},
			[]string{"group slot=10 group=1 [7 8] dense=true {0 4 0}"},
		},
		"blocks of another size": {
			list{group(1, "sliding_window", dict{"block_size": 2})},
			[]string{"group slot=10 group=1 [7 8] dense=false {1 2 0}"},
		},
		"a second group with full attention": {
			list{full, group(1, "full_attention", nil), remove(1), remove(0)},
			[]string{main, "group slot=10 group=1 [7 8] dense=true {0 4 0}", "ungroup slot=10 group=1 [7]", "remove slot=10 device [7]"},
		},
		"a column layout": {
			list{full, list{"BlockStored", []uint64{7}, nil, list{1, 2, 3, 4}, 4, nil, "GPU", nil, nil, 1, "sliding_window", 40}},
			[]string{main, "group slot=10 group=1 [7] dense=true {1 4 40}"},
		},
		"columns of a later version": {
			list{full, list{"BlockStored", []uint64{7}, nil, list{1, 2, 3, 4}, 4, nil, "GPU", nil, nil, 1, "sliding_window", 40, "LOCAL", nil}},
			[]string{main, "group slot=10 group=1 [7] dense=true {1 4 40}"},
		},
		"not on the device":  {list{group(1, "mamba", dict{"medium": "CPU"})}, nil},
		"unknown medium":     {list{group(1, "mamba", dict{"medium": "tape"})}, nil},
		"of another host":    {list{group(1, "mamba", dict{"locality": "REMOTE"})}, nil},
		"without a group":    {list{stored([]uint64{7}, dict{"kv_cache_spec_kind": "mamba"})}, nil},
		"without hashes":     {list{group(1, "mamba", dict{"block_hashes": []uint64{}})}, nil},
		"without block size": {list{group(1, "mamba", dict{"block_size": nil})}, nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			for _, exact := range []bool{true, false} {
				rec := newRecorder()
				c := kvevents.NewConverter(plain4, 0, twoRanks)
				c.Groups = kvevents.GroupRule{Exact: exact, ChunkSize: 8192}
				var tally kvevents.Tally
				c.Apply(decode(t, message(tc.events...)), rec, &tally)
				if !exact {
					if i := slices.IndexFunc(rec.calls, func(call string) bool { return strings.Contains(call, "group=") }); i >= 0 {
						t.Errorf("without the rule: %s", rec.calls[i])
					}
					continue
				}
				if diff := cmp.Diff(tc.calls, rec.calls); diff != "" {
					t.Errorf("calls (-want +got):\n%s", diff)
				}
				if applied := tally.ByReason()[kvevents.Applied]; applied != uint64(len(tc.calls)) {
					t.Errorf("%d events applied, want %d", applied, len(tc.calls))
				}
			}
		})
	}
}

// TestWindowAsMainGroup: where no group has full attention a window is the main group,
// until one with full attention shows up.
func TestWindowAsMainGroup(t *testing.T) {
	in := func(group int, kind string, more dict) dict {
		ev := stored([]uint64{7, 8}, dict{"group_idx": group, "kv_cache_spec_kind": kind, "kv_cache_spec_sliding_window": 40})
		maps.Copy(ev, more)
		return ev
	}
	remove := func(group int) dict {
		return dict{"type": "BlockRemoved", "block_hashes": []uint64{7}, "group_idx": group, "medium": "GPU"}
	}
	window, full := in(0, "sliding_window", nil), in(1, "full_attention", nil)
	offloaded := dict{"type": "BlockStored", "block_hashes": []uint64{7}, "parent_block_hash": nil, "token_ids": list{}, "block_size": 0, "medium": "CPU"}
	const (
		noted    = "group slot=10 group=0 main {1 4 40}"
		kept     = "store slot=10 device root<-[7 8] known=true"
		removed  = "remove slot=10 device [7]"
		cleared  = "clear slot=10"
		forgot   = "forget slot=10"
		windowed = "group slot=10 group=0 [7 8] dense=true {1 4 40}"
	)
	batches := func(b ...list) []list { return b }
	tests := map[string]struct {
		batches []list
		calls   []string
	}{
		"alone":                            {batches(list{window, remove(0)}, list{window}), []string{noted, kept, removed, noted, kept}},
		"of MLA":                           {batches(list{in(0, "sliding_window_mla", nil)}), []string{noted, kept}},
		"of no size":                       {batches(list{in(0, "sliding_window", dict{"kv_cache_spec_sliding_window": nil})}), []string{"group slot=10 group=0 [7 8] dense=true {1 4 0}"}},
		"in no group":                      {batches(list{in(0, "sliding_window", dict{"group_idx": nil})}), nil},
		"sparse":                           {batches(list{in(0, "sliding_window", dict{"block_hashes": []uint64{8}})}), nil},
		"other windows":                    {batches(list{window, in(1, "sliding_window", nil)}), []string{noted, kept, "group slot=10 group=1 [7 8] dense=true {1 4 40}"}},
		"before full attention in a batch": {batches(list{window, full}), []string{windowed, kept}},
		"before full attention in the next batch": {
			batches(list{window}, list{full}, list{window}),
			[]string{noted, kept, cleared, forgot, kept, windowed},
		},
		"before full attention without a group": {
			batches(list{window}, list{stored([]uint64{7, 8}, nil)}, list{window}),
			[]string{noted, kept, cleared, forgot, kept, windowed},
		},
		"beside full attention that is not used": {
			batches(list{in(1, "full_attention", dict{"block_size": 2})}, list{window}), []string{windowed},
		},
		"beside full attention elsewhere": {
			batches(list{in(1, "full_attention", dict{"locality": "REMOTE"}), window, in(1, "full_attention", dict{"ownership": "kvcr"})}, list{window}),
			[]string{noted, kept, noted, kept},
		},
		"of other blocks than the index has": {
			batches(list{in(0, "sliding_window", dict{"block_size": 2, "block_hashes": []uint64{7}, "token_ids": []uint32{1, 2}}), in(1, "sliding_window", nil)}),
			[]string{"group slot=10 group=0 [7] dense=true {1 2 40}", "group slot=10 group=1 main {1 4 40}", kept},
		},
		"of other blocks, before full attention": {
			batches(list{in(0, "sliding_window", dict{"block_size": 2, "block_hashes": []uint64{7}, "token_ids": []uint32{1, 2}})}, list{full}),
			[]string{"group slot=10 group=0 [7] dense=true {1 2 40}", kept},
		},
		"before offloaded blocks in a batch": {
			batches(list{window, offloaded}), []string{noted, kept, "named slot=10 host_pinned [7]"},
		},
		"offloaded by its group": {
			batches(list{window, in(0, "sliding_window", dict{"token_ids": list{}, "block_size": 0, "medium": "CPU"})}),
			[]string{noted, kept, "named slot=10 host_pinned [7 8]"},
		},
		"beside offloaded blocks": {
			batches(list{window}, list{offloaded}, list{window}),
			[]string{noted, kept, "named slot=10 host_pinned [7]", noted, kept},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			rec := newRecorder()
			c := kvevents.NewConverter(plain4, 0, twoRanks)
			c.Groups = kvevents.GroupRule{Exact: true}
			var tally kvevents.Tally
			for _, events := range tc.batches {
				c.Apply(decode(t, message(events...)), rec, &tally)
			}
			if diff := cmp.Diff(tc.calls, rec.calls); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
		})
	}
	t.Run("without the rule", func(t *testing.T) {
		rec := newRecorder()
		var tally kvevents.Tally
		kvevents.NewConverter(plain4, 0, twoRanks).Apply(decode(t, message(window, remove(0))), rec, &tally)
		if len(rec.calls) > 0 {
			t.Errorf("calls %v, want none", rec.calls)
		}
	})
}

// TestMainGroupIsOneThatStores: a stream that is joined late may begin with removals of
// group 0, whose kind no event has stated then.
func TestMainGroupIsOneThatStores(t *testing.T) {
	rec := newRecorder()
	c := kvevents.NewConverter(plain4, 0, twoRanks)
	c.Groups = kvevents.GroupRule{Exact: true}
	in := func(group int, kind string) dict {
		return stored([]uint64{7, 8}, dict{"group_idx": group, "kv_cache_spec_kind": kind})
	}
	var tally kvevents.Tally
	c.Apply(decode(t, message(
		dict{"type": "BlockRemoved", "block_hashes": []uint64{7}, "group_idx": 0, "medium": "GPU"},
		in(0, "mamba"), in(1, "full_attention"),
	)), rec, &tally)
	want := []string{
		"remove slot=10 device [7]",
		"group slot=10 group=0 [7 8] dense=true {2 4 0}",
		"store slot=10 device root<-[7 8] known=true",
	}
	if diff := cmp.Diff(want, rec.calls); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

// TestAnotherEnginesGroups: the groups of an engine that is gone are forgotten; the
// next one may have its main group elsewhere.
func TestAnotherEnginesGroups(t *testing.T) {
	rec := newRecorder()
	a := &kvevents.IndexApplier{
		Converter: kvevents.NewConverter(plain4, 0, twoRanks), Index: rec, Slot: 10,
		Groups: kvevents.GroupRule{Exact: true},
	}
	apply := func(dp, group int, kind string) {
		t.Helper()
		var w kvevents.Workspace
		ev := stored([]uint64{7}, dict{"group_idx": group, "kv_cache_spec_kind": kind})
		if err := a.Apply(pack(t, list{1.5, list{ev}, dp}), &w); err != nil {
			t.Fatal(err)
		}
	}
	apply(0, 0, "full_attention")
	apply(3, 0, "full_attention")
	a.Clear()
	apply(0, 0, "mamba")
	apply(0, 1, "full_attention")
	const store = "store slot=10 device root<-[7] known=true"
	want := []string{store, "store slot=13 device root<-[7] known=true", "clear slot=10", "forget slot=10", "forget slot=13", "group slot=10 group=0 [7] dense=true {2 4 0}", store}
	if !slices.Equal(rec.calls, want) {
		t.Errorf("calls %v, want %v", rec.calls, want)
	}
}
