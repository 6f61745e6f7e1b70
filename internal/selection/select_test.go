package selection_test

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/selector"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// TestSelectErrors: kinds and texts of the contract (§3 and §4), and their order.
func TestSelectErrors(t *testing.T) {
	a := servicetest.Prompt(1, 8)
	tests := []struct {
		name   string
		change func(*selection.SelectRequest)
		kind   contract.Kind
		text   string
	}{
		{"another model", func(r *selection.SelectRequest) { r.Scope.Model, r.Prompt = "x", selection.Prompt{} }, contract.Unavailable, "no schedulable workers for model=x tenant=t"},
		{"no prompt", func(r *selection.SelectRequest) { r.Prompt = selection.Prompt{} }, contract.BadRequest, "block_hashes is required without token_ids"},
		{"no sequence hashes", func(r *selection.SelectRequest) { r.Prompt.HasSequenceHashes = false }, contract.BadRequest, "sequence_hashes is required without token_ids"},
		{"no length", func(r *selection.SelectRequest) { r.Prompt.HasISLTokens = false }, contract.BadRequest, "isl_tokens is required without token_ids"},
		{"length 0", func(r *selection.SelectRequest) { r.Prompt.ISLTokens = 0 }, contract.BadRequest, "isl_tokens must be greater than 0"},
		{"lengths differ", func(r *selection.SelectRequest) { r.Prompt.BlockHashes = r.Prompt.BlockHashes[:1] }, contract.BadRequest, "block_hashes length 1 must match sequence_hashes length 2"},
		{"pinned, not allowed", func(r *selection.SelectRequest) {
			r.Pinned, r.HasAllowedWorkers, r.AllowedWorkers = &catalog.Rank{Worker: 1}, true, []uint64{2}
		}, contract.BadRequest, "pinned worker 1 is not in allowed worker set"},
		{"none allowed", func(r *selection.SelectRequest) { r.HasAllowedWorkers = true }, contract.Unavailable, "no endpoints available to route work"},
		{"pinned, unknown", func(r *selection.SelectRequest) { r.Pinned = &catalog.Rank{Worker: 9} }, contract.Unavailable, "no endpoints available to route work"},
		{"pinned, beyond its ranks", func(r *selection.SelectRequest) { r.Pinned = &catalog.Rank{Worker: 1, DP: 2} }, contract.Unavailable, "no endpoints available to route work"},
		{"taint missing", func(r *selection.SelectRequest) { r.RequiredTaints = []string{"gpu", "x"} }, contract.Unavailable, "no endpoints available to route work"},
		{
			"id taken", func(r *selection.SelectRequest) { r.ReservationID = new("r") }, contract.Conflict,
			"failed to book scheduler state: Request r already exists (assigned to worker WorkerWithDpRank { worker_id: 1, dp_rank: 1 })",
		},
	}
	w := servicetest.Start(t, servicetest.EventsOff)
	w.Put(servicetest.Record(1, 2, func(r *catalog.Record) { r.Taints = []string{"gpu"} }))
	if _, err := w.Reserve(&selection.ReserveRequest{Scope: servicetest.Scope, ID: "r", Rank: catalog.Rank{Worker: 1, DP: 1}, Prompt: servicetest.Hashes(a)}); err != nil {
		t.Fatal(err)
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			req := &selection.SelectRequest{Scope: servicetest.Scope, Prompt: servicetest.Hashes(a)}
			tt.change(req)
			_, err := w.Select(context.Background(), req, true)
			servicetest.WantError(t, err, tt.kind, tt.text)
		})
	}
	w.WantLoad("1/0: 0 0 0, 1/1: 8 2 1")
}

