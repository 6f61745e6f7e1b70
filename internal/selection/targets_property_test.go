package selection_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/selector/ttft"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// fleet is a service on engines of different speeds and of predictions that scatter differently.
type fleet struct {
	*servicetest.World
	t     *testing.T
	rnd   *rand.Rand
	live  []string // reservations whose prefills are not reported
	asked uint32
}

// newFleet starts a service that has observed 100 answers of each worker.
func newFleet(t *testing.T, seed uint64, workers uint64) *fleet {
	f := &fleet{World: predicting(t, workers), t: t, rnd: rand.New(rand.NewPCG(seed, 46))}
	for i := range 100 * workers {
		id := f.book(100+f.rnd.IntN(4000), &catalog.Rank{Worker: i % workers})
		of := float64(i % workers)
		took := (1 + of/2) * targetEngine.Prefill(float64(f.rnd.IntN(3000)+500), 3500) * (1 + 0.2*of*f.rnd.ExpFloat64())
		time.Sleep(time.Duration(took * float64(time.Second)))
		f.do(f.PrefillComplete(id))
		for range 3 {
			time.Sleep(time.Duration((1 + of) * 20 * float64(time.Millisecond)))
			f.do(f.OutputBlock(id, nil))
		}
		f.do(f.Free(id))
	}
	time.Sleep(2 * time.Second)
	return f
}

func (f *fleet) do(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *fleet) book(size int, on *catalog.Rank) (id string) {
	f.t.Helper()
	f.asked++
	id = fmt.Sprint("q", f.asked)
	req := servicetest.Ask(servicetest.Prompt(f.asked<<13, size))
	req.ReservationID, req.Pinned = &id, on
	_, err := f.Select(context.Background(), req, true)
	f.do(err)
	return id
}

// change makes another state: load comes and goes, and now and then no prefill is reported for a long time.
func (f *fleet) change() {
	for range f.rnd.IntN(4) {
		f.live = append(f.live, f.book(200+f.rnd.IntN(12000), nil))
	}
	for len(f.live) > 12 || len(f.live) > 0 && f.rnd.IntN(3) == 0 {
		if f.PrefillComplete(f.live[0]) == nil { // else its time is over
			time.Sleep(100 * time.Millisecond) // else the report counts as late
			f.do(f.Free(f.live[0]))
		}
		f.live = f.live[1:]
	}
	pause := 2 * f.rnd.Float64()
	if f.rnd.IntN(15) == 0 {
		pause = 90
	}
	time.Sleep(time.Duration(pause * float64(time.Second)))
}

// state is what decides on a target, as it is shown: the candidates of a request without a target, the ninth decile of each
// worker's errors, and the workers with a guard rail.
type state struct {
	candidates []selection.ExplainedRank
	margins    map[uint64]float64
	railed     map[uint64]bool
	predicts   bool // no guard rail of the scope is engaged
}

func (f *fleet) state(req selection.SelectRequest) state {
	f.t.Helper()
	req.TTFTTarget, req.Deadline = 0, time.Time{}
	x, err := f.Explain(context.Background(), &req)
	f.do(err)
	s := state{candidates: x.Candidates, margins: map[uint64]float64{}, railed: map[uint64]bool{}, predicts: true}
	for _, sample := range f.Metrics()["ttft_rank_error_ratio"] {
		var worker uint64
		if _, err := fmt.Sscan(sample.Labels[4], &worker); err == nil && sample.Labels[2] == "0.9" {
			s.margins[worker] = sample.Value
		}
	}
	for _, rail := range learned(f.World, f.t).Rails {
		if rail.Engaged && (rail.Rail == ttft.LateScope || rail.Rail == ttft.Untracked) {
			s.predicts = false
		}
		for _, r := range rail.Ranks {
			s.railed[r.Worker] = true
		}
	}
	return s
}

// TestTargetsAgainstAnOracle: in random states, of the ranks that are predicted to hold what a request wants, nine times out of ten,
// one with the least cost is chosen. If there is none, it is one with the least predicted time to first token, unless the
// request refuses that, no rank holds it by the prediction alone, or if all goes well there, and one has no guard rail: then
// it is told the least predicted time.
func TestTargetsAgainstAnOracle(t *testing.T) {
	fleets, states := 4, 250
	if testing.Short() {
		fleets, states = 2, 40
	}
	outcomes := map[string]int{}
	for seed := range fleets {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, uint64(seed), uint64(2+seed))
			for range states {
				f.change()
				outcomes[f.compare()]++
			}
		})
	}
	t.Log(outcomes)
	for _, outcome := range []string{"held", "missed", "likely missed", "refused", "railed"} {
		if outcomes[outcome] == 0 {
			t.Errorf("no request was %s: %v", outcome, outcomes)
		}
	}
}

