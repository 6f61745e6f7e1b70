package gateway

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/select-service/select-service/internal/selection/contract"
)

// TestTargetMissed: a client whose target no engine is predicted to hold gets 429 with what is predicted.
func TestTargetMissed(t *testing.T) {
	p := problemOf(context.Background(), contract.NewTargetMissed(contract.TargetError{Predicted: 2800 * time.Millisecond, Over: 90 * time.Second}))
	if p.status != 429 || p.code != "target_missed" || !strings.Contains(p.text, "predicted_ttft_ms: 2800") || p.missed == nil || p.missed.RetryAfter() != 60 {
		t.Errorf("the client gets %+v", p)
	}
	p = problemOf(context.Background(), contract.NewTargetMissed(contract.TargetError{Predicted: 500 * time.Millisecond, Over: time.Second, Waited: true}))
	if p.status != 429 || p.code != "target_missed" || p.text != "All engines are busy: request deadline exceeded (predicted_ttft_ms: 500)." {
		t.Errorf("a client that has waited gets %+v", p)
	}
}

// TestWantsAreMonotonic: what a request wants is kept with the monotonic clock's reading, which time.Time shows as m=, so that a
// wall clock that jumps makes nobody late.
func TestWantsAreMonotonic(t *testing.T) {
	r := &request{}
	w := wants{ttft: "500", deadline: "9000", from: time.Now()}
	if err := w.read(r); err != nil {
		t.Fatal(err)
	}
	for name, at := range map[string]time.Time{"target": r.firstToken, "deadline": r.deadline} {
		if !strings.Contains(at.String(), " m=") {
			t.Errorf("the %s is %v, by the wall clock", name, at)
		}
	}
}
