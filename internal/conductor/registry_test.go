package conductor

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/select-service/select-service/pkg/kvevents"
)

// TestAdd: a key is in force once; the body must be the same; an identity has one
// hash seed for all its registrations, and before any event.
func TestAdd(t *testing.T) {
	first := base("i", 0)
	var conflict *conflictError
	var mismatch *seedMismatchError
	tests := map[string]struct {
		change func(*Registration)
		fresh  bool
		as     any
	}{
		"the same":             {change: func(*Registration) {}},
		"another replay":       {change: func(g *Registration) { g.Replay = "tcp://r:1" }, as: &conflict},
		"another seed":         {change: func(g *Registration) { g.HashSeed = 7 }, as: &conflict},
		"another type":         {change: func(g *Registration) { g.Type = VLLM }, fresh: true},
		"another endpoint":     {change: func(g *Registration) { g.Endpoint = "tcp://e:1" }, fresh: true},
		"another rank":         {change: func(g *Registration) { g.Rank = 9 }, fresh: true},
		"another instance":     {change: func(g *Registration) { g.Instance = "j" }, fresh: true},
		"endpoint and seed":    {change: func(g *Registration) { g.Endpoint, g.HashSeed = "tcp://e:1", 7 }, as: &mismatch},
		"rank and seed":        {change: func(g *Registration) { g.Rank, g.HashSeed = 9, 7 }, as: &mismatch},
		"LoRA and seed":        {change: func(g *Registration) { g.LoRA, g.HashSeed = "a", 7 }, fresh: true},
		"salt and seed":        {change: func(g *Registration) { g.Salt, g.HashSeed = "a", 7 }, fresh: true},
		"block size and seed":  {change: func(g *Registration) { g.BlockSize, g.HashSeed = 8, 7 }, fresh: true},
		"tenant and seed":      {change: func(g *Registration) { g.Tenant, g.HashSeed = "a", 7 }, fresh: true},
		"model and seed":       {change: func(g *Registration) { g.Model, g.HashSeed = "a", 7 }, fresh: true},
		"another type, replay": {change: func(g *Registration) { g.Type, g.Replay = VLLM, "tcp://r:1" }, fresh: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			p := w.add(first)
			reg := first
			tc.change(&reg)
			q, fresh, err := w.Registry.add(reg)
			if tc.as != nil {
				if !errors.As(err, tc.as) {
					t.Fatalf("Add = %v, want a %T", err, tc.as)
				}
				return
			}
			if err != nil || fresh != tc.fresh || fresh == (p == q) {
				t.Errorf("Add = %v, %v, %v, want fresh %v", q, fresh, err, tc.fresh)
			}
		})
	}
	if conflict.inForce != first {
		t.Errorf("conflict with %+v, want %+v", conflict.inForce, first)
	}
	if mismatch.inForce != first.HashSeed || mismatch.Requested != 7 {
		t.Errorf("mismatch is %+v", mismatch)
	}
}

