package conductor

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/select-service/select-service/internal/selection/diagnose"
	"github.com/select-service/select-service/pkg/hashing"
)

// diagnosis is one with words for tests.
type diagnosis struct{ *diagnose.Diagnosis }

// Diagnose is Registry.Diagnose.
func (w *world) diagnose(q *Query, maxBlocks int) diagnosis {
	return diagnosis{w.Registry.diagnose(q, maxBlocks)}
}

func identityOf(d diagnosis) Identity {
	return Identity{Tenant: d.Tenant, Model: d.Model, LoRA: d.LoRA, Salt: d.Salt, BlockSize: d.BlockSize}
}

// ask asks for the diagnosis of a prompt's tokens.
func (w *world) ask(id Identity, tokens []uint32) diagnosis {
	return w.diagnose(&Query{Identity: id, Tokens: tokens}, 0)
}

// rows renders the ranks of a diagnosis, a line each.
func (d diagnosis) rows() string {
	var b strings.Builder
	for _, r := range d.Ranks {
		fmt.Fprintf(&b, "%s: %d", r.CacheOwner, r.Matched)
		if r.Break != nil {
			fmt.Fprintf(&b, " at %d %s", r.Break.Index, r.Break.Reason)
			if len(r.Break.Media) > 0 {
				fmt.Fprintf(&b, " %v", r.Break.Media)
			}
		}
		fmt.Fprintf(&b, ", %s\n", r.Hashes)
	}
	return b.String()
}

// owned renders the owners of the blocks: "i1/0 GPU|-".
func (d diagnosis) owned() string {
	var all []string
	for _, b := range d.Blocks {
		var owners []string
		for _, o := range b.Owners {
			owners = append(owners, fmt.Sprintf("%s/%d%s %s", o.Instance, o.Rank, o.Backend, o.Medium))
		}
		if owners == nil {
			owners = []string{"-"}
		}
		all = append(all, strings.Join(owners, ","))
	}
	return strings.Join(all, "|")
}

// others renders the identities elsewhere; "?" is a salt that is not shown.
func (d diagnosis) others() string {
	var b strings.Builder
	for _, e := range d.Elsewhere {
		salt := "?"
		if e.Salt != nil {
			salt = fmt.Sprintf("%q", *e.Salt)
		}
		fmt.Fprintf(&b, "%q %s %d %v: %d %v\n", *e.LoRA, salt, e.BlockSize, e.Registered, e.Matched, e.Instances)
	}
	return b.String()
}

func (d diagnosis) found(text string) bool {
	return slices.ContainsFunc(d.Findings, func(f string) bool { return strings.Contains(f, text) })
}

func (d diagnosis) wantFinding(t testing.TB, text string) {
	t.Helper()
	if !d.found(text) {
		t.Errorf("no finding has %q: %q", text, d.Findings)
	}
}

func wantText(t testing.TB, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s:\n%s\nwant:\n%s", what, got, want)
	}
}

