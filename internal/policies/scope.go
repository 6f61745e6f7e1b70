package policies

import (
	"sync"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/selector"
	"github.com/select-service/select-service/pkg/selector/ttft"
)

// Scope is what decides in one scope, with what it has been told of its decisions.
// Several goroutines may use it.
type Scope struct {
	*Instance
	history selector.History
	shadows []*Shadow

	// Learner has the model of the scope's engines; nil if no policy needs it.
	Learner *ttft.Learner
}

// Shadow is an instance that is evaluated beside the one that decides.
type Shadow struct {
	*Instance
	history selector.History

	mu    sync.Mutex // guards stats
	stats ShadowStats
}

// ShadowStats compares a shadow with the policy that decides.
type ShadowStats struct {
	Decisions, Same uint64 // how many there were, and how many the shadow would have made too
	// CostForegone and TTFTForegone are what the decisions cost the shadow beyond its own
	// choices, in its unit, and in predicted seconds until the first token.
	CostForegone, TTFTForegone float64
}

// NewScope returns the policies of a scope, nil if it has the built-in one alone. learners
// are of the same table.
func (t *Table) NewScope(sc catalog.Scope, learners *Learners) *Scope {
	i, shadows := t.ForModel(sc.Model), t.Shadows()
	if i.IsBuiltIn() && len(shadows) == 0 {
		return nil
	}
	s := &Scope{Instance: i}
	for _, shadow := range shadows {
		if shadow != i {
			s.shadows = append(s.shadows, &Shadow{Instance: shadow})
		}
	}
	if learners != nil {
		s.Learner = learners.Of(sc)
	}
	return s
}

// Shadows returns the instances that are evaluated beside the one that decides.
func (s *Scope) Shadows() []*Shadow { return s.shadows }

// Costs returns the costs of a decision by the policy that decides, in dst's memory
// where that suffices. It sets those of d's facts that are of earlier decisions.
func (s *Scope) Costs(d *selector.Decision, class []uint64, dst []float64) []float64 {
	fill(&s.history, d, s.Policy.Needs(), class)
	return s.Policy.Costs(d, dst)
}

// Decided notes that the policy has decided by the costs of d.
func (s *Scope) Decided(d *selector.Decision) { s.history.Decided(d, s.Policy) }

// Costs returns the costs that the shadow gives.
func (s *Shadow) Costs(d *selector.Decision, class []uint64, dst []float64) []float64 {
	fill(&s.history, d, s.Policy.Needs(), class)
	return s.Policy.Costs(d, dst)
}

// Decided notes a decision by which d cost the shadow more than its own choice would have,
// unless that is the same. The shadow goes on as if it had decided.
func (s *Shadow) Decided(d *selector.Decision, same bool, cost, ttft float64) {
	s.history.Decided(d, s.Policy)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats.Decisions++
	if same {
		s.stats.Same++
	}
	s.stats.CostForegone += cost
	s.stats.TTFTForegone += ttft
}

// Stats returns the comparison so far.
func (s *Shadow) Stats() ShadowStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats
}

// fill gives d what the history knows. sequence are the hashes of the prompt's blocks.
func fill(h *selector.History, d *selector.Decision, needs selector.Needs, sequence []uint64) {
	hash, known := uint64(0), len(sequence) >= selector.ClassBlocks
	if known {
		hash = sequence[selector.ClassBlocks-1]
	}
	h.Fill(d, needs, hash, known)
}

// ToCompute returns the tokens of the prompt that candidate i has to compute, as the
// deciding policy counts them.
func (s *Scope) ToCompute(d *selector.Decision, i int) uint64 {
	w := d.Weights
	if f := s.PredictedTTFT(); f != nil {
		w = f.Own
	}
	return w.ToCompute(d.Prompt, &d.Candidates[i])
}

// Holds reports whether requests are held for ranks that have much to compute, and for how
// long at most.
func (s *Scope) Holds() (longest time.Duration, holds bool) {
	if s == nil || !s.holds() {
		return 0, false
	}
	return time.Duration(s.PredictedTTFT().Longest * float64(time.Second)), true
}
