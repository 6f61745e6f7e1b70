package conductor

import (
	"fmt"
	"strings"
	"testing"

	"github.com/select-service/select-service/internal/selection/diagnose"
	"github.com/select-service/select-service/test/helpers/length"
)

// TestDiagnoseElsewhere proves that the other identities of tenant and model
// are found, and no others; that salts which only events state stay secret; and
// that the sentences name what differs.
func TestDiagnoseElsewhere(t *testing.T) {
	const secret = "customer-4711"
	w := newWorld(t)
	p := prompt(1, 8)
	put := func(instance string, blocks int, change func(*Registration), more ...any) {
		reg := base(instance, 0)
		change(&reg)
		tokens := p[:4*blocks]
		w.apply(w.add(reg), stored(rollingSeed(tokens, int(reg.BlockSize), reg.HashSeed), "gpu", append([]any{"token_ids", tokens}, more...)...))
	}
	put("lora", 3, func(r *Registration) { r.LoRA = "sql" })
	put("salt", 4, func(r *Registration) { r.Salt = "w8a8" })
	put("size", 6, func(r *Registration) { r.BlockSize = 8 })
	put("seed", 2, func(r *Registration) { r.BlockSize, r.HashSeed = 2, 99 })
	put("event", 5, func(r *Registration) { r.LoRA = "sql" }, "additional_salt", secret)
	put("mixed", 1, func(r *Registration) { r.LoRA = "py" }, "additional_salt", "w8a8")
	put("tenant", 8, func(r *Registration) { r.Tenant = "other" })
	put("model", 8, func(r *Registration) { r.Model = "other" })
	w.wantReasons(nil)

	id := base("", 0).Identity
	d := w.ask(id, p)
	wantText(t, "elsewhere", d.others(), `"" "" 8 true: 3 [size]
"sql" ? 4 false: 5 [event]
"" "w8a8" 4 true: 4 [salt]
"sql" "" 4 true: 3 [lora]
"" "" 2 true: 4 [seed]
"py" "w8a8" 4 false: 1 [mixed]
`)
	for _, want := range []string{
		"nobody is registered for this identity and no event has named it",
		"no blocks indexed for this identity",
		`registered for this tenant and model: block_size 2 lora_name "" cache_salt ""; block_size 4 lora_name "" cache_salt "w8a8"; `,
		`would match 3 blocks under block_size 8`,
		`would match 5 blocks under lora_name "sql" and another cache_salt, which is not shown`,
		`would match 4 blocks under cache_salt "w8a8"`,
		`would match 3 blocks under lora_name "sql"`,
		`would match 1 block under lora_name "py" and cache_salt "w8a8"`,
	} {
		d.wantFinding(t, want)
	}
	if d.Registered || len(d.Ranks) > 0 || d.owned() != "-|-|-|-|-|-|-|-" {
		t.Errorf("nobody is registered, but: %+v", d)
	}
	if text := fmt.Sprintf("%+v\n%s", d, d.others()); strings.Contains(text, secret) {
		t.Errorf("the salt is shown: %s", text)
	}

	// Who names the salt may see it, and sees what is longer only.
	id.LoRA, id.Salt = "sql", secret
	d = w.ask(id, p)
	if !d.found("nobody is registered for this identity: its blocks come from events alone") || d.Registered {
		t.Errorf("findings are %q", d.Findings)
	}
	d.wantFinding(t, "would match 3 blocks under the base model (no lora_name) and no cache_salt and block_size 8")
	if d.found("would match 4") {
		t.Errorf("a shorter match is no finding: %q", d.Findings)
	}
	wantText(t, "ranks", d.rows(), "instance event rank 0 backend cache: 5 at 5 absent, tokens\n")

	// By hash nothing can be said of other block sizes.
	d = w.diagnose(&Query{Identity: base("", 0).Identity, Hashes: rolling(p), ByHash: true}, 0)
	if strings.Contains(d.others(), "8 true") || !strings.Contains(d.others(), `"sql" "" 4 true: 3 [lora]`) {
		t.Errorf("by hash, elsewhere:\n%s", d.others())
	}
	if d.Blocks[0].HasLocal {
		t.Error("a local hash is shown that nobody gave")
	}
}

// TestDiagnoseNameless proves that a salt that an event states beside another one
// of its registration is told of, and not shown.
func TestDiagnoseNameless(t *testing.T) {
	w := newWorld(t)
	reg := base("i", 0)
	reg.Type, reg.Salt = SGLang, "w8a8"
	p := prompt(1, 2)
	w.apply(w.add(reg), engineStored(from(1, 2), nil, p, "GPU", "cache_salt", "hidden"))
	d := w.ask(reg.Identity, p)
	wantText(t, "elsewhere", d.others(), "\"\" ? 4 false: 2 [i]\n")
	d.wantFinding(t, "events state a cache salt beside another one of their registration")
	if strings.Contains(fmt.Sprintf("%+v", d), "hidden") {
		t.Errorf("the salt is shown: %+v", d)
	}
}

// TestDiagnoseBounds proves that an answer stays small whatever is asked and
// registered, and says that something is left out.
func TestDiagnoseBounds(t *testing.T) {
	length.Sequential(t)
	w := newWorld(t)
	const instances, depth = 20, 4200
	p := prompt(1, depth)
	id := base("", 0).Identity
	for i := range instances {
		w.apply(w.add(base(fmt.Sprintf("i%02d", i), 0)), stored(rolling(p), "gpu", "token_ids", p))
	}
	for _, c := range []struct{ ask, shown int }{
		{0, diagnose.DefaultBlocks}, {-5, diagnose.DefaultBlocks}, {1, 1}, {1 << 30, diagnose.MaxOwners / instances},
	} {
		d := w.diagnose(&Query{Identity: id, Tokens: p}, c.ask)
		if len(d.Blocks) != c.shown || !d.Truncated || d.NumBlocks != depth || d.Ranks[7].Matched != depth {
			t.Errorf("max_blocks %d: %d blocks are shown of %d, truncated %v", c.ask, len(d.Blocks), d.NumBlocks, d.Truncated)
		}
	}
	d := w.diagnose(&Query{Identity: id, Tokens: p, Instance: "i03"}, 1<<30)
	if len(d.Blocks) != diagnose.MaxBlocks {
		t.Errorf("%d blocks are shown", len(d.Blocks))
	}

	daemon := w.add(base("daemon", 0))
	for i := range 3 * diagnose.MaxElsewhere {
		blocks := 1 + i%7
		w.apply(daemon, stored(rolling(p)[:blocks], "gpu", "token_ids", p[:4*blocks], "additional_salt", fmt.Sprintf("s%d", i)))
	}
	for i := range 2 * diagnose.MaxFindings {
		w.apply(w.add(base(fmt.Sprintf("u%03d", i), 0)), stored(from(uint64(1000*i+1), 1), "gpu"))
	}
	d = w.ask(id, p)
	if len(d.Elsewhere) != diagnose.MaxElsewhere || !d.Truncated || d.Elsewhere[0].Matched != 7 || d.Elsewhere[diagnose.MaxElsewhere-1].Matched < 5 {
		t.Errorf("%d identities elsewhere, from %d blocks to %d", len(d.Elsewhere), d.Elsewhere[0].Matched, d.Elsewhere[len(d.Elsewhere)-1].Matched)
	}
	if len(d.Findings) != diagnose.MaxFindings+1 || !d.found("further findings are left out") {
		t.Errorf("%d findings", len(d.Findings))
	}
}
