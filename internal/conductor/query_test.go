package conductor

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/kvevents"
)

// TestRequirementExample: the numbers of the documented answer, from events: 64
// tokens a block, rank 0 has two blocks on the device, rank 1 all four in memory.
func TestRequirementExample(t *testing.T) {
	w := newWorld(t)
	id := Identity{Tenant: "default", Model: "deepseek", BlockSize: 64}
	tokens := make([]uint32, 256)
	for i := range tokens {
		tokens[i] = uint32(1000 + i)
	}
	for rank := range uint32(2) {
		reg := base("vllm-prefill-node1", rank)
		reg.Type, reg.Identity = VLLM, id
		p := w.add(reg)
		if rank == 0 {
			w.batch(p, 0, engineStored([]uint64{1, 2}, nil, tokens[:128], "GPU", "block_size", 64))
		} else {
			w.batch(p, 1, engineStored([]uint64{1, 2, 3, 4}, nil, tokens, "CPU", "block_size", 64))
		}
	}
	var a Answer
	w.queryTokens(id, tokens, "vllm-prefill-node1", &a)
	if len(a.Instances) != 1 || !slices.Equal(a.Media, []string{"GPU", "CPU", "DISK"}) {
		t.Fatalf("answer = %+v", a)
	}
	im := a.Instances[0]
	if im.Instance != "vllm-prefill-node1" || im.Longest != 256 || !slices.Equal(im.Media, []uint64{128, 256, 0}) ||
		!slices.Equal(im.Ranks, []RankMatch{{0, 128}, {1, 256}}) {
		t.Errorf("answer = %+v", im)
	}
}

// TestJointPrefix: a prefix goes on as long as each block is somewhere; a medium
// counts what it has of it, a rank its own prefix.
func TestJointPrefix(t *testing.T) {
	h := rolling(prompt(1, 5))
	at := func(i int, medium string, more ...any) event {
		return stored(h[i:i+1], medium, append([]any{"base_block_idx", i}, more...)...)
	}
	tests := map[string]struct {
		events []event
		want   string
	}{
		"one after the other":   {[]event{at(0, "gpu"), at(1, "cpu"), at(2, "disk"), at(3, "gpu")}, "i 16 GPU=8 CPU=4 DISK=4 0:16"},
		"ranks in turn":         {[]event{at(0, "gpu"), at(1, "gpu", "dp_rank", 1), at(2, "gpu")}, "i 12 GPU=12 0:4"},
		"rank comes later":      {[]event{at(0, "gpu"), at(1, "gpu"), at(0, "gpu", "dp_rank", 1), at(2, "gpu", "dp_rank", 1)}, "i 12 GPU=12 0:8 1:4"},
		"backends":              {[]event{at(0, "gpu", "backend_id", "a"), at(1, "gpu", "backend_id", "b")}, "i 8 GPU=8 0:8"},
		"both media":            {[]event{stored(h, "gpu"), stored(h[:2], "cpu")}, "i 20 GPU=20 CPU=8 0:20"},
		"a hole in one medium":  {[]event{stored(h, "gpu"), at(0, "cpu"), at(2, "cpu"), at(4, "cpu")}, "i 20 GPU=20 CPU=12 0:20"},
		"a hole in all":         {[]event{at(0, "gpu"), at(2, "gpu"), at(1, "gpu", "lora_name", "x")}, "i 4 GPU=4 0:4"},
		"no first block":        {[]event{at(1, "gpu"), at(2, "cpu")}, "i 0 0:0"},
		"removed in the middle": {[]event{stored(h, "gpu"), stored(h, "cpu"), removed(h[2:3], "gpu"), removed(h[3:4], "cpu")}, "i 20 GPU=16 CPU=16 0:20"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			p := w.add(base("i", 0))
			w.apply(p, tc.events...)
			w.want(p.Identity, prompt(1, 5), tc.want)
		})
	}
}

// TestPublishersOfOneInstance: an engine and a cache daemon registered for one
// instance count together, rank by rank.
func TestPublishersOfOneInstance(t *testing.T) {
	w := newWorld(t)
	engine, daemon := base("i", 0), base("i", 0)
	engine.Type, daemon.Type, daemon.Endpoint = VLLM, Mooncake, "tcp://daemon:1"
	e, d := w.add(engine), w.add(daemon)
	tokens := prompt(1, 4)
	h := rolling(tokens)
	w.apply(e, engineStored([]uint64{1, 2}, nil, tokens[:8], "GPU"))
	w.apply(d, stored(h[2:], "disk", "base_block_idx", 2))
	w.want(e.Identity, tokens, "i 16 GPU=8 DISK=8 0:16")
	w.apply(d, stored(h[:3], "cpu", "dp_rank", 5))
	w.want(e.Identity, tokens, "i 16 GPU=8 CPU=12 DISK=8 0:16 5:12")
	w.withdrawAll(Filter{Instance: "i", Tenant: "default", Type: &engine.Type})
	w.want(e.Identity, tokens, "i 16 CPU=12 DISK=8 0:0 5:12")
}

