package policies

import (
	"slices"
	"time"
)

// vllm-router's smetric: a request goes where the most of its prompt is cached, if that is more than a tenth of what its session
// is expected to find (its former prompt), and if the engine's queue takes no longer than the prompt itself would, or if no engine
// meets that; else to the engine with the least queue. An engine's rate is the 90th percentile of its last 64 prefills. The
// slack and the line of a prefill's time are ours: 1, and that of the rate.
func startSMetric(w *world) Rule {
	return &smetric{board: w.board, said: make(map[string]int), rates: make([][]float64, len(w.fleet.Speeds))}
}

type smetric struct {
	board *Board
	said  map[string]int // tokens of a session's last prompt
	rates [][]float64    // of each engine's last prefills, in tokens a second
}

func (s *smetric) rate(i int) float64 {
	if len(s.rates[i]) == 0 {
		return prefillRate
	}
	sorted := slices.Sorted(slices.Values(s.rates[i]))
	return sorted[len(sorted)*9/10]
}

func (s *smetric) Place(r *Request) int {
	b := s.board
	wait := func(i int) float64 { return float64(b.Engines[i].Prefill) / s.rate(i) }
	expected := s.said[r.Session]
	if r.Session != "" {
		s.said[r.Session] = len(r.Prompt)
	}
	holder := b.least(nil, func(i int) float64 { return -float64(r.Cached[i]) })
	least := b.least(nil, func(i int) float64 { return wait(i) * float64(b.Engines[i].Requests+1) })
	meets := func(i int) bool { return wait(i) <= float64(len(r.Prompt))/s.rate(i) }
	if float64(r.Cached[holder]) > 0.1*float64(expected) && (meets(holder) || !slices.ContainsFunc(all(b), meets)) {
		return holder
	}
	return least
}

func all(b *Board) (engines []int) {
	for i := range b.Engines {
		engines = append(engines, i)
	}
	return engines
}

func (s *smetric) Prefilled(r *Request) {
	if took := time.Since(r.Asked).Seconds(); r.uncached > 0 && took > 0 {
		s.rates[r.engine] = append(s.rates[r.engine], float64(r.uncached)/took)
		s.rates[r.engine] = s.rates[r.engine][max(0, len(s.rates[r.engine])-64):]
	}
}
func (*smetric) Block(*Request) {}
func (*smetric) Ended(*Request) {}
