package config

import (
	"math/rand/v2"
	"testing"
)

// TestUnknownFlag proves that an unknown flag is refused with the nearest flag of the same
// command, and only if it is near.
func TestUnknownFlag(t *testing.T) {
	tests := map[string]struct {
		command *command
		name    string
		want    string // the suggestion, "" for none
	}{
		"swapped":                 {selection, "prot", "port"},
		"one missing":             {selection, "worker-file", "workers-file"},
		"one too many":            {selection, "listens", "listen"},
		"another case":            {selection, "Port", "port"},
		"underscores":             {selection, "replica_sync_peers", "replica-sync-peers"},
		"an action":               {selection, "hepl", "help"},
		"the longer action":       {selection, "help-al", "help-all"},
		"the file":                {selection, "confg", "config"},
		"nearest, not first":      {selection, "tls-keys", "tls-key"},
		"another word":            {selection, "no-such-flag", ""},
		"four slips":              {selection, "replicasyncpeerzz", ""},
		"short and far":           {selection, "pxyt", ""},
		"one letter":              {selection, "p", ""},
		"empty":                   {selection, "", ""},
		"of the command alone":    {slotTracker, "workers-fil", ""},
		"the command's own names": {slotTracker, "replica-sync-bid", "replica-sync-bind"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			want := "--" + tc.name + ": unknown flag"
			if tc.want != "" {
				want += ", did you mean --" + tc.want + "?"
			}
			if got := tc.command.unknownFlag(tc.name).Error(); got != want {
				t.Errorf("%q, want %q", got, want)
			}
		})
	}
}

// TestEditDistance compares with the definition, which tries every last edit.
func TestEditDistance(t *testing.T) {
	var naive func(a, b string) int
	naive = func(a, b string) int {
		n, m := len(a), len(b)
		if n == 0 || m == 0 {
			return n + m
		}
		replaced := naive(a[:n-1], b[:m-1])
		if a[n-1] != b[m-1] {
			replaced++
		}
		d := min(replaced, naive(a[:n-1], b)+1, naive(a, b[:m-1])+1)
		if n > 1 && m > 1 && a[n-1] == b[m-2] && a[n-2] == b[m-1] {
			d = min(d, naive(a[:n-2], b[:m-2])+1)
		}
		return d
	}
	rng := rand.New(rand.NewPCG(1, 2))
	text := func() string {
		s := make([]byte, rng.IntN(6))
		for i := range s {
			s[i] = "abc"[rng.IntN(3)]
		}
		return string(s)
	}
	for range 2000 {
		a, b, limit := text(), text(), rng.IntN(6)
		got, want := editDistance(a, b, limit), naive(a, b)
		if got != want && (got <= limit || want <= limit) {
			t.Fatalf("editDistance(%q, %q, %d) = %d, want %d", a, b, limit, got, want)
		}
	}
}
