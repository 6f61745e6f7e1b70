package reports_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/engines/load"
	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/simulation/engine"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// play is a fleet of simulated engines of which a third of the load comes around the service.
type play struct {
	*world
	engines  []*engine.Engine
	rnd      *rand.Rand
	began    time.Time
	requests map[string]*played
	n        int
	sum      time.Duration // of the TTFT of the service's requests
	first    int           // their number
	late     []func()      // reports that are on their way
	due      []time.Time
}

type played struct {
	engine  int
	prompt  int
	made    int
	placed  bool // by the service
	started bool
}

const (
	playEngines = 8
	playTokens  = 16 // of a block
	// One request of 3000 tokens on average takes 0.25 s of an engine.
	playRate = 12000
)

// sourced says which engines report, how old their reports are on arrival, and for how long they do.
type sourced struct {
	engines int
	age     time.Duration
	until   time.Duration
}

// meanTTFT plays random requests for so long and returns the mean time to first token of those that
// the service has placed.
func meanTTFT(t *testing.T, length time.Duration, seed uint64, of sourced, change ...func(*node.Config)) (mean time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		p := &play{world: start(t, 0, change...), rnd: rand.New(rand.NewPCG(seed, 11)), began: time.Now(), requests: make(map[string]*played)}
		for id := range uint64(playEngines) {
			p.Put(servicetest.Record(id, 1, func(r *catalog.Record) { r.BlockSize = new(uint32(playTokens)) }))
			p.engines = append(p.engines, engine.New(engine.Config{
				BlockSize: playTokens, CacheBlocks: 100_000, PrefillRate: playRate, DecodeRate: 50, HashSeed: id,
			}))
		}
		next, report := p.now(), time.Duration(0)
		for p.now() < length {
			until := min(next, report)
			for _, e := range p.engines {
				if at, some := e.Next(); some {
					until = min(until, at)
				}
			}
			if len(p.due) > 0 {
				until = min(until, p.due[0].Sub(p.began))
			}
			time.Sleep(until - p.now())
			for i := range p.engines {
				p.advance(i)
			}
			for len(p.due) > 0 && !p.due[0].After(time.Now()) {
				p.late[0]()
				p.late, p.due = p.late[1:], p.due[1:]
			}
			if p.now() >= report {
				report += 200 * time.Millisecond
				for i := range min(of.engines, playEngines) {
					if p.now() < of.until {
						p.tell(i, of.age)
					}
				}
				synctest.Wait()
			}
			if p.now() >= next {
				p.arrive()
				next += time.Duration(p.rnd.ExpFloat64() * float64(time.Second) / (playEngines * 4 * 0.75))
			}
		}
		mean = p.sum / time.Duration(p.first)
	})
	return mean
}

func (p *play) now() time.Duration { return time.Since(p.began) }

// arrive submits a request. Those of the third that goes around the service come in turns of five
// seconds to two of the engines, as from clients that know these.
func (p *play) arrive() {
	p.n++
	id := fmt.Sprint(p.n)
	r := &played{prompt: 500 + p.rnd.IntN(5000), placed: p.rnd.IntN(3) > 0}
	r.engine = 2*int(p.now()/(5*time.Second))%playEngines + p.rnd.IntN(2)
	prompt := make([]uint32, r.prompt)
	for i := range prompt {
		prompt[i] = p.rnd.Uint32()
	}
	if r.placed {
		hashes := servicetest.Sequence(prompt, playTokens)
		req := &selection.SelectRequest{Scope: servicetest.Scope, ReservationID: &id, Prompt: selection.Prompt{
			BlockHashes: servicetest.Local(prompt, playTokens), HasBlockHashes: true,
			SequenceHashes: hashes, HasSequenceHashes: true, ISLTokens: uint64(r.prompt), HasISLTokens: true,
		}}
		sel, err := p.Select(context.Background(), req, true)
		if err != nil {
			p.T.Fatal(err)
		}
		r.engine = int(sel.Rank.Worker)
	}
	p.requests[id] = r
	if err := p.engines[r.engine].Submit(p.now(), engine.Request{ID: id, Prompt: prompt, Output: make([]uint32, 20+p.rnd.IntN(100))}); err != nil {
		p.T.Fatal(err)
	}
	p.advance(r.engine)
}

