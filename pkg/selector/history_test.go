package selector

import "testing"

// TestShareOfAllRequests: a class has its share of all recent requests, also of those whose
// prompts are too short for a class.
func TestShareOfAllRequests(t *testing.T) {
	var h History
	p := LMetric{}
	decide := func(class uint64, known bool) *Decision {
		d := &Decision{Prompt: Prompt{Tokens: 64, Blocks: 4, BlockSize: 16}, Candidates: []Candidate{{Known: true}}}
		h.Fill(d, p.Needs(), class, known)
		h.Decided(d, p)
		return d
	}
	decide(7, true)
	decide(0, false)
	decide(0, false)
	if got := decide(7, true).Class.Share; got != 0.5 {
		t.Errorf("share %g, want 2 of 4 requests", got)
	}
}
