package telemetry_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection/overload"
	"github.com/select-service/select-service/internal/telemetry"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/selector"
	"github.com/select-service/select-service/test/helpers/length"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// TestWorkerMetrics: the workers of each model by lifecycle; what no model has is
// 0, so that a sum over models has a value while nobody is registered.
func TestWorkerMetrics(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff)
	w.WantSeries(
		`workers{lifecycle="schedulable",model_name=""} 0`,
		`workers{lifecycle="incomplete",model_name=""} 0`,
		`workers{lifecycle="tracked",model_name=""} 0`,
	)
	if err := w.SlotsRegister(node.SlotsWorker{Worker: 9, Scope: servicetest.Scope, BlockSize: servicetest.BlockSize, DPSize: 3}); err != nil {
		t.Fatal(err)
	}
	w.Put(servicetest.Record(1, 1))
	w.Put(servicetest.Record(2, 2, func(r *catalog.Record) { r.Scope.Tenant = "other" }))
	for id := range uint64(3) {
		if _, err := w.PutWorker(catalog.Record{ID: 10 + id, Scope: catalog.Scope{Model: "n"}}); err != nil {
			t.Fatal(err)
		}
	}
	w.Put(servicetest.Record(3, 1, servicetest.OfModel(""))) // a model without a name is among the others
	w.WantSeries(
		`workers{lifecycle="schedulable",model_name="m"} 2`,
		`workers{lifecycle="incomplete",model_name="m"} 0`,
		`workers{lifecycle="tracked",model_name="m"} 1`,
		`workers{lifecycle="schedulable",model_name="n"} 0`,
		`workers{lifecycle="incomplete",model_name="n"} 3`,
		`workers{lifecycle="schedulable",model_name=""} 1`,
	)
}

// TestUnjudged: workers that can be selected and whose record lacks what a
// threshold is a share of, or says 0, are counted while that threshold is set. The
// limits of 0 are not shown: a dashboard may divide by them.
func TestUnjudged(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff)
	unlimited := func(r *catalog.Record) { r.MaxNumBatchedTokens = nil }
	w.Put(servicetest.Record(1, 1))
	w.Put(servicetest.Record(2, 1, servicetest.Total(0), func(r *catalog.Record) { r.MaxNumBatchedTokens = new(uint64(0)) }))
	w.Put(servicetest.Record(3, 1, servicetest.Total(9), unlimited))
	w.Put(servicetest.Record(4, 1, servicetest.Total(9)))
	w.Put(servicetest.Record(5, 1, servicetest.OfModel("")))
	if _, err := w.PutWorker(catalog.Record{ID: 6, Scope: servicetest.Scope}); err != nil { // never selected
		t.Fatal(err)
	}
	if err := w.SlotsRegister(node.SlotsWorker{Worker: 7, Scope: servicetest.Scope, BlockSize: servicetest.BlockSize, DPSize: 1}); err != nil {
		t.Fatal(err)
	}
	w.WantNoSeries("workers_unjudged")
	w.SetBusy(overload.Thresholds{PrefillTokens: new(uint64(9))}) // needs no limit
	w.WantNoSeries("workers_unjudged")
	w.SetBusy(overload.Thresholds{DecodeBlocks: new(.5)})
	w.WantSeries(`workers_unjudged{model_name="m",threshold="active_decode_blocks_threshold"} 2`)
	w.WantNoSeries(`workers_unjudged.*active_prefill_tokens`)
	w.SetBusy(overload.Thresholds{PrefillFraction: new(2.)})
	if _, err := w.SetBusyThreshold("", overload.Thresholds{DecodeBlocks: new(.25)}); err != nil {
		t.Fatal(err)
	}
	w.WantSeries(
		`workers_unjudged{model_name="m",threshold="active_decode_blocks_threshold"} 2`,
		`workers_unjudged{model_name="m",threshold="active_prefill_tokens_threshold_frac"} 2`,
		`workers_unjudged{model_name="",threshold="active_decode_blocks_threshold"} 1`,
		`busy_threshold{model_name="",threshold="active_decode_blocks_threshold"} 0.25`,
	)
	w.WantNoSeries(`rank_(total_kv_blocks|max_num_batched_tokens){.*worker_id="2"`)
	w.Put(servicetest.Record(2, 1, servicetest.Total(9)))
	w.Remove(1)
	w.WantSeries(
		`workers_unjudged{model_name="m",threshold="active_decode_blocks_threshold"} 0`,
		`workers_unjudged{model_name="m",threshold="active_prefill_tokens_threshold_frac"} 1`,
	)
}

