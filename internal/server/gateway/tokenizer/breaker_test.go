package tokenizer

import (
	"testing"
	"time"
)

// TestBreaker proves when a server is asked: until five failures in a row, then once a
// second, and always once it has answered.
func TestBreaker(t *testing.T) {
	var b breakers
	now := time.Unix(0, 0)
	may := func(server string) bool {
		_, ok := b.allow(server, now)
		return ok
	}
	for range opensAfter {
		if !may("s") {
			t.Fatal("closed too early")
		}
		b.failed("s", now)
	}
	for _, step := range []struct {
		after time.Duration
		want  bool
	}{
		{0, false},
		{999 * time.Millisecond, false},
		{time.Millisecond, true}, // the trial
		{0, false},
		{time.Second, true},
	} {
		now = now.Add(step.after)
		if may("s") != step.want {
			t.Errorf("at %v: not %v", now.Sub(time.Unix(0, 0)), step.want)
		}
	}
	if !may("another") {
		t.Error("another server is not asked")
	}
	b.cancelled("s", time.Time{}) // asked before it opened
	b.cancelled("s", now.Add(-time.Second))
	if may("s") {
		t.Error("a question that was not the last trial ends it")
	}
	b.cancelled("s", now)
	if !may("s") || may("s") {
		t.Error("a trial that was cancelled is not made up for once")
	}
	b.succeeded("s")
	for range opensAfter - 1 {
		b.failed("s", now)
	}
	for range 2 {
		if !may("s") {
			t.Error("failures before an answer count")
		}
	}
}
