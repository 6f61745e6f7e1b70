package conductor

import (
	"fmt"
	"testing"

	"github.com/select-service/select-service/internal/selection/diagnose"
	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/kvevents"
)

// TestEnvelopeIdentity: every field that an envelope states counts, what it
// leaves out is the registration's; a query sees one identity and no other.
func TestEnvelopeIdentity(t *testing.T) {
	reg := base("i", 3)
	reg.Identity = Identity{Tenant: "red", Model: "m", LoRA: "sql", Salt: "w8", BlockSize: 4}
	tests := map[string]struct {
		more  []any
		id    Identity
		ranks string
	}{
		"nothing stated": {id: reg.Identity, ranks: "3:8"},
		"nil": {
			more: []any{"tenant_id", nil, "model_name", nil, "lora_name", nil, "additional_salt", nil, "block_size", nil, "dp_rank", nil, "backend_id", nil},
			id:   reg.Identity, ranks: "3:8",
		},
		"empty texts": {more: []any{"tenant_id", "", "model_name", "", "lora_name", "", "additional_salt", ""}, id: reg.Identity, ranks: "3:8"},
		"the same":    {more: []any{"tenant_id", "red", "model_name", "m", "lora_name", "sql", "additional_salt", "w8", "block_size", 4, "dp_rank", 3}, id: reg.Identity, ranks: "3:8"},
		"tenant":      {more: []any{"tenant_id", "blue"}, id: Identity{"blue", "m", "sql", "w8", 4}, ranks: "3:8"},
		"model":       {more: []any{"model_name", "n"}, id: Identity{"red", "n", "sql", "w8", 4}, ranks: "3:8"},
		"LoRA":        {more: []any{"lora_name", "law"}, id: Identity{"red", "m", "law", "w8", 4}, ranks: "3:8"},
		"salt":        {more: []any{"additional_salt", "fp8"}, id: Identity{"red", "m", "sql", "fp8", 4}, ranks: "3:8"},
		"block size":  {more: []any{"block_size", 8}, id: Identity{"red", "m", "sql", "w8", 8}, ranks: "3:16"},
		"rank":        {more: []any{"dp_rank", 7}, id: reg.Identity, ranks: "3:0 7:8"},
		"backend":     {more: []any{"backend_id", "daemon"}, id: reg.Identity, ranks: "3:8"},
		"all": {
			more: []any{"tenant_id", "blue", "model_name", "n", "lora_name", "law", "additional_salt", "fp8", "block_size", 2, "dp_rank", 0},
			id:   Identity{"blue", "n", "law", "fp8", 2}, ranks: "0:4",
		},
	}
	tokens := prompt(1, 8)
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			p := w.add(reg)
			size := int(tc.id.BlockSize)
			hashes := rollingSeed(tokens, size, hashing.Seed)[:2]
			w.apply(p, stored(hashes, "gpu", tc.more...))
			w.want(tc.id, tokens, fmt.Sprintf("i %d GPU=%d %s", 2*size, 2*size, tc.ranks))
			for _, other := range tests {
				switch other.id {
				case tc.id:
				case reg.Identity:
					w.want(other.id, tokens, "i 0 3:0")
				default:
					w.want(other.id, tokens)
				}
			}
			w.apply(p, removed(hashes[1:], "gpu", tc.more...))
			var a Answer
			w.queryHashes(tc.id, hashes, "", &a)
			if got := a.Instances[0].Longest; got != uint64(size) {
				t.Errorf("after a removal: %s", a.text())
			}
		})
	}
}

// TestSameHashesInTwoNamespaces: a standard hash means another block in another
// namespace, for stores, removals and clears.
func TestSameHashesInTwoNamespaces(t *testing.T) {
	for _, how := range []string{"removed", "cleared"} {
		t.Run(how, func(t *testing.T) {
			w := newWorld(t)
			p := w.add(base("i", 0))
			law := p.Identity
			law.LoRA = "law"
			tokens := prompt(1, 3)
			hashes := rolling(tokens)
			w.apply(p, stored(hashes, "gpu"), stored(hashes[:2], "gpu", "lora_name", "law"))
			w.want(p.Identity, tokens, "i 12 GPU=12 0:12")
			w.want(law, tokens, "i 8 GPU=8 0:8")
			if how == "removed" {
				w.apply(p, removed(hashes, "gpu", "lora_name", "law"))
			} else {
				w.apply(p, cleared("gpu", "lora_name", "law"))
			}
			w.want(p.Identity, tokens, "i 12 GPU=12 0:12")
			w.want(law, tokens)
		})
	}
}

