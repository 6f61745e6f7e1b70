package conductor_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/select-service/select-service/internal/conductor"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/diagnose"
	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// diagnosisOf asks the doctor about a prompt once all events are applied.
func diagnosisOf(w *servicetest.World, req diagnose.Request, maxBlocks int) *diagnose.Diagnosis {
	w.T.Helper()
	w.Settle()
	req.Scope = servicetest.Scope
	d, err := w.Diagnose(&req, maxBlocks)
	if err != nil {
		w.T.Fatal(err)
	}
	return d
}

// chains renders the ranks of a diagnosis: "1/0:2 at 2 evicted [GPU]".
func chains(d *diagnose.Diagnosis) string {
	var rows []string
	for _, r := range d.Ranks {
		row := fmt.Sprintf("%s/%d:%d", r.Instance, r.Rank, r.Matched)
		if r.Break != nil {
			row += fmt.Sprintf(" at %d %s", r.Break.Index, r.Break.Reason)
			if len(r.Break.Media) > 0 {
				row += fmt.Sprintf(" %v", r.Break.Media)
			}
		}
		rows = append(rows, row)
	}
	return strings.Join(rows, ", ")
}

// holders renders the owners of the blocks of a diagnosis: "1/0 GPU|-".
func holders(d *diagnose.Diagnosis) string {
	var blocks []string
	for _, b := range d.Blocks {
		var owners []string
		for _, o := range b.Owners {
			owners = append(owners, fmt.Sprintf("%s/%d %s", o.Instance, o.Rank, o.Medium))
		}
		if owners == nil {
			owners = []string{"-"}
		}
		blocks = append(blocks, strings.Join(owners, ","))
	}
	return strings.Join(blocks, "|")
}

// others renders the identities under which a prompt matches elsewhere; "?" is
// what is not known or not shown.
func others(d *diagnose.Diagnosis) string {
	text := func(s *string) string {
		if s == nil {
			return "?"
		}
		return fmt.Sprintf("%q", *s)
	}
	var rows []string
	for _, e := range d.Elsewhere {
		rows = append(rows, fmt.Sprintf("%s %s: %d %v", text(e.LoRA), text(e.Salt), e.Matched, e.Instances))
	}
	return strings.Join(rows, ", ")
}

func wantText(t testing.TB, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}

func wantFinding(t testing.TB, d *diagnose.Diagnosis, want string) {
	t.Helper()
	if !slices.ContainsFunc(d.Findings, func(f string) bool { return strings.Contains(f, want) }) {
		t.Errorf("no finding has %q: %q", want, d.Findings)
	}
}

