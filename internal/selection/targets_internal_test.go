package selection

import (
	"strings"
	"testing"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
)

// TestTargetsAreMonotonic: the time of a first token has the reading of the monotonic clock, which time.Time shows as m=, and so has
// a deadline. A wall clock that jumps makes nobody late.
func TestTargetsAreMonotonic(t *testing.T) {
	deadline, err := DeadlineOf("deadline_ms", 500, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	a := (&API{catalog: catalog.New(catalog.Settings{}, nil)}).newAttempt(&SelectRequest{TTFTTarget: time.Second, Deadline: deadline}, false)
	for name, at := range map[string]time.Time{"target": a.firstToken, "deadline": a.Deadline} {
		if !strings.Contains(at.String(), " m=") {
			t.Errorf("the %s is %v, by the wall clock", name, at)
		}
	}
	if w := a.wanted(); w.first <= 0.5 || w.first > 1 || w.answer <= 0 || w.answer > 0.5 {
		t.Errorf("wanted within %+v", w)
	}
}
