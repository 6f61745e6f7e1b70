package selector

// prefills is a [Policy] that has the prefill of the prompt as a term of its costs.
type prefills interface {
	// prefillTerm returns that term of candidate i's cost, in the policy's unit, if the candidate had of the
	// prompt what candidate has has.
	prefillTerm(d *Decision, i, has int) float64
}

// PrefillTerm returns the part of candidate i's cost, in the policy's unit, that is the prefill of the prompt
// itself. It is 0 under a policy whose costs have no such part.
func PrefillTerm(p Policy, d *Decision, i int) float64 {
	if p, ok := p.(prefills); ok {
		return p.prefillTerm(d, i, i)
	}
	return 0
}

// Recompute returns what it costs, in the policy's unit, to compute on candidate to what candidate from has of
// the prompt and to has not. It is 0 under a policy whose costs do not have the prefill.
func Recompute(p Policy, d *Decision, from, to int) float64 {
	if p, ok := p.(prefills); ok {
		return max(0, p.prefillTerm(d, to, to)-p.prefillTerm(d, to, from))
	}
	return 0
}

func (f CostFunction) prefillTerm(d *Decision, i, has int) float64 {
	w := f.weights(d)
	if !w.TrackPrefill {
		return 0
	}
	tokens := float64(w.ToCompute(d.Prompt, &d.Candidates[has]))
	return w.PrefillScale * tokens / d.Prompt.blockSize() * d.Candidates[i].taint()
}

func (p *PredictedTTFT) prefillTerm(d *Decision, i, has int) float64 {
	if p.fallback(d) {
		return p.dynamoCost().prefillTerm(d, i, has)
	}
	u := p.Own.ToCompute(d.Prompt, &d.Candidates[has])
	c := d.Model.Cost(float64(u), float64(d.Prompt.Tokens), p.queue(d, i), d.Model.Crowding)
	return c.Prefill * d.Candidates[i].taint()
}
