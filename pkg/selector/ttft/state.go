package ttft

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/select-service/select-service/pkg/catalog"
)

// state is what a learner has learned, as JSON.
type state struct {
	Version  int           `json:"version"`
	Samples  uint64        `json:"samples"`
	Products [3][3]float64 `json:"products"`
	Times    [3]float64    `json:"times"`
	Theta    [3]float64    `json:"theta"`
	Ranks    []rankTimes   `json:"ranks"`
}

type rankTimes struct {
	Worker    uint64  `json:"worker_id"`
	DP        uint32  `json:"dp_rank"`
	Observed  float64 `json:"observed"`  // seconds
	Predicted float64 `json:"predicted"` // seconds
}

const (
	stateVersion = 1
	// maxRanks bounds what is restored.
	maxRanks = 1 << 16
	// maxSum bounds a sum of the fit: no samples make more.
	maxSum = 1e30
)

// MarshalJSON returns what was learned. Guard rails and flow are not part of it, because
// they describe only the moment.
func (l *Learner) MarshalJSON() ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := state{
		Version: stateVersion, Samples: l.samples, Ranks: []rankTimes{},
		Products: l.fit.products, Times: l.fit.times, Theta: l.fit.theta,
	}
	add := func(r catalog.Rank, t ratio) {
		s.Ranks = append(s.Ranks, rankTimes{Worker: r.Worker, DP: r.DP, Observed: t.Observed, Predicted: t.Predicted})
	}
	for _, known := range *l.ranks.Load() {
		if known != nil {
			add(known.rank, known.ratio)
		}
	}
	for r, t := range l.restored {
		add(r, t)
	}
	slices.SortFunc(s.Ranks, func(a, b rankTimes) int {
		return catalog.Rank{Worker: a.Worker, DP: a.DP}.Compare(catalog.Rank{Worker: b.Worker, DP: b.DP})
	})
	return json.Marshal(s)
}

// UnmarshalJSON takes over what an earlier learner had learned. It must be called before
// any other method. After an error nothing has changed.
func (l *Learner) UnmarshalJSON(b []byte) error {
	var s state
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf("learned prefill times: %w", err)
	}
	if s.Version != stateVersion {
		return fmt.Errorf("learned prefill times: version %d, not %d", s.Version, stateVersion)
	}
	if len(s.Ranks) > maxRanks {
		return fmt.Errorf("learned prefill times: %d ranks, more than %d", len(s.Ranks), maxRanks)
	}
	if !s.plausible() {
		return errors.New("learned prefill times: sums that no samples make")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.samples = s.Samples
	l.fit = fit{products: s.Products, times: s.Times, theta: s.Theta}
	for _, r := range s.Ranks {
		l.restored[catalog.Rank{Worker: r.Worker, DP: r.DP}] = ratio{r.Observed, r.Predicted}
	}
	if l.samples >= learnedSamples {
		m := *l.model.Load()
		m.Parameters = l.fit.parameters()
		m.Learned, m.Mature = true, l.samples >= matureSamples
		l.model.Store(&m)
	}
	return nil
}

// plausible reports whether all numbers are such as samples make.
func (s *state) plausible() bool {
	ok := true
	within := func(v, least float64) { ok = ok && v >= least && v <= maxSum } // not NaN
	for i := range s.Products {
		for j := range s.Products[i] {
			within(s.Products[i][j], 0)
			ok = ok && s.Products[i][j] == s.Products[j][i]
		}
		within(s.Times[i], 0)
		within(s.Theta[i], 0)
	}
	for _, r := range s.Ranks {
		within(r.Observed, 0)
		within(r.Predicted, math.SmallestNonzeroFloat64)
	}
	return ok
}
