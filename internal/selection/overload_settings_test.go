package selection_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/overload"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// settings shows thresholds as "m: 0.5 10 -".
func settings(all ...selection.ModelThresholds) string {
	var rows []string
	for _, m := range all {
		row := m.Model + ":"
		for _, v := range []fmt.Stringer{number[float64]{m.DecodeBlocks}, number[uint64]{m.PrefillTokens}, number[float64]{m.PrefillFraction}} {
			row += " " + v.String()
		}
		rows = append(rows, row)
	}
	return strings.Join(rows, ", ")
}

type number[T any] struct{ of *T }

func (n number[T]) String() string {
	if n.of == nil {
		return "-"
	}
	return fmt.Sprint(*n.of)
}

// TestThresholdSettings: what can be set, read and cleared for which models, in
// the contract's words, and that a model's values outlive its workers.
func TestThresholdSettings(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff, servicetest.Limits(overload.Thresholds{DecodeBlocks: new(.9)}))
	want := func(list string) {
		t.Helper()
		if got := settings(w.BusyThresholds()...); got != list {
			t.Errorf("thresholds are %q, want %q", got, list)
		}
	}
	answered := func(m selection.ModelThresholds, err error) func(string) {
		t.Helper()
		return func(want string) {
			t.Helper()
			if got := settings(m); err != nil || got != want {
				t.Errorf("answered %q (%v), want %q", got, err, want)
			}
		}
	}
	want("")
	w.Put(servicetest.Record(3, 1, func(r *catalog.Record) { r.Scope = catalog.Scope{Model: "z", Tenant: "t"} }))
	w.Put(servicetest.Record(1, 1))
	w.Put(servicetest.Record(2, 1, func(r *catalog.Record) { r.Scope.Tenant = "u" }))
	if wk, err := w.PutWorker(servicetest.Record(4, 1, func(r *catalog.Record) { r.Scope.Model, r.Endpoint = "incomplete", nil })); err != nil || wk.Lifecycle == catalog.Schedulable {
		t.Fatal(wk, err)
	}
	if err := w.SlotsRegister(node.SlotsWorker{Worker: 1, Scope: catalog.Scope{Model: "slots", Tenant: "t"}, BlockSize: 4, DPSize: 1}); err != nil {
		t.Fatal(err)
	}
	want("incomplete: 0.9 - -, m: 0.9 - -, slots: 0.9 - -, z: 0.9 - -")

	answered(w.SetBusyThreshold("m", overload.Thresholds{}))("m: 0.9 - -")
	answered(w.SetBusyThreshold("x", overload.Thresholds{}))("x: - - -")
	answered(w.SetBusyThreshold("m", overload.Thresholds{PrefillTokens: new(uint64(0))}))("m: 0.9 0 -")
	answered(w.SetBusyThreshold("m", overload.Thresholds{DecodeBlocks: new(1.0), PrefillFraction: new(1.5)}))("m: 1 0 1.5")
	answered(w.SetBusyThreshold("incomplete", overload.Thresholds{DecodeBlocks: new(.1)}))("incomplete: 0.1 - -")
	answered(w.ClearBusyThreshold("m", new("active_prefill_tokens_threshold")))("m: 1 - 1.5")
	answered(w.ClearBusyThreshold("z", nil))("z: - - -")
	answered(w.ClearBusyThreshold("slots", new("active_prefill_tokens_threshold_frac")))("slots: 0.9 - -")
	list := "incomplete: 0.1 - -, m: 1 - 1.5, slots: 0.9 - -, z: - - -"
	want(list)

	refused := func(kind contract.Kind, text string) func(selection.ModelThresholds, error) {
		t.Helper()
		return func(_ selection.ModelThresholds, err error) { t.Helper(); servicetest.WantError(t, err, kind, text) }
	}
	const unknown = "Model 'x' not found. Thresholds can only be set for discovered models."
	refused(contract.NotFound, unknown)(w.SetBusyThreshold("x", overload.Thresholds{PrefillTokens: new(uint64(1))}))
	refused(contract.NotFound, unknown)(w.ClearBusyThreshold("x", nil))
	const outside = "active_decode_blocks_threshold must be between 0.0 and 1.0, got 1.5"
	refused(contract.BadRequest, outside)(w.SetBusyThreshold("m", overload.Thresholds{DecodeBlocks: new(1.5), PrefillTokens: new(uint64(1))}))
	refused(contract.BadRequest, outside)(w.SetBusyThreshold("x", overload.Thresholds{DecodeBlocks: new(1.5)}))
	refused(contract.BadRequest, "active_prefill_tokens_threshold_frac must be a finite value greater than or equal to 0.0, got -1")(
		w.SetBusyThreshold("m", overload.Thresholds{PrefillFraction: new(-1.0)}))
	refused(contract.BadRequest, "threshold must be one of active_decode_blocks_threshold, active_prefill_tokens_threshold, active_prefill_tokens_threshold_frac")(
		w.ClearBusyThreshold("x", new("decode")))
	want(list)

	w.Remove(1)
	w.Remove(2)
	want("incomplete: 0.1 - -, slots: 0.9 - -, z: - - -")
	w.Put(servicetest.Record(1, 1))
	want(list)
}

