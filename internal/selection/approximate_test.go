package selection_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// approximate is the configuration in which reservations make the index.
func approximate(c *node.Config) {
	c.Contract, c.KVEvents, c.Predictions.ApproximateTTL = contract.V16, false, 120*time.Second
}

// predicted books a prompt on a rank.
func predicted(w *servicetest.World, id string, r catalog.Rank, p selection.Prompt) error {
	_, err := w.Reserve(&selection.ReserveRequest{Scope: servicetest.Scope, ID: id, Rank: r, Prompt: p})
	return err
}

// TestApproximate: as on 1.6.1, a booked prompt is on the chosen rank's device
// for every request, until it was booked too long ago; that its reservation
// has ended does not matter, and a choice without a reservation leaves nothing.
func TestApproximate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t, approximate)
		w.Put(servicetest.Record(1, 1))
		w.Put(servicetest.Record(2, 2))
		if _, err := w.Select(t.Context(), servicetest.Ask(servicetest.Prompt(1, 18)), false); err != nil {
			t.Fatal(err)
		}
		w.WantDevice(servicetest.Prompt(1, 18), "1/0:0 2/0:0 2/1:0")
		req := servicetest.Ask(servicetest.Prompt(1, 18))
		req.Pinned, req.ReservationID = &catalog.Rank{Worker: 2, DP: 1}, new("a")
		if _, err := w.Select(t.Context(), req, true); err != nil {
			t.Fatal(err)
		}
		w.WantDevice(servicetest.Prompt(1, 18), "1/0:0 2/0:0 2/1:4")
		if err := w.Free("a"); err != nil {
			t.Fatal(err)
		}
		sel, err := w.Select(t.Context(), servicetest.Ask(servicetest.Prompt(1, 18)), false)
		if err != nil {
			t.Fatal(err)
		}
		if sel.Rank != (catalog.Rank{Worker: 2, DP: 1}) || sel.Overlap.GPU != 16 || sel.EffectivePrefillTokens != 2 {
			t.Errorf("chosen %v with %d tokens of overlap, %d to prefill", sel.Rank, sel.Overlap.GPU, sel.EffectivePrefillTokens)
		}
		time.Sleep(60 * time.Second)
		if err := predicted(w, "b", catalog.Rank{Worker: 1}, servicetest.Ask(servicetest.Prompt(1, 9)).Prompt); err != nil {
			t.Fatal(err)
		}
		w.WantDevice(servicetest.Prompt(1, 18), "1/0:2 2/0:0 2/1:4")
		time.Sleep(59 * time.Second)
		w.WantDevice(servicetest.Prompt(1, 18), "1/0:2 2/0:0 2/1:4")
		time.Sleep(5 * time.Second)
		w.WantDevice(servicetest.Prompt(1, 18), "1/0:2 2/0:0 2/1:0")
		time.Sleep(60 * time.Second)
		w.WantDevice(servicetest.Prompt(1, 18), "1/0:0 2/0:0 2/1:0")
	})
}

// TestApproximateForms: hashes predict by the local ones, those that are given
// for the ledger do not matter; a reservation without them, a refused one, and one
// with another adapter predict nothing of the kind.
func TestApproximateForms(t *testing.T) {
	w := servicetest.Start(t, approximate)
	w.Put(servicetest.Record(1, 1))
	hashes := func(local []uint64, sequence ...uint64) selection.Prompt {
		return selection.Prompt{
			BlockHashes: local, HasBlockHashes: local != nil,
			SequenceHashes: sequence, HasSequenceHashes: true, ISLTokens: 12, HasISLTokens: true,
		}
	}
	rank := catalog.Rank{Worker: 1}
	for i, tt := range []struct {
		booked, asked selection.Prompt
		want          uint32
	}{
		{hashes([]uint64{15, 16, 17}, 5, 6, 7), hashes([]uint64{15, 16, 17}, 1, 1, 1), 3},
		{hashes([]uint64{25, 26, 27}, 5, 6, 7), hashes([]uint64{25, 26, 28}, 5, 6, 7), 2},
		{hashes(nil, 35, 36, 37), hashes([]uint64{35, 36, 37}, 35, 36, 37), 0},
		{selection.Prompt{TokenIDs: servicetest.Prompt(100, 12), HasTokenIDs: true, LoRA: "x"}, servicetest.Ask(servicetest.Prompt(100, 12)).Prompt, 0},
		{
			selection.Prompt{TokenIDs: servicetest.Prompt(200, 12), HasTokenIDs: true, LoRA: "x"},
			selection.Prompt{TokenIDs: servicetest.Prompt(200, 12), HasTokenIDs: true, LoRA: "x"},
			3,
		},
		{servicetest.Ask(servicetest.Prompt(300, 3)).Prompt, servicetest.Ask(servicetest.Prompt(300, 12)).Prompt, 0},
	} {
		if err := predicted(w, fmt.Sprint(i), rank, tt.booked); err != nil {
			t.Fatal(i, err)
		}
		s, err := w.OverlapScores(&selection.ProjectRequest{Scope: servicetest.Scope, Prompt: tt.asked})
		if err != nil {
			t.Fatal(i, err)
		}
		if got := s.Rows[0].Device; got != tt.want {
			t.Errorf("%d: %d blocks, want %d", i, got, tt.want)
		}
	}
	if err := predicted(w, "0", rank, servicetest.Ask(servicetest.Prompt(400, 12)).Prompt); err == nil {
		t.Error("an id was booked twice")
	}
	if err := predicted(w, "y", catalog.Rank{Worker: 1, DP: 7}, servicetest.Ask(servicetest.Prompt(400, 12)).Prompt); err == nil {
		t.Error("booked on no rank")
	}
	w.WantDevice(servicetest.Prompt(400, 12), "1/0:0")
}