// TestForeignHashes: with tokens the hashes are computed here, and the event's
// own ones are names for later events only.
func TestForeignHashes(t *testing.T) {
	w := newWorld(t)
	p := w.add(base("i", 0))
	tokens := prompt(1, 4)
	w.apply(p, stored([]uint64{777, 778}, "gpu", "token_ids", tokens[:8]))
	w.apply(p, stored([]uint64{779}, "gpu", "base_block_idx", nil, "parent_hash", 778, "token_ids", tokens[8:12]))
	w.want(p.Identity, tokens, "i 12 GPU=12 0:12")
	var a Answer
	w.queryHashes(p.Identity, []uint64{777, 778}, "", &a)
	if got := a.text(); got != "i 0 0:0\n" {
		t.Errorf("by the engine's names: %s", got)
	}
	w.apply(p, removed([]uint64{778}, "gpu"))
	w.want(p.Identity, tokens, "i 4 GPU=4 0:4")
	if st := p.Status(); st.Hashes != diagnose.HashesTokens || st.TokenBlocks != 3 {
		t.Errorf("Status = %+v", st)
	}
	// Without tokens such names are not hashes of the standard.
	w.apply(p, stored([]uint64{779, 780}, "cpu", "base_block_idx", 2))
	if st := p.Status(); st.Hashes != diagnose.HashesOwn {
		t.Errorf("hashes are %v, want %v", st.Hashes, diagnose.HashesOwn)
	}
}

// TestEnvelopePlace: where blocks go by parent and base index, with tokens and
// without.
func TestEnvelopePlace(t *testing.T) {
	tokens := prompt(1, 4)
	hashes := rolling(tokens)
	root := stored(hashes[:2], "gpu")
	tests := map[string]struct {
		events     []event
		longest    int
		mismatches uint64
	}{
		"base alone":               {[]event{root, stored(hashes[2:], "gpu", "base_block_idx", 2)}, 16, 0},
		"base alone, first":        {[]event{stored(hashes[2:], "gpu", "base_block_idx", 2), root}, 16, 0},
		"parent alone":             {[]event{root, stored(hashes[2:], "gpu", "base_block_idx", nil, "parent_hash", hashes[1])}, 16, 0},
		"parent alone, first":      {[]event{stored(hashes[2:], "gpu", "base_block_idx", nil, "parent_hash", hashes[1]), root}, 16, 0},
		"both":                     {[]event{root, stored(hashes[2:], "gpu", "base_block_idx", 2, "parent_hash", hashes[1])}, 16, 0},
		"base is wrong":            {[]event{root, stored(hashes[2:], "gpu", "base_block_idx", 9, "parent_hash", hashes[1])}, 16, 1},
		"parent 0":                 {[]event{stored(hashes[:2], "gpu", "base_block_idx", nil, "parent_hash", 0)}, 8, 0},
		"parent 0, base 0":         {[]event{stored(hashes[:2], "gpu", "parent_hash", 0)}, 8, 0},
		"parent 0, tokens":         {[]event{stored([]uint64{1, 2}, "gpu", "base_block_idx", nil, "parent_hash", 0, "token_ids", tokens[:8])}, 8, 0},
		"tokens, base 0":           {[]event{stored([]uint64{1, 2}, "gpu", "token_ids", tokens[:8])}, 8, 0},
		"tokens, no parent":        {[]event{root, stored(hashes[2:], "gpu", "base_block_idx", 2, "token_ids", tokens[8:])}, 16, 0},
		"tokens, parent":           {[]event{root, stored([]uint64{5, 6}, "gpu", "base_block_idx", 2, "parent_hash", hashes[1], "token_ids", tokens[8:])}, 16, 0},
		"tokens, base is wrong":    {[]event{root, stored([]uint64{5, 6}, "gpu", "base_block_idx", 3, "parent_hash", hashes[1], "token_ids", tokens[8:])}, 16, 1},
		"no tokens in the list":    {[]event{stored(hashes, "gpu", "token_ids", []uint32{})}, 16, 0},
		"half a block":             {[]event{stored([]uint64{1, 2, 3}, "gpu", "token_ids", tokens[:10])}, 8, 0},
		"prefix of another medium": {[]event{stored(hashes[:2], "disk"), stored(hashes[2:], "gpu", "base_block_idx", 2)}, 16, 0},
		"a hole":                   {[]event{stored(hashes[:1], "gpu"), stored(hashes[2:], "gpu", "base_block_idx", 2)}, 4, 0},
		"removed, base is wrong":   {[]event{root, removed(hashes[1:2], "gpu", "base_block_idx", 4)}, 4, 1},
		"removed, base is right":   {[]event{root, removed(hashes[1:2], "gpu", "base_block_idx", 1)}, 4, 0},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			p := w.add(base("i", 0))
			w.apply(p, tc.events...)
			w.wantReasons(nil)
			var a Answer
			w.queryTokens(p.Identity, tokens, "", &a)
			if a.Instances[0].Longest != uint64(tc.longest) {
				t.Errorf("longest %d, want %d", a.Instances[0].Longest, tc.longest)
			}
			if st := p.Status(); st.BaseMismatches != tc.mismatches {
				t.Errorf("%d base mismatches, want %d", st.BaseMismatches, tc.mismatches)
			}
		})
	}
}

