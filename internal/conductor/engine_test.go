package conductor

import (
	"slices"
	"strings"
	"testing"

	"github.com/select-service/select-service/internal/selection/diagnose"
	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/kvevents"
)

// TestEngineIdentity: adapter and salt of an engine's blocks: what the event
// states, else what the registration does; they are keys and no part of a hash.
func TestEngineIdentity(t *testing.T) {
	salted := func(lora, salt string) Registration {
		reg := base("i", 0)
		reg.Type, reg.LoRA, reg.Salt = VLLM, lora, salt
		return reg
	}
	tests := map[string]struct {
		reg        Registration
		more       []any
		lora, salt string
		nobody     bool // no query finds it
	}{
		"nothing stated":        {reg: salted("", "")},
		"registered":            {reg: salted("sql", "w8"), lora: "sql", salt: "w8"},
		"LoRA":                  {reg: salted("", ""), more: []any{"lora_name", "law"}, lora: "law"},
		"another LoRA":          {reg: salted("sql", ""), more: []any{"lora_name", "law"}, lora: "law"},
		"LoRA's number":         {reg: salted("", ""), more: []any{"lora_id", 7}, lora: "7"},
		"number and name":       {reg: salted("", ""), more: []any{"lora_id", 7, "lora_name", "law"}, lora: "law"},
		"number and registered": {reg: salted("sql", ""), more: []any{"lora_id", 7}, lora: "sql"},
		"salt":                  {reg: salted("", ""), more: []any{"cache_salt", "tea"}, salt: "tea"},
		"salt and LoRA":         {reg: salted("sql", ""), more: []any{"cache_salt", "tea"}, lora: "sql", salt: "tea"},
		"the registered salt":   {reg: salted("", "w8"), more: []any{"cache_salt", "w8"}, salt: "w8"},
		"two salts":             {reg: salted("", "w8"), more: []any{"cache_salt", "tea"}, nobody: true},
	}
	tokens := prompt(1, 3)
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			p := w.add(tc.reg)
			w.apply(p, engineStored([]uint64{1, 2}, nil, tokens[:8], "GPU", tc.more...))
			w.wantReasons(nil)
			found := 0
			for _, lora := range []string{"", "sql", "law", "7"} {
				for _, salt := range []string{"", "w8", "tea"} {
					id := tc.reg.Identity
					id.LoRA, id.Salt = lora, salt
					switch {
					case !tc.nobody && lora == tc.lora && salt == tc.salt:
						w.want(id, tokens, "i 8 GPU=8 0:8")
						found++
					case id == tc.reg.Identity:
						w.want(id, tokens, "i 0 0:0")
					default:
						w.want(id, tokens)
					}
				}
			}
			if found == 0 != tc.nobody {
				t.Errorf("found by %d queries", found)
			}
			w.apply(p, engineRemoved([]uint64{1, 2}, "GPU"))
			if got := p.Status().blocks(); got != "GPU=0 CPU=0 DISK=0" {
				t.Errorf("after the removal: %s", got)
			}
		})
	}
}

// TestSaltInherited: engines state a salt with the first block alone; its
// children are under it, in whatever order and tier they come.
func TestSaltInherited(t *testing.T) {
	tokens := prompt(1, 4)
	root := engineStored([]uint64{1, 2}, nil, tokens[:8], "GPU", "extra_keys", []any{[]any{"tea"}, nil})
	child := engineStored([]uint64{3}, 2, tokens[8:12], "GPU")
	far := engineStored([]uint64{4}, 3, tokens[12:], "CPU", "extra_keys", []any{nil})
	plain := engineStored([]uint64{11, 12}, nil, tokens[:8], "GPU")
	tests := map[string]struct {
		events         []event
		salted, unsalt string
	}{
		"in order":            {[]event{root, child, far}, "i 16 GPU=12 CPU=4 0:16", "i 0 0:0"},
		"orphan first":        {[]event{child, far, root}, "i 16 GPU=12 CPU=4 0:16", "i 0 0:0"},
		"orphan after others": {[]event{plain, child, root, far}, "i 16 GPU=12 CPU=4 0:16", "i 8 GPU=8 0:8"},
		"both": {
			[]event{root, plain, engineStored([]uint64{13}, 12, tokens[8:12], "GPU"), child, far},
			"i 16 GPU=12 CPU=4 0:16", "i 12 GPU=12 0:12",
		},
		"parent in another medium": {
			[]event{root, engineStored([]uint64{3}, 2, tokens[8:12], "DISK", "extra_keys", []any{nil}), engineStored([]uint64{4}, 3, tokens[12:], "NPU", "extra_keys", []any{nil})},
			"i 16 GPU=8 DISK=4 NPU=4 0:16", "i 0 NPU=0 0:0",
		},
		"parent 0 is the root": {[]event{root, engineStored([]uint64{21}, 0, tokens[:4], "GPU")}, "i 8 GPU=8 0:8", "i 4 GPU=4 0:4"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			p := w.add(base("i", 0))
			w.apply(p, tc.events...)
			w.wantReasons(nil)
			tea := p.Identity
			tea.Salt = "tea"
			w.want(tea, tokens, tc.salted)
			w.want(p.Identity, tokens, tc.unsalt)
		})
	}
}

