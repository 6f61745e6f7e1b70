package ttft

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"testing"
)

// TestTimePerOutputToken: the median of a rank's answers is learned from answers that scatter, of which a fifth were held up for
// a long time; a rank that is too new has that of its scope, and nothing is known before ten answers.
func TestTimePerOutputToken(t *testing.T) {
	l := NewLearner()
	r := rand.New(rand.NewPCG(3, 4))
	answer := func(slot int, perToken float64) {
		tokens := 16 * (1 + r.IntN(60))
		took := perToken * float64(tokens) * math.Exp(0.2*r.NormFloat64())
		if r.IntN(5) == 0 {
			took += 60 // a client that reads slowly
		}
		l.Generated(uint32(slot), rankOf(slot), Answer{Timed: float64(tokens), Took: took})
	}
	of := func(slot int) float64 { return l.PerOutput(uint32(slot), rankOf(slot)) }
	for i := range 9 {
		answer(0, 0.01)
		if got := of(0); got != 0 {
			t.Errorf("after %d answers a token takes %g s", i+1, got)
		}
	}
	for range 300 {
		answer(0, 0.01)
		answer(1, 0.02)
	}
	// A fifth of the answers are too long, so the median is at 5/8 of the others: 0.2·0.32 above theirs.
	within(t, "rank 0", of(0), 0.01*math.Exp(0.2*0.3186), 0.2)
	within(t, "rank 1", of(1), 0.02*math.Exp(0.2*0.3186), 0.2)
	if got := of(2); got != l.Model().PerOutput || !(got > of(0) && got < of(1)) {
		t.Errorf("a new rank takes %g s, those of its scope %g and %g", got, of(0), of(1))
	}
	b, err := json.Marshal(l)
	if err != nil {
		t.Fatal(err)
	}
	again := NewLearner()
	if err := again.UnmarshalJSON(b); err != nil {
		t.Fatal(err)
	}
	if got := again.Model().PerOutput; got != l.Model().PerOutput {
		t.Errorf("after a restart %g s, not %g", got, l.Model().PerOutput)
	}
	again.Booked(0, 5, rankOf(1), 1, 1) // the rank has another slot now
	if got := again.PerOutput(5, rankOf(1)); got != of(1) {
		t.Errorf("after a restart rank 1 takes %g s, not %g", got, of(1))
	}
	for range 300 { // the rank becomes slower
		answer(0, 0.05)
	}
	within(t, "rank 0, slower", of(0), 0.05*math.Exp(0.2*0.3186), 0.2)
}

// TestImpossibleAnswers: answers that came all at once, without tokens, or by a clock that has jumped teach nothing.
func TestImpossibleAnswers(t *testing.T) {
	l := NewLearner()
	for range 100 {
		l.Generated(0, rankOf(0), Answer{Timed: 16, Took: 200e-6})
		l.Generated(0, rankOf(0), Answer{})
		l.Generated(0, rankOf(0), Answer{Took: 1})
		l.Generated(0, rankOf(0), Answer{Timed: 16, Took: -3600})
		l.Generated(0, rankOf(0), Answer{Timed: 16, Took: 24 * 3600})
	}
	if got := l.PerOutput(0, rankOf(0)); got != 0 {
		t.Errorf("learned %g s", got)
	}
	for _, bad := range []string{"1e300", "-1e300", "3.5", "-11"} { // e^3.5 s is above the bound, e^-11 s below
		if err := NewLearner().UnmarshalJSON([]byte(`{"version": 1, "outputs": {"answers": 20, "q50": ` + bad + `}}`)); err == nil {
			t.Errorf("a file with e^%s s is read", bad)
		}
	}
}