// TestThresholdsOfManyModels: values of models whose workers have left make room
// for others, and only those.
func TestThresholdsOfManyModels(t *testing.T) {
	if testing.Short() {
		t.Skip("4,096 models")
	}
	w := servicetest.Start(t, servicetest.EventsOff)
	put := func(model string) {
		w.Put(servicetest.Record(1, 1, func(r *catalog.Record) { r.Scope.Model = model }))
	}
	for i := range overload.MaxModels {
		model := fmt.Sprint("gone", i)
		put(model)
		if _, err := w.SetBusyThreshold(model, overload.Thresholds{PrefillTokens: new(uint64(1))}); err != nil {
			t.Fatal(err)
		}
	}
	put("last")
	if _, err := w.SetBusyThreshold("last", overload.Thresholds{PrefillTokens: new(uint64(2))}); err != nil {
		t.Error(err)
	}
	if got := settings(w.BusyThresholds()...); got != "last: - 2 -" {
		t.Errorf("thresholds are %q", got)
	}
}

// TestTenantsShareThresholds: a threshold is a model's, for all its tenants; a
// load is a scope's.
func TestTenantsShareThresholds(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff)
	w.Put(servicetest.Record(1, 1))
	w.Put(servicetest.Record(2, 1, func(r *catalog.Record) { r.Scope.Tenant = "u" }))
	w.Put(servicetest.Record(3, 1, func(r *catalog.Record) { r.Scope.Model = "other" }))
	w.SetBusy(overload.Thresholds{PrefillTokens: new(uint64(0))})
	in := func(sc catalog.Scope) func(*selection.SelectRequest) {
		return func(r *selection.SelectRequest) { r.Scope = sc }
	}
	for _, sc := range []catalog.Scope{servicetest.Scope, {Model: "m", Tenant: "u"}, {Model: "other", Tenant: "t"}} {
		wantFree(w, in(sc))
		for _, wk := range w.Workers(&sc.Model, &sc.Tenant) {
			_, err := w.Reserve(&selection.ReserveRequest{Scope: sc, ID: fmt.Sprint(wk.ID), Rank: catalog.Rank{Worker: wk.ID}, Prompt: servicetest.Ask(servicetest.Prompt(1, 8)).Prompt})
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := try(w, in(sc)); (err != nil) != (sc.Model == "m") {
			t.Errorf("%v: %v", sc, err)
		} else if over := new(contract.OverloadError); err != nil && !errors.As(err, &over) {
			t.Errorf("%v: %v", sc, err)
		}
	}
}

// TestThresholdsLog: a change has a line with all thresholds before and after it;
// what changes nothing has none.
func TestThresholdsLog(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff, servicetest.Limits(overload.Thresholds{PrefillTokens: new(uint64(7))}))
	w.Put(servicetest.Record(1, 1))
	w.WantLog()
	const (
		none = "map[active_decode_blocks_threshold:%v active_prefill_tokens_threshold:%v active_prefill_tokens_threshold_frac:%v]"
		line = "info: busy thresholds changed model=m now=" + none + " was=" + none
	)
	w.SetBusy(overload.Thresholds{DecodeBlocks: new(.5), PrefillFraction: new(2.0)})
	w.WantLog(fmt.Sprintf(line, .5, 7, 2, nil, 7, nil))
	w.SetBusy(overload.Thresholds{DecodeBlocks: new(.5), PrefillTokens: new(uint64(7))})
	w.SetBusy(overload.Thresholds{})
	if _, err := w.SetBusyThreshold("m", overload.Thresholds{DecodeBlocks: new(2.0)}); err == nil {
		t.Error("set what is out of range")
	}
	w.WantLog()
	w.SetBusy(overload.Thresholds{PrefillTokens: new(uint64(math.MaxUint64))})
	w.WantLog(fmt.Sprintf(line, .5, uint64(math.MaxUint64), 2, .5, 7, 2))
	w.ClearBusy()
	w.WantLog(fmt.Sprintf(line, nil, nil, nil, .5, uint64(math.MaxUint64), 2))
	w.ClearBusy()
	w.WantLog()

	long := strings.Repeat("m", 1024)
	w.Put(servicetest.Record(2, 1, func(r *catalog.Record) { r.Scope.Model = long }))
	if _, err := w.ClearBusyThreshold(long, nil); err != nil {
		t.Fatal(err)
	}
	w.WantLog("info: busy thresholds changed model=" + long[:256] + "… " + fmt.Sprintf(line, nil, nil, nil, nil, 7, nil)[len("info: busy thresholds changed model=m "):])
}
