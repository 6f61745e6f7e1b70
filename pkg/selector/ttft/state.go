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
	Errors   *errorState   `json:"errors,omitempty"`
	Outputs  *outputState  `json:"outputs,omitempty"`
	Answers  *answerTimes  `json:"answers,omitempty"`
	InStep   *stepState    `json:"in_step,omitempty"`
}

// outputState has the logarithm of a median of times per output token, in seconds.
type outputState struct {
	Answers uint64  `json:"answers"`
	Q50     float64 `json:"q50"`
}

func (o *outputTimes) state() *outputState {
	if o.q50.N == 0 {
		return nil
	}
	return &outputState{o.q50.N, o.q50.At}
}

// times returns the same median; of nil that without answers.
func (o *outputState) times() (t outputTimes) {
	if o != nil {
		t.q50 = quantile{o.Answers, o.Q50}
	}
	return t
}

// plausible reports whether the median is one of times per output token.
func (o *outputState) plausible() bool {
	return o == nil || o.Q50 >= math.Log(minPerOutput)-1 && o.Q50 <= math.Log(maxPerOutput)+1
}

// errorState has the logarithms of two quantiles of errors.
type errorState struct {
	Samples uint64  `json:"samples"`
	Q50     float64 `json:"q50"`
	Q90     float64 `json:"q90"`
}

func (e *errorQuantiles) state() *errorState {
	if e.q90.N == 0 {
		return nil
	}
	return &errorState{e.q90.N, e.q50.At, e.q90.At}
}

// quantiles returns the same quantiles; of nil those without samples.
func (e *errorState) quantiles() (q errorQuantiles) {
	if e != nil {
		q.q50, q.q90 = quantile{e.Samples, e.Q50}, quantile{e.Samples, e.Q90}
	}
	return q
}

// stepState has a median of errors, as parts of Base.
type stepState struct {
	Samples uint64  `json:"samples"`
	Q50     float64 `json:"q50"`
}

func (e *stepError) state() *stepState {
	if e.q50.N == 0 {
		return nil
	}
	return &stepState{e.q50.N, e.q50.At}
}

// median returns the same median; of nil that without samples.
func (s *stepState) median() (of stepError) {
	if s != nil {
		of.q50 = quantile{s.Samples, s.Q50}
	}
	return of
}

// plausible reports whether the median is one of such errors.
func (s *stepState) plausible() bool { return s == nil || math.Abs(s.Q50) <= 2 }

type rankTimes struct {
	Worker    uint64  `json:"worker_id"`
	DP        uint32  `json:"dp_rank"`
	Observed  float64 `json:"observed"`  // seconds
	Predicted float64 `json:"predicted"` // seconds

	Errors  *errorState  `json:"errors,omitempty"`
	Outputs *outputState `json:"outputs,omitempty"`
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
		Products: l.fit.products, Times: l.fit.times, Theta: l.fit.theta, Errors: l.errors.state(), Outputs: l.outputs.state(),
		Answers: l.answers.state(), InStep: l.inStep.state(),
	}
	add := func(r catalog.Rank, of known) {
		s.Ranks = append(s.Ranks, rankTimes{
			Worker: r.Worker, DP: r.DP, Observed: of.ratio.Observed, Predicted: of.ratio.Predicted, Errors: of.errors.state(), Outputs: of.outputs.state(),
		})
	}
	for _, of := range *l.ranks.Load() {
		if of != nil {
			add(of.rank, known{of.ratio, of.errors, of.outputs})
		}
	}
	for r, of := range l.restored {
		add(r, of)
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
		l.restored[catalog.Rank{Worker: r.Worker, DP: r.DP}] = known{ratio{r.Observed, r.Predicted}, r.Errors.quantiles(), r.Outputs.times()}
	}
	l.errors, l.outputs, l.answers, l.inStep = s.Errors.quantiles(), s.Outputs.times(), s.Answers.times(), s.InStep.median()
	m := *l.model.Load()
	m.PerOutput = l.outputs.perToken()
	if l.samples >= learnedSamples {
		m.Parameters, m.Calibration = l.parameters(), l.errors.calibration()
	}
	m.PerAttended, m.Output = l.answers.perAttended(), l.answers.output()
	l.model.Store(&m)
	return nil
}

// plausible reports whether the quantiles are such as errors have.
func (e *errorState) plausible() bool {
	most := math.Log(maxError) + 1
	return e == nil || math.Abs(e.Q50) <= most && math.Abs(e.Q90) <= most
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
		ok = ok && r.Errors.plausible() && r.Outputs.plausible()
	}
	ok = ok && s.Errors.plausible() && s.Outputs.plausible() && s.Answers.plausible() && s.InStep.plausible()
	return ok
}
