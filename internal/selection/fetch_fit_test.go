package selection_test

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/engines/load"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/selector"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// fitSource is a source as the test has made it.
type fitSource struct {
	id       uint64
	engine   *servicetest.Engine
	held     map[uint64]bool // names of blocks
	absent   bool
	draining bool
	quiet    time.Time // since when it says nothing; zero: it speaks
	awaited  bool      // it has work while it is quiet
	busy     string    // a reservation of three seconds that it works on; "": none
	since    time.Time // when that was booked
}

// unfit says why the source must not be named, "" if it may be. What is quiet is noticed after 15 s, and looked at every second.
func (s *fitSource) unfit(mode selector.FetchMode) string {
	switch {
	case s.absent:
		return "absent"
	case s.draining:
		return "draining"
	case !s.quiet.IsZero() && time.Since(s.quiet) > 25*time.Second && s.awaited:
		return "stalled"
	case !s.quiet.IsZero() && time.Since(s.quiet) > 25*time.Second:
		return "silent"
	case mode == selector.FetchPriced && s.busy != "" && time.Since(s.since) < time.Second: // a fetch saves less than a second
		return "busy"
	}
	return ""
}

// TestSourcesAreFit: whatever becomes of the sources, one that is named is registered, neither drains nor is silent, stalled or, if
// fetches are priced, busier than a fetch saves, and it has every block that is named, at that moment.
func TestSourcesAreFit(t *testing.T) {
	for seed := range uint64(2) {
		for _, mode := range []selector.FetchMode{selector.FetchContract, selector.FetchPriced} {
			synctest.Test(t, func(t *testing.T) {
				w := startFetch(t, mode)
				w.learn()
				r := rand.New(rand.NewPCG(seed, uint64(mode)))
				record := func(s *fitSource) catalog.Record {
					return servicetest.Record(s.id, 1, hinted("decode"), func(of *catalog.Record) {
						of.KVTransferDomain, of.Revision = new("a"), new("v1")
						if s.draining {
							of.Draining = "leaves"
						}
					})
				}
				put := func(s *fitSource) {
					if _, err := w.PutWorker(record(s)); err != nil {
						t.Fatal(err)
					}
				}
				report := func(s *fitSource) {
					w.Reports().Report(catalog.Rank{Worker: s.id}, load.Report{Source: load.Push, Interval: time.Second, Running: load.Known(0)}, time.Now())
				}
				var sources []*fitSource
				for id := range uint64(4) {
					s := &fitSource{id: 11 + id, held: make(map[uint64]bool)}
					put(s)
					s.engine = w.Engine(s.id, 0)
					s.engine.NameSalt = s.id
					sources = append(sources, s)
				}
				pass := func(seconds int) {
					for range seconds {
						for _, s := range sources {
							if s.quiet.IsZero() && !s.absent {
								report(s)
							}
						}
						time.Sleep(time.Second)
					}
				}
				pass(3)
				named, kept := 0, map[string]int{}
				var prompts [][]uint32
				for range 300 {
					prompt := w.fresh(256 + 16*r.IntN(40)) // computing takes less than a second
					if prompts = append(prompts, prompt); r.IntN(3) > 0 {
						prompt = prompts[max(0, len(prompts)-1-r.IntN(5))]
					}
					for _, s := range sources {
						if !s.quiet.IsZero() || s.absent || r.IntN(3) == 0 || s.held[s.engine.Names(prompt, servicetest.BlockSize)[0]] {
							continue // a block that is announced twice has to be evicted twice
						}
						own := prompt[:servicetest.BlockSize*(1+r.IntN(len(prompt)/servicetest.BlockSize))]
						s.engine.Publish(0, s.engine.Stored(own, servicetest.BlockSize, nil))
						for _, name := range s.engine.Names(own, servicetest.BlockSize) {
							s.held[name] = true
						}
					}
					s := sources[r.IntN(len(sources))]
					do := r.IntN(8)
					switch {
					case s.absent:
						do = 2
					case !s.quiet.IsZero() && r.IntN(2) == 0, do == 6:
						do = 1
					case s.draining:
						do = 0
					}
					switch do {
					case 0:
						if !s.absent {
							s.draining = !s.draining
							put(s)
						}
					case 1: // quiet, with work or without
						if s.quiet.IsZero() && !s.absent && s.busy == "" {
							if s.quiet, s.awaited = time.Now(), r.IntN(2) == 0; s.awaited {
								w.Await(servicetest.Scope, catalog.Rank{Worker: s.id})
							}
							pass(30)
						} else if !s.absent && s.busy == "" {
							if s.awaited {
								w.Awaited(servicetest.Scope, catalog.Rank{Worker: s.id}, true)
							}
							s.quiet, s.awaited = time.Time{}, false
						}
					case 2:
						if !s.absent && s.quiet.IsZero() && s.busy == "" && r.IntN(2) == 0 {
							s.absent, s.draining = true, false
							clear(s.held)
							w.Remove(s.id)
						} else if s.absent {
							s.absent = false
							put(s)
						}
					case 3:
						if s.unfit(mode) == "" && s.quiet.IsZero() {
							s.busy, s.since = *w.book(&s.id, w.fresh(3000)).ReservationID, time.Now()
						}
					default: // a part is evicted
						if s.quiet.IsZero() && !s.absent {
							from := r.IntN(len(prompt) / servicetest.BlockSize)
							s.engine.Publish(0, s.engine.Removed(prompt, servicetest.BlockSize, from, "GPU"))
							for _, name := range s.engine.Names(prompt, servicetest.BlockSize)[from:] {
								delete(s.held, name)
							}
						}
					}
					w.Settle()
					got := w.book(new(2+r.Uint64N(2)), prompt)
					if f := got.Fetch; f != nil {
						named++
						i := f.Source.Worker - 11
						if i >= uint64(len(sources)) {
							t.Fatalf("%v is named, which has nothing", f.Source)
						}
						if why := sources[i].unfit(mode); why != "" {
							t.Errorf("%s: %v is named, which is %s", mode, f.Source, why)
						}
						for _, name := range f.Hashes {
							if !sources[i].held[name] {
								t.Fatalf("%s: %v does not have block %x", mode, f.Source, name)
							}
						}
					}
					for _, of := range sources { // that would be named else
						if why := of.unfit(mode); why != "" && (of.absent || of.held[of.engine.Names(prompt, servicetest.BlockSize)[0]]) {
							kept[why]++
						}
					}
					w.finish(*got.ReservationID, w.took(&got, len(prompt)))
					if s.busy != "" {
						if err := w.Free(s.busy); err != nil {
							t.Fatal(err)
						}
						s.busy = ""
					}
					pass(1)
				}
				if named < 50 || kept["draining"] < 3 || kept["silent"] < 3 || kept["stalled"] < 3 || mode == selector.FetchPriced && kept["busy"] < 3 {
					t.Errorf("%s: %d sources were named; others were %v", mode, named, kept)
				}
			})
		}
	}
}

// took returns how long the engine of a booking takes to the first token, if it has nothing of the prompt itself.
func (w *fetchWorld) took(got *selection.Selection, tokens int) float64 {
	took, left := 0.0, tokens
	if f := got.Fetch; f != nil {
		n := min(tokens-1, len(f.Hashes)*servicetest.BlockSize)
		took, left = w.setup[got.Rank.Worker]+w.perToken[got.Rank.Worker]*float64(n), tokens-n
	}
	return took + w.theta.Prefill(float64(left), float64(tokens))
}
