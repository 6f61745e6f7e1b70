package kvevents

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/indexer"
)

// TestOtherBlockSize: which stores show that the engine's blocks are of another size than the
// registered 2 tokens. The media and kinds are those of vLLM's events.
func TestOtherBlockSize(t *testing.T) {
	store := func(size int, more dict) dict {
		ev := dict{"type": "BlockStored", "block_hashes": list{7}, "token_ids": list{1, 2, 3, 4}, "block_size": size, "medium": "GPU"}
		for key, value := range more {
			ev[key] = value
		}
		return ev
	}
	group := func(i int, kind string) dict { return dict{"group_idx": i, "kv_cache_spec_kind": kind} }
	for name, row := range map[string]struct {
		events []any
		want   uint32
	}{
		"its own size":              {[]any{store(2, nil)}, 0},
		"another":                   {[]any{store(4, nil)}, 4},
		"without a medium":          {[]any{store(4, dict{"medium": nil})}, 4},
		"full attention":            {[]any{store(4, group(3, "full_attention"))}, 4},
		"MLA":                       {[]any{store(4, group(0, "mla_attention"))}, 4},
		"a further group":           {[]any{store(4, group(1, "sliding_window"))}, 0},
		"state":                     {[]any{store(4, group(2, "mamba"))}, 0},
		"a group of unknown kind":   {[]any{store(4, dict{"group_idx": 0})}, 0},
		"another beside a group":    {[]any{store(1, group(1, "sliding_window")), store(4, group(0, "full_attention"))}, 4},
		"larger blocks offloaded":   {[]any{store(4, dict{"medium": "CPU"})}, 0},
		"an unknown medium":         {[]any{store(4, dict{"medium": "tape"})}, 0},
		"of another host":           {[]any{store(4, dict{"locality": "REMOTE"})}, 0},
		"too few tokens":            {[]any{store(8, nil)}, 0},
		"without tokens":            {[]any{store(4, dict{"token_ids": list{}})}, 0},
		"a removal":                 {[]any{dict{"type": "BlockRemoved", "block_hashes": list{7}, "medium": "GPU"}}, 0},
		"another, then its own":     {[]any{store(4, nil), store(2, nil)}, 0},
		"its own, then another":     {[]any{store(2, nil), store(4, nil)}, 0},
		"another, then a third one": {[]any{store(4, nil), store(3, nil)}, 4},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				var told []string
				config := DefaultConfig(1)
				config.OtherBlockSize = func(r catalog.Rank, registered, size uint32) {
					mu.Lock()
					defer mu.Unlock()
					told = append(told, fmt.Sprint(r, registered, size))
				}
				src := &fakeSource{}
				subs, stop := startSubscribers(t, src, config)
				defer stop()
				add(t, subs, StreamConfig{Rank: rank(0), Endpoint: "pub", Applier: &IndexApplier{
					Converter: NewConverter(hashing.Layout{BlockSize: 2}, 0, nil), Index: indexer.New(),
				}})
				pub := src.open("pub")
				pub.status(true)
				batch := packed(t, list{1.0, row.events, 0})
				pub.live(0, batch)
				pub.live(1, batch) // it is told once
				synctest.Wait()
				var want []string
				if row.want > 0 {
					want = []string{fmt.Sprint(rank(0), 2, row.want)}
				}
				if st := subs.Streams()[0]; st.OtherBlockSize != row.want || !slices.Equal(told, want) {
					t.Errorf("%d, told %v, want %d", st.OtherBlockSize, told, row.want)
				}
				pub.live(2, packed(t, list{1.0, list{store(2, nil)}, 0}))
				synctest.Wait()
				if st := subs.Streams()[0]; st.OtherBlockSize != 0 {
					t.Errorf("%d after a block of its own size", st.OtherBlockSize)
				}
			})
		})
	}
}