// TestDiagnoseBreaks proves that each reason of a break follows from what the
// engines did, and that blocks behind a hole are shown with their owners.
func TestDiagnoseBreaks(t *testing.T) {
	w := servicetest.Start(t)
	w.Put(servicetest.Record(1, 2))
	w.Put(servicetest.Record(10, 1))
	w.Put(servicetest.Record(2, 1))
	p := servicetest.Prompt(1, 16)
	a, b, c := w.Engine(1, 0), w.Engine(1, 1), w.Engine(2, 0)
	a.Publish(0, a.Stored(p, servicetest.BlockSize, nil), a.Stored(p[:8], servicetest.BlockSize, servicetest.Dict{"medium": "CPU"}), a.Removed(p[:12], servicetest.BlockSize, 2, "GPU"))
	b.Publish(1, b.Stored(p, servicetest.BlockSize, nil), servicetest.Cleared())
	c.Publish(0, c.Stored(p, servicetest.BlockSize, servicetest.Dict{"parent_block_hash": 99}))

	d := diagnosisOf(w, diagnose.Request{Tokens: p}, 0)
	wantText(t, "chains", chains(d), "1/0:2 at 2 evicted [GPU], 1/1:0 at 0 cleared [GPU], 2/0:0 at 0 unknown_parent, 10/0:0 at 0 absent")
	wantText(t, "owners", holders(d), "1/0 GPU,1/0 CPU|1/0 GPU,1/0 CPU|-|1/0 GPU")
	local, rolling := servicetest.Local(p, servicetest.BlockSize), servicetest.Sequence(p, servicetest.BlockSize)
	for i, got := range d.Blocks {
		if got.Local != local[i] || !got.HasLocal || got.Sequence != rolling[i] {
			t.Errorf("block %d has the hashes %x and %x", i, got.Local, got.Sequence)
		}
	}
	if d.NumBlocks != 4 || d.Truncated || !d.Registered || d.BlockSize != servicetest.BlockSize || d.HashSeed != hashing.Seed {
		t.Errorf("the frame is %+v", d)
	}
	for _, r := range d.Ranks {
		if want := r.Instance == "1" && r.Rank == 0; (r.Hashes == diagnose.HashesTokens) != want {
			t.Errorf("%s has hashes %s", r.CacheOwner, r.Hashes)
		}
	}

	d = diagnosisOf(w, diagnose.Request{Tokens: servicetest.Prompt(2, 16)}, 0)
	wantText(t, "another prompt", chains(d), "1/0:0 at 0 absent, 1/1:0 at 0 absent, 2/0:0 at 0 absent, 10/0:0 at 0 absent")

	d = diagnosisOf(w, diagnose.Request{Tokens: p[:8]}, 0)
	wantText(t, "a prompt held as a whole", chains(d)[:5], "1/0:2")
	if d.Ranks[0].Break != nil {
		t.Errorf("a chain without a break has %+v", d.Ranks[0].Break)
	}
}

// TestDiagnoseLateStream proves that a rank whose stream began in the middle of
// a sequence is told from one that never had it.
func TestDiagnoseLateStream(t *testing.T) {
	w := servicetest.Start(t)
	w.Put(servicetest.Record(1, 1))
	p := servicetest.Prompt(1, 16)
	e := w.Engine(1, 0)
	names := e.Names(p, servicetest.BlockSize)
	e.Publish(0, servicetest.Dict{
		"type": "BlockStored", "block_hashes": names[2:], "parent_block_hash": names[1],
		"token_ids": p[8:], "block_size": servicetest.BlockSize, "medium": "GPU",
	})
	d := diagnosisOf(w, diagnose.Request{Tokens: p}, 0)
	wantText(t, "chains", chains(d), "1/0:0 at 0 absent")
	wantFinding(t, d, "instance 1 rank 0: block 3 is held back")
}

// TestDiagnoseElsewhere proves that a prompt is found under other LoRA names
// and salts, longest first, and that no salt is shown.
func TestDiagnoseElsewhere(t *testing.T) {
	w := servicetest.Start(t)
	w.Put(servicetest.Record(1, 1))
	w.Put(servicetest.Record(2, 1))
	p := servicetest.Prompt(1, 16)
	a, b := w.Engine(1, 0), w.Engine(2, 0)
	secret := "customer-4711"
	a.Publish(0,
		a.Stored(p[:8], servicetest.BlockSize, servicetest.Dict{"lora_name": "sql"}),
		a.Stored(p, servicetest.BlockSize, servicetest.Dict{"lora_name": "sql", "cache_salt": secret, "block_hashes": []uint64{1, 2, 3, 4}}))
	b.Publish(0, b.Stored(p[:12], servicetest.BlockSize, servicetest.Dict{"lora_name": "sql"}), b.Stored(p[:4], servicetest.BlockSize, servicetest.Dict{"block_hashes": []uint64{9}}))

	d := diagnosisOf(w, diagnose.Request{Tokens: p}, 0)
	wantText(t, "from the base model", others(d), `"sql" ?: 4 [1], "sql" "": 3 [1 2]`)
	wantFinding(t, d, `would match 3 blocks under lora_name "sql"`)
	wantFinding(t, d, `would match 4 blocks under lora_name "sql" and another cache_salt, which is not shown`)
	if text := fmt.Sprintf("%+v %s", d, others(d)); strings.Contains(text, secret) {
		t.Errorf("the salt is shown: %s", text)
	}

	d = diagnosisOf(w, diagnose.Request{Tokens: p, LoRA: "sql", Salt: secret}, 0)
	wantText(t, "from the salt", others(d), `"sql" "": 3 [1 2], "" "": 1 [2]`)
	wantText(t, "chains", chains(d), "1/0:4, 2/0:0 at 0 absent")
	if slices.ContainsFunc(d.Findings, func(f string) bool { return strings.Contains(f, "would match") }) {
		t.Errorf("shorter matches are no finding: %q", d.Findings)
	}

	d = diagnosisOf(w, diagnose.Request{Tokens: p, LoRA: "other"}, 0)
	wantFinding(t, d, "no blocks indexed for this lora_name and cache_salt")
	wantFinding(t, d, `would match 1 block under the base model (no lora_name)`)
}

