package fleet

import (
	"testing"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
)

// drains lists one worker that drains for a minute until a deadline.
func drains(deadline time.Time) []*catalog.Worker {
	w := &catalog.Worker{}
	w.ID, w.Drain = 1, &catalog.Drain{Deadline: deadline, Within: time.Minute}
	return []*catalog.Worker{w}
}

// TestDeadlines: a deadline counts from when this replica learned of the drain, whatever the others' clocks say.
// One that starts while a worker drains goes by the drain's own deadline, so that a restart of all replicas does
// not put it off; a clock that says that the drain begins later does not either. Source: docs/run/draining.md, a worker
// is removed at the deadline.
func TestDeadlines(t *testing.T) {
	now := time.Unix(1000, 0)
	for name, tt := range map[string]struct {
		joined     bool
		left, want time.Duration // until the deadline: by its own clock, and here
	}{
		"begun before the start":    {false, 20 * time.Second, 20 * time.Second},
		"over before the start":     {false, -time.Minute, -time.Minute},
		"a clock ahead at start":    {false, time.Hour, time.Minute},
		"begun now":                 {true, time.Minute, time.Minute},
		"by a clock an hour behind": {true, -time.Hour, time.Minute},
		"by a clock an hour ahead":  {true, time.Hour, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			c := drainClock{joined: tt.joined}
			of := drains(now.Add(tt.left))
			for _, passed := range []time.Duration{0, 10 * time.Second, 30 * time.Second} {
				if got := c.deadlines(of, now.Add(passed), true)[0].Sub(now); got != tt.want {
					t.Errorf("%s later: removed after %s, want %s", passed, got, tt.want)
				}
			}
			// A drain of the same worker that begins later has a deadline of its own.
			later := now.Add(time.Hour)
			if got := c.deadlines(drains(later.Add(-time.Second)), later, true)[0].Sub(later); got != time.Minute {
				t.Errorf("the next drain ends after %s", got)
			}
			if len(c.seen) != 1 {
				t.Errorf("%d drains are remembered", len(c.seen))
			}
		})
	}
	if got := new(drainClock).deadlines([]*catalog.Worker{{Record: catalog.Record{ID: 1, Drain: new(catalog.Drain)}}}, now, true); !got[0].IsZero() {
		t.Errorf("without a limit it ends at %s", got[0])
	}
}
