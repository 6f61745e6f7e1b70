package telemetry_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/overload"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/length"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// TestTasks: selections count as issued and rejected by model and endpoint
// exactly as they were answered.
func TestTasks(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff)
	choose := func(reserve bool, change ...func(*selection.SelectRequest)) error {
		req := servicetest.Ask(servicetest.Prompt(1, 40))
		for _, f := range change {
			f(req)
		}
		_, err := w.Select(context.Background(), req, reserve)
		return err
	}
	model := func(name string) func(*selection.SelectRequest) {
		return func(r *selection.SelectRequest) { r.Scope.Model = name }
	}
	_ = choose(false)              // nobody knows the model yet
	_ = choose(true, model("lie")) // nor ever
	if _, err := w.PutWorker(servicetest.Record(9, 1, servicetest.OfModel("inc"), func(r *catalog.Record) { r.BlockSize = nil })); err != nil {
		t.Fatal(err)
	}
	w.WantSeries(`dynamo_tasks_issued_total{endpoint="select",model="inc"} 0`, `rejections_total{cause="queue_limit",model_name="inc"} 0`,
		`selection_overlap_ratio_count{model_name="inc"} 0`)
	_ = choose(false, model("inc")) // no worker is complete

	w.Put(servicetest.Record(1, 1, servicetest.Total(100)))
	w.Book("r", servicetest.Prompt(1, 40))
	_ = choose(false)
	_ = choose(false)
	_ = choose(false, func(r *selection.SelectRequest) { r.Prompt = selection.Prompt{} })    // malformed
	_ = choose(true, func(r *selection.SelectRequest) { r.HasAllowedWorkers = true })        // no endpoint
	_ = choose(true, func(r *selection.SelectRequest) { r.ReservationID = new("r") })        // taken
	_ = choose(true, func(r *selection.SelectRequest) { r.Override.Temperature = new(-1.) }) // malformed
	accepted := []string{
		`dynamo_tasks_issued_total{endpoint="select",model=""} 1`,
		`dynamo_tasks_issued_total{endpoint="select_and_reserve",model=""} 1`,
		`dynamo_tasks_issued_total{endpoint="select",model="inc"} 1`,
		`dynamo_tasks_issued_total{endpoint="select",model="m"} 2`,
		`dynamo_tasks_issued_total{endpoint="select_and_reserve",model="m"} 3`,
		`dynamo_tasks_rejected_total{endpoint="select",model="m"} 0`,
		`dynamo_tasks_rejected_total{endpoint="select_and_reserve",model="m"} 0`,
		`dynamo_tasks_rejected_total{endpoint="select",model="inc"} 0`,
		`dynamo_tasks_rejected_total{endpoint="select",model=""} 0`,
	}
	w.WantSeries(accepted...)
	w.WantNoSeries(`model(_name)?="lie"`)
	w.WantNoSeries(`busy_threshold`)
	w.WantNoSeries(`worker_overloaded`)

	// The booked prompt has 40 tokens and 10 blocks. Each refusal has all causes of
	// its moment.
	w.SetBusy(overload.Thresholds{PrefillTokens: new(uint64(0))})
	rejected := 0
	refused := func(reserve bool, change ...func(*selection.SelectRequest)) {
		t.Helper()
		var over *contract.OverloadError
		if err := choose(reserve, change...); !errors.As(err, &over) {
			t.Fatalf("error is %v", err)
		}
		rejected++
	}
	refused(false)
	w.SetBusy(overload.Thresholds{PrefillFraction: new(.1)})
	refused(true)
	refused(false, func(r *selection.SelectRequest) { r.Pinned = &catalog.Rank{Worker: 1} })
	w.SetBusy(overload.Thresholds{DecodeBlocks: new(.05), PrefillTokens: new(uint64(1000))})
	refused(false)
	_ = choose(false, func(r *selection.SelectRequest) { r.HasAllowedWorkers = true }) // still no rejection
	w.WantSeries(
		`dynamo_tasks_rejected_total{endpoint="select",model="m"} 3`,
		`dynamo_tasks_rejected_total{endpoint="select_and_reserve",model="m"} 1`,
		`dynamo_frontend_model_rejection_total{endpoint="select",model="m"} 3`,
		`dynamo_frontend_model_rejection_total{endpoint="select_and_reserve",model="m"} 1`,
		`dynamo_tasks_issued_total{endpoint="select",model="m"} 6`,
		`dynamo_tasks_issued_total{endpoint="select_and_reserve",model="m"} 4`,
		`rejections_total{cause="active_prefill_tokens",model_name="m"} 3`,
		`rejections_total{cause="active_prefill_tokens_frac",model_name="m"} 3`,
		`rejections_total{cause="active_decode_blocks",model_name="m"} 1`,
		`rejections_total{cause="queue_limit",model_name="m"} 0`,
		`selections_total{model_name="m",outcome="overloaded"} 4`,
		`selections_total{model_name="m",outcome="invalid"} 2`,
		`selections_total{model_name="m",outcome="selected"} 2`,
		`selections_total{model_name="m",outcome="reserved"} 1`,
		`selections_total{model_name="inc",outcome="not_ready"} 1`,
		`selections_total{model_name="",outcome="not_ready"} 2`,
		`busy_threshold{model_name="m",threshold="active_decode_blocks_threshold"} 0.05`,
		`busy_threshold{model_name="m",threshold="active_prefill_tokens_threshold"} 1000`,
		`busy_threshold{model_name="m",threshold="active_prefill_tokens_threshold_frac"} 0.1`,
		`worker_overloaded{model_name="m",tenant_id="t",worker_id="1"} 1`,
	)
	w.WantNoSeries(`busy_threshold{model_name="inc"`)
	if err := w.Free("r"); err != nil {
		t.Fatal(err)
	}
	w.WantSeries(`worker_overloaded{model_name="m",tenant_id="t",worker_id="1"} 0`)
	w.ClearBusy()
	w.WantNoSeries(`busy_threshold`)
	w.WantNoSeries(`worker_overloaded`)
}

