package node

import (
	"errors"
	"math/bits"

	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/workers"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
)

// The use cases of the slot tracker. Its tracker of a scope exists while the scope has an
// attached worker of either contract, and includes the workers and loads of both (decision S4).
// Error texts are those of dynamo-kv-router 1.3.1.

// SlotsWorker is the body of /register and a row of /workers: ranks DPStart to
// DPStart+DPSize-1 of a worker.
type SlotsWorker struct {
	Worker    uint64
	Scope     catalog.Scope
	BlockSize uint32 // tokens
	DPStart   uint32
	DPSize    uint32
}

// SlotsReservation is the body of /add.
type SlotsReservation struct {
	Scope catalog.Scope
	ID    string // unique in its scope
	Rank  catalog.Rank
	// SequenceHashes are kept and must not be changed after the call.
	SequenceHashes []uint64
	NewISLTokens   uint64 // tokens to prefill; 0: no prefill load
}

// SlotsProjection is the body of /potential_loads.
type SlotsProjection struct {
	Scope          catalog.Scope
	SequenceHashes []uint64 // borrowed
	NewISLTokens   uint64
}

// SlotsLoad is a row of the slot tracker's /loads.
type SlotsLoad struct {
	Scope catalog.Scope
	Load  selection.RankLoad
}

// slotTracker has the use cases of the slot tracker.
type slotTracker struct {
	core
	registry *workers.Registry
}

// SlotsRegister adds a worker that carries load but is never selected.
func (s *slotTracker) SlotsRegister(w SlotsWorker) error {
	return s.registry.PutTracked(catalog.TrackedRecord{
		ID: w.Worker, Scope: w.Scope, BlockSize: w.BlockSize, StartRank: w.DPStart, Size: w.DPSize,
	})
}

// SlotsUnregister removes such a worker and its reservations.
func (s *slotTracker) SlotsUnregister(sc catalog.Scope, worker uint64) error {
	return s.registry.DeleteTracked(sc, worker)
}

// SlotsWorkers lists the workers that carry load, by model, tenant and id; nil
// matches all.
func (s *slotTracker) SlotsWorkers(model, tenant *string) []SlotsWorker {
	rows := []SlotsWorker{}
	for _, snap := range s.trackers(model, tenant) {
		for _, e := range snap.Known() { // by worker and rank
			last := len(rows) - 1
			switch {
			case !e.CarriesLoad:
			case last >= 0 && rows[last].Worker == e.Rank.Worker && rows[last].Scope == snap.Scope:
				rows[last].DPSize++ // the ranks are one range
			default:
				rows = append(rows, SlotsWorker{Worker: e.Rank.Worker, Scope: snap.Scope, BlockSize: snap.BlockSize, DPStart: e.DP, DPSize: 1})
			}
		}
	}
	return rows
}

// trackers returns the matching scopes, by model and tenant.
func (s *slotTracker) trackers(model, tenant *string) []*catalog.Snapshot {
	var out []*catalog.Snapshot
	for _, sc := range s.catalog.Scopes() {
		if !sc.Matches(model, tenant) {
			continue
		}
		if snap := s.catalog.Snapshot(sc); snap != nil {
			out = append(out, snap)
		}
	}
	return out
}

// tracker returns the scope for the slot tracker; the error has its text.
func (s *slotTracker) tracker(sc catalog.Scope) (*catalog.Snapshot, error) {
	if snap := s.catalog.Snapshot(sc); snap != nil {
		return snap, nil
	}
	return nil, contract.ScopeErrorf(contract.NotFound, sc, "no slot tracker")
}

// SlotsAdd books a request on the rank that the caller names.
func (s *slotTracker) SlotsAdd(req *SlotsReservation) error {
	if _, err := s.tracker(req.Scope); err != nil {
		return err
	}
	_, err := s.ledger.Book(req.Scope, reservations.Request{
		ID:           req.ID,
		PerScope:     true,
		Hashes:       req.SequenceHashes,
		TrackPrefill: req.NewISLTokens > 0,
	}, func(v *reservations.View) (reservations.Placement, error) {
		slot, ok := v.Slot(req.Rank)
		if !ok {
			return reservations.Placement{}, contract.Errorf(contract.NotFound, "Worker %s not found", req.Rank)
		}
		return reservations.Placement{Slot: slot, Rank: req.Rank, PrefillTokens: req.NewISLTokens}, nil
	})
	var exists *reservations.ExistsError
	limit, full := errors.AsType[*reservations.LimitError](err)
	switch {
	case errors.As(err, &exists):
		return &contract.Error{Kind: contract.Conflict, Text: exists.Error(), Err: err}
	case full:
		return contract.LedgerLimit(limit)
	}
	return err
}

// SlotsPrefillComplete removes a request's prefill load from its rank. Repeating it is no error.
func (s *slotTracker) SlotsPrefillComplete(sc catalog.Scope, id string) error {
	if _, err := s.tracker(sc); err != nil {
		return err
	}
	err := s.ledger.PrefillCompleteIn(sc, id)
	switch {
	case errors.Is(err, reservations.ErrNotFound):
		return &contract.Error{Kind: contract.NotFound, Text: "Request " + id + " not found", Err: err}
	case err != nil:
		return err
	}
	s.scopes.LoadChanged()
	return nil
}

// SlotsFree ends a request. An unknown one is no error.
func (s *slotTracker) SlotsFree(sc catalog.Scope, id string) error {
	if _, err := s.tracker(sc); err != nil {
		return err
	}
	err := s.ledger.FreeIn(sc, id)
	switch {
	case errors.Is(err, reservations.ErrNotFound):
		return nil
	case err != nil:
		return err
	}
	s.scopes.LoadChanged()
	return nil
}

// SlotsLoads returns the load of every rank, by model, tenant, worker and rank; nil matches all.
func (s *slotTracker) SlotsLoads(model, tenant *string) []SlotsLoad {
	rows := []SlotsLoad{}
	for _, snap := range s.trackers(model, tenant) {
		for _, l := range s.ledger.Loads(snap.Scope) {
			rows = append(rows, SlotsLoad{Scope: snap.Scope, Load: selection.LoadOf(l)})
		}
	}
	return rows
}

// SlotsPotentialLoads returns the load that every rank of the scope would have with the
// request booked on it, by rank. Of the prompt's blocks those count that are not in its
// leading run of active blocks.
func (s *slotTracker) SlotsPotentialLoads(req *SlotsProjection) ([]selection.RankLoad, error) {
	snap, err := s.tracker(req.Scope)
	if err != nil {
		return nil, err
	}
	rows := make([]selection.RankLoad, 0, len(snap.Known()))
	s.ledger.Look(req.Scope, req.SequenceHashes, func(v *reservations.View) {
		for _, e := range snap.Known() {
			if !e.CarriesLoad || !v.Known(e.Slot, e.Rank) {
				continue
			}
			carried := v.Load(e.Slot)
			fresh := uint64(len(req.SequenceHashes)) - uint64(v.Shared(e.Slot))
			rows = append(rows, selection.RankLoad{
				Rank:          e.Rank,
				PrefillTokens: addSaturating(carried.PrefillTokens, req.NewISLTokens),
				DecodeBlocks:  carried.Blocks + fresh,
				Requests:      uint64(carried.Requests),
			})
		}
	})
	return rows, nil
}

// addSaturating adds without wrapping around, since clients send the numbers of tokens
// (decision S3).
func addSaturating(a, b uint64) uint64 {
	sum, carry := bits.Add64(a, b, 0)
	return sum | -carry
}
