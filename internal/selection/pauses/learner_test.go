package pauses_test

import (
	"container/heap"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/select-service/select-service/internal/selection/pauses"
	"github.com/select-service/select-service/pkg/catalog"
)

var (
	start = time.Unix(1_700_000_000, 0)
	scope = catalog.Scope{Model: "m", Tenant: "t"}
)

// events are the ends of pauses, the next one first.
type events []event

type event struct{ ended, back time.Time }

func (e events) Len() int           { return len(e) }
func (e events) Less(i, j int) bool { return e[i].back.Before(e[j].back) }
func (e events) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)        { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	old := *e
	last := old[len(old)-1]
	*e = old[:len(old)-1]
	return last
}

// play has sessions end a turn every interval for the given time, of which a share returns after pauses of truth.
// It returns when it has ended.
func play(l *pauses.Learner, c pauses.Class, truth pauses.Pauses, every, length time.Duration, rnd *rand.Rand) time.Time {
	var open events
	for now := start; now.Before(start.Add(length)); now = now.Add(every) {
		for len(open) > 0 && !open[0].back.After(now) {
			e := heap.Pop(&open).(event)
			l.Returned(scope, c, e.ended, e.back)
		}
		l.Ended(scope, c, now)
		pause := time.Duration(math.Exp(truth.Mu+truth.Sigma*rnd.NormFloat64()) * float64(time.Second))
		if rnd.Float64() < truth.Share && pause < truth.Horizon {
			heap.Push(&open, event{now, now.Add(pause)})
		}
	}
	return start.Add(length)
}

// TestLearns: a service learns the share and the pauses that sessions have. After minutes, when most of those that come back
// have not done so yet, it is not misled by that.
func TestLearns(t *testing.T) {
	for _, x := range []struct {
		name  string
		class pauses.Class
		truth pauses.Pauses
		after time.Duration
	}{
		{"busy agents", pauses.Agent, pauses.Pauses{Share: 0.95, Mu: 0.7, Sigma: 0.8}, 4 * time.Hour},
		{"slow people", pauses.Chat, pauses.Pauses{Share: 0.8, Mu: 5, Sigma: 0.7}, 4 * time.Hour},
		{"slow people, after ten minutes", pauses.Chat, pauses.Pauses{Share: 0.8, Mu: 4.8, Sigma: 1.2}, 10 * time.Minute},
		{"single questions", pauses.Chat, pauses.Pauses{Share: 0.05, Mu: 4, Sigma: 1}, 4 * time.Hour},
	} {
		t.Run(x.name, func(t *testing.T) {
			x.truth.Horizon = time.Hour
			l := pauses.New(start, time.Hour)
			now := play(l, x.class, x.truth, 2*time.Second, x.after, rand.New(rand.NewPCG(1, 2)))
			got := l.Pauses(scope, x.class, now)
			if math.Abs(got.Share-x.truth.Share) > 0.08 {
				t.Errorf("share %.3f, want %.3f", got.Share, x.truth.Share)
			}
			// The last ten pauses make the most of an average with the weight 0.1: its deviation is 0.23 of theirs.
			if math.Abs(got.Mu-x.truth.Mu) > 0.7*x.truth.Sigma || math.Abs(got.Sigma-x.truth.Sigma) > 0.5*x.truth.Sigma {
				t.Errorf("log-normal %.2f/%.2f, want %.2f/%.2f", got.Mu, got.Sigma, x.truth.Mu, x.truth.Sigma)
			}
			for _, other := range []pauses.Class{pauses.Chat, pauses.Agent, pauses.SubAgent} {
				if other != x.class && l.Pauses(scope, other, now) != pauses.Prior(other, time.Hour) {
					t.Errorf("%s has learned from %s", other, x.class)
				}
			}
		})
	}
}

// TestPriorUntilEnough: 20 samples come before anything learned counts (llm-d), for the pauses as for the share.
func TestPriorUntilEnough(t *testing.T) {
	l := pauses.New(start, time.Hour)
	now := start
	for i := range 20 {
		p := l.Pauses(scope, pauses.Agent, now)
		if p != pauses.Prior(pauses.Agent, time.Hour) {
			t.Fatalf("after %d pauses: %+v", i, p)
		}
		l.Ended(scope, pauses.Agent, now)
		now = now.Add(time.Second)
		l.Returned(scope, pauses.Agent, now.Add(-time.Second), now)
		now = now.Add(time.Second)
	}
	now = now.Add(2 * time.Hour)
	p := l.Pauses(scope, pauses.Agent, now)
	// Each of the 20 pauses of 1 s, whose logarithm is 0, takes a tenth off the prior's mean.
	if want := 2.28 * math.Pow(0.9, 20); math.Abs(p.Mu-want) > 1e-9 {
		t.Errorf("mean %v, want %v", p.Mu, want)
	}
	if want := 21.0 / 22; p.Share != want { // Laplace's rule of succession
		t.Errorf("share %v, want %v", p.Share, want)
	}
}