// TestWithdraw: every field that is given has to fit; what was picked
// is out of the answers at once, and its key is free.
func TestWithdraw(t *testing.T) {
	all := []Registration{base("i", 0), base("i", 1), base("j", 0), base("i", 2), base("i", 3), base("i", 4)}
	all[3].LoRA, all[3].Replay = "sql", "tcp://r:1"
	all[4].Type, all[4].Salt, all[4].HashSeed = VLLM, "w8", 7
	all[5].Tenant = "red"
	ptr := func(s string) *string { return &s }
	rank, other, blockSize, vllm, seed := uint32(1), uint32(7), uint32(4), VLLM, uint64(7)
	tests := map[string]struct {
		f    Filter
		want []int
	}{
		"instance":       {Filter{Instance: "i", Tenant: "default"}, []int{0, 1, 3, 4}},
		"other instance": {Filter{Instance: "j", Tenant: "default"}, []int{2}},
		"tenant":         {Filter{Instance: "i", Tenant: "red"}, []int{5}},
		"rank":           {Filter{Instance: "i", Tenant: "default", Rank: &rank}, []int{1}},
		"no such rank":   {Filter{Instance: "i", Tenant: "default", Rank: &other}, nil},
		"type":           {Filter{Instance: "i", Tenant: "default", Type: &vllm}, []int{4}},
		"LoRA":           {Filter{Instance: "i", Tenant: "default", LoRA: ptr("sql")}, []int{3}},
		"base model":     {Filter{Instance: "i", Tenant: "default", LoRA: ptr("")}, []int{0, 1, 4}},
		"salt":           {Filter{Instance: "i", Tenant: "default", Salt: ptr("w8")}, []int{4}},
		"model":          {Filter{Instance: "i", Tenant: "default", Model: ptr("x")}, nil},
		"block size":     {Filter{Instance: "i", Tenant: "default", BlockSize: &blockSize, Salt: ptr("")}, []int{0, 1, 3}},
		"endpoint":       {Filter{Instance: "i", Tenant: "default", Endpoint: ptr("tcp://i:5002")}, []int{3}},
		"replay":         {Filter{Instance: "i", Tenant: "default", Replay: ptr("tcp://r:1")}, []int{3}},
		"no replay":      {Filter{Instance: "i", Tenant: "default", Replay: ptr("")}, []int{0, 1, 4}},
		"seed":           {Filter{Instance: "i", Tenant: "default", HashSeed: &seed}, []int{4}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			for _, reg := range all {
				w.apply(w.add(reg), stored(rolling(prompt(1, 2)), "gpu"))
			}
			var want []Registration
			for _, i := range tc.want {
				want = append(want, all[i])
			}
			gone := w.withdrawAll(tc.f)
			var got []Registration
			for _, p := range gone {
				got = append(got, p.Registration)
			}
			if !slices.Equal(got, want) {
				t.Fatalf("withdrew %+v, want %+v", got, want)
			}
			for _, reg := range all {
				var a Answer
				w.queryTokens(reg.Identity, prompt(1, 2), reg.Instance, &a)
				ranks := 0
				if len(a.Instances) > 0 {
					ranks = len(a.Instances[0].Ranks)
				}
				in := 0
				for _, o := range all {
					if o.Identity == reg.Identity && o.Instance == reg.Instance && !slices.Contains(want, o) {
						in++
					}
				}
				if ranks != in {
					t.Errorf("%+v: %d ranks in the answer, want %d: %s", reg, ranks, in, a.text())
				}
			}
			for _, p := range gone {
				w.drop(p)
				if _, fresh, err := w.Registry.add(p.Registration); !fresh || err != nil {
					t.Errorf("Add again = %v, %v", fresh, err)
				}
			}
			if n := len(w.Publishers()); n != len(all) {
				t.Errorf("%d publishers, want %d", n, len(all))
			}
		})
	}
}

// TestWithdrawnAppliesNothing: what a stream still brings until it is closed is
// nobody's.
func TestWithdrawnAppliesNothing(t *testing.T) {
	w := newWorld(t)
	p := w.add(base("i", 0))
	w.withdrawAll(Filter{Instance: "i", Tenant: "default"})
	w.apply(p, stored(rolling(prompt(1, 2)), "gpu"))
	w.drop(p)
	w.drop(p)
	if st := w.Stats(); st != (Stats{}) {
		t.Errorf("Stats = %+v, want none", st)
	}
}

// TestDropKeepsCounters: counters of a publisher stay in the sum.
func TestDropKeepsCounters(t *testing.T) {
	w := newWorld(t)
	p := w.add(base("i", 0))
	w.apply(p, stored([]uint64{1}, "gpu", "event_id", 1), stored([]uint64{2}, "gpu", "event_id", 5))
	w.withdrawAll(Filter{Instance: "i", Tenant: "default"})
	leaving := w.Stats()
	w.drop(p)
	dropped := w.Stats()
	for _, st := range []Stats{leaving, dropped} {
		if st.Gaps != 1 || st.Missed != 3 || st.Unverified != 2 || st.Publishers != 0 {
			t.Errorf("Stats = %+v", st)
		}
	}
}

// TestReregisterWithAnotherSeed: a seed holds as long as its identity is in use.
func TestReregisterWithAnotherSeed(t *testing.T) {
	w := newWorld(t)
	p := w.add(base("i", 0))
	w.apply(p, stored(rolling(prompt(1, 1)), "gpu"))
	other := base("i", 0)
	other.HashSeed = 7
	w.withdrawAll(Filter{Instance: "i", Tenant: "default"})
	var mismatch *seedMismatchError
	if _, _, err := w.Registry.add(other); !errors.As(err, &mismatch) {
		t.Errorf("Add while blocks are there: %v", err)
	}
	w.drop(p)
	q := w.add(other)
	tokens := prompt(2, 3)
	w.apply(q, stored(rollingSeed(tokens, 4, 7), "gpu"))
	w.want(q.Identity, tokens, "i 12 GPU=12 0:12")
	w.want(q.Identity, prompt(1, 1), "i 0 0:0")
}

// TestEventSeedMismatch: an event may state an identity that nobody registered,
// under its publisher's seed, but not one that is in use with another.
func TestEventSeedMismatch(t *testing.T) {
	w := newWorld(t)
	other := base("j", 0)
	other.LoRA, other.HashSeed = "sql", 7
	w.add(other)
	p := w.add(base("i", 0))
	hashes := rolling(prompt(1, 2))
	w.apply(p, stored(hashes, "gpu", "lora_name", "sql"), stored(hashes, "gpu", "lora_name", "law"))
	w.wantReasons(map[kvevents.Reason]uint64{kvevents.SeedMismatch: 1})
	w.want(other.Identity, prompt(1, 2), "j 0 0:0")
	law := p.Identity
	law.LoRA = "law"
	w.want(law, prompt(1, 2), "i 8 GPU=8 0:8")

	law7 := base("k", 0)
	law7.LoRA, law7.HashSeed = "law", 7
	var mismatch *seedMismatchError
	if _, _, err := w.Registry.add(law7); !errors.As(err, &mismatch) || mismatch.inForce != p.HashSeed {
		t.Errorf("Add = %v, want a mismatch with the event's seed", err)
	}
}