// TestParentOfAnotherOwner: blocks with tokens need no parent of the same owner if
// their hashes are the standard's: in whatever order the owners announce them, the
// query joins them, and they are removed by the same hashes. Other hashes tell no
// place: such blocks wait for their parent.
func TestParentOfAnotherOwner(t *testing.T) {
	tokens := prompt(1, 4)
	hashes := rolling(tokens)
	named := func(n uint64) []uint64 { return []uint64{n, n + 1} }
	tests := map[string]struct {
		names []uint64 // of the blocks behind the parent
		want  string
	}{
		"standard":       {hashes[2:], "i 16 GPU=8 CPU=8 0:16"},
		"own":            {named(7), "i 8 GPU=8 0:8"},
		"own at the end": {[]uint64{hashes[2], 8}, "i 8 GPU=8 0:8"},
	}
	for name, tc := range tests {
		for _, order := range [][2]int{{0, 1}, {1, 0}} {
			t.Run(fmt.Sprint(name, order), func(t *testing.T) {
				w := newWorld(t)
				engine, store := base("i", 0), base("i", 0)
				store.Type, store.Endpoint = Mooncake, "tcp://store:1"
				publishers := [2]*Publisher{w.add(engine), w.add(store)}
				events := [2]event{
					stored(hashes[:2], "gpu", "token_ids", tokens[:8]),
					stored(tc.names, "cpu", "base_block_idx", 2, "parent_hash", hashes[1], "token_ids", tokens[8:]),
				}
				for _, i := range order {
					w.apply(publishers[i], events[i])
				}
				w.wantReasons(nil)
				w.want(publishers[0].Identity, tokens, tc.want)
				if st := publishers[1].Status(); st.Hashes != diagnose.HashesTokens || st.TokenBlocks != 2 || st.Unverified != 0 || st.BaseMismatches != 0 {
					t.Errorf("Status = %+v", st)
				}
				w.apply(publishers[1], removed(tc.names, "cpu"))
				w.want(publishers[0].Identity, tokens, "i 8 GPU=8 0:8")
				if st := publishers[1].Status(); st.blocks() != "GPU=0 CPU=0 DISK=0" {
					t.Errorf("left after the removal: %s", st.blocks())
				}
			})
		}
	}
}

