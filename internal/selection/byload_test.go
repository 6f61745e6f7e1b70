package selection_test

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/overload"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/pkg/selector"
	"github.com/select-service/select-service/test/length"
)

// TestChoiceByLoad: over random histories of loads, foreign loads, caches, workers and requests the
// choice by the order of loads is one of the ranks that cost least when all are looked at,
// and each of these is chosen equally often.
func TestChoiceByLoad(t *testing.T) {
	choices := length.Of(1_000_000, 20_000, 10_000)
	if length.Race {
		choices = min(choices, 20_000)
	}
	weights := func(change func(*selector.Weights)) func(*node.Config) {
		return func(c *node.Config) { change(&c.Weights) }
	}
	worlds := map[string]func(*node.Config){
		"default":        weights(func(*selector.Weights) {}),
		"requests count": weights(func(w *selector.Weights) { w.ActiveRequests = 0.1 }),
		"fractions":      weights(func(w *selector.Weights) { w.PrefillScale, w.OverlapCredit = 0.3, 0.7 }),
		"much credit":    weights(func(w *selector.Weights) { w.OverlapCredit = 3 }),
		"decode only":    weights(func(w *selector.Weights) { w.TrackPrefill, w.PrefixOnly = false, true }),
		"decay":          weights(func(w *selector.Weights) { w.CreditDecay = 0.5 }),
		"softmax":        weights(func(w *selector.Weights) { w.Temperature = 0.5 }),
		"thresholds":     limits(overload.Thresholds{DecodeBlocks: new(0.9), PrefillTokens: new(uint64(60))}),
		"least-loaded":   policyType(t, "least-loaded", ""),
		"lmetric":        policyType(t, "lmetric", "hotspot_detection: false"),
		"lmetric, guard": policyType(t, "lmetric", ""),
	}
	for name, change := range worlds {
		t.Run(name, func(t *testing.T) {
			h := newChoiceRun(t, change)
			h.cutOff = name == "much credit" || name == "decode only"
			for n := choices / len(worlds); n > 0; {
				h.change()
				n -= h.compare(name == "softmax" || name == "lmetric, guard") // chance, and what was chosen before
			}
			h.checkTies()
			scans := slices.Contains([]string{"decay", "softmax", "lmetric, guard"}, name)
			if share := float64(h.byLoad) / float64(h.choices); scans != (share == 0) || !scans && share < 0.2 {
				t.Errorf("%.0f %% of the choices were by load", 100*share)
			}
		})
	}
}

// choiceRun is one random history.
type choiceRun struct {
	*world
	r       *rand.Rand
	local   []uint64
	tokens  []uint32
	live    []string
	ids     int
	workers map[uint64]bool
	cutOff  bool // costs would be negative, and the rank with the most load need not cost most

	choices, byLoad int
	places          [16]float64 // how often the chosen one was in each part of the list of the cheapest
}

func newChoiceRun(t *testing.T, change func(*node.Config)) *choiceRun {
	h := &choiceRun{world: start(t, change), r: rand.New(rand.NewPCG(1, uint64(len(t.Name())))), workers: make(map[uint64]bool)}
	h.tokens = prompt(1, 12*blockSize)
	p := hashes(h.tokens)
	h.local = p.BlockHashes
	for id := range uint64(60) {
		h.put(id)
	}
	return h
}

func (h *choiceRun) put(id uint64) {
	h.Put(record(id, 1+uint32(id%3), func(r *catalog.Record) {
		r.TotalKVBlocks = new(uint64(40))
		if id%4 == 0 {
			r.Taints = []string{"a"}
		}
	}))
	h.workers[id] = true
}

// change is one step of the history.
func (h *choiceRun) change() {
	entries := h.RanksOf(scope)
	e := entries[h.r.IntN(len(entries))]
	switch n := h.r.IntN(100); {
	case n == 0 && len(h.workers) > 50:
		id := e.Rank.Worker
		h.Remove(id)
		delete(h.workers, id)
	case n == 1 && len(h.workers) < 70:
		for id := range uint64(100) {
			if !h.workers[id] {
				h.put(id)
				break
			}
		}
	case n == 2: // all begin with the same
		for _, e := range entries {
			h.store(e.Slot, indexer.Device, 4)
		}
	case n == 3:
		for _, e := range entries {
			h.Space(scope).Clear(e.Slot)
		}
	case n == 4:
		for _, id := range h.live {
			_ = h.Free(id)
		}
		h.live = nil
	case n < 20:
		h.store(e.Slot, indexer.Tier(h.r.IntN(int(indexer.NumTiers))), 1+h.r.IntN(len(h.local)))
	case n < 25:
		h.Space(scope).Clear(e.Slot)
	case n < 30:
		h.SetEngineLoads(scope, []reservations.RankEngineLoad{{Slot: e.Slot, Rank: e.Rank, EngineLoad: reservations.EngineLoad{
			Foreign: reservations.Foreign{Requests: h.r.Uint32N(3), PrefillTokens: h.r.Uint64N(3) * blockSize, Blocks: h.r.Uint64N(4)},
		}}})
	case n < 60:
		h.ids++
		id := fmt.Sprint(h.ids)
		if h.r.IntN(3) == 0 { // shares its beginning with the prompt
			_, err := h.Reserve(&selection.ReserveRequest{
				Scope: scope, ID: id, Rank: e.Rank, Prompt: hashes(h.tokens[:blockSize*(1+h.r.IntN(12))]),
				EffectivePrefillTokens: new(uint64(h.r.IntN(blockSize + 1))),
			})
			if err != nil {
				h.T.Fatal(err)
			}
		} else {
			h.Burden(id, e.Rank.Worker, e.DP, h.r.Uint64N(4), []uint64{0, 4, 8, h.r.Uint64N(50)}[h.r.IntN(4)])
		}
		h.live = append(h.live, id)
	case len(h.live) > 0:
		i := h.r.IntN(len(h.live))
		if h.r.IntN(3) == 0 {
			_ = h.PrefillComplete(h.live[i]) // its worker may have left
			break
		}
		_ = h.Free(h.live[i])
		h.live = slices.Delete(h.live, i, i+1)
	}
}