// TestSweep: what holds nothing goes, what holds something or is registered
// stays; after the last publisher nothing is left.
func TestSweep(t *testing.T) {
	w := newWorld(t)
	p := w.add(base("i", 0))
	q := w.add(base("j", 0))
	hashes := rolling(prompt(1, 3))
	for k := range 50 {
		lora, model := fmt.Sprint("lora", k), fmt.Sprint("model", k%5)
		w.apply(p, stored(hashes, "gpu", "lora_name", lora, "event_id", 1))
		w.apply(p, stored(hashes, "cpu", "model_name", model, "backend_id", lora))
		w.apply(q, stored(hashes, "disk", "lora_name", lora, "event_id", 9))
	}
	w.apply(q, engineStored([]uint64{1, 2}, nil, prompt(1, 2), "GPU"), engineRemoved([]uint64{1, 2}, "GPU"))
	if st := w.Stats(); st.Spaces != 6 || st.Namespaces != 1+50+5 || st.Owners != 50+3 {
		t.Errorf("Stats = %+v", st)
	}
	w.sweep()
	if st := w.Stats(); st.Spaces != 6 || st.Namespaces != 1+50+5 || st.Owners != 50+3 {
		t.Errorf("Stats after a sweep of what is in use = %+v", st)
	}
	for k := range 50 {
		lora, model := fmt.Sprint("lora", k), fmt.Sprint("model", k%5)
		w.apply(p, cleared("gpu", "lora_name", lora))
		w.apply(p, removed(hashes, "cpu", "model_name", model, "backend_id", lora))
		if k > 0 {
			w.apply(q, removed(hashes, "disk", "lora_name", lora))
		}
	}
	w.sweep()
	// The base model is registered, lora0 has blocks; q's cache and its engine stay.
	if st := w.Stats(); st.Spaces != 1 || st.Namespaces != 2 || st.Owners != 2 {
		t.Errorf("Stats = %+v", st)
	}
	if n := p.Status().Streams; n != 0 {
		t.Errorf("%d streams of nothing", n)
	}
	id := p.Identity
	id.LoRA = "lora0"
	w.want(id, prompt(1, 3), "j 12 DISK=12 0:12")
	for _, instance := range []string{"i", "j"} {
		for _, p := range w.withdrawAll(Filter{Instance: instance, Tenant: "default"}) {
			w.drop(p)
		}
	}
	st := w.Stats()
	if st.Tokens != 2 || st.Unverified == 0 {
		t.Errorf("counters fell: %+v", st)
	}
	st.Tokens, st.Confirmed, st.Unverified, st.Resolved = 0, 0, 0, 0
	if st != (Stats{}) {
		t.Errorf("Stats = %+v, want nothing left", st)
	}
}

// TestSweepKeepsOrphans: blocks that wait for their parent are blocks.
func TestSweepKeepsOrphans(t *testing.T) {
	w := newWorld(t)
	p := w.add(base("i", 0))
	tokens := prompt(1, 3)
	w.apply(p, stored([]uint64{12, 13}, "gpu", "base_block_idx", nil, "parent_hash", 11, "token_ids", tokens[4:]))
	w.sweep()
	w.apply(p, stored([]uint64{11}, "gpu", "token_ids", tokens[:4]))
	w.want(p.Identity, tokens, "i 12 GPU=12 0:12")
}

// TestSpaceBytes: an index whose blocks have all gone has given its memory back.
func TestSpaceBytes(t *testing.T) {
	w := newWorld(t)
	p := w.add(base("i", 0))
	keep := w.add(base("j", 0))
	for k := range 40 {
		tokens := prompt(k, 50)
		w.apply(p, stored(rolling(tokens), "gpu"), stored(rolling(prompt(k, 60)), "npu"))
		w.apply(p, engineStored(from(uint64(k)*100+1, 50), nil, tokens, "CPU"))
		w.apply(p, engineRemoved(from(uint64(k)*100+1, 50), "CPU"))
	}
	w.withdrawAll(Filter{Instance: "i", Tenant: "default"})
	w.drop(p)
	if st := w.Stats(); st.Index.Bytes > 4096 || st.Owners != 0 || st.Spaces != 1 {
		t.Errorf("Stats of an empty space = %+v", st)
	}
	w.want(keep.Identity, prompt(1, 2), "j 0 NPU=0 0:0")
}