// TestPausesOutOfBounds: what follows at once is no pause, although it is a return; what comes after the horizon is neither.
func TestPausesOutOfBounds(t *testing.T) {
	for _, x := range []struct {
		pause time.Duration
		share float64
	}{{time.Millisecond, 101.0 / 102}, {time.Hour + time.Second, 1.0 / 102}} {
		l := pauses.New(start, 2*time.Hour) // the horizon is at most one
		now := start
		for range 100 {
			l.Ended(scope, pauses.Chat, now)
			l.Returned(scope, pauses.Chat, now, now.Add(x.pause))
			now = now.Add(x.pause)
		}
		got, prior := l.Pauses(scope, pauses.Chat, now.Add(3*time.Hour)), pauses.Prior(pauses.Chat, time.Hour)
		if got.Mu != prior.Mu || got.Sigma != prior.Sigma || math.Abs(got.Share-x.share) > 1e-9 {
			t.Errorf("after pauses of %v: %+v, want the share %v", x.pause, got, x.share)
		}
	}
}

// TestFinalAndLeft: a session that has said that it is done counts as one that does not come back. One that is no longer watched
// counts as far as it was.
func TestFinalAndLeft(t *testing.T) {
	l := pauses.New(start, time.Hour)
	now := start.Add(time.Minute)
	for range 98 {
		l.Ended(scope, pauses.Agent, now)
		l.Final(scope, pauses.Agent, now)
	}
	if p := l.Pauses(scope, pauses.Agent, now); p.Share != 1.0/100 {
		t.Errorf("share %v after 98 last turns", p.Share)
	}
	prior := pauses.Prior(pauses.Chat, time.Hour)
	for range 100 {
		l.Ended(scope, pauses.Chat, now)
		l.Left(scope, pauses.Chat, now, now) // nothing was seen of any
		l.Ended(scope, pauses.SubAgent, now)
	}
	for range 100 {
		l.Left(scope, pauses.SubAgent, now, now.Add(time.Hour)) // all was
	}
	now = now.Add(2 * time.Hour)
	if p := l.Pauses(scope, pauses.Chat, now); p != prior {
		t.Errorf("%+v: learned from sessions that were not watched", p)
	}
	if p := l.Pauses(scope, pauses.SubAgent, now); p.Share != 1.0/102 {
		t.Errorf("share %v after 100 turns without another one", p.Share)
	}
}

// TestLearnerIsBounded: whatever comes in whichever order, shares are chances, the log-normal is one, and forgotten scopes
// leave nothing.
func TestLearnerIsBounded(t *testing.T) {
	for seed := range uint64(50) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		horizon := []time.Duration{1, time.Millisecond, time.Second, time.Minute, time.Hour}[seed%5]
		l := pauses.New(start, horizon)
		now, ended := start, start
		for step := range 500 {
			c := pauses.Class(rnd.IntN(3))
			switch rnd.IntN(6) {
			case 0, 1:
				l.Ended(scope, c, now)
				ended = now
			case 2:
				l.Returned(scope, c, ended, now)
			case 3:
				l.Left(scope, c, ended, now)
			case 4:
				l.Final(scope, c, ended)
			case 5:
				now = now.Add(time.Duration(rnd.Int64N(int64(horizon)/4 + 2)))
				if rnd.IntN(20) == 0 {
					now = now.Add(1000 * time.Hour)
				}
			}
			p := l.Pauses(scope, c, now)
			if !(p.Share > 0 && p.Share < 1 && p.Sigma >= 0.1 && p.Sigma < 100 && math.Abs(p.Mu) < 100) {
				t.Fatalf("seed %d, step %d: %+v", seed, step, p)
			}
			if c := p.Chance(horizon / 2); !(c >= 0 && c <= 1) {
				t.Fatalf("seed %d, step %d: %+v: chance %v", seed, step, p, c)
			}
		}
		l.Forget(func(catalog.Scope) bool { return true })
		if p := l.Pauses(scope, pauses.Agent, now); p != pauses.Prior(pauses.Agent, horizon) {
			t.Fatalf("forgotten, but %+v", p)
		}
	}
}

// BenchmarkTurn is the cost of what a turn adds.
func BenchmarkTurn(b *testing.B) {
	l := pauses.New(start, time.Hour)
	now := start
	b.ReportAllocs()
	for b.Loop() {
		l.Ended(scope, pauses.Agent, now)
		l.Returned(scope, pauses.Agent, now, now.Add(time.Millisecond))
		now = now.Add(2 * time.Millisecond)
		l.Pauses(scope, pauses.Agent, now)
	}
}