// store has a rank hold the first n blocks of the prompt in a tier.
func (h *choiceRun) store(slot uint32, tier indexer.Tier, n int) {
	names := make([]uint64, n)
	for i := range names {
		names[i] = uint64(i) + 1
	}
	h.Space(scope).Store(&indexer.Store{Slot: slot, Tier: tier, EngineHashes: names, Local: h.local[:n]})
}

// request is a random one.
func (h *choiceRun) request() *selection.SelectRequest {
	req := &selection.SelectRequest{Scope: scope, Prompt: hashes(h.tokens[:blockSize*h.r.IntN(13)])}
	req.Prompt.ISLTokens += uint64(h.r.IntN(blockSize)) + 1
	switch h.r.IntN(20) {
	case 0:
		req.Override.PrefillScale = new(h.r.Float64())
	case 1:
		req.RequiredTaints = []string{"a"}
	case 2:
		req.PreferredTaints = map[string]float32{"a": 0.5}
	case 3:
		req.HasAllowedWorkers = true
		for id := range h.workers {
			if h.r.IntN(2) == 0 || len(req.AllowedWorkers) == 0 {
				req.AllowedWorkers = append(req.AllowedWorkers, id)
			}
		}
	case 4:
		entries := h.RanksOf(scope)
		req.Pinned = &entries[h.r.IntN(len(entries))].Rank
	}
	return req
}

// compare makes some choices of one request, and returns how many.
func (h *choiceRun) compare(anyCost bool) int {
	h.T.Helper()
	const draws = 8
	req := h.request()
	all, err := h.Choose(req, true)
	var cheapest []catalog.Rank
	if err == nil {
		least := math.Inf(1)
		for _, cost := range all.Costs {
			least = min(least, cost)
		}
		for rank, cost := range all.Costs {
			if cost == least {
				cheapest = append(cheapest, rank)
			}
		}
		slices.SortFunc(cheapest, catalog.Rank.Compare)
	}
	for range draws {
		one, errOne := h.Choose(req, false)
		if (err == nil) != (errOne == nil) {
			h.T.Fatalf("error %v by load, %v by a look at all", errOne, err)
		}
		if err != nil {
			continue
		}
		h.choices++
		if one.ByLoad {
			h.byLoad++
		}
		i, is := slices.BinarySearchFunc(cheapest, one.Rank, catalog.Rank.Compare)
		switch {
		case anyCost:
		case !is:
			h.T.Fatalf("chosen %v at %g, cheapest are %v of %v", one.Rank, all.Costs[one.Rank], cheapest, slices.Sorted(maps.Values(all.Costs)))
		case len(cheapest) > 1:
			at := (float64(i) + h.r.Float64()) / float64(len(cheapest))
			h.places[int(at*float64(len(h.places)))]++
		}
		if anyCost {
			continue
		}
		if !h.cutOff && math.Abs(one.Spread-all.Spread) > 1e-9*all.Spread || one.Most != all.Most {
			h.T.Fatalf("spread %g and most blocks %d, want %g and %d", one.Spread, one.Most, all.Spread, all.Most)
		}
	}
	return draws
}

// checkTies checks that none of equals is preferred: chi squared with 15 degrees of
// freedom is above 70 once in 10^8.
func (h *choiceRun) checkTies() {
	h.T.Helper()
	total, sum := 0.0, 0.0
	for _, n := range h.places {
		total += n
	}
	for _, n := range h.places {
		want := total / float64(len(h.places))
		sum += (n - want) * (n - want) / max(want, 1)
	}
	if sum > 70 {
		h.T.Errorf("chi squared is %g, of %v", sum, h.places)
	}
}