// TestInstances: who is in an answer: those registered for the identity, and
// others that hold the first block; with an instance given, that one alone.
func TestInstances(t *testing.T) {
	w := newWorld(t)
	a, b := w.add(base("a", 0)), w.add(base("b", 0))
	w.add(base("c", 2))
	tokens := prompt(1, 2)
	h := rolling(tokens)
	law := a.Identity
	law.LoRA = "law"
	w.apply(a, stored(h, "gpu"), stored(h, "gpu", "lora_name", "law"))
	w.apply(b, stored(h[1:], "gpu", "lora_name", "law", "base_block_idx", 1))
	w.want(a.Identity, tokens, "a 8 GPU=8 0:8", "b 0 0:0", "c 0 2:0")
	w.want(law, tokens, "a 8 GPU=8 0:8")
	w.apply(b, stored(h[:1], "cpu", "lora_name", "law"))
	w.want(law, tokens, "a 8 GPU=8 0:8", "b 8 GPU=4 CPU=4 0:8")
	for instance, want := range map[string]string{
		"a": "a 8 GPU=8 0:8\n", "b": "b 0 0:0\n", "c": "c 0 2:0\n", "d": "",
	} {
		var ans Answer
		w.queryTokens(a.Identity, tokens, instance, &ans)
		if got := ans.text(); got != want {
			t.Errorf("for %s: %s", instance, got)
		}
	}
	var ans Answer
	w.queryTokens(law, tokens, "b", &ans)
	if got := ans.text(); got != "b 8 GPU=4 CPU=4 0:8\n" {
		t.Errorf("for b under another identity: %s", got)
	}
	w.want(a.Identity, nil, "a 0 0:0", "b 0 0:0", "c 0 2:0")
	w.want(a.Identity, prompt(2, 3), "a 0 0:0", "b 0 0:0", "c 0 2:0")
	unknown := a.Identity
	unknown.BlockSize = 16
	w.want(unknown, tokens)
}

// TestMedia: what is told apart and under which name (decisions K4 and C9). An
// owner keeps more media than an index slot has tiers.
func TestMedia(t *testing.T) {
	names := map[string]string{
		"gpu": "GPU", "Device": "GPU", "cpu": "CPU", "CPU_PINNED": "CPU", "cpu_tier1": "CPU",
		"disk": "DISK", "fs": "DISK", "OBJ": "DISK", "storage": "DISK", "cpu_tier2": "DISK", "nvme": "DISK",
		"external": "EXTERNAL", "network": "EXTERNAL", "remote": "EXTERNAL", "Shared": "EXTERNAL",
		"npu": "NPU", "hbm": "HBM",
	}
	h := rolling(prompt(1, 1))
	for medium, shown := range names {
		t.Run(medium, func(t *testing.T) {
			w := newWorld(t)
			p := w.add(base("i", 0))
			w.apply(p, stored(h, medium), engineStored([]uint64{1}, nil, prompt(1, 1), medium))
			w.want(p.Identity, prompt(1, 1), "i 4 "+shown+"=4 0:4")
			w.apply(p, removed(h, medium), engineRemoved([]uint64{1}, medium))
			if got := w.answer(p.Identity, prompt(1, 1)); !strings.HasPrefix(got, "i 0 ") {
				t.Errorf("after the removals: %s", got)
			}
		})
	}
	t.Run("more than 16", func(t *testing.T) {
		w := newWorld(t)
		p := w.add(base("i", 0))
		want := "i 4 GPU=4 CPU=4 DISK=4 EXTERNAL=4"
		for i := range 20 {
			w.apply(p, stored(h, fmt.Sprintf("m%02d", i)))
			if i < maxFurtherMedia {
				want += fmt.Sprintf(" M%02d=4", i)
			}
		}
		w.wantReasons(map[kvevents.Reason]uint64{kvevents.TooManyMedia: 4})
		for _, medium := range []string{"gpu", "cpu", "disk", "external"} {
			w.apply(p, stored(h, medium))
		}
		w.want(p.Identity, prompt(1, 1), want+" 0:4")
		w.apply(p, removed(h, "m03"), cleared("gpu"), cleared("m15"))
		want = strings.NewReplacer(" GPU=4", "", "M03=4", "M03=0", "M15=4", "M15=0").Replace(want)
		w.want(p.Identity, prompt(1, 1), want+" 0:4")
		w.wantReasons(nil)
	})
}

// TestAddRanks: ranks of another index, tier by tier, are counted by the same
// rules.
func TestAddRanks(t *testing.T) {
	space := indexer.New()
	put := func(slot uint32, tier indexer.Tier, parent uint64, names ...uint64) {
		space.Store(&indexer.Store{Slot: slot, Tier: tier, Parent: parent, HasParent: parent != 0, EngineHashes: names, Local: names})
	}
	put(0, indexer.Device, 0, 1, 2)
	put(70, indexer.Host, 0, 1, 2, 3)
	put(70, indexer.External, 3, 4)
	put(5, indexer.Device, 0, 1)
	space.Remove(70, indexer.Host, []uint64{2})
	var m indexer.Match
	space.Match([]uint64{1, 2, 3, 4, 5}, &m)
	var a Answer
	a.Reset()
	a.addRanks("7", []holder{{70, 1}, {0, 0}}, &m, 16)
	a.addRanks("5", []holder{{5, 0}}, &m, 16)
	a.addRanks("9", []holder{{9, 0}, {900, 3}}, &m, 16)
	a.sort()
	want := "5 16 GPU=16 EXTERNAL=0 0:16\n7 64 GPU=32 CPU=32 EXTERNAL=16 0:32 1:16\n9 0 EXTERNAL=0 0:0 3:0\n"
	if got := a.text(); got != want {
		t.Errorf("answer:\n%swant:\n%s", got, want)
	}
	if !a.has("7") || a.has("8") {
		t.Error("Has is wrong")
	}
	a.Reset()
	if got := a.text(); got != "" || len(a.Media) != 3 {
		t.Errorf("after Reset: %s", got)
	}
}
