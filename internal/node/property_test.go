package node_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/length"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// reservation is what a client remembers of one.
type reservation struct {
	scope   catalog.Scope
	rank    catalog.Rank
	prefill uint64
	slots   bool // by the slot tracker
}

// history plays random registrations and requests of both contracts, and keeps
// the reservations that have to be alive.
type history struct {
	*servicetest.World
	rnd  *rand.Rand
	live map[string]reservation
	next int
}

// TestRandomHistories: after every step of a random history the loads are the sum
// of the live reservations, a chosen rank was eligible, and the reservations that
// went are those whose rank went.
func TestRandomHistories(t *testing.T) {
	seeds := uint64(length.Of(20, 5, 2))
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			h := &history{World: servicetest.Start(t, servicetest.EventsOff), rnd: rand.New(rand.NewPCG(seed, 1)), live: map[string]reservation{}}
			steps := []func(){
				h.register, h.change, h.leave, h.choose, h.choose, h.choose, h.reserve, h.complete, h.end,
				h.slotsRegister, h.slotsLeave, h.slotsAdd,
			}
			for i := range 500 {
				steps[h.rnd.IntN(len(steps))]()
				h.check()
				if i%10 == 9 { // gathering all metrics costs more than the other checks together
					h.checkMetric()
				}
				if t.Failed() {
					return
				}
			}
			for id := range uint64(6) {
				_, _ = h.DeleteWorker(id)
				_ = h.SlotsUnregister(catalog.Scope{Model: "a", Tenant: "t"}, id)
				_ = h.SlotsUnregister(catalog.Scope{Model: "b", Tenant: "t"}, id)
			}
			h.dropLost()
			h.check()
			h.checkMetric()
			if len(h.live) > 0 {
				t.Errorf("%d reservations outlived the workers", len(h.live))
			}
		})
	}
}

func (h *history) scope() catalog.Scope {
	return catalog.Scope{Model: []string{"a", "b"}[h.rnd.IntN(2)], Tenant: "t"}
}

func (h *history) taints() []string {
	return slices.DeleteFunc([]string{"x", "y"}, func(string) bool { return h.rnd.IntN(2) == 0 })
}

func (h *history) register() {
	r := servicetest.Record(h.rnd.Uint64N(6), 1+h.rnd.Uint32N(3), func(r *catalog.Record) {
		r.Scope, r.Taints, r.StartRank = h.scope(), h.taints(), new(h.rnd.Uint32N(2))
		if h.rnd.IntN(8) == 0 {
			r.BlockSize = new(uint32(8)) // in conflict, unless it is the first
		}
	})
	workers := h.Workers(nil, nil)
	taken := slices.ContainsFunc(workers, func(old *catalog.Worker) bool { return old.Tracked && old.ID == r.ID && old.Scope == r.Scope })
	for _, old := range workers {
		if !taken && !old.Tracked && old.ID == r.ID && *old.BlockSize != *r.BlockSize { // its ranks go, and may be back at once
			maps.DeleteFunc(h.live, func(_ string, b reservation) bool { return b.rank.Worker == r.ID && b.scope == old.Scope })
		}
	}
	if _, err := h.PutWorker(r); (err != nil) != taken {
		h.T.Fatalf("worker %d, taken %t: %v", r.ID, taken, err)
	}
	h.dropLost()
}

func (h *history) change() {
	p := catalog.Patch{Taints: h.taints()}
	switch h.rnd.IntN(4) {
	case 0:
		p.Size = new(1 + h.rnd.Uint32N(3))
	case 1:
		p.StartRank = new(h.rnd.Uint32N(2))
	case 2:
		p.Endpoint = new([]string{"", "http://x"}[h.rnd.IntN(2)])
	}
	_, _ = h.PatchWorker(h.rnd.Uint64N(6), p) // it may not exist
	h.dropLost()
}

func (h *history) leave() {
	_, _ = h.DeleteWorker(h.rnd.Uint64N(6))
	h.dropLost()
}

// dropLost forgets the reservations whose ranks are not carried any more: the
// service shows every rank that it carries.
func (h *history) dropLost() {
	carried := h.carried()
	for id, b := range h.live {
		if !carried[reservation{scope: b.scope, rank: b.rank}] {
			delete(h.live, id)
			var e *contract.Error
			if err := h.finish(id, b); !errors.As(err, &e) || e.Kind != contract.NotFound {
				h.T.Errorf("reservation %s on a lost rank: %v", id, err)
			}
		}
	}
	for _, wk := range h.Workers(nil, nil) {
		for i := range wk.RankCount() {
			if wk.Lifecycle == catalog.Schedulable && !carried[reservation{scope: wk.Scope, rank: catalog.Rank{Worker: wk.ID, DP: wk.FirstRank() + i}}] {
				h.T.Errorf("rank %d of schedulable worker %d is not carried", wk.FirstRank()+i, wk.ID)
			}
		}
	}
}

func (h *history) carried() map[reservation]bool {
	carried := map[reservation]bool{}
	for _, sc := range h.Loads(nil, nil) {
		for _, l := range sc.Loads {
			carried[reservation{scope: sc.Scope, rank: l.Rank}] = true
		}
	}
	return carried
}