// advance runs an engine up to now, and reports its steps to the service.
func (p *play) advance(i int) {
	for _, u := range p.engines[i].Advance(p.now()) {
		r := p.requests[u.Request]
		if r == nil {
			continue
		}
		r.made = u.Tokens
		switch u.Kind {
		case engine.FirstToken:
			r.started = true
			if r.placed {
				p.sum, p.first = p.sum+u.TTFT, p.first+1
				_ = p.PrefillComplete(u.Request)
			}
		case engine.Done:
			if r.placed {
				_ = p.Free(u.Request)
			}
			delete(p.requests, u.Request)
		case engine.OutputBlock:
			if r.placed {
				_ = p.OutputBlock(u.Request, nil)
			}
		}
	}
}

// tell reports what an engine has, which arrives after the given time.
func (p *play) tell(i int, after time.Duration) {
	e := p.engines[i]
	used, uncached := 0, 0
	for _, r := range p.requests {
		switch {
		case r.engine != i:
		case r.started:
			used += r.prompt + r.made
		default:
			uncached += r.prompt
		}
	}
	totals := e.Totals()
	report := load.Report{
		Running: load.Known(uint64(e.Running())), Waiting: load.Known(uint64(e.Waiting())), KVTokensUsed: load.Known(uint64(used)),
		WaitingUncachedTokens: load.Known(uint64(uncached)), PrefillTokens: load.Known(uint64(totals.PromptTokens)),
		PrefillBusyMicros: load.Known(uint64(totals.PrefillBusy.Microseconds())), Source: load.Push, Interval: time.Second,
	}
	if after == 0 {
		p.report(uint64(i), report)
		return
	}
	p.late = append(p.late, func() { p.report(uint64(i), report) })
	p.due = append(p.due, time.Now().Add(after))
}

// TestLoadAroundTheService: where a third of the load goes around the service, the mean time to
// first token with reports is at most 0.75 of that without; with reports that are 2 s old, or from
// half of the fleet, it is no worse, and with reports that have ended long ago it is the same.
func TestLoadAroundTheService(t *testing.T) {
	seeds, length := uint64(10), time.Minute
	policies := map[string]func(*node.Config){
		"default":        func(*node.Config) {},
		"predicted-ttft": servicetest.Policy(t, "predicted-ttft", ""),
	}
	tests := []struct {
		name  string
		of    sourced
		most  float64 // of the mean without reports
		least float64
	}{
		{"with", sourced{playEngines, 0, time.Hour}, 0.75, 0},
		{"2 s old", sourced{playEngines, 2 * time.Second, time.Hour}, 1.03, 0},
		{"half", sourced{playEngines / 2, 0, time.Hour}, 1.03, 0},
		{"stale", sourced{playEngines, 0, time.Second}, 1.1, 0.9},
	}
	if testing.Short() { // once for each policy, with a margin
		seeds, length, tests = 1, 15*time.Second, tests[:1]
		tests[0].most = 0.9
	}
	for name, policy := range policies {
		t.Run(name, func(t *testing.T) {
			mean := func(of sourced) float64 {
				sum := time.Duration(0)
				for seed := range seeds {
					sum += meanTTFT(t, length, 1000+seed, of, policy)
				}
				return sum.Seconds() / float64(seeds)
			}
			without := mean(sourced{})
			for _, test := range tests {
				ratio := mean(test.of) / without
				t.Logf("%s: %.3f of %.3f s", test.name, ratio, without)
				if ratio > test.most || ratio < test.least {
					t.Errorf("%s: %.3f of that without, want %g to %g", test.name, ratio, test.least, test.most)
				}
			}
		})
	}
}