// TestDiagnoseHashes proves that local hashes are enough, and that rolling ones
// in their place are noticed.
func TestDiagnoseHashes(t *testing.T) {
	w := servicetest.Start(t)
	w.Put(servicetest.Record(1, 1))
	p := servicetest.Prompt(1, 16)
	w.Net.At(servicetest.Endpoint(1, 0)).Connect()
	e := w.Engine(1, 0)
	e.Publish(0, e.Stored(p[:12], servicetest.BlockSize, nil))
	d := diagnosisOf(w, diagnose.Request{ByHash: true, LocalHashes: servicetest.Local(p, servicetest.BlockSize)}, 0)
	wantText(t, "chains", chains(d), "1/0:3 at 3 absent")
	if len(d.Findings) != 0 {
		t.Errorf("findings are %q", d.Findings)
	}
	d = diagnosisOf(w, diagnose.Request{ByHash: true, LocalHashes: servicetest.Sequence(p, servicetest.BlockSize)}, 0)
	wantText(t, "chains of rolling hashes", chains(d), "1/0:1 at 1 absent")
	wantFinding(t, d, "as such they would match 3 blocks")
}

// TestDiagnoseEdges covers prompts without a block, an index without blocks, a
// scope without workers, and a long prompt.
func TestDiagnoseEdges(t *testing.T) {
	w := servicetest.Start(t)
	_, err := w.Diagnose(&diagnose.Request{Scope: servicetest.Scope}, 0)
	servicetest.WantError(t, err, contract.Unavailable, "no schedulable workers are available")
	w.Put(servicetest.Record(1, 1))

	d := diagnosisOf(w, diagnose.Request{Tokens: servicetest.Prompt(1, 3)}, 0)
	wantText(t, "chains", chains(d), "1/0:0")
	wantFinding(t, d, "fewer tokens than one block: 3 of 4")
	wantFinding(t, d, "no blocks indexed for this model and tenant")
	d = diagnosisOf(w, diagnose.Request{ByHash: true}, 0)
	wantFinding(t, d, "the prompt has no block")

	long := servicetest.Prompt(1, 5000*servicetest.BlockSize)
	e := w.Engine(1, 0)
	e.Publish(0, e.Stored(long, servicetest.BlockSize, nil))
	for _, c := range []struct{ ask, show int }{
		{0, diagnose.DefaultBlocks}, {-1, diagnose.DefaultBlocks}, {3, 3}, {1 << 30, diagnose.MaxBlocks},
	} {
		d := diagnosisOf(w, diagnose.Request{Tokens: long}, c.ask)
		if len(d.Blocks) != c.show || !d.Truncated || d.NumBlocks != 5000 || d.Ranks[0].Matched != 5000 {
			t.Errorf("max_blocks %d: %d blocks of %d are shown, truncated %v, %d match",
				c.ask, len(d.Blocks), d.NumBlocks, d.Truncated, d.Ranks[0].Matched)
		}
	}
}

