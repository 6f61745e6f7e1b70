package conductor

import (
	"strings"
	"testing"

	"github.com/select-service/select-service/internal/selection/diagnose"
)

// TestTypeNames: types are read in any case and written as the API names them.
func TestTypeNames(t *testing.T) {
	for name, want := range map[string]PublisherType{
		"vLLM": VLLM, "SGLang": SGLang, "Mooncake": Mooncake, "standard": Standard,
		"VLLM": VLLM, "sglang": SGLang, "MOONCAKE": Mooncake, "Standard": Standard,
	} {
		got, ok := ParseType(name)
		if !ok || got != want || !strings.EqualFold(got.String(), name) {
			t.Errorf("ParseType(%q) = %v, %v", name, got, ok)
		}
	}
	for _, name := range []string{"", "vLLM ", "trtllm"} {
		if got, ok := ParseType(name); ok {
			t.Errorf("ParseType(%q) = %v", name, got)
		}
	}
	if got := PublisherType(99).String(); got != "unknown" {
		t.Errorf("type 99 is %q", got)
	}
}

// TestHashSources: what a publisher's hashes are known to be, from what came.
func TestHashSources(t *testing.T) {
	tokens := prompt(1, 4)
	h := rolling(tokens)
	withTokens := func(names []uint64) event { return stored(names, "gpu", "token_ids", tokens) }
	tests := map[string]struct {
		events []event
		want   diagnose.HashSource
		name   string
	}{
		"nothing":             {nil, diagnose.HashesNone, "none"},
		"removals":            {[]event{removed(h, "gpu")}, diagnose.HashesNone, "none"},
		"engine":              {[]event{engineStored([]uint64{1}, nil, tokens[:4], "GPU")}, diagnose.HashesTokens, "tokens"},
		"tokens":              {[]event{withTokens(from(1, 4))}, diagnose.HashesTokens, "tokens"},
		"hashes alone":        {[]event{stored(h, "gpu")}, diagnose.HashesUnverified, "unverified"},
		"confirmed":           {[]event{engineStored(from(1, 4), nil, tokens, "GPU"), stored(h, "cpu")}, diagnose.HashesStandard, "standard"},
		"standard with both":  {[]event{withTokens(h), stored(rolling(prompt(2, 1)), "cpu")}, diagnose.HashesStandard, "standard"},
		"an engine's names":   {[]event{engineStored(from(1, 4), nil, tokens, "GPU"), stored(from(1, 2), "cpu")}, diagnose.HashesOwn, "own"},
		"own names, refuted":  {[]event{withTokens(from(1, 4)), stored(from(100, 4), "cpu")}, diagnose.HashesOwn, "own"},
		"unverified, refuted": {[]event{stored(from(100, 4), "cpu"), withTokens(from(1, 4))}, diagnose.HashesOwn, "own"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			p := w.add(base("i", 0))
			w.apply(p, tc.events...)
			if got := p.Status().Hashes; got != tc.want || got.String() != tc.name {
				t.Errorf("hashes are %v, want %v", got, tc.want)
			}
		})
	}
}
