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
	"github.com/select-service/select-service/test/helpers/length"
	"github.com/select-service/select-service/test/helpers/servicetest"
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
		return func(c *node.Config) { change(&c.Selection.Weights) }
	}
	worlds := map[string]func(*node.Config){
		"default":        weights(func(*selector.Weights) {}),
		"requests count": weights(func(w *selector.Weights) { w.ActiveRequests = 0.1 }),
		"fractions":      weights(func(w *selector.Weights) { w.PrefillScale, w.OverlapCredit = 0.3, 0.7 }),
		"much credit":    weights(func(w *selector.Weights) { w.OverlapCredit = 3 }),
		"decode only":    weights(func(w *selector.Weights) { w.TrackPrefill, w.PrefixOnly = false, true }),
		"decay":          weights(func(w *selector.Weights) { w.CreditDecay = 0.5 }),
		"softmax":        weights(func(w *selector.Weights) { w.Temperature = 0.5 }),
		"thresholds":     servicetest.Limits(overload.Thresholds{DecodeBlocks: new(0.9), PrefillTokens: new(uint64(60))}),
		"least-loaded":   servicetest.Policy(t, "least-loaded", ""),
		"lmetric":        servicetest.Policy(t, "lmetric", "hotspot_detection: false"),
		"lmetric, guard": servicetest.Policy(t, "lmetric", ""),
		"encoders":       func(*node.Config) {},
	}
	for name, change := range worlds {
		t.Run(name, func(t *testing.T) {
			h := newChoiceRun(t, change, name == "encoders")
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

// TestChoiceByLoadBesideEncoders: workers that only encode, which take no prompts, cost a wide scope neither the choice by the order
// of loads nor that one of the other ranks is chosen.
func TestChoiceByLoadBesideEncoders(t *testing.T) {
	w := servicetest.Start(t)
	for id := range uint64(40) {
		w.Put(servicetest.Record(id, 1))
		w.Burden(fmt.Sprint(id), id, 0, 1+id, 0)
	}
	for id := range uint64(10) {
		w.Put(servicetest.Record(100+id, 1, role(catalog.RoleEncode)))
	}
	for _, byLoad := range []bool{false, true} { // the first choice asks for the order
		of, err := w.Choose(servicetest.Ask(servicetest.Prompt(1, 16)), false)
		if err != nil || of.ByLoad != byLoad || of.Rank.Worker != 0 {
			t.Errorf("chosen is %v, by load %t, %v", of.Rank, of.ByLoad, err)
		}
	}
}

// choiceRun is one random history.
type choiceRun struct {
	*servicetest.World
	r       *rand.Rand
	local   []uint64
	tokens  []uint32
	live    []string
	ids     int
	workers map[uint64]bool
	encodes bool // every seventh worker only encodes
	cutOff  bool // costs would be negative, and the rank with the most load need not cost most

	choices, byLoad int
	places          [16]float64 // how often the chosen one was in each part of the list of the cheapest
}

func newChoiceRun(t *testing.T, change func(*node.Config), encodes bool) *choiceRun {
	h := &choiceRun{
		World: servicetest.Start(t, change), r: rand.New(rand.NewPCG(1, uint64(len(t.Name())))), workers: make(map[uint64]bool), encodes: encodes,
	}
	h.tokens = servicetest.Prompt(1, 12*servicetest.BlockSize)
	p := servicetest.Hashes(h.tokens)
	h.local = p.BlockHashes
	for id := range uint64(60) {
		h.put(id)
	}
	return h
}

func (c *choiceRun) put(id uint64) {
	c.Put(servicetest.Record(id, 1+uint32(id%3), func(r *catalog.Record) {
		r.TotalKVBlocks = new(uint64(40))
		if id%4 == 0 {
			r.Taints = []string{"a"}
		}
		if c.encodes && id%7 == 6 {
			r.Role = new(catalog.RoleEncode)
		}
	}))
	c.workers[id] = true
}

// change is one step of the history.
func (c *choiceRun) change() {
	entries := c.RanksOf(servicetest.Scope)
	e := entries[c.r.IntN(len(entries))]
	switch n := c.r.IntN(100); {
	case n == 0 && len(c.workers) > 50:
		id := e.Rank.Worker
		c.Remove(id)
		delete(c.workers, id)
	case n == 1 && len(c.workers) < 70:
		for id := range uint64(100) {
			if !c.workers[id] {
				c.put(id)
				break
			}
		}
	case n == 2: // all begin with the same
		for _, e := range entries {
			c.store(e.Slot, indexer.Device, 4)
		}
	case n == 3:
		for _, e := range entries {
			c.Space(servicetest.Scope).Clear(e.Slot)
		}
	case n == 4:
		for _, id := range c.live {
			_ = c.Free(id)
		}
		c.live = nil
		if c.r.IntN(5) == 0 { // foreign loads stay until the next report: with too many different ones every rank is scored
			idle := make([]reservations.RankEngineLoad, len(entries))
			for i, e := range entries {
				idle[i] = reservations.RankEngineLoad{Slot: e.Slot, Rank: e.Rank}
			}
			c.SetEngineLoads(servicetest.Scope, idle)
		}
	case n < 20:
		c.store(e.Slot, indexer.Tier(c.r.IntN(int(indexer.NumTiers))), 1+c.r.IntN(len(c.local)))
	case n < 25:
		c.Space(servicetest.Scope).Clear(e.Slot)
	case n < 30:
		c.SetEngineLoads(servicetest.Scope, []reservations.RankEngineLoad{{Slot: e.Slot, Rank: e.Rank, EngineLoad: reservations.EngineLoad{
			Foreign: reservations.Foreign{Requests: c.r.Uint32N(3), PrefillTokens: c.r.Uint64N(3) * servicetest.BlockSize, Blocks: c.r.Uint64N(4)},
		}}})
	case n < 60:
		c.ids++
		id := fmt.Sprint(c.ids)
		if c.r.IntN(3) == 0 { // shares its beginning with the prompt
			_, err := c.Reserve(&selection.ReserveRequest{
				Scope: servicetest.Scope, ID: id, Rank: e.Rank, Prompt: servicetest.Hashes(c.tokens[:servicetest.BlockSize*(1+c.r.IntN(12))]),
				EffectivePrefillTokens: new(uint64(c.r.IntN(servicetest.BlockSize + 1))),
			})
			if err != nil {
				c.T.Fatal(err)
			}
		} else {
			c.Burden(id, e.Rank.Worker, e.DP, c.r.Uint64N(4), []uint64{0, 4, 8, c.r.Uint64N(50)}[c.r.IntN(4)])
		}
		c.live = append(c.live, id)
	case len(c.live) > 0:
		i := c.r.IntN(len(c.live))
		if c.r.IntN(3) == 0 {
			_ = c.PrefillComplete(c.live[i]) // its worker may have left
			break
		}
		_ = c.Free(c.live[i])
		c.live = slices.Delete(c.live, i, i+1)
	}
}

// store has a rank hold the first n blocks of the prompt in a tier.
func (c *choiceRun) store(slot uint32, tier indexer.Tier, n int) {
	names := make([]uint64, n)
	for i := range names {
		names[i] = uint64(i) + 1
	}
	c.Space(servicetest.Scope).Store(&indexer.Store{Slot: slot, Tier: tier, EngineHashes: names, Local: c.local[:n]})
}

// request is a random one.
func (c *choiceRun) request() *selection.SelectRequest {
	req := &selection.SelectRequest{Scope: servicetest.Scope, Prompt: servicetest.Hashes(c.tokens[:servicetest.BlockSize*c.r.IntN(13)])}
	req.Prompt.ISLTokens += uint64(c.r.IntN(servicetest.BlockSize)) + 1
	switch c.r.IntN(20) {
	case 0:
		req.Override.PrefillScale = new(c.r.Float64())
	case 1:
		req.RequiredTaints = []string{"a"}
	case 2:
		req.PreferredTaints = map[string]float32{"a": 0.5}
	case 3:
		req.HasAllowedWorkers = true
		for id := range c.workers {
			if c.r.IntN(2) == 0 || len(req.AllowedWorkers) == 0 {
				req.AllowedWorkers = append(req.AllowedWorkers, id)
			}
		}
	case 4:
		entries := c.RanksOf(servicetest.Scope)
		req.Pinned = &entries[c.r.IntN(len(entries))].Rank
	}
	return req
}

// compare makes some choices of one request, and returns how many.
func (c *choiceRun) compare(anyCost bool) int {
	c.T.Helper()
	const draws = 8
	req := c.request()
	all, err := c.Choose(req, true)
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
		one, errOne := c.Choose(req, false)
		if (err == nil) != (errOne == nil) {
			c.T.Fatalf("error %v by load, %v by a look at all", errOne, err)
		}
		if err != nil {
			continue
		}
		c.choices++
		if one.ByLoad {
			c.byLoad++
		}
		i, is := slices.BinarySearchFunc(cheapest, one.Rank, catalog.Rank.Compare)
		switch {
		case anyCost:
		case !is:
			c.T.Fatalf("chosen %v at %g, cheapest are %v of %v", one.Rank, all.Costs[one.Rank], cheapest, slices.Sorted(maps.Values(all.Costs)))
		case len(cheapest) > 1:
			at := (float64(i) + c.r.Float64()) / float64(len(cheapest))
			c.places[int(at*float64(len(c.places)))]++
		}
		if anyCost {
			continue
		}
		if !c.cutOff && math.Abs(one.Spread-all.Spread) > 1e-9*all.Spread || one.Most != all.Most {
			c.T.Fatalf("spread %g and most blocks %d, want %g and %d", one.Spread, one.Most, all.Spread, all.Most)
		}
	}
	return draws
}

// checkTies checks that none of equals is preferred: chi squared with 15 degrees of
// freedom is above 70 once in 10^8.
func (c *choiceRun) checkTies() {
	c.T.Helper()
	total, sum := 0.0, 0.0
	for _, n := range c.places {
		total += n
	}
	for _, n := range c.places {
		want := total / float64(len(c.places))
		sum += (n - want) * (n - want) / max(want, 1)
	}
	if sum > 70 {
		c.T.Errorf("chi squared is %g, of %v", sum, c.places)
	}
}
