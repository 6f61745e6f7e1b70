package selection_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/overload"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/selector"
	"github.com/select-service/select-service/test/helpers/length"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// rejectionCase is an entry of the decision table.
type rejectionCase struct {
	Name       string
	Thresholds struct {
		Blocks   *float64 `json:"active_decode_blocks_threshold"`
		Tokens   *uint64  `json:"active_prefill_tokens_threshold"`
		Fraction *float64 `json:"active_prefill_tokens_threshold_frac"`
	}
	Workers []struct {
		ID        uint64 `json:"worker_id"`
		Lifecycle string
		Total     *uint64 `json:"total_kv_blocks"`
		Batched   *uint64 `json:"max_num_batched_tokens"`
		Ranks     []struct {
			DP      uint32 `json:"dp_rank"`
			Blocks  uint64 `json:"active_decode_blocks"`
			Prefill uint64 `json:"active_prefill_tokens"`
		}
	}
	Allowed []uint64 `json:"allowed_worker_ids"`
	Pinned  *struct {
		Worker uint64 `json:"worker_id"`
		DP     uint32 `json:"dp_rank"`
	} `json:"pinned_worker"`
	Expect struct {
		Status     int
		Reason     string
		Candidates [][2]uint64 `json:"candidate_ranks"`
	}
}

// TestRejectionCases plays the decision table of the contract against loads that
// are booked: the answer in every way of asking, and which ranks are chosen of.
func TestRejectionCases(t *testing.T) {
	length.Sequential(t)
	content, err := os.ReadFile("../../testdata/rejection_cases.json")
	if err != nil {
		t.Fatal(err)
	}
	var table struct {
		Count int
		Cases []rejectionCase
	}
	if err := json.Unmarshal(content, &table); err != nil {
		t.Fatal(err)
	}
	if len(table.Cases) != table.Count || table.Count < 21 {
		t.Fatalf("%d cases of %d", len(table.Cases), table.Count)
	}
	for _, c := range table.Cases {
		t.Run(c.Name, func(t *testing.T) { c.play(t) })
	}
}

func (c *rejectionCase) play(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff, servicetest.Limits(overload.Thresholds{
		DecodeBlocks: c.Thresholds.Blocks, PrefillTokens: c.Thresholds.Tokens, PrefillFraction: c.Thresholds.Fraction,
	}))
	for _, wk := range c.Workers {
		r := servicetest.Record(wk.ID, uint32(len(wk.Ranks)), func(r *catalog.Record) {
			r.TotalKVBlocks, r.MaxNumBatchedTokens = wk.Total, wk.Batched
			if wk.Lifecycle != catalog.Schedulable {
				r.Endpoint = nil
			}
		})
		if _, err := w.PutWorker(r); err != nil {
			t.Fatal(err)
		}
		for _, rank := range wk.Ranks {
			switch {
			case wk.Lifecycle == catalog.Schedulable:
				w.Burden(fmt.Sprint(wk.ID, rank.DP), wk.ID, rank.DP, rank.Blocks, rank.Prefill)
			case rank.Blocks > 0 || rank.Prefill > 0:
				t.Fatal("a worker without reservations has load")
			}
		}
	}
	change := func(r *selection.SelectRequest) {
		// At this temperature every rank has nearly the same chance.
		r.Override = selector.Override{Temperature: new(1e6)}
		if c.Allowed != nil {
			allow(c.Allowed...)(r)
		}
		if c.Pinned != nil {
			pin(c.Pinned.Worker, c.Pinned.DP)(r)
		}
	}
	switch c.Expect.Reason {
	case "all_busy":
		wantBusy(w, change)
	case "pinned_busy":
		servicetest.WantError(t, try(w, change), contract.Overloaded, fmt.Sprintf("pinned worker %d is overloaded", c.Pinned.Worker))
	case "unavailable":
		servicetest.WantError(t, try(w, change), contract.Unavailable, "no endpoints available to route work")
	case "":
		wantFree(w, change)
		c.wantChoices(w, change)
	default:
		t.Fatalf("unknown reason %q", c.Expect.Reason)
	}
}

// wantChoices selects so often that every rank of the choice turns up.
func (c *rejectionCase) wantChoices(w *servicetest.World, change func(*selection.SelectRequest)) {
	var want, got []catalog.Rank
	for _, r := range c.Expect.Candidates {
		want = append(want, catalog.Rank{Worker: r[0], DP: uint32(r[1])})
	}
	for i := range 200 {
		req := servicetest.Ask(servicetest.Prompt(77, 8))
		change(req)
		sel, err := w.Select(context.Background(), req, i%2 == 1)
		if err != nil {
			w.T.Fatal(err)
		}
		if sel.ReservationID != nil {
			if err := w.Free(*sel.ReservationID); err != nil {
				w.T.Fatal(err)
			}
		}
		got = append(got, sel.Rank)
	}
	slices.SortFunc(got, catalog.Rank.Compare)
	if got = slices.Compact(got); !slices.Equal(got, want) {
		w.T.Errorf("chosen were %v, want %v", got, want)
	}
}
