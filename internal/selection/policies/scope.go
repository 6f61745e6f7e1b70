package policies

import (
	"sync"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/selector"
	"github.com/select-service/select-service/pkg/selector/ttft"
)

// Scope has the policies of one scope, with the history of their decisions. It is safe
// for concurrent use.
type Scope struct {
	*Instance
	history selector.History
	shadows []*Shadow

	// Learner has the model of the scope's engines; nil if no policy needs it.
	Learner *ttft.Learner
}

// Shadow is a policy instance that is evaluated beside the deciding one.
type Shadow struct {
	*Instance
	history selector.History

	mu    sync.Mutex // guards stats
	stats ShadowStats
}

// ShadowStats compares a shadow with the deciding policy.
type ShadowStats struct {
	Decisions, Same uint64 // decisions, and how many the shadow would have made too
	// CostForegone and TTFTForegone are the sums of how much more the decisions cost than the
	// shadow's own choices: in the shadow's unit, and in predicted seconds to the first token.
	CostForegone, TTFTForegone float64
}

// NewScope returns the policies of a scope, nil if it has just the built-in one.
func (t *Table) NewScope(sc catalog.Scope, learners *Learners) *Scope {
	i, _ := t.Of(sc)
	shadows := t.Shadows()
	if i.IsBuiltIn() && len(shadows) == 0 {
		return nil
	}
	s := &Scope{Instance: i}
	for _, shadow := range shadows {
		if shadow != i {
			s.shadows = append(s.shadows, &Shadow{Instance: shadow})
		}
	}
	if learners != nil && t.predicts(sc) {
		s.Learner = learners.learner(sc)
	}
	return s
}

// Shadows returns the instances that are evaluated beside the one that decides.
func (s *Scope) Shadows() []*Shadow { return s.shadows }

// Costs returns the costs of a decision by the deciding policy; it uses dst's memory if that
// suffices. It first fills in the data of d that comes from earlier decisions.
func (s *Scope) Costs(d *selector.Decision, class []uint64, dst []float64) []float64 {
	fill(&s.history, d, s.Policy.Needs(), class)
	return s.Policy.Costs(d, dst)
}

// Decided records that the policy has decided by the costs of d.
func (s *Scope) Decided(d *selector.Decision) { s.history.Decided(d, s.Policy) }

// Costs returns the costs by the shadow.
func (s *Shadow) Costs(d *selector.Decision, class []uint64, dst []float64) []float64 {
	fill(&s.history, d, s.Policy.Needs(), class)
	return s.Policy.Costs(d, dst)
}

// Decided records a decision: same as the shadow's, or costing the shadow cost, and ttft
// seconds, more than its own choice. The shadow's history goes on as if it had decided.
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

// fill sets the data of d that comes from the history. sequence has the hashes of the prompt's
// blocks.
func fill(h *selector.History, d *selector.Decision, needs selector.Needs, sequence []uint64) {
	hash, known := uint64(0), len(sequence) >= selector.ClassBlocks
	if known {
		hash = sequence[selector.ClassBlocks-1]
	}
	h.Fill(d, needs, hash, known)
}

// ToCompute returns how many tokens of the prompt candidate i has to compute and does not fetch, by the
// deciding policy's rule.
func (s *Scope) ToCompute(d *selector.Decision, i int) uint64 {
	w := d.Weights
	if f := s.PredictedTTFT(); f != nil {
		w = f.Own
	}
	return d.ToCompute(w, i)
}

// Delays reports whether requests are delayed while their rank has much to compute, and the
// longest time to delay them.
func (s *Scope) Delays() (longest time.Duration, delays bool) {
	if s == nil || !s.delays() {
		return 0, false
	}
	return time.Duration(s.PredictedTTFT().Longest * float64(time.Second)), true
}