// compare asks for a random target or deadline, and compares what comes of it with what must.
func (f *fleet) compare() (outcome string) {
	t, rnd := f.t, f.rnd
	t.Helper()
	req := servicetest.Ask(servicetest.Prompt(uint32(rnd.IntN(int(f.asked)))<<13, 100+rnd.IntN(8000))) // perhaps its beginning is cached
	within := func(scale float64) time.Duration {
		return time.Duration(scale * math.Exp(2*rnd.NormFloat64()) * float64(time.Second))
	}
	first, answer, output := math.Inf(1), math.Inf(1), 0.0
	if rnd.IntN(3) > 0 {
		req.TTFTTarget = within(4) + time.Millisecond
		first = req.TTFTTarget.Seconds()
	}
	if first == math.Inf(1) || rnd.IntN(3) == 0 {
		after := within(10) + time.Millisecond
		req.Deadline = time.Now().Add(after)
		answer = after.Seconds()
	}
	if rnd.IntN(2) == 0 {
		req.ExpectedOutputTokens = new(rnd.Uint32N(300))
		output = float64(*req.ExpectedOutputTokens)
	}
	req.RefuseOnMiss = rnd.IntN(2) == 0
	s := f.state(*req)
	if !s.predicts {
		t.Fatal("a guard rail of the scope is engaged")
	}

	model, queues := learned(f.World, t), map[catalog.Rank]ttft.Queue{}
	for _, r := range model.Ranks {
		queues[r.Rank] = r.Queue
	}
	leastCost, leastTime, free, mayHold := math.Inf(1), math.Inf(1), false, false
	holds := map[uint64]bool{}
	for _, c := range s.candidates {
		of := c.Rank.Worker
		free = free || !s.railed[of]
		leastTime = min(leastTime, c.TTFT())
		likely := c.TTFT() * s.margins[of]
		if s.margins[of] < 1e-9 || c.PerOutput == 0 {
			t.Fatalf("nothing is known of %v", c.Rank)
		}
		sooner := min(c.Predicted.Prefill, c.Predicted.Speed*model.InStep) // as ttft.Parameters.Soonest says
		if q := queues[c.Rank]; q.Prefills == 0 && q.Decoding > 0 {
			sooner = 0
		} else if q.Prefills > 0 && model.PerToken*q.Tokens+model.PerContext*q.Context <= model.Base*float64(q.Prefills) {
			sooner = min(c.Predicted.Wait, c.Predicted.Speed*model.Base*float64(q.Prefills))
		}
		mayHold = mayHold || c.TTFT()-sooner <= first && c.TTFT()-sooner+output*c.PerOutput <= answer
		if likely <= first && likely+output*c.PerOutput <= answer {
			holds[of] = true
			leastCost = min(leastCost, c.Cost)
		}
	}
	sel, err := f.Select(context.Background(), req, false)
	if len(holds) == 0 && req.RefuseOnMiss && free && !mayHold {
		missed, is := errors.AsType[*contract.TargetError](err)
		if !is || math.Abs(missed.Predicted.Seconds()-leastTime) > 1e-6 {
			t.Fatalf("no rank holds %v, %v, and %g s is predicted: %+v, %v", first, answer, leastTime, sel.Rank, err)
		}
		return "refused"
	}
	f.do(err)
	i := slices.IndexFunc(s.candidates, func(c selection.ExplainedRank) bool { return c.Rank == sel.Rank })
	chosen := s.candidates[i]
	switch {
	case len(holds) > 0 && (!holds[sel.Rank.Worker] || chosen.Cost > leastCost+1e-9):
		t.Fatalf("%v was chosen for %g, although %v hold it, for at least %g", sel.Rank, chosen.Cost, holds, leastCost)
	case len(holds) > 0:
		return "held"
	case chosen.TTFT() > leastTime+1e-9:
		t.Fatalf("%v was chosen, with a first token after %g s, not %g", sel.Rank, chosen.TTFT(), leastTime)
	case req.RefuseOnMiss && mayHold:
		return "likely missed"
	case req.RefuseOnMiss:
		return "railed"
	}
	return "missed"
}