// TestNothingThere: removals and clears of what nobody stored are counted and
// leave nothing behind.
func TestNothingThere(t *testing.T) {
	w := newWorld(t)
	p := w.add(base("i", 0))
	before := w.Stats()
	w.apply(p,
		removed([]uint64{1, 2}, "gpu", "lora_name", "a", "event_id", 4), cleared("gpu", "tenant_id", "a", "event_id", 9),
		removed([]uint64{1, 2}, "gpu"), cleared("npu"),
		engineRemoved([]uint64{1, 2}, "GPU"), event{"type": "AllBlocksCleared"},
		engineStored([]uint64{1, 2}, nil, []uint32{}, "CPU", "block_size", 0))
	if got := w.work.Tally.Blocks[0][kvevents.BlocksUnknown]; got != 6 {
		t.Errorf("%d unknown blocks, want 6", got)
	}
	if got := w.work.Tally.Blocks[1][kvevents.BlocksUnresolved]; got != 2 {
		t.Errorf("%d unresolved blocks, want 2", got)
	}
	w.wantReasons(nil)
	if st := w.Stats(); st != before {
		t.Errorf("Stats = %+v, were %+v", st, before)
	}
	if st := p.Status(); st.Streams != 0 || st.HasEventID {
		t.Errorf("Status = %+v", st)
	}
}

// TestClearedMedium: cleared is about one medium of one backend and rank, unless
// Mooncake's master names none.
func TestClearedMedium(t *testing.T) {
	hashes := rolling(prompt(1, 2))
	tests := map[string]struct {
		typ   PublisherType
		event event
		want  string
	}{
		"one medium":      {Standard, cleared("cpu"), "i 8 GPU=8 DISK=8 0:8 1:8"},
		"of a backend":    {Standard, cleared("gpu"), "i 8 CPU=8 DISK=8 0:8 1:8"},
		"no medium":       {Standard, cleared("gpu").with("medium", nil), "i 8 CPU=8 DISK=8 0:8 1:8"},
		"another rank":    {Standard, cleared("disk", "dp_rank", 1), "i 8 GPU=8 CPU=8 0:8"},
		"another backend": {Standard, cleared("gpu", "backend_id", "x"), "i 8 GPU=8 CPU=8 DISK=8 0:8 1:8"},
		"Mooncake: all":   {Mooncake, cleared("gpu").with("medium", nil), "i 8 DISK=8 0:0 1:8"},
		"Mooncake: one":   {Mooncake, cleared("gpu"), "i 8 CPU=8 DISK=8 0:8 1:8"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			reg := base("i", 0)
			reg.Type = tc.typ
			p := w.add(reg)
			w.apply(p, stored(hashes, "gpu"), stored(hashes, "cpu"), stored(hashes, "disk", "dp_rank", 1))
			w.apply(p, tc.event)
			w.want(p.Identity, prompt(1, 2), tc.want)
		})
	}
}

// TestConnectorHash: Mooncake's master names the engine's block; where an engine
// has announced that one with tokens, the store's hash stands for it.
func TestConnectorHash(t *testing.T) {
	w := newWorld(t)
	engine := base("i", 0)
	engine.Type = VLLM
	master := base("i", 0)
	master.Type, master.Endpoint = Mooncake, "tcp://master:1"
	e, m := w.add(engine), w.add(master)
	tokens := prompt(1, 3)
	w.apply(e, engineStored([]uint64{21, 22, 23}, nil, tokens, "GPU"))
	w.apply(m, stored([]uint64{900}, "cpu", "base_block_idx", nil, "connector_block_hash", "ffff0000000000000016"))
	w.wantReasons(nil)
	w.want(e.Identity, tokens, "i 12 GPU=12 CPU=4 0:12")
	w.apply(e, engineRemoved([]uint64{22}, "GPU"))
	w.want(e.Identity, tokens, "i 12 GPU=8 CPU=4 0:12")
	if st := m.Status(); st.Hashes != diagnose.HashesOwn || st.Resolved != 1 {
		t.Errorf("Status = %+v", st)
	}
	w.apply(m, removed([]uint64{900}, "cpu", "connector_block_hash", "ffff0000000000000016"))
	w.want(e.Identity, tokens, "i 4 GPU=4 0:4")
}
