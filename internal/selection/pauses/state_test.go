package pauses_test

import (
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/select-service/select-service/internal/selection/pauses"
)

// TestRestore: a learner goes on with what another one knew, after minutes when most sessions may still come back as well as after hours,
// and has forgotten how sure that was no more than the other one.
func TestRestore(t *testing.T) {
	for _, length := range []time.Duration{10 * time.Minute, 5 * time.Hour} {
		rnd := rand.New(rand.NewPCG(3, uint64(length)))
		l := pauses.New(start, time.Hour)
		truth := pauses.Pauses{Share: 0.8, Mu: 1, Sigma: 0.5, Horizon: time.Hour}
		now := play(l, pauses.Agent, truth, time.Second, length, rnd)
		text, err := json.Marshal(l.Kept(now)[scope])
		if err != nil {
			t.Fatal(err)
		}
		var s pauses.State
		if err := json.Unmarshal(text, &s); err != nil {
			t.Fatal(err)
		}
		again := pauses.New(now, time.Hour)
		if err := again.Restore(scope, s); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		for _, c := range []pauses.Class{pauses.Chat, pauses.Agent, pauses.SubAgent} {
			was, is := l.Pauses(scope, c, now), again.Pauses(scope, c, now)
			if math.Abs(was.Share-is.Share) > 0.02 || was.Mu != is.Mu || was.Sigma != is.Sigma {
				t.Errorf("after %v, %v: %+v, before %+v", length, c, is, was)
			}
		}
		// What comes later outweighs it.
		for i := range 1000 {
			again.Ended(scope, pauses.Agent, now.Add(time.Duration(i)*time.Second))
		}
		if p := again.Pauses(scope, pauses.Agent, now.Add(3*time.Hour)); p.Share > 0.2 {
			t.Errorf("after %v, and 1,000 sessions that have not come back: %+v", length, p)
		}
		if got := len(again.Kept(now.Add(3 * time.Hour))); got != 1 {
			t.Errorf("%d scopes are kept", got)
		}
	}
}

// TestRestoreImpossible: what no learner can have known is refused, and changes nothing.
func TestRestoreImpossible(t *testing.T) {
	good := pauses.Known{Samples: 20, Mu: 1, Variance: 1, Ended: 100, Returned: 50}
	for name, change := range map[string]func(k *pauses.Known){
		"more have come back": func(k *pauses.Known) { k.Returned = 101 },
		"too many":            func(k *pauses.Known) { k.Ended = 1e9 },
		"below none":          func(k *pauses.Known) { k.Returned = -1 },
		"no number":           func(k *pauses.Known) { k.Ended = math.NaN() },
		"no mean":             func(k *pauses.Known) { k.Mu = math.Inf(1) },
		"too long":            func(k *pauses.Known) { k.Mu = 9 },
		"too wide":            func(k *pauses.Known) { k.Variance = 1e6 },
		"of no samples":       func(k *pauses.Known) { k.Samples = 0 },
		"samples below none":  func(k *pauses.Known) { k.Samples = -1 },
		"samples for ever":    func(k *pauses.Known) { k.Samples = 1 << 40 },
	} {
		bad := good
		change(&bad)
		l := pauses.New(start, time.Hour)
		if err := l.Restore(scope, pauses.State{Horizon: time.Hour, Classes: map[string]pauses.Known{"agent": good, "chat": bad}}); err == nil {
			t.Errorf("%s: accepted", name)
		}
		if got := l.Pauses(scope, pauses.Agent, start); got != pauses.Prior(pauses.Agent, time.Hour) {
			t.Errorf("%s: %+v", name, got)
		}
	}
	l := pauses.New(start, time.Hour)
	if err := l.Restore(scope, pauses.State{Horizon: time.Minute, Classes: map[string]pauses.Known{"agent": good}}); !errors.Is(err, pauses.ErrHorizon) {
		t.Errorf("of another time: %v", err)
	}
	if err := l.Restore(scope, pauses.State{Horizon: time.Hour, Classes: map[string]pauses.Known{"of later": good}}); err != nil {
		t.Errorf("of a class that a later program knows: %v", err)
	}
}

// TestRestoreStarted: how many sessions a session starts is known to a later learner. A child whose parent was not counted, as one of a group from
// before the start, does not count; newer parents outweigh earlier ones; and what nobody can have counted is refused.
func TestRestoreStarted(t *testing.T) {
	l := pauses.New(start, time.Hour)
	l.Started(scope, false)
	if got := l.Children(scope); got != 1 {
		t.Errorf("nothing is known: %v", got)
	}
	for range 2 { // 4 children each
		for child := range 4 {
			l.Started(scope, child == 0)
		}
	}
	text, err := json.Marshal(l.Kept(start)[scope])
	if err != nil {
		t.Fatal(err)
	}
	var s pauses.State
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	again := pauses.New(start, time.Hour)
	if err := again.Restore(scope, s); err != nil || again.Children(scope) != 4 {
		t.Fatalf("%s: %v, %v children", text, err, again.Children(scope))
	}
	for range 1000 {
		again.Started(scope, true)
	}
	if err := pauses.New(start, time.Hour).Restore(scope, again.Kept(start)[scope]); err != nil || again.Children(scope) > 1.05 {
		t.Errorf("%v; after 1,000 parents of one child: %v children", err, again.Children(scope))
	}
	for _, bad := range []pauses.Started{
		{Parents: -1, Children: 1},
		{Parents: 2, Children: 1},
		{Children: 1},
		{Parents: 1e9, Children: 1e9},
		{Parents: 1, Children: math.Inf(1)},
		{Parents: math.NaN(), Children: 1},
		{Parents: 1, Children: math.NaN()},
	} {
		l := pauses.New(start, time.Hour)
		if err := l.Restore(scope, pauses.State{Horizon: time.Hour, Started: bad}); err == nil || l.Children(scope) != 1 {
			t.Errorf("%+v: accepted", bad)
		}
	}
}