// TestApproximateHashes: a reservation whose block hashes are to be predicted has
// to have one for each sequence hash, and a length; without block hashes, or where
// nothing is predicted, it need not. An unknown worker is reported first, an
// unknown rank last.
func TestApproximateHashes(t *testing.T) {
	const lengths = "block_hashes length 2 must match sequence_hashes length 3"
	for name, tt := range map[string]struct {
		change func(*selection.ReserveRequest)
		kind   contract.Kind
		text   string // "" if it is booked
		only   bool   // with predictions
	}{
		"lengths":         {func(*selection.ReserveRequest) {}, contract.BadRequest, lengths, true},
		"no block hashes": {func(r *selection.ReserveRequest) { r.Prompt.HasBlockHashes = false }, 0, "", false},
		"nor a length": {func(r *selection.ReserveRequest) {
			r.Prompt.HasBlockHashes, r.Prompt.ISLTokens = false, 0
		}, 0, "", false},
		"no length": {func(r *selection.ReserveRequest) { r.Prompt.ISLTokens = 0 }, contract.BadRequest, "isl_tokens must be greater than 0", true},
		"tokens": {func(r *selection.ReserveRequest) {
			r.Prompt.TokenIDs, r.Prompt.HasTokenIDs = servicetest.Prompt(1, 12), true
		}, 0, "", false},
		"unknown rank":   {func(r *selection.ReserveRequest) { r.Rank.DP = 9 }, contract.BadRequest, lengths, true},
		"unknown worker": {func(r *selection.ReserveRequest) { r.Rank.Worker = 9 }, contract.NotFound, "schedulable worker 9 not found for model=m tenant=t", false},
	} {
		for _, predicts := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, predicts %t", name, predicts), func(t *testing.T) {
				w := servicetest.Start(t, approximate, func(c *node.Config) {
					if !predicts {
						c.Contract = contract.V13
					}
				})
				w.Put(servicetest.Record(1, 1))
				req := &selection.ReserveRequest{Scope: servicetest.Scope, ID: "r", Rank: catalog.Rank{Worker: 1}, Prompt: selection.Prompt{
					BlockHashes: []uint64{1, 2}, HasBlockHashes: true,
					SequenceHashes: []uint64{1, 2, 3}, HasSequenceHashes: true, ISLTokens: 12, HasISLTokens: true,
				}}
				tt.change(req)
				_, err := w.Reserve(req)
				switch {
				case tt.only && !predicts && req.Rank.DP != 0:
					servicetest.WantError(t, err, contract.NotFound, "Worker WorkerWithDpRank { worker_id: 1, dp_rank: 9 } not found")
				case tt.text == "" || tt.only && !predicts:
					if err != nil {
						t.Error(err)
					}
				default:
					servicetest.WantError(t, err, tt.kind, tt.text)
				}
			})
		}
	}
}

// TestApproximatePending: the reservation of a pending selection predicts its
// prompt.
func TestApproximatePending(t *testing.T) {
	w := servicetest.Start(t, approximate, keeping)
	w.Put(servicetest.Record(1, 1))
	req := servicetest.Ask(servicetest.Prompt(1, 12))
	req.SelectionID, req.Pending = new("k"), true
	if _, err := w.Select(t.Context(), req, false); err != nil {
		t.Fatal(err)
	}
	w.WantDevice(servicetest.Prompt(1, 12), "1/0:0")
	if _, err := reservePending(w, "k"); err != nil {
		t.Fatal(err)
	}
	w.WantDevice(servicetest.Prompt(1, 12), "1/0:3")
}