// TestDiagnoseReasons proves that every reason of a break follows from the
// events that are its cause.
func TestDiagnoseReasons(t *testing.T) {
	p := prompt(1, 4)
	own := from(100, 8)
	for _, c := range []struct {
		name    string
		kind    PublisherType
		events  []event
		rows    string
		finding string
	}{
		{
			name: "held", kind: VLLM, events: []event{engineStored(own[:4], nil, p, "GPU")},
			rows: "instance i rank 0: 4, tokens\n",
		},
		{
			name: "evicted", kind: VLLM,
			events: []event{engineStored(own[:4], nil, p, "GPU"), engineRemoved(own[2:3], "GPU")},
			rows:   "instance i rank 0: 2 at 2 evicted [GPU], tokens\n",
		},
		{
			name: "evicted from two media", kind: VLLM,
			events: []event{
				engineStored(own[:4], nil, p, "GPU"), engineStored(own[:4], nil, p, "NPU"), engineStored(own[:4], nil, p, "CPU"),
				engineRemoved(own[1:2], "NPU"), engineRemoved(own[1:2], "GPU"), engineRemoved(own[1:2], "CPU"),
			},
			rows: "instance i rank 0: 1 at 1 evicted [GPU CPU NPU], tokens\n",
		},
		{
			name: "evicted from one of two media", kind: VLLM,
			events: []event{engineStored(own[:4], nil, p, "GPU"), engineStored(own[:4], nil, p, "CPU"), engineRemoved(own[1:2], "GPU")},
			rows:   "instance i rank 0: 4, tokens\n",
		},
		{
			name: "cleared engine", kind: SGLang,
			events: []event{engineStored(own[:4], nil, p, "GPU"), {"type": "AllBlocksCleared"}},
			rows:   "instance i rank 0: 0 at 0 cleared [GPU], tokens\n", finding: "no blocks indexed for this identity",
		},
		{
			name: "cleared stream", kind: Standard,
			events: []event{
				stored(rolling(p), "gpu", "token_ids", p), stored(rolling(p)[:1], "cpu", "token_ids", p[:4]), cleared("gpu"),
			},
			rows: "instance i rank 0 backend cache: 1 at 1 cleared [GPU], tokens\n",
		},
		{
			name: "unknown parent", kind: VLLM,
			events: []event{engineStored(own[:2], nil, p[:8], "GPU"), engineStored(own[2:4], uint64(7), p[8:], "GPU")},
			rows:   "instance i rank 0: 2 at 2 unknown_parent, tokens\n",
		},
		{
			name: "late stream", kind: VLLM,
			events:  []event{engineStored(own[2:4], own[1], p[8:], "GPU")},
			rows:    "instance i rank 0: 0 at 0 absent, tokens\n",
			finding: "instance i rank 0: block 3 is held back because the block before it was never announced, and block 0 is missing",
		},
		{
			name: "absent", kind: VLLM, events: []event{engineStored(own[:2], nil, prompt(2, 2), "GPU")},
			rows:    "instance i rank 0: 0 at 0 absent, tokens\n",
			finding: "block 0 is held by nobody under any LoRA, salt or block size of this tenant and model",
		},
		{
			name: "nothing came", kind: VLLM,
			rows: "instance i rank 0: 0 at 0 absent, none\n", finding: "instance i rank 0: no blocks have been announced yet",
		},
		{
			name: "unverified", kind: Standard, events: []event{stored(own[:4], "gpu")},
			rows:    "instance i rank 0 backend cache: 0 at 0 hashes_unverified, unverified\n",
			finding: "instance i rank 0: hashes come without tokens and none is confirmed by tokens: they match only if they are XXH3-64 with seed 1337",
		},
		{
			name: "unverified but right", kind: Standard, events: []event{stored(rolling(p), "gpu")},
			rows: "instance i rank 0 backend cache: 4, standard\n", // the prompt's tokens say so
		},
		{
			name: "unverified but right, in part", kind: Standard, events: []event{stored(rolling(p)[:2], "gpu")},
			rows: "instance i rank 0 backend cache: 2 at 2 absent, standard\n",
		},
		{
			name: "standard", kind: Standard,
			events: []event{
				stored(rolling(p)[:2], "gpu", "token_ids", p[:8]),
				stored(rolling(p)[2:3], "gpu", "parent_hash", rolling(p)[1], "base_block_idx", nil),
			},
			rows: "instance i rank 0 backend cache: 3 at 3 absent, standard\n",
		},
		{
			name: "own", kind: Standard,
			events: []event{
				stored(own[:2], "gpu", "token_ids", p[:8]),
				stored(own[2:4], "gpu", "parent_hash", own[1], "base_block_idx", nil),
			},
			rows:    "instance i rank 0 backend cache: 2 at 2 hashes_unverified, own\n",
			finding: "instance i rank 0: hashes are the engine's own",
		},
		{
			name: "numbers missing", kind: Standard,
			events: []event{
				stored(rolling(p), "gpu", "token_ids", p, "event_id", 1), removed(rolling(p)[3:], "gpu", "event_id", 9),
			},
			rows:    "instance i rank 0 backend cache: 3 at 3 evicted [GPU], tokens\n",
			finding: "instance i rank 0: events are missing since the last clear (7 so far)",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			reg := base("i", 0)
			reg.Type = c.kind
			if publisher := w.add(reg); len(c.events) > 0 {
				w.apply(publisher, c.events...)
			}
			w.wantReasons(nil)
			d := w.ask(reg.Identity, p)
			wantText(t, "ranks", d.rows(), c.rows)
			if c.finding != "" {
				d.wantFinding(t, c.finding)
			} else if len(d.Findings) > 0 {
				t.Errorf("findings are %q", d.Findings)
			}
			if !d.Registered || d.NumBlocks != 4 || d.Truncated || d.HashSeed != hashing.Seed || identityOf(d) != reg.Identity {
				t.Errorf("the frame is %+v", d)
			}
		})
	}
}

