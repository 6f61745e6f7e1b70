package rankstate_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/select-service/select-service/internal/engines/reports"
	"github.com/select-service/select-service/internal/selection/rankstate"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/kvevents"
)

// TestJudge has the state of a rank for each fact, and for facts that hold together. What the states mean
// for requests is in docs/how-it-works/engine-load.md, docs/run/draining.md and docs/run/overload.md.
func TestJudge(t *testing.T) {
	worker := func(l catalog.Lifecycle, reasons ...string) *catalog.Worker {
		return &catalog.Worker{Record: catalog.Record{ID: 1, Size: new(uint32(2))}, Lifecycle: l, Reasons: reasons}
	}
	stream := func(s kvevents.StreamState, lag int, lost uint64) rankstate.Stream {
		return rankstate.Stream{Known: true, State: s, Lag: lag, Lost: lost}
	}
	schedulable := worker(catalog.Schedulable)
	everything := rankstate.Facts{Liveness: reports.Stalled, Overloaded: true, Stream: stream(kvevents.Stale, 1, 1)}
	with := func(f rankstate.Facts, w *catalog.Worker) rankstate.Facts {
		f.Worker = w
		return f
	}
	tracked := worker(catalog.Incomplete, "of the slot tracker")
	tracked.Tracked = true
	for name, tt := range map[string]struct {
		facts     rankstate.Facts
		state     rankstate.State
		causes    string
		urgency   uint8
		candidate bool
		reason    string
	}{
		"nothing is wrong":           {facts: rankstate.Facts{Worker: schedulable}, candidate: true},
		"live events":                {facts: rankstate.Facts{Worker: schedulable, Stream: stream(kvevents.Live, 0, 0)}, candidate: true},
		"incomplete":                 {rankstate.Facts{Worker: worker(catalog.Incomplete, "endpoint is required", "cordoned")}, rankstate.Incomplete, "worker_incomplete", 7, false, "endpoint is required"},
		"incomplete, without reason": {rankstate.Facts{Worker: worker(catalog.Incomplete)}, rankstate.Incomplete, "worker_incomplete", 7, false, ""},
		"draining":                   {rankstate.Facts{Worker: worker(catalog.Draining, "drained over the API")}, rankstate.Draining, "worker_draining", 3, false, "drained over the API"},
		"being removed":              {rankstate.Facts{Worker: worker(catalog.Draining)}, rankstate.Draining, "worker_draining", 3, false, "its ranks are being taken away"},
		"rank of events alone":       {rankstate.Facts{Worker: schedulable, DP: 2}, rankstate.Incomplete, "not_in_record", 3, false, "the worker's record has another range of ranks: only the KV events of this one are read"},
		"slot tracker":               {rankstate.Facts{Worker: tracked}, rankstate.Ready, "slot_tracker", 0, false, ""},
		"silent":                     {rankstate.Facts{Worker: schedulable, Liveness: reports.Silent}, rankstate.Silent, "engine_silent", 9, true, "the engine gives no sign of life"},
		"stalled":                    {rankstate.Facts{Worker: schedulable, Liveness: reports.Stalled}, rankstate.Stalled, "engine_stalled", 8, true, "the engine has unfinished work and gives no sign of life"},
		"overloaded":                 {rankstate.Facts{Worker: schedulable, Overloaded: true}, rankstate.Overloaded, "worker_overloaded", 4, true, "all ranks of the worker are above a busy threshold"},
		"stale":                      {rankstate.Facts{Worker: schedulable, Stream: stream(kvevents.Stale, 0, 12)}, rankstate.Ready, "stream_stale stream_lost", 5, true, ""},
		"not connected":              {rankstate.Facts{Worker: schedulable, Stream: stream(kvevents.Connecting, 0, 0)}, rankstate.Ready, "stream_down", 2, true, ""},
		"replaying":                  {rankstate.Facts{Worker: schedulable, Stream: stream(kvevents.Replaying, 3, 0)}, rankstate.Ready, "stream_replaying stream_behind", 2, true, ""},
		"lost before":                {rankstate.Facts{Worker: schedulable, Stream: stream(kvevents.Live, 0, 1)}, rankstate.Ready, "stream_lost", 1, true, ""},
		"behind":                     {rankstate.Facts{Worker: schedulable, Stream: stream(kvevents.Live, 1, 0)}, rankstate.Ready, "stream_behind", 1, true, ""},

		// All causes hold; the first decides. Stale events of an overloaded rank are more urgent than its load.
		"everything":           {with(everything, schedulable), rankstate.Stalled, "engine_stalled worker_overloaded stream_stale stream_behind stream_lost", 8, true, "the engine has unfinished work and gives no sign of life"},
		"stale and overloaded": {rankstate.Facts{Worker: schedulable, Overloaded: true, Stream: stream(kvevents.Stale, 0, 0)}, rankstate.Overloaded, "worker_overloaded stream_stale", 5, true, "all ranks of the worker are above a busy threshold"},
		// What gets no requests by its record does not need somebody for another reason too.
		"everything, draining":     {with(everything, worker(catalog.Draining, "cordoned")), rankstate.Draining, "worker_draining", 3, false, "cordoned"},
		"everything, incomplete":   {with(everything, worker(catalog.Incomplete, "no")), rankstate.Incomplete, "worker_incomplete", 7, false, "no"},
		"everything, slot tracker": {with(everything, tracked), rankstate.Ready, "slot_tracker", 0, false, ""},
	} {
		v := rankstate.Judge(tt.facts)
		var causes []string
		for c := range v.Causes.All {
			causes = append(causes, c.String())
		}
		if got := strings.Join(causes, " "); v.State != tt.state || got != tt.causes || v.Urgency() != tt.urgency || v.IsCandidate() != tt.candidate || v.Reason(tt.facts.Worker) != tt.reason {
			t.Errorf("%s: %s, %s, urgency %d, candidate %v, %q; want %s, %s, %d, %v, %q", name,
				v.State, got, v.Urgency(), v.IsCandidate(), v.Reason(tt.facts.Worker), tt.state, tt.causes, tt.urgency, tt.candidate, tt.reason)
		}
	}
}

// TestCauses: every cause and every state has a name of its own, as answers need it.
func TestCauses(t *testing.T) {
	var names []string
	for c := range rankstate.Cause(rankstate.NumCauses) {
		names = append(names, c.String())
	}
	for s := range rankstate.NumStates {
		names = append(names, rankstate.State(s).String())
	}
	slices.Sort(names)
	if all := len(names); len(slices.Compact(names)) != all || slices.Contains(names, "") {
		t.Errorf("the names are %q", names)
	}
}