// TestManyThresholds: models that are too many for counts of their own have their
// workers among the others, and their thresholds under their names.
func TestManyThresholds(t *testing.T) {
	length.Sequential(t)
	w := servicetest.Start(t, servicetest.EventsOff, servicetest.Limits(overload.Thresholds{PrefillTokens: new(uint64(9))}))
	const models = 1026
	for i := range models {
		w.Put(servicetest.Record(uint64(i), 1, servicetest.OfModel(fmt.Sprintf("m%04d", i))))
	}
	w.WantSeries(
		`workers{lifecycle="schedulable",model_name="m1023"} 1`,
		`workers{lifecycle="schedulable",model_name=""} 2`,
		`busy_threshold{model_name="m1025",threshold="active_prefill_tokens_threshold"} 9`,
	)
	if m := w.Metrics(); len(m["busy_threshold"]) != models || servicetest.Sum(m["workers"]) != models {
		t.Errorf("%d thresholds, %v workers", len(m["busy_threshold"]), servicetest.Sum(m["workers"]))
	}
}

// TestEventsFromTheStart: what events come to is shown before there are any.
func TestEventsFromTheStart(t *testing.T) {
	w := servicetest.Start(t)
	w.WantSeries(
		`kv_events_total{kind="stored",outcome="applied",tier="device"} 0`,
		`kv_events_total{kind="removed",outcome="block_size_mismatch",tier="device"} 0`,
		`kv_events_total{kind="stored",outcome="unknown_medium",tier="none"} 0`,
		`kv_events_total{kind="cleared",outcome="applied",tier="none"} 0`,
		`kv_events_total{kind="unreadable",outcome="bad_tag",tier="none"} 0`,
		`kv_event_blocks_total{outcome="stored",tier="device"} 0`,
		`kv_event_blocks_total{outcome="orphans_dropped",tier="device"} 0`,
	)
	w.WantNoSeries(`kv_event.*tier="(host_pinned|disk)"`)
}

// TestSpreadIsBounded: no weights in a request make the sum of cost spreads
// useless for good.
func TestSpreadIsBounded(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff)
	w.Put(servicetest.Record(1, 2))
	w.Book("r", servicetest.Prompt(1, 40)) // or both ranks cost the same
	for range 3 {
		req := servicetest.Ask(servicetest.Prompt(2, 40))
		req.Override = selector.Override{PrefillScale: new(1e307)}
		if _, err := w.Select(context.Background(), req, false); err != nil {
			t.Fatal(err)
		}
	}
	w.WantSeries(
		`selection_cost_spread_blocks_bucket{model_name="m",le="65536"} 1`,
		`selection_cost_spread_blocks_sum{model_name="m"} 3.145728e+06`,
		`selection_cost_spread_blocks_count{model_name="m"} 4`,
	)
}

// TestAliasesAreOptional: dynamo.indexer's names are shown only if asked for.
func TestAliasesAreOptional(t *testing.T) {
	w := servicetest.Start(t)
	with := telemetry.Handler("", false, w.Collectors(true)...)
	without := telemetry.Handler("", false, w.Collectors(false)...)
	for want, h := range map[bool]http.Handler{true: with, false: without} {
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		if rec.Code != http.StatusOK || strings.Contains(rec.Body.String(), "dynamo_kv") != want {
			t.Errorf("status %d, aliases are not %v", rec.Code, want)
		}
	}
}
