package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestReplay: of prompts with few prefixes the built-in cost finds more cached than a choice that
// does not look, every request is played to its end by each policy, and a second run says the same.
func TestReplay(t *testing.T) {
	t.Parallel()
	var trace strings.Builder
	const requests = 200
	for i := range requests {
		fmt.Fprintf(&trace, `{"timestamp": %d, "input_length": 2000, "output_length": 20, "hash_ids": [%d, %d, %d, %d]}`+"\n", i*100, i*5%7*10, i*5%7*10+1, i*5%7*10+2, 1000+i)
	}
	file := filepath.Join(t.TempDir(), "trace.jsonl")
	if err := os.WriteFile(file, []byte(trace.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	play := func() string {
		t.Helper()
		var out bytes.Buffer
		if code := run(t.Context(), []string{"trace", "replay", file, "--cache-blocks", "128", "-o", "json"}, nil, &out, &out); code != 0 {
			t.Fatalf("exit code %d: %s", code, &out)
		}
		return out.String()
	}
	text := play()
	if text != play() {
		t.Error("a second run says something else")
	}
	var all []outcome
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		t.Fatal(err)
	}
	by := make(map[string]outcome)
	for _, o := range all {
		by[o.Policy] = o
		if o.Requests != requests || o.PromptTokens != requests*2000 || o.TTFT <= 0 || o.TTFT99 < o.TTFT || o.Latency < o.TTFT || o.Busiest < 0.25 {
			t.Errorf("%+v", o)
		}
	}
	if len(by) != len(replayed) || by["default"].CachedTokens <= by["random"].CachedTokens {
		t.Errorf("%+v", all)
	}
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"trace replay nowhere", exitFailed, "no such file"},
		{"trace replay " + file + " --workers 0", exitUsage, "--workers"},
		{"trace replay " + file + " --policy best", exitUsage, `"best"`},
		{"trace replay " + file + " --block-size 0", exitUsage, ""},
		{"trace", exitUsage, "subcommand"},
		{"trace replay main.go", exitFailed, "line 1"},
	} {
		var out bytes.Buffer
		if code := run(t.Context(), strings.Fields(c.args), nil, &out, &out); code != c.code || !strings.Contains(out.String(), c.says) {
			t.Errorf("%s: exit code %d, %s", c.args, code, &out)
		}
	}
}