// TestChoiceHistograms: overlap and cost of four choices, computed by hand.
//
// Of a prompt of 10 blocks worker 1 has 7 on its device, worker 2 has 2 there and
// one more in host memory, which counts 0.75. On idle workers the costs are
// 10-7+10 = 13 and 10-2.75+10 = 17.25 blocks.
func TestChoiceHistograms(t *testing.T) {
	w := servicetest.Start(t)
	w.Put(servicetest.Record(1, 1))
	w.Put(servicetest.Record(2, 1))
	p := servicetest.Prompt(1, 40)
	e := w.Engine(1, 0)
	e.Publish(0, e.Stored(p[:28], servicetest.BlockSize, nil))
	e = w.Engine(2, 0)
	e.Publish(0, e.Stored(p[:8], servicetest.BlockSize, nil), e.Stored(p[:12], servicetest.BlockSize, servicetest.Dict{"medium": "CPU"}))
	w.Settle()
	choose := func(tokens []uint32, want uint64, change ...func(*selection.SelectRequest)) {
		t.Helper()
		req := servicetest.Ask(tokens)
		for _, f := range change {
			f(req)
		}
		sel, err := w.Select(context.Background(), req, false)
		if err != nil || sel.Rank.Worker != want {
			t.Fatalf("worker %d, %v; want %d", sel.Rank.Worker, err, want)
		}
	}
	choose(p, 1)                                                                           // spread 4.25
	choose(p, 2, func(r *selection.SelectRequest) { r.Pinned = &catalog.Rank{Worker: 2} }) // alone
	w.Burden("b", 1, 0, 1, 50)
	w.SetBusy(overload.Thresholds{PrefillTokens: new(uint64(0))})
	choose(p, 2)     // forgoes 4 blocks of the overloaded worker 1
	choose(p[:3], 2) // no complete block
	w.WantSeries(
		`selection_overlap_ratio_bucket{model_name="m",le="0.2"} 0`,
		`selection_overlap_ratio_bucket{model_name="m",le="0.3"} 2`,
		`selection_overlap_ratio_bucket{model_name="m",le="0.6"} 2`,
		`selection_overlap_ratio_bucket{model_name="m",le="0.7"} 3`,
		`selection_overlap_ratio_sum{model_name="m"} 1.3`,
		`selection_overlap_ratio_count{model_name="m"} 3`,
		`selection_overlap_foregone_blocks_bucket{model_name="m",le="0"} 3`,
		`selection_overlap_foregone_blocks_bucket{model_name="m",le="2"} 3`,
		`selection_overlap_foregone_blocks_bucket{model_name="m",le="4"} 4`,
		`selection_overlap_foregone_blocks_sum{model_name="m"} 4`,
		`selection_overlap_foregone_blocks_count{model_name="m"} 4`,
		`selection_cost_spread_blocks_bucket{model_name="m",le="0"} 3`,
		`selection_cost_spread_blocks_bucket{model_name="m",le="4"} 3`,
		`selection_cost_spread_blocks_bucket{model_name="m",le="8"} 4`,
		`selection_cost_spread_blocks_sum{model_name="m"} 4.25`,
		`selection_cost_spread_blocks_count{model_name="m"} 4`,
	)
}