// TestReserve: what /reservations books, and its errors in their order (§5,
// decisions D3, D4 and D9).
func TestReserve(t *testing.T) {
	a := servicetest.Prompt(1, 10)
	off := false
	tests := []struct {
		name   string
		change func(*selection.ReserveRequest)
		kind   contract.Kind
		text   string // "" if it is booked,
		load   string // as this
	}{
		{name: "plain", change: func(*selection.ReserveRequest) {}, load: "1/0: 10 2 1"},
		{name: "effective prefill", change: func(r *selection.ReserveRequest) { r.EffectivePrefillTokens = new(uint64(3)) }, load: "1/0: 3 2 1"},
		{name: "not tracked", change: func(r *selection.ReserveRequest) { r.Override.TrackPrefill = &off }, load: "1/0: 0 2 1"},
		{name: "given beats not tracked", change: func(r *selection.ReserveRequest) {
			r.Override.TrackPrefill, r.EffectivePrefillTokens = &off, new(uint64(3))
		}, load: "1/0: 3 2 1"},
		{name: "hashes without block hashes and length", change: func(r *selection.ReserveRequest) {
			r.Prompt = selection.Prompt{SequenceHashes: []uint64{1, 2, 3, 2}, HasSequenceHashes: true, HasISLTokens: true}
		}, load: "1/0: 0 3 1"},
		{name: "empty prompt", change: func(r *selection.ReserveRequest) { r.Prompt.TokenIDs = nil }, load: "1/0: 0 0 1"},
		{name: "no sequence hashes", change: func(r *selection.ReserveRequest) { r.Prompt = selection.Prompt{} }, kind: contract.BadRequest, text: "sequence_hashes is required without token_ids"},
		{name: "no length", change: func(r *selection.ReserveRequest) { r.Prompt = selection.Prompt{HasSequenceHashes: true} }, kind: contract.BadRequest, text: "isl_tokens is required without token_ids"},
		{name: "more than the prompt", change: func(r *selection.ReserveRequest) {
			r.EffectivePrefillTokens, r.Rank.Worker = new(uint64(11)), 9
		}, kind: contract.BadRequest, text: "effective_prefill_tokens (11) must not exceed isl_tokens (10)"},
		{name: "unknown worker", change: func(r *selection.ReserveRequest) { r.Rank.Worker = 9 }, kind: contract.NotFound, text: "schedulable worker 9 not found for model=m tenant=t"},
		{name: "unknown rank", change: func(r *selection.ReserveRequest) { r.Rank.DP = 7 }, kind: contract.NotFound, text: "Worker WorkerWithDpRank { worker_id: 1, dp_rank: 7 } not found"},
		{name: "another model", change: func(r *selection.ReserveRequest) { r.Scope.Model = "x" }, kind: contract.Unavailable, text: "no schedulable workers for model=x tenant=t"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := servicetest.Start(t, servicetest.EventsOff)
			w.Put(servicetest.Record(1, 1))
			req := &selection.ReserveRequest{Scope: servicetest.Scope, ID: "r", Rank: catalog.Rank{Worker: 1}, Prompt: servicetest.Ask(a).Prompt}
			tt.change(req)
			res, err := w.Reserve(req)
			if tt.text != "" {
				servicetest.WantError(t, err, tt.kind, tt.text)
				w.WantLoad("1/0: 0 0 0")
				return
			}
			if err != nil || res != (selection.Reservation{ID: "r", Scope: servicetest.Scope, Rank: catalog.Rank{Worker: 1}, Endpoint: servicetest.Address(1)}) {
				t.Fatalf("answer is %+v, %v", res, err)
			}
			w.WantLoad(tt.load)
			_, err = w.Reserve(req)
			servicetest.WantError(t, err, contract.Conflict, "Request r already exists (assigned to worker WorkerWithDpRank { worker_id: 1, dp_rank: 0 })")
		})
	}
}

