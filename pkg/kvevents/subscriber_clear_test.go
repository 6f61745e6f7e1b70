package kvevents

import (
	"testing"
	"testing/synctest"
)

// TestEngineClears proves that an engine's clear ends what a stream has missed,
// unless it is another rank's or the stream is about more than the rank.
func TestEngineClears(t *testing.T) {
	own := func(r *rig) string { return r.batch(0, 0, storedEvent(9), clearedEvent) }
	for name, tc := range map[string]struct {
		before func(r *rig) string // the gap
		clear  func(r *rig) string
		want   StreamState
	}{
		"its own":            {clear: own, want: Live},
		"of no stated rank":  {clear: func(r *rig) string { return r.batch(0, nil, clearedEvent) }, want: Live},
		"another rank's":     {clear: func(r *rig) string { return r.batch(0, 1, clearedEvent) }, want: Stale},
		"an unknown rank's":  {clear: func(r *rig) string { return r.batch(0, 2, clearedEvent) }, want: Stale},
		"another owner's":    {clear: func(r *rig) string { return r.batch(0, 0, list{"AllBlocksCleared", "STORE"}) }, want: Stale},
		"a bad one":          {clear: func(r *rig) string { return r.batch(0, 0, list{"AllBlocksCleared", 7}) }, want: Stale},
		"in a bad batch":     {clear: func(r *rig) string { return packed(r, list{1.5, list{clearedEvent}, "x"}) }, want: Stale},
		"an envelope's":      {clear: func(r *rig) string { return r.batch(0, 0, dict{"event_type": "cleared", "event_id": 1}) }, want: Stale},
		"none":               {clear: func(r *rig) string { return r.batch(0, 0, storedEvent(1)) }, want: Stale},
		"several ranks":      {before: func(r *rig) string { return r.batch(0, 1, storedEvent(1)) }, clear: own, want: Stale},
		"beside an envelope": {before: func(r *rig) string { return r.batch(0, 0, dict{"event_type": "cleared", "event_id": 1}) }, clear: own, want: Stale},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, pub := startRig(t, "")
				defer r.stop()
				first := r.batch(0, 0, storedEvent(1))
				if tc.before != nil {
					first = tc.before(r)
				}
				pub.live(0, first)
				pub.live(3, r.batch(0, 0, storedEvent(2)))
				if got := r.state(); got != Stale {
					t.Fatalf("after a gap: %v", got)
				}
				pub.live(4, tc.clear(r))
				if got := r.state(); got != tc.want {
					t.Errorf("state is %v, want %v", got, tc.want)
				}
			})
		})
	}
}