// TestDiagnoseManySeeds proves that the identities that are followed are
// bounded however many salts are in use.
func TestDiagnoseManySeeds(t *testing.T) {
	w := servicetest.Start(t)
	w.Put(servicetest.Record(1, 1))
	p := servicetest.Prompt(1, servicetest.BlockSize)
	e := w.Engine(1, 0)
	for i := range uint64(5000) {
		e.Publish(0, e.Stored(p, servicetest.BlockSize, servicetest.Dict{"cache_salt": fmt.Sprintf("c%d", i), "block_hashes": []uint64{1 + i}}))
	}
	d := diagnosisOf(w, diagnose.Request{Tokens: p}, 0)
	if len(d.Elsewhere) != diagnose.MaxElsewhere || !d.Truncated {
		t.Errorf("%d other identities, truncated %v", len(d.Elsewhere), d.Truncated)
	}
	if n := len(d.Findings); n > diagnose.MaxElsewhere+2 {
		t.Errorf("%d findings", n)
	}
}

// TestDiagnoseEventsOff proves that the doctor says why nothing is ever found.
func TestDiagnoseEventsOff(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff)
	w.Put(servicetest.Record(1, 1))
	wantFinding(t, diagnosisOf(w, diagnose.Request{Tokens: servicetest.Prompt(1, 16)}, 0), "KV events are off")
}

// TestConductorDiagnose proves that events that came over a stream are in the
// doctor's answer, that workers of selection are told of and not in it, and that
// nobody is answered after the end.
func TestConductorDiagnose(t *testing.T) {
	w := servicetest.Start(t)
	r := servicetest.Registration("i", 0)
	w.Register(r)
	p := servicetest.Prompt(1, 16)
	w.Net.At(r.Endpoint).Connect()
	e := w.Publisher(r)
	e.Publish(0, e.Stored(p, servicetest.BlockSize, nil), e.Removed(p, servicetest.BlockSize, 3, "GPU"))
	if err := w.Conductor().Streams().Barrier(context.Background()); err != nil {
		t.Fatal(err)
	}
	ask := func(q conductor.Query) *diagnose.Diagnosis {
		t.Helper()
		d, err := w.Conductor().Diagnose(&q, 2)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	d := ask(conductor.Query{Identity: servicetest.Identity, Tokens: p})
	wantText(t, "chains", chains(d), "i/0:3 at 3 evicted [GPU]")
	wantText(t, "owners", holders(d), "i/0 GPU|i/0 GPU")
	if len(d.Findings) > 0 || !d.Truncated {
		t.Errorf("findings are %q, truncated %v", d.Findings, d.Truncated)
	}

	w.Put(servicetest.Record(1, 1))
	d = ask(conductor.Query{Identity: servicetest.Identity, Hashes: servicetest.Sequence(p, servicetest.BlockSize), ByHash: true})
	wantText(t, "chains by hash", chains(d), "i/0:3 at 3 evicted [GPU]")
	wantFinding(t, d, "workers of the selection service for this model and tenant: 1, of block_size 4; the selection service's own /diagnose")
	other := servicetest.Identity
	other.BlockSize = 8
	wantFinding(t, ask(conductor.Query{Identity: other, Tokens: p}), "of block_size 4 while the query's is 8: it does not show them")
	other = servicetest.Identity
	other.Salt = "s"
	wantFinding(t, ask(conductor.Query{Identity: other, Tokens: p}), "a query with a lora_name or cache_salt does not show them")
	d = ask(conductor.Query{Identity: servicetest.Identity, Tokens: p, Instance: "other"})
	wantText(t, "chains of another instance", chains(d), "")

	w.Close()
	_, err := w.Conductor().Diagnose(&conductor.Query{Identity: servicetest.Identity}, 0)
	wantReason(t, err, contract.Unavailable, "shutting_down", "", "selection service is shutting down")
}