// TestDiagnoseOwners proves that blocks show all who hold them in force, by
// instance, rank, backend and medium, and their hashes; and that a question
// about one instance is answered with it alone.
func TestDiagnoseOwners(t *testing.T) {
	w := newWorld(t)
	id := base("a", 0).Identity
	p := prompt(1, 3)
	engine, cache, gone := base("b", 1), base("a", 0), base("c", 0)
	engine.Type = VLLM
	w.apply(w.add(engine), engineStored(from(1, 3), nil, p, "GPU"), engineRemoved(from(1, 1), "GPU"))
	w.apply(w.add(cache), stored(rolling(p)[:2], "npu", "token_ids", p[:8]), stored(rolling(p)[:1], "cpu", "token_ids", p[:4], "backend_id", "aux", "dp_rank", 3))
	w.apply(w.add(gone), stored(rolling(p), "gpu", "token_ids", p))
	w.withdrawAll(Filter{Instance: "c", Tenant: "default"})

	d := w.ask(id, p)
	wantText(t, "owners", d.owned(), "a/0cache NPU,a/3aux CPU|a/0cache NPU,b/1 GPU|b/1 GPU")
	wantText(t, "ranks", d.rows(), "instance a rank 0 backend cache: 2 at 2 absent, tokens\n"+
		"instance a rank 3 backend aux: 1 at 1 absent, tokens\n"+
		"instance b rank 1: 0 at 0 evicted [GPU], tokens\n")
	local := hashing.Layout{BlockSize: 4}.AppendLocal(nil, p, hashing.Seed, nil)
	for i, b := range d.Blocks {
		if b.Local != local[i] || !b.HasLocal || b.Sequence != rolling(p)[i] {
			t.Errorf("block %d has the hashes %x %x", i, b.Local, b.Sequence)
		}
	}
	d = w.diagnose(&Query{Identity: id, Tokens: p, Instance: "b"}, 0)
	wantText(t, "owners of b", d.owned(), "-|b/1 GPU|b/1 GPU")
	wantText(t, "ranks of b", d.rows(), "instance b rank 1: 0 at 0 evicted [GPU], tokens\n")
	if d.found("instance a") {
		t.Errorf("findings of others: %q", d.Findings)
	}
}

// TestDiagnoseSharedRank proves that the publishers of one rank are one owner,
// whose hashes are called what the worst of them are.
func TestDiagnoseSharedRank(t *testing.T) {
	w := newWorld(t)
	p := prompt(1, 3)
	foreign, engine := base("i", 0), base("i", 0)
	engine.Endpoint = "tcp://i:6000"
	w.apply(w.add(foreign), stored(from(1, 1), "cpu"))
	w.apply(w.add(engine), stored(rolling(p)[:2], "gpu", "token_ids", p[:8]))
	d := w.ask(foreign.Identity, p)
	wantText(t, "ranks", d.rows(), "instance i rank 0 backend cache: 2 at 2 absent, unverified\n")
	wantText(t, "owners", d.owned(), "i/0cache GPU|i/0cache GPU|-")
}

// TestDiagnoseOtherOrphans proves that a block that is held back under another
// LoRA is not taken for this one's.
func TestDiagnoseOtherOrphans(t *testing.T) {
	w := newWorld(t)
	reg := base("i", 0)
	p := prompt(1, 2)
	w.apply(w.add(reg), stored(from(1, 2), "gpu", "token_ids", p, "parent_hash", 99, "base_block_idx", nil, "lora_name", "sql"))
	wantText(t, "ranks", w.ask(reg.Identity, p).rows(), "instance i rank 0 backend cache: 0 at 0 absent, tokens\n")
	id := reg.Identity
	id.LoRA = "sql"
	wantText(t, "ranks of the other", w.ask(id, p).rows(), "instance i rank 0 backend cache: 0 at 0 unknown_parent, tokens\n")
}

