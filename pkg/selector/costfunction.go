package selector

// CostFunction is the policy of dynamo-kv-router: the cost of [Weights.Costs].
type CostFunction struct {
	// Own, if not nil, are used instead of the decision's weights, except that
	// TrackPrefill always is the decision's, and that cached tokens are counted, for the
	// length of the prompt, as the decision's weights count them.
	Own *Weights
}

func (f CostFunction) weights(d *Decision) Weights {
	if f.Own == nil {
		return d.Weights
	}
	w := *f.Own
	w.TrackPrefill = d.Weights.TrackPrefill
	return w
}

// Costs implements Policy. The unit is blocks.
func (f CostFunction) Costs(d *Decision, dst []float64) []float64 {
	w := f.weights(d)
	return w.costs(&d.Weights, d.Prompt, d.Candidates, dst)
}

// Temperature implements Policy.
func (f CostFunction) Temperature(d *Decision) float64 { return f.weights(d).Temperature }

// Needs implements Policy.
func (CostFunction) Needs() Needs { return 0 }

// Reasons implements Policy. Where cached blocks lower the cost of decode work
// ([Weights.PrefixOnly]), Decode is the lowered cost.
func (f CostFunction) Reasons(d *Decision, i int) Reasons {
	w, c, p := f.weights(d), &d.Candidates[i], d.Prompt
	r := d.ReasonsOf(i, "blocks")
	if w.PrefixOnly && !w.TrackPrefill && w.OverlapCredit > 0 {
		r.Decode = w.prefixCost(p, c)
	} else {
		prefill := w.prefillCost(&d.Weights, p, c, w.newDecay(p, d.Candidates))
		if c.Known && prefill > 0 {
			r.Wait = min(prefill, w.PrefillScale*float64(c.Prefill)/p.blockSize())
			r.Decode = float64(PotentialDecode(p, c))
		} else if c.Known {
			r.Decode = float64(PotentialDecode(p, c))
		}
		r.Prefill = prefill - r.Wait
	}
	r.Decode += w.ActiveRequests * float64(c.Requests)
	return r
}