// TestReserveTaken: an id that is taken is reported before an unknown rank, but
// behind whatever else is wrong with a request, as on 1.3.1 and 1.6.1.
func TestReserveTaken(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff)
	w.Put(servicetest.Record(1, 1))
	w.Book("r", servicetest.Prompt(1, 10))
	const exists = "Request r already exists (assigned to worker WorkerWithDpRank { worker_id: 1, dp_rank: 0 })"
	for name, tt := range map[string]struct {
		change func(*selection.ReserveRequest)
		kind   contract.Kind
		text   string
	}{
		"the same":       {func(*selection.ReserveRequest) {}, contract.Conflict, exists},
		"unknown rank":   {func(r *selection.ReserveRequest) { r.Rank.DP = 9 }, contract.Conflict, exists},
		"once more":      {func(r *selection.ReserveRequest) { r.Rank.DP, r.IfExists = 9, selection.ReturnFirst }, contract.Conflict, exists},
		"unknown worker": {func(r *selection.ReserveRequest) { r.Rank.Worker = 9 }, contract.NotFound, "schedulable worker 9 not found for model=m tenant=t"},
		"no prompt":      {func(r *selection.ReserveRequest) { r.Prompt = selection.Prompt{} }, contract.BadRequest, "sequence_hashes is required without token_ids"},
		"too much": {
			func(r *selection.ReserveRequest) { r.EffectivePrefillTokens = new(uint64(11)) }, contract.BadRequest,
			"effective_prefill_tokens (11) must not exceed isl_tokens (10)",
		},
	} {
		t.Run(name, func(t *testing.T) {
			req := &selection.ReserveRequest{Scope: servicetest.Scope, ID: "r", Rank: catalog.Rank{Worker: 1}, Prompt: servicetest.Ask(servicetest.Prompt(1, 10)).Prompt}
			tt.change(req)
			_, err := w.Reserve(req)
			servicetest.WantError(t, err, tt.kind, tt.text)
			w.WantLoad("1/0: 10 2 1")
		})
	}
}

// TestLifecycle: the steps of a reservation, and the errors of unknown ones
// (decision D1), over two models.
func TestLifecycle(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff)
	w.Put(servicetest.Record(1, 1))
	w.Put(servicetest.Record(2, 1, func(r *catalog.Record) { r.Scope.Model = "other" }))
	w.Book("r", servicetest.Prompt(1, 12))
	w.WantLoad("1/0: 12 3 1, other/t, 2/0: 0 0 0")
	for range 2 { // repeats are harmless
		if err := w.PrefillComplete("r"); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.OutputBlock("r", new(0.5)); err != nil {
		t.Fatal(err)
	}
	w.WantLoad("1/0: 0 2 1, other/t, 2/0: 0 0 0")
	servicetest.WantError(t, w.OutputBlock("r", new(1.5)), contract.BadRequest, "decay_fraction must be between 0.0 and 1.0")
	if err := w.Free("r"); err != nil {
		t.Fatal(err)
	}
	w.WantLoad("1/0: 0 0 0, other/t, 2/0: 0 0 0")
	for name, err := range map[string]error{"free": w.Free("r"), "prefill": w.PrefillComplete("r"), "output": w.OutputBlock("r", nil)} {
		t.Run(name, func(t *testing.T) { servicetest.WantError(t, err, contract.NotFound, "reservation r not found") })
	}
}