// TestApproximateRanks: what was predicted survives changes that leave the rank
// in place, and nothing else.
func TestApproximateRanks(t *testing.T) {
	w := servicetest.Start(t, approximate)
	w.Put(servicetest.Record(1, 1))
	w.Put(servicetest.Record(2, 2))
	id := 0
	book := func(worker uint64, dp uint32) {
		id++
		rank := catalog.Rank{Worker: worker, DP: dp}
		if err := predicted(w, fmt.Sprint(id), rank, servicetest.Ask(servicetest.Prompt(1, 8)).Prompt); err != nil {
			t.Fatal(err)
		}
	}
	book(2, 0)
	book(2, 1)
	w.WantDevice(servicetest.Prompt(1, 8), "1/0:0 2/0:2 2/1:2")
	w.Patch(2, catalog.Patch{Taints: []string{"x"}})
	w.Put(servicetest.Record(2, 2, func(r *catalog.Record) { r.Endpoint = new("http://other") }))
	w.WantDevice(servicetest.Prompt(1, 8), "1/0:0 2/0:2 2/1:2")
	w.Put(servicetest.Record(2, 1))
	w.Put(servicetest.Record(2, 2))
	w.WantDevice(servicetest.Prompt(1, 8), "1/0:0 2/0:2 2/1:0")
	w.Remove(2)
	w.Put(servicetest.Record(3, 2)) // gets the slots
	w.WantDevice(servicetest.Prompt(1, 8), "1/0:0 3/0:0 3/1:0")
	w.Put(servicetest.Record(2, 1))
	w.WantDevice(servicetest.Prompt(1, 8), "1/0:0 2/0:0 3/0:0 3/1:0")
	book(3, 1)
	w.WantDevice(servicetest.Prompt(1, 8), "1/0:0 2/0:0 3/0:0 3/1:2")
	for _, worker := range []uint64{1, 2, 3} {
		w.Remove(worker)
	}
	w.Put(servicetest.Record(3, 2))
	w.WantDevice(servicetest.Prompt(1, 8), "3/0:0 3/1:0")
}

// TestApproximateDump: predicted blocks are dumped under their rolling hashes,
// as 1.6.1 does it.
func TestApproximateDump(t *testing.T) {
	w := servicetest.Start(t, approximate)
	w.Put(servicetest.Record(1, 1))
	w.Book("a", servicetest.Prompt(1, 12))
	var out strings.Builder
	if err := w.Dump(t.Context(), &out, contract.V16); err != nil {
		t.Fatal(err)
	}
	var dump map[string]struct {
		Events []struct {
			Tier  string `json:"storage_tier"`
			Event struct {
				Data struct {
					Stored struct {
						Blocks []struct {
							Name  uint64 `json:"block_hash"`
							Local uint64 `json:"tokens_hash"`
						}
					}
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(out.String()), &dump); err != nil {
		t.Fatal(err)
	}
	var names, local []uint64
	for _, ev := range dump["m:t"].Events {
		if ev.Tier != "device" {
			t.Errorf("tier %s", ev.Tier)
		}
		for _, b := range ev.Event.Data.Stored.Blocks {
			names, local = append(names, b.Name), append(local, b.Local)
		}
	}
	want := hashing.Layout{BlockSize: servicetest.BlockSize}.AppendLocal(nil, servicetest.Prompt(1, 12), hashing.LocalSeed("", ""), nil)
	if !slices.Equal(local, want) || !slices.Equal(names, hashing.AppendSequence(nil, want)) {
		t.Errorf("blocks %v named %v in %s", local, names, out.String())
	}
}

// TestNotApproximate: where engines send events, and in contract 1.3, reservations
// predict nothing.
func TestNotApproximate(t *testing.T) {
	for name, change := range map[string]func(*node.Config){
		"events":       func(c *node.Config) { c.Contract, c.Predictions.ApproximateTTL = contract.V16, time.Minute },
		"contract 1.3": func(c *node.Config) { c.KVEvents, c.Predictions.ApproximateTTL = false, time.Minute },
	} {
		t.Run(name, func(t *testing.T) {
			w := servicetest.Start(t, change)
			w.Put(servicetest.Record(1, 1))
			w.Book("a", servicetest.Prompt(1, 12))
			w.WantDevice(servicetest.Prompt(1, 12), "1/0:0")
		})
	}
}

// TestApproximateCrowd: reservations and registrations at the same time; a worker
// that comes back after all ranks have left begins empty.
func TestApproximateCrowd(t *testing.T) {
	w := servicetest.Start(t, approximate)
	w.Put(servicetest.Record(1, 1))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 200 {
			w.Put(servicetest.Record(uint64(2+i%3), 1))
			w.Remove(uint64(2 + i%3))
		}
	}()
	for i := 0; ; i++ {
		select {
		case <-done:
			w.Remove(1)
			for worker := range uint64(4) {
				w.Put(servicetest.Record(worker+1, 1))
			}
			w.WantDevice(servicetest.Prompt(1, 8), "1/0:0 2/0:0 3/0:0 4/0:0")
			return
		default:
			for worker := range uint64(4) {
				id := fmt.Sprint(i, " ", worker)
				if predicted(w, id, catalog.Rank{Worker: worker + 1}, servicetest.Ask(servicetest.Prompt(1, 8)).Prompt) == nil {
					_ = w.Free(id) // gone already if its worker has left
				}
			}
		}
	}
}
