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
}