// TestSeriesEndWithTheirModel: what no worker serves is not shown, and its counts
// come back with the next worker.
func TestSeriesEndWithTheirModel(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff, servicetest.Limits(overload.Thresholds{PrefillTokens: new(uint64(0))}))
	w.Put(servicetest.Record(1, 2))
	w.Put(servicetest.Record(2, 1, servicetest.OfModel("other")))
	w.Book("r", servicetest.Prompt(1, 8))
	for _, family := range []string{"rank_active_kv_blocks", "rank_active_prefill_tokens", "rank_active_requests", "rank_used_kv_blocks"} {
		for _, labels := range []string{`{dp_rank="0",model_name="m",tenant_id="t",worker_id="1"}`, `{dp_rank="1",model_name="m",tenant_id="t",worker_id="1"}`} {
			if !strings.Contains(w.Scrape(), family+labels) {
				t.Errorf("no %s%s", family, labels)
			}
		}
	}
	w.WantNoSeries("rank_total_kv_blocks")
	w.WantSeries(`rank_max_num_batched_tokens{dp_rank="0",model_name="m",tenant_id="t",worker_id="1"} 100`)
	w.Patch(1, catalog.Patch{Size: new(uint32(1))})
	w.WantNoSeries(`dp_rank="1"`)
	w.Remove(1)
	w.WantNoSeries(`model(_name)?="m"`)
	w.WantNoSeries(`worker_id="1"`)
	if _, err := w.Select(context.Background(), servicetest.Ask(servicetest.Prompt(1, 8)), true); err == nil {
		t.Fatal("nobody is there")
	}
	w.WantSeries(`dynamo_tasks_issued_total{endpoint="select_and_reserve",model=""} 1`, `selections_total{model_name="",outcome="not_ready"} 1`)
	w.Put(servicetest.Record(7, 1, servicetest.Total(50)))
	w.WantSeries(
		`dynamo_tasks_issued_total{endpoint="select_and_reserve",model="m"} 1`,
		`selections_total{model_name="m",outcome="reserved"} 1`,
		`selection_cost_spread_blocks_count{model_name="m"} 1`,
		`rank_active_kv_blocks{dp_rank="0",model_name="m",tenant_id="t",worker_id="7"} 0`,
		`rank_total_kv_blocks{dp_rank="0",model_name="m",tenant_id="t",worker_id="7"} 50`,
		`worker_overloaded{model_name="m",tenant_id="t",worker_id="7"} 0`,
	)
}

// TestManyModels: 1,024 models have series of their own. Those of models that are
// gone give way; while none is, further models count among the others.
func TestManyModels(t *testing.T) {
	length.Sequential(t)
	const most = 1024
	w := servicetest.Start(t, servicetest.EventsOff)
	name := func(i int) string { return fmt.Sprintf("m%04d", i) }
	choose := func(i int) {
		t.Helper()
		req := servicetest.Ask(servicetest.Prompt(1, 8))
		req.Scope.Model = name(i)
		if _, err := w.Select(context.Background(), req, false); err != nil {
			t.Fatal(err)
		}
	}
	for i := range most + 1 {
		w.Put(servicetest.Record(uint64(i), 1, servicetest.OfModel(name(i))))
	}
	choose(0)
	choose(1)
	choose(most)
	want := func(counts map[string]float64) {
		t.Helper()
		m := w.Metrics()
		for model, n := range counts {
			if got := servicetest.Sum(m["dynamo_tasks_issued_total"], model, "select"); got != n {
				t.Errorf("%q has %v selections, want %v", model, got, n)
			}
		}
		if n := len(m["dynamo_tasks_issued_total"]); n != 2*(most+1) { // and the others
			t.Errorf("%d series", n)
		}
	}
	want(map[string]float64{name(0): 1, name(1): 1, name(most): 0, "": 1})
	w.Remove(0)
	w.Remove(1)
	w.Put(servicetest.Record(most+1, 1, servicetest.OfModel(name(most+1))))
	choose(most + 1)
	w.Put(servicetest.Record(0, 1, servicetest.OfModel(name(0)))) // back too late: its count has given way
	choose(0)
	want(map[string]float64{name(most + 1): 1, name(0): 1, name(1): 0, "": 1})
}
