package policies

import (
	"testing"

	"github.com/select-service/select-service/internal/simulation/workload"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/selector/ttft"
)

// attending is predicted-ttft that keeps what it has learned.
type attending struct {
	ours
	learned *ttft.Parameters
}

func (a attending) Ended(r *Request) {
	a.ours.Ended(r)
	*a.learned = a.Policies(catalog.ScopeFilter{})[0].Learned.Parameters
}

// TestAttendedLearned proves that what a token of context adds to a step of the engines, 44 ns, is learned from answers beside prefills,
// and the mean length of answers. The engine also takes 20 µs for each answer, of which a part is learned as of its context.
func TestAttendedLearned(t *testing.T) {
	requests := workload.DefaultAgents().Generate(2, 600)
	tokens := 0.0
	for i := range requests {
		tokens += float64(len(requests[i].Output)) / float64(len(requests))
	}
	var p ttft.Parameters
	Play(t, equal(2, 8192), requests, func(w *world) Rule {
		return attending{service("predicted-ttft")(w).(ours), &p}
	})
	if ns := 1e9 * p.PerAttended; ns < 0.8*44 || ns > 1.5*44 {
		t.Errorf("learned %.1f ns for a token of context", ns)
	}
	if p.Output < 0.7*tokens || p.Output > 1.3*tokens {
		t.Errorf("answers have %.0f tokens, learned %.0f", tokens, p.Output)
	}
	t.Logf("%.1f ns for a token of context, %.0f tokens of an answer", 1e9*p.PerAttended, p.Output)
}