// TestAnswer: every field of a selection, with tiers and several ranks.
func TestAnswer(t *testing.T) {
	w := servicetest.Start(t)
	w.Put(servicetest.Record(1, 2))
	w.Put(servicetest.Record(2, 1))
	a := servicetest.Prompt(1, 42)
	e := w.Engine(1, 0)
	e.Publish(0, e.Stored(a[:16], servicetest.BlockSize, nil), e.Stored(a[:24], servicetest.BlockSize, servicetest.Dict{"medium": "CPU"}), e.Stored(a[:32], servicetest.BlockSize, servicetest.Dict{"medium": "DISK"}))
	e.Publish(1, e.Stored(a[:4], servicetest.BlockSize, nil))
	w.Settle()
	req := servicetest.Ask(a)
	req.SelectionID, req.ReservationID = new("echo"), new("r")
	got, err := w.Select(context.Background(), req, true)
	if err != nil {
		t.Fatal(err)
	}
	p := servicetest.Hashes(a)
	want := selection.Selection{
		SelectionID: new("echo"), ReservationID: new("r"), Scope: servicetest.Scope, Rank: catalog.Rank{Worker: 1}, Endpoint: servicetest.Address(1), BlockSize: servicetest.BlockSize,
		Overlap: selection.OverlapSummary{
			LongestMatched: 32, GPU: 16, CPU: 24, Disk: 32,
			DP: []selection.RankTokens{{DP: 0, Tokens: 16}, {DP: 1, Tokens: 4}},
		},
		EffectivePrefillTokens: 42 - (16 + 6 + 2),
		SequenceHashes:         p.SequenceHashes, ISLTokens: 42, TrackPrefill: true,
		PotentialDecodeBlocks: 11,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("selection is\n%+v, want\n%+v", got, want)
	}
	w.WantLoad("1/0: 18 10 1, 1/1: 0 0 0, 2/0: 0 0 0")

	scores, err := w.OverlapScores(&selection.ProjectRequest{Scope: servicetest.Scope, Prompt: req.Prompt, Override: selector.Override{OverlapCredit: new(0.5)}})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprint(scores), "{4 10 [{WorkerWithDpRank { worker_id: 1, dp_rank: 0 } 4 2 2 4} "+
		"{WorkerWithDpRank { worker_id: 1, dp_rank: 1 } 1 0 0 0.5} {WorkerWithDpRank { worker_id: 2, dp_rank: 0 } 0 0 0 0}]}"; got != want {
		t.Errorf("overlap scores are\n%s, want\n%s", got, want)
	}
	rows, err := w.PotentialLoads(&selection.ProjectRequest{Scope: servicetest.Scope, Prompt: req.Prompt})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := rows, []selection.RankLoad{
		{Rank: catalog.Rank{Worker: 1}, PrefillTokens: 18 + 18, DecodeBlocks: 10, Requests: 1},
		{Rank: catalog.Rank{Worker: 1, DP: 1}, PrefillTokens: 38, DecodeBlocks: 10},
		{Rank: catalog.Rank{Worker: 2}, PrefillTokens: 42, DecodeBlocks: 10},
	}; !slices.Equal(got, want) {
		t.Errorf("potential loads are\n%+v, want\n%+v", got, want)
	}
}

// TestRequestIsOnlyLent: nothing of a request is kept once the call is over.
func TestRequestIsOnlyLent(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff)
	w.Put(servicetest.Record(1, 1))
	a := servicetest.Prompt(1, 16)
	req := &selection.SelectRequest{Scope: servicetest.Scope, Prompt: servicetest.Hashes(a)}
	req.ReservationID = new("r")
	if _, err := w.Select(context.Background(), req, true); err != nil {
		t.Fatal(err)
	}
	direct := &selection.ReserveRequest{Scope: servicetest.Scope, ID: "s", Rank: catalog.Rank{Worker: 1}, Prompt: servicetest.Hashes(a)}
	if _, err := w.Reserve(direct); err != nil {
		t.Fatal(err)
	}
	for _, p := range []*selection.Prompt{&req.Prompt, &direct.Prompt} {
		clear(p.BlockHashes)
		clear(p.SequenceHashes)
	}
	w.WantLoad("1/0: 32 4 2")
	sel := w.Book("t", a) // finds the blocks active
	w.WantLoad("1/0: 48 4 3")
	if sel.EffectivePrefillTokens != 16 {
		t.Errorf("selection is %+v", sel)
	}
	for _, id := range []string{"r", "s", "t"} {
		if err := w.Free(id); err != nil {
			t.Fatal(err)
		}
	}
	w.WantLoad("1/0: 0 0 0")
}
