package conductor

import (
	"fmt"
	"strings"
	"testing"
)

// TestDiagnoseStatedOtherwise proves that a publisher whose events are all for
// another identity than the registered one is told of, without their salts.
func TestDiagnoseStatedOtherwise(t *testing.T) {
	p := prompt(1, 2)
	for name, c := range map[string]struct {
		events [][]any
		want   string
	}{
		"model":        {[][]any{{"model_name", "org/m"}}, `none of its events is for the registered identity: they name model "org/m"`},
		"tenant, LoRA": {[][]any{{"tenant_id", "acme", "lora_name", "sql"}}, `they name tenant "acme" and lora_name "sql"`},
		"block size":   {[][]any{{"block_size", 2, "seq_hashes", from(1, 4)}}, `they name block_size 2`},
		"salt":         {[][]any{{"additional_salt", "hidden"}}, `they name another cache_salt, which is not shown`},
		"several": {
			[][]any{{"model_name", "a"}, {"model_name", "b"}, {"model_name", "c"}, {"model_name", "d"}, {"model_name", "e"}},
			`they name model "a"; model "b"; model "c"; model "d"; and others`,
		},
		"the registered one, too": {[][]any{{"model_name", "org/m"}, {}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			reg := base("i", 0)
			publisher := w.add(reg)
			for _, more := range c.events {
				w.apply(publisher, stored(from(1, 2), "gpu", append([]any{"token_ids", p}, more...)...))
			}
			w.wantReasons(nil)
			d := w.ask(reg.Identity, p)
			if c.want != "" {
				d.wantFinding(t, "instance i rank 0: none of its events")
				d.wantFinding(t, c.want)
			} else if d.found("they name") {
				t.Errorf("findings are %q", d.Findings)
			}
			if strings.Contains(fmt.Sprintf("%+v", d), "hidden") {
				t.Errorf("a salt of events is shown: %+v", d)
			}
		})
	}
}

// TestDiagnoseNearby proves that registrations which differ in tenant or model
// alone are named where there is none for the question's, and no others.
func TestDiagnoseNearby(t *testing.T) {
	w := newWorld(t)
	put := func(tenant, model string) {
		reg := base("i", 0)
		reg.Tenant, reg.Model = tenant, model
		w.add(reg)
	}
	ask := func() diagnosis { return w.ask(base("", 0).Identity, prompt(1, 1)) }
	put("acme", "other")
	if d := ask(); !d.found("nobody is registered for this tenant and model") || d.found("registered are") {
		t.Errorf("findings are %q", d.Findings)
	}
	put("acme", "m")
	put("default", "M")
	ask().wantFinding(t, `nobody is registered for this tenant and model; registered are: tenant "acme" model "m"; tenant "default" model "M"`)
	for _, model := range []string{"M1", "M2", "M3"} {
		put("default", model)
	}
	ask().wantFinding(t, `registered are: tenant "acme" model "m"; tenant "default" model "M"; tenant "default" model "M1"; tenant "default" model "M2"; and others`)
	for i := range 5 {
		put(fmt.Sprintf("t%d", i), "m")
	}
	d := ask()
	d.wantFinding(t, `registered are: tenant "acme" model "m"; tenant "t0" model "m"; tenant "t1" model "m"; tenant "t2" model "m"; and others`)
	if d.found(`"M"`) || d.found("other\"") {
		t.Errorf("findings are %q", d.Findings)
	}
	put("default", "m")
	if d := ask(); d.found("registered are") {
		t.Errorf("findings are %q", d.Findings)
	}
}

// TestDiagnoseInstance proves that an instance that is not registered for the
// identity is told of, with those that are.
func TestDiagnoseInstance(t *testing.T) {
	w := newWorld(t)
	id := base("", 0).Identity
	w.add(base("b", 0))
	w.add(base("a", 0))
	w.add(base("a", 1))
	ask := func(instance string) diagnosis {
		return w.diagnose(&Query{Identity: id, Tokens: prompt(1, 1), Instance: instance}, 0)
	}
	ask("nope").wantFinding(t, `instance "nope" is not registered for this identity; registered are: "a", "b"`)
	for _, known := range []string{"", "a"} {
		if d := ask(known); d.found("is not registered for") {
			t.Errorf("%q: findings are %q", known, d.Findings)
		}
	}
	for i := range 9 {
		w.add(base(fmt.Sprintf("c%d", i), 0))
	}
	ask("nope").wantFinding(t, `"a", "b", "c0", "c1", "c2", "c3", "c4", "c5", and others`)
}

// TestDiagnoseFirstBlock proves that a prompt whose first block nobody has, or
// has had, anywhere is called another than what is announced, and no other.
func TestDiagnoseFirstBlock(t *testing.T) {
	const byTokens, byHash = "the tokens differ from those that engines have announced", "the hashes are not those of what is announced"
	p, other := prompt(1, 2), prompt(2, 2)
	own := from(7, 2)
	with := func(more ...any) event { return stored(own, "gpu", append([]any{"token_ids", p}, more...)...) }
	for name, c := range map[string]struct {
		events         []event
		tokens, hashes bool // it is said to a question by these
	}{
		"nothing is announced":  {nil, false, false},
		"another prompt":        {[]event{stored(own, "gpu", "token_ids", other)}, true, true},
		"this prompt":           {[]event{with()}, false, false},
		"under a salt":          {[]event{stored(own, "gpu", "token_ids", other), with("additional_salt", "s")}, false, false},
		"under a block size":    {[]event{stored(own, "gpu", "token_ids", other), with("block_size", 8, "seq_hashes", own[:1])}, false, true},
		"evicted":               {[]event{stored(from(9, 2), "gpu", "token_ids", other), with(), removed(own, "gpu")}, false, false},
		"held back":             {[]event{stored(from(9, 2), "gpu", "token_ids", other), with("parent_hash", 5, "base_block_idx", nil)}, false, false},
		"hashes without tokens": {[]event{stored(own, "gpu")}, false, true}, // that they are not verified says all to tokens
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			reg := base("i", 0)
			if publisher := w.add(reg); c.events != nil {
				w.apply(publisher, c.events...)
			}
			w.wantReasons(nil)
			for _, instance := range []string{"", "nope"} {
				d := w.diagnose(&Query{Identity: reg.Identity, Tokens: p, Instance: instance}, 0)
				if instance == "" && d.found(byTokens) != c.tokens || d.found(byHash) {
					t.Errorf("by tokens: %q", d.Findings)
				}
				d = w.diagnose(&Query{Identity: reg.Identity, Hashes: rolling(p), ByHash: true, Instance: instance}, 0)
				// Who waits is not known of by hash.
				if want := c.hashes || name == "held back"; d.found(byHash) != want || d.found(byTokens) {
					t.Errorf("by hash: %q", d.Findings)
				}
			}
		})
	}
}