// finish ends the prefill of a reservation by the contract that it was made by.
func (h *history) finish(id string, b reservation) error {
	if b.slots {
		return h.SlotsPrefillComplete(b.scope, id)
	}
	return h.PrefillComplete(id)
}

func (h *history) choose() {
	req := servicetest.Ask(servicetest.Prompt(h.rnd.Uint32N(50), 4+h.rnd.IntN(40)))
	req.Scope, req.RequiredTaints = h.scope(), h.taints()
	if h.rnd.IntN(3) == 0 {
		req.AllowedWorkers, req.HasAllowedWorkers = []uint64{h.rnd.Uint64N(6), h.rnd.Uint64N(6)}, true
	}
	if h.rnd.IntN(4) == 0 {
		req.Pinned = &catalog.Rank{Worker: h.rnd.Uint64N(6), DP: h.rnd.Uint32N(3)}
	}
	reserve := h.rnd.IntN(4) > 0
	eligible := h.eligible(req)
	sel, err := h.Select(context.Background(), req, reserve)
	if err != nil {
		if len(eligible) > 0 {
			h.T.Errorf("%v, but %v are eligible", err, eligible)
		}
		return
	}
	if !slices.Contains(eligible, sel.Rank) {
		h.T.Errorf("%v was chosen of %v", sel.Rank, eligible)
	}
	if reserve {
		h.live[*sel.ReservationID] = reservation{scope: req.Scope, rank: sel.Rank, prefill: sel.EffectivePrefillTokens}
	}
}

// eligible reads the contract's rules once more, off the list of workers.
func (h *history) eligible(req *selection.SelectRequest) (ranks []catalog.Rank) {
	for _, wk := range h.Workers(&req.Scope.Model, &req.Scope.Tenant) {
		ok := wk.Lifecycle == catalog.Schedulable && (!req.HasAllowedWorkers || slices.Contains(req.AllowedWorkers, wk.ID))
		for _, taint := range req.RequiredTaints {
			ok = ok && slices.Contains(wk.Taints, taint)
		}
		for dp := *wk.StartRank; ok && dp < *wk.StartRank+*wk.Size; dp++ {
			if r := (catalog.Rank{Worker: wk.ID, DP: dp}); req.Pinned == nil || *req.Pinned == r {
				ranks = append(ranks, r)
			}
		}
	}
	return ranks
}

func (h *history) reserve() {
	h.next++
	id := fmt.Sprint("direct", h.next)
	req := &selection.ReserveRequest{
		Scope: h.scope(), ID: id, Rank: catalog.Rank{Worker: h.rnd.Uint64N(6), DP: h.rnd.Uint32N(4)},
		Prompt: servicetest.Ask(servicetest.Prompt(h.rnd.Uint32N(50), 16)).Prompt,
	}
	_, err := h.Reserve(req)
	everyone := &selection.SelectRequest{Scope: req.Scope, Constraints: selection.Constraints{Pinned: &req.Rank}}
	if known := len(h.eligible(everyone)) == 1; known != (err == nil) {
		h.T.Errorf("reserve on %v, known %t: %v", req.Rank, known, err)
	}
	if err == nil {
		h.live[id] = reservation{scope: req.Scope, rank: req.Rank, prefill: 16}
	}
}

func (h *history) complete() {
	for id, b := range h.live {
		if err := h.finish(id, b); err != nil {
			h.T.Errorf("reservation %s is lost: %v", id, err)
		}
		b.prefill = 0
		h.live[id] = b
		return
	}
}

func (h *history) end() {
	for id, b := range h.live {
		err := h.finish(id, b) // does not fail while it is alive
		if err == nil && b.slots {
			err = h.SlotsFree(b.scope, id)
		} else if err == nil {
			err = h.Free(id)
		}
		if err != nil {
			h.T.Errorf("reservation %s is lost: %v", id, err)
		}
		delete(h.live, id)
		return
	}
}

// check compares the loads with the sum of the live reservations.
func (h *history) check() {
	h.T.Helper()
	type key struct {
		scope catalog.Scope
		rank  catalog.Rank
	}
	prefill, requests := map[key]uint64{}, map[key]uint64{}
	for _, b := range h.live {
		prefill[key{b.scope, b.rank}] += b.prefill
		requests[key{b.scope, b.rank}]++
	}
	n := uint64(0)
	for _, sc := range h.Loads(nil, nil) {
		for _, l := range sc.Loads {
			k := key{sc.Scope, l.Rank}
			if l.PrefillTokens != prefill[k] || l.Requests != requests[k] || l.Requests == 0 && l.DecodeBlocks != 0 {
				h.T.Errorf("%v carries %+v; live reservations have %d tokens in %d requests", k, l, prefill[k], requests[k])
			}
			n += l.Requests
		}
	}
	if n != uint64(len(h.live)) {
		h.T.Errorf("%d reservations are live, the loads show %d", len(h.live), n)
	}
	h.checkSlots()
}

// checkMetric compares the metric of live reservations with their number.
func (h *history) checkMetric() {
	h.T.Helper()
	if n := servicetest.Sum(h.Metrics()["reservations_live"]); n != float64(len(h.live)) {
		h.T.Errorf("%d reservations are live, the metric shows %g", len(h.live), n)
	}
}