// TestLoRAOfChild: an adapter is stated with every event; a parent's name under
// another adapter does not change it.
func TestLoRAOfChild(t *testing.T) {
	w := newWorld(t)
	p := w.add(base("i", 0))
	tokens := prompt(1, 2)
	w.apply(p, engineStored([]uint64{1}, nil, tokens[:4], "GPU", "lora_name", "a"),
		engineStored([]uint64{11}, nil, tokens[:4], "GPU", "lora_name", "b"),
		engineStored([]uint64{12}, 1, tokens[4:], "GPU", "lora_name", "b"))
	a, b := p.Identity, p.Identity
	a.LoRA, b.LoRA = "a", "b"
	w.want(a, tokens, "i 4 GPU=4 0:4")
	w.want(b, tokens, "i 8 GPU=8 0:8")
}

// TestEngineRank: a batch may state any rank that is registered for the instance,
// the model and the block size (decision K12).
func TestEngineRank(t *testing.T) {
	w := newWorld(t)
	p := w.add(base("i", 0))
	w.add(base("i", 1))
	w.add(base("j", 2))
	lora := base("i", 4)
	lora.LoRA = "sql"
	w.add(lora)
	for i, size := range []uint32{8, 4} {
		other := base("i", 3)
		other.BlockSize, other.Tenant = size, []string{"default", "red"}[i]
		w.add(other)
	}
	tokens := prompt(1, 1)
	for rank := range 5 {
		w.batch(p, rank, engineStored([]uint64{uint64(rank + 1)}, nil, tokens, "GPU"))
	}
	w.wantReasons(map[kvevents.Reason]uint64{kvevents.UnknownRank: 2})
	w.want(p.Identity, tokens, "i 4 GPU=4 0:4 1:4 4:4", "j 0 2:0")
	w.batch(p, 4, event{"type": "AllBlocksCleared"})
	w.want(p.Identity, tokens, "i 4 GPU=4 0:4 1:4", "j 0 2:0")
	w.apply(p, engineStored([]uint64{9}, nil, prompt(1, 1), "GPU", "block_size", 8))
	w.wantReasons(map[kvevents.Reason]uint64{kvevents.BlockSizeMismatch: 1})
}

// TestAllBlocksCleared: a clear of an engine takes all that its rank has, in every
// medium and namespace, but nothing of a cache backend.
func TestAllBlocksCleared(t *testing.T) {
	w := newWorld(t)
	p := w.add(base("i", 0))
	tokens := prompt(1, 1)
	law := p.Identity
	law.LoRA = "law"
	w.apply(p, engineStored([]uint64{1}, nil, tokens, "GPU"), engineStored([]uint64{1}, nil, tokens, "NPU"),
		engineStored([]uint64{2}, nil, tokens, "CPU", "lora_name", "law", "extra_keys", []any{nil}), stored(rolling(tokens), "disk"))
	w.want(p.Identity, tokens, "i 4 GPU=4 DISK=4 NPU=4 0:4")
	w.want(law, tokens, "i 4 CPU=4 NPU=0 0:4")
	w.apply(p, event{"type": "AllBlocksCleared"})
	w.want(p.Identity, tokens, "i 4 DISK=4 NPU=0 0:4")
	w.want(law, tokens)
}

// TestStoredByName: blocks without tokens are those that the engine announced with
// tokens before (decision K15), and a sweep does not make it forget them.
func TestStoredByName(t *testing.T) {
	w := newWorld(t)
	p := w.add(base("i", 0))
	tokens := prompt(1, 3)
	w.apply(p, engineStored([]uint64{1, 2, 3}, nil, tokens, "GPU"), engineRemoved([]uint64{1, 2, 3}, "GPU"))
	w.sweep()
	w.apply(p, engineStored([]uint64{1, 2, 99}, nil, []uint32{}, "CPU", "block_size", 0))
	w.want(p.Identity, tokens, "i 8 CPU=8 0:8")
	n := w.work.Tally.Blocks[1]
	if n[kvevents.BlocksResolved] != 2 || n[kvevents.BlocksUnresolved] != 1 {
		t.Errorf("resolved %d, unresolved %d", n[kvevents.BlocksResolved], n[kvevents.BlocksUnresolved])
	}
}

