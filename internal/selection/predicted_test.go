package selection_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// predictedFor is the configuration in which reservations predict beside KV events.
func predictedFor(ttl time.Duration) func(*node.Config) {
	return func(c *node.Config) { c.Predictions.PredictedTTL = &ttl }
}

// TestPredicted: beside KV events, in both contracts, a booked prompt is on the chosen
// rank's device until it was booked too long ago. The longer of prediction and index
// counts, and the lower tiers add what they do without prediction.
func TestPredicted(t *testing.T) {
	for _, version := range []contract.Version{contract.V13, contract.V16} {
		synctest.Test(t, func(t *testing.T) {
			w := servicetest.Start(t, predictedFor(10*time.Second), keeping, func(c *node.Config) { c.Contract = version })
			w.Put(servicetest.Record(1, 2))
			engine := w.Engine(1, 1)
			engine.Publish(1, engine.Stored(servicetest.Prompt(1, 8), servicetest.BlockSize, nil))
			engine.Publish(1, engine.Stored(servicetest.Prompt(1, 12), servicetest.BlockSize, servicetest.Dict{"medium": "CPU"}))
			w.WantDevice(servicetest.Prompt(1, 18), "1/0:0 1/1:2")

			book := func(id string, rank uint32, tokens int) selection.Selection {
				req := servicetest.Ask(servicetest.Prompt(1, tokens))
				req.Pinned, req.ReservationID = &catalog.Rank{Worker: 1, DP: rank}, &id
				sel, err := w.Select(t.Context(), req, true)
				if err != nil {
					t.Fatal(err)
				}
				return sel
			}
			book("a", 0, 18)
			if err := w.Free("a"); err != nil {
				t.Fatal(err)
			}
			w.WantDevice(servicetest.Prompt(1, 18), "1/0:4 1/1:2")
			if sel := book("b", 0, 18); sel.EffectivePrefillTokens != 2 || sel.Overlap.GPU != 16 {
				t.Errorf("%d tokens to prefill, %d of overlap", sel.EffectivePrefillTokens, sel.Overlap.GPU)
			}
			time.Sleep(5 * time.Second)
			book("c", 1, 18)
			scores, err := w.OverlapScores(&selection.ProjectRequest{Scope: servicetest.Scope, Prompt: servicetest.Ask(servicetest.Prompt(1, 18)).Prompt})
			if err != nil {
				t.Fatal(err)
			}
			if row := scores.Rows[1]; row.Device != 4 || row.Host != 1 || row.Disk != 0 {
				t.Errorf("tiers: %+v", row)
			}
			time.Sleep(5500 * time.Millisecond)
			w.WantDevice(servicetest.Prompt(1, 18), "1/0:0 1/1:4")
			time.Sleep(5 * time.Second)
			w.WantDevice(servicetest.Prompt(1, 18), "1/0:0 1/1:2")

			pending := servicetest.Ask(servicetest.Prompt(1, 18)) // a choice predicts nothing before it is booked
			pending.SelectionID, pending.Pending, pending.Pinned = new("k"), true, &catalog.Rank{Worker: 1}
			if _, err := w.Select(t.Context(), pending, false); err != nil {
				t.Fatal(err)
			}
			w.WantDevice(servicetest.Prompt(1, 18), "1/0:0 1/1:2")
			if _, err := reservePending(w, "k"); err != nil {
				t.Fatal(err)
			}
			w.WantDevice(servicetest.Prompt(1, 18), "1/0:4 1/1:2")
		})
	}
}

// TestPredictedRanks: what was predicted for a rank goes when its engine clears or it
// leaves, and is not in the dump.
func TestPredictedRanks(t *testing.T) {
	w := servicetest.Start(t, predictedFor(time.Hour))
	w.Put(servicetest.Record(1, 2))
	w.Put(servicetest.Record(2, 1))
	ids := 0
	book := func(worker uint64, dp uint32) {
		t.Helper()
		ids++
		if err := predicted(w, strings.Repeat("x", ids), catalog.Rank{Worker: worker, DP: dp}, servicetest.Ask(servicetest.Prompt(1, 8)).Prompt); err != nil {
			t.Fatal(err)
		}
	}
	book(1, 0)
	book(1, 1)
	book(2, 0)
	w.WantDevice(servicetest.Prompt(1, 8), "1/0:2 1/1:2 2/0:2")
	w.Engine(1, 1).Publish(1, servicetest.Cleared())
	w.WantDevice(servicetest.Prompt(1, 8), "1/0:2 1/1:0 2/0:2")
	book(1, 1)
	w.WantDevice(servicetest.Prompt(1, 8), "1/0:2 1/1:2 2/0:2")
	w.Patch(1, catalog.Patch{Taints: []string{"x"}})
	w.WantDevice(servicetest.Prompt(1, 8), "1/0:2 1/1:2 2/0:2")
	var out strings.Builder
	if err := w.Dump(t.Context(), &out, contract.V16); err != nil || strings.Contains(out.String(), "stored") {
		t.Errorf("dump %s, %v", out.String(), err)
	}
	if got := w.Metrics()["remembered_entries"]; servicetest.Sum(got, "predicted_blocks") != 8 { // cleared ones wait for their time
		t.Errorf("remembered: %v", got)
	}
	w.Remove(1)
	w.Put(servicetest.Record(1, 2))
	w.WantDevice(servicetest.Prompt(1, 8), "1/0:0 1/1:0 2/0:2")
	w.Remove(1)
	w.Remove(2)
	w.Put(servicetest.Record(2, 1))
	w.WantDevice(servicetest.Prompt(1, 8), "2/0:0")
}

// TestPredictedNothing: a time of 0 predicts nothing, and asks for complete hashes.
func TestPredictedNothing(t *testing.T) {
	w := servicetest.Start(t, predictedFor(0))
	w.Put(servicetest.Record(1, 1))
	w.Book("a", servicetest.Prompt(1, 12))
	w.WantDevice(servicetest.Prompt(1, 12), "1/0:0")
	p := servicetest.Hashes(servicetest.Prompt(1, 12))
	p.BlockHashes = p.BlockHashes[1:]
	servicetest.WantError(t, predicted(w, "b", catalog.Rank{Worker: 1}, p), contract.BadRequest, "block_hashes length 2 must match sequence_hashes length 3")
}
