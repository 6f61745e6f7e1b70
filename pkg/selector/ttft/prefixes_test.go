package ttft

import "testing"

// TestPrefixProbes: probes are let through while they have cost at most 64 requests more than others have brought that continue their
// prompts, one after the other, and otherwise one of 32.
func TestPrefixProbes(t *testing.T) {
	var p PrefixProbes
	prompts := uint64(0)
	through := func(n int, delayed float64) (sum int) {
		for range n {
			prompts++
			if _, due := p.Due([]uint64{prompts, 1e6 + prompts}, 2, delayed); due {
				sum++
			}
		}
		return sum
	}
	if n := through(100, 4); n != 16+2 {
		t.Errorf("%d probes that delay four each are let through at first", n)
	}
	if n := through(320, 0); n != 10 {
		t.Errorf("%d of 320 are let through while nothing has come of any", n)
	}
	for turn, tt := range []struct {
		sequence []uint64
		within   float64
		want     bool
	}{
		{[]uint64{1}, 1, false}, // shorter
		{[]uint64{1, 7, 8}, 1, false},
		{nil, 1, false},
		{[]uint64{1, 1e6 + 1, 2, 3}, 2, false}, // in time without the probe, too
		{[]uint64{1, 1e6 + 1, 2, 3}, 1, true},
		{[]uint64{1, 1e6 + 1, 9}, 1, false}, // another branch, which nobody has paid for
		{[]uint64{1, 1e6 + 1, 2, 3}, 1, true},
		{[]uint64{1, 1e6 + 1, 2, 3, 4}, 2, false},
		{[]uint64{1, 1e6 + 1, 2, 3, 4}, 1, true},
	} {
		if got := p.Continues(tt.sequence, tt.within); got != tt.want {
			t.Errorf("turn %d continues a probe: %t", turn, got)
		}
	}
	for range 6 {
		p.InTime(0)
	}
	if n := through(10, 2); n != 3 {
		t.Errorf("six requests in time let %d probes through that delay two", n)
	}
	p.InTime(5)
	if n := through(9, 1); n != 5 {
		t.Errorf("a probe that was in time itself gets %d back, not what it has cost", n)
	}
}

// TestPrefixProbesForget: the table is bounded, and forgets the oldest prompt first. Prompts of less than a block are none.
func TestPrefixProbesForget(t *testing.T) {
	var p PrefixProbes
	for i := range uint64(maxLatePrefixes + 1) {
		for _, due := p.Due(nil, 1, 1); !due; _, due = p.Due(nil, 1, 1) {
		}
		p.InTime(1)
		if _, due := p.Due([]uint64{i}, 1, 1); !due {
			t.Fatal("refused")
		}
		p.InTime(1)
	}
	if p.kept != maxLatePrefixes || p.Continues([]uint64{0}, 0) || !p.Continues([]uint64{1}, 0) || !p.Continues([]uint64{maxLatePrefixes, 1}, 0) {
		t.Errorf("%d are kept, or the wrong ones", p.kept)
	}
	if p.spent < 0 {
		t.Errorf("spent is %g", p.spent)
	}
}

// BenchmarkContinues is for a long prompt that continues none of as many as are kept, of all lengths up to a quarter more.
func BenchmarkContinues(b *testing.B) {
	var p PrefixProbes
	for i := range maxLatePrefixes {
		late := make([]uint64, 1+i*1009%2500)
		late[len(late)-1] = 1
		p.Due(late, 1, 1)
		p.InTime(1)
	}
	sequence := make([]uint64, 2000)
	for b.Loop() {
		p.Continues(sequence, 0)
	}
}