// TestOffloadedCopies: a copy without keys is the block that the rank has announced under the
// name, in the namespace of that block; a name that is unknown is matched only while no adapter
// or salt has been shown, by an event or by a query of any identity of the tenant, model and block
// size. A diagnosis says so, and is such a query.
func TestOffloadedCopies(t *testing.T) {
	tokens := prompt(1, 2)
	for name, keys := range map[string][]any{
		"salt":    {"extra_keys", []any{[]any{"tea"}, nil}},
		"adapter": {"lora_name", "law", "extra_keys", []any{[]any{"law"}, []any{"law"}}},
		"both":    {"lora_name", "law", "extra_keys", []any{[]any{"law", "tea"}, []any{"law"}}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			p := w.add(base("i", 0))
			id := p.Identity
			if name != "adapter" {
				id.Salt = "tea"
			}
			stated := []any{"extra_keys", nil}
			if name != "salt" {
				id.LoRA = "law"
				stated = append(stated, "lora_name", "law")
			}
			w.apply(p, engineStored([]uint64{1, 2}, nil, tokens, "GPU", keys...), engineStored([]uint64{1, 2}, nil, tokens, "CPU", stated...))
			w.want(p.Identity, tokens, "i 0 0:0")
			w.apply(p, engineRemoved([]uint64{1, 2}, "GPU"))
			w.want(id, tokens, "i 8 CPU=8 0:8")
			w.apply(p, engineStored([]uint64{1, 2}, nil, tokens, "NPU"), engineRemoved([]uint64{1, 2}, "CPU"))
			w.want(id, tokens, "i 8 NPU=8 0:8")
			w.apply(p, engineStored([]uint64{1, 2}, nil, tokens, "CPU", "lora_name", "other"))
			other := p.Identity
			other.LoRA = "other"
			w.want(id, tokens, "i 8 NPU=8 0:8")
			w.want(other, tokens)
		})
	}
	t.Run("unknown", func(t *testing.T) {
		w := newWorld(t)
		p := w.add(base("i", 0))
		w.apply(p, engineStored([]uint64{1}, nil, tokens[:4], "CPU"))
		w.want(p.Identity, tokens, "i 4 CPU=4 0:4")
		salted := p.Identity
		salted.Salt = "tea"
		w.want(salted, tokens)
		w.apply(p, engineStored([]uint64{3, 4}, nil, prompt(2, 2), "CPU"))
		w.want(p.Identity, prompt(2, 2), "i 0 0:0")
		if got := p.Status().blocks(); got != "GPU=0 CPU=3 DISK=0" {
			t.Errorf("holds %s", got)
		}
		for _, id := range []Identity{p.Identity, salted} {
			d := w.diagnose(&Query{Identity: id, Tokens: prompt(2, 2)}, 0)
			if !d.KeysShown || !slices.ContainsFunc(d.Findings, func(f string) bool { return strings.HasPrefix(f, "2 blocks of this model and tenant never match") }) {
				t.Errorf("salt %q: keys shown %t, findings: %q", id.Salt, d.KeysShown, d.Findings)
			}
		}
		w.apply(p, engineRemoved([]uint64{1, 3, 4}, "CPU"))
		if got := p.Status().blocks(); got != "GPU=0 CPU=0 DISK=0" {
			t.Errorf("holds %s", got)
		}
	})
	t.Run("no base model", func(t *testing.T) {
		w := newWorld(t)
		reg := base("i", 0)
		reg.LoRA = "law"
		p := w.add(reg)
		w.want(Identity{Tenant: p.Tenant, Model: p.Model, BlockSize: p.BlockSize, Salt: "tea"}, tokens)
		w.apply(p, engineStored([]uint64{1}, nil, tokens[:4], "CPU"))
		w.want(p.Identity, tokens, "i 0 0:0")
	})
}

// TestUnmatchable: blocks with multimodal objects or keys that no prompt can
// express are kept for their removal and never matched.
func TestUnmatchable(t *testing.T) {
	w := newWorld(t)
	p := w.add(base("i", 0))
	tokens := prompt(1, 2)
	w.apply(p, engineStored([]uint64{1, 2}, nil, tokens, "GPU", "extra_keys", []any{[]any{[]any{"image", 3}}, nil}))
	w.want(p.Identity, tokens, "i 0 0:0")
	if got := p.Status().blocks(); got != "GPU=2 CPU=0 DISK=0" {
		t.Errorf("holds %s", got)
	}
	w.apply(p, engineRemoved([]uint64{1, 2}, "GPU"))
	if got := p.Status().blocks(); got != "GPU=0 CPU=0 DISK=0" {
		t.Errorf("holds %s", got)
	}
}

// TestHashSeed: a registration's seed is that of both hashes.
func TestHashSeed(t *testing.T) {
	w := newWorld(t)
	reg := base("i", 0)
	reg.HashSeed = 99
	p := w.add(reg)
	tokens := prompt(1, 3)
	w.apply(p, engineStored([]uint64{1, 2, 3}, nil, tokens, "GPU"), stored(rollingSeed(tokens, 4, 99)[:2], "cpu"))
	w.want(p.Identity, tokens, "i 12 GPU=12 CPU=8 0:12")
	var a Answer
	w.queryHashes(p.Identity, rollingSeed(tokens, 4, hashing.Seed), "", &a)
	if a.Instances[0].Longest != 0 {
		t.Errorf("another seed's hashes matched: %s", a.text())
	}
	if st := p.Status(); st.Confirmed != 2 || st.Hashes != diagnose.HashesStandard {
		t.Errorf("Status = %+v", st)
	}
}