// TestDiagnoseHashes proves that local hashes in the place of rolling ones are
// noticed, and another hash seed is told of.
func TestDiagnoseHashes(t *testing.T) {
	w := newWorld(t)
	reg := base("i", 0)
	reg.HashSeed = 7
	p := prompt(1, 4)
	w.apply(w.add(reg), stored(rollingSeed(p, 4, 7), "gpu", "token_ids", p))
	ask := func(hashes []uint64) diagnosis {
		return w.diagnose(&Query{Identity: reg.Identity, Hashes: hashes, ByHash: true}, 0)
	}
	d := ask(rollingSeed(p, 4, 7))
	wantText(t, "ranks", d.rows(), "instance i rank 0 backend cache: 4, tokens\n")
	if d.HashSeed != 7 || d.found("local block hashes") {
		t.Errorf("seed %d, findings %q", d.HashSeed, d.Findings)
	}
	d = ask(rolling(p))
	wantText(t, "ranks for another seed", d.rows(), "instance i rank 0 backend cache: 0 at 0 absent, tokens\n")
	d.wantFinding(t, "hashed with seed 7")
	d = ask(hashing.Layout{BlockSize: 4}.AppendLocal(nil, p, 7, nil))
	wantText(t, "ranks for local hashes", d.rows(), "instance i rank 0 backend cache: 1 at 1 absent, tokens\n")
	d.wantFinding(t, "the hashes are local block hashes, not rolling sequence hashes: as such they would match 4 blocks")
}

// TestDiagnoseEdges covers prompts without a block and unknown identities.
func TestDiagnoseEdges(t *testing.T) {
	w := newWorld(t)
	reg := base("i", 2)
	w.add(reg)
	d := w.ask(reg.Identity, []uint32{1, 2, 3})
	wantText(t, "ranks", d.rows(), "instance i rank 2: 0, none\n")
	d.wantFinding(t, "the prompt has fewer tokens than one block: 3 of 4")
	d = w.diagnose(&Query{Identity: reg.Identity, ByHash: true}, 0)
	d.wantFinding(t, "the prompt has no block")
	unknown := Identity{Tenant: "t", Model: "m"} // block size 0
	if d := w.ask(unknown, prompt(1, 2)); d.NumBlocks != 0 || d.Registered || !d.found("no blocks indexed for this identity") || !d.found("nobody is registered for this tenant and model") {
		t.Errorf("an identity of nobody: %+v", d)
	}
}

// TestDiagnoseWhileChanging runs questions beside events, registrations and
// their ends: the race detector finds what is not guarded, and every answer has
// to hold together.
func TestDiagnoseWhileChanging(t *testing.T) {
	w := newWorld(t)
	p := prompt(1, 6)
	id := base("", 0).Identity
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 150 {
			reg := base(fmt.Sprintf("i%d", i%5), uint32(i%2))
			reg.LoRA = []string{"", "sql"}[i%3%2]
			publisher, _, err := w.Registry.add(reg)
			if err != nil {
				t.Error(err)
				return
			}
			w.apply(publisher,
				stored(rolling(p), "gpu", "token_ids", p), removed(rolling(p)[3:4], "gpu"),
				stored(rolling(p), "npu", "additional_salt", fmt.Sprintf("s%d", i%4)), cleared("npu"))
			if i%4 == 3 {
				for _, gone := range w.withdrawAll(Filter{Instance: reg.Instance, Tenant: reg.Tenant}) {
					w.drop(gone)
				}
				w.sweep()
			}
		}
	}()
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		d := w.ask(id, p)
		if len(d.Blocks) != 6 || d.NumBlocks != 6 {
			t.Fatalf("%d blocks of %d are shown", len(d.Blocks), d.NumBlocks)
		}
		for _, r := range d.Ranks {
			if (r.Break == nil) != (r.Matched == 6) || r.Break != nil && r.Break.Index != r.Matched {
				t.Fatalf("rank %+v has the break %+v", r, r.Break)
			}
		}
	}
}
