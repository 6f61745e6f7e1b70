package selection_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/overload"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

const (
	allBusy        = "all eligible workers are overloaded"
	allBusyMessage = "Service temporarily unavailable: All workers are busy, please retry later"
)

// try selects in all four ways: without and with a reservation, which is
// freed again, and with the early test and without. All four have to agree.
func try(w *servicetest.World, change ...func(*selection.SelectRequest)) error {
	w.T.Helper()
	var answers [4]error
	for i := range answers {
		req := servicetest.Ask(servicetest.Prompt(77, 8))
		for _, f := range change {
			f(req)
		}
		w.CheckOverloadLate(servicetest.Scope, i%2 == 1)
		var sel selection.Selection
		sel, answers[i] = w.Select(context.Background(), req, i >= 2)
		if answers[i] == nil && i >= 2 {
			if err := w.Free(*sel.ReservationID); err != nil {
				w.T.Error(err)
			}
		}
		if got, want := reasonOf(answers[i]), reasonOf(answers[0]); got != want {
			w.T.Errorf("way %d says %q, way 0 %q", i, got, want)
		}
	}
	w.CheckOverloadLate(servicetest.Scope, false)
	return answers[0]
}

// reasonOf is all that an answer says about a refusal.
func reasonOf(err error) string {
	var e *contract.Error
	if !errors.As(err, &e) {
		return fmt.Sprint(err)
	}
	var over *contract.OverloadError
	if !errors.As(err, &over) {
		return fmt.Sprintf("(%d) %s", e.Kind, e.Error())
	}
	return fmt.Sprintf("(%d) %s; %s; %+v", e.Kind, e.Error(), e.Message, *over)
}

func wantBusy(w *servicetest.World, change ...func(*selection.SelectRequest)) {
	w.T.Helper()
	servicetest.WantError(w.T, try(w, change...), contract.Overloaded, allBusy)
}

func wantFree(w *servicetest.World, change ...func(*selection.SelectRequest)) {
	w.T.Helper()
	if err := try(w, change...); err != nil {
		w.T.Errorf("refused: %v", err)
	}
}

func pin(worker uint64, dp uint32) func(*selection.SelectRequest) {
	return func(r *selection.SelectRequest) { r.Pinned = &catalog.Rank{Worker: worker, DP: dp} }
}

// allow copies the ids: a request gives its list away.
func allow(ids ...uint64) func(*selection.SelectRequest) {
	return func(r *selection.SelectRequest) { r.AllowedWorkers, r.HasAllowedWorkers = slices.Clone(ids), true }
}

// TestNextCall: whatever changes a worker's state acts on the very next call, in
// both directions: thresholds, reservations through either contract, the end of a
// prefill or of a request, the worker's own record.
func TestNextCall(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff)
	w.Put(servicetest.Record(1, 1))
	w.Burden("r", 1, 0, 5, 50)
	wantFree(w)

	steps := []struct {
		name string
		do   func() error
		busy bool
	}{
		{"prefill threshold at the load", func() error { w.SetBusy(overload.Thresholds{PrefillTokens: new(uint64(50))}); return nil }, false},
		{"one below", func() error { w.SetBusy(overload.Thresholds{PrefillTokens: new(uint64(49))}); return nil }, true},
		{"prefill complete", func() error { return w.PrefillComplete("r") }, false},
		{"booked by the slot tracker", func() error { return w.SlotsAdd(servicetest.SlotsReservation("s", 1, 0, 50, 901, 902)) }, true},
		{"its prefill complete", func() error { return w.SlotsPrefillComplete(servicetest.Scope, "s") }, false},
		{"decode threshold, total unknown", func() error { w.SetBusy(overload.Thresholds{DecodeBlocks: new(.5)}); return nil }, false},
		{"total known", func() error { return resize(w, 1, 10) }, true}, // 7 blocks
		{"total larger", func() error { return resize(w, 1, 14) }, false},
		{"output block", func() error { return w.OutputBlock("r", nil) }, true},
		{"slot tracker's request freed", func() error { return w.SlotsFree(servicetest.Scope, "s") }, false},
		{"total smaller", func() error { return resize(w, 1, 11) }, true},
		{"freed", func() error { return w.Free("r") }, false},
		{"booked", func() error { w.Burden("r2", 1, 0, 6, 0); return nil }, true},
		{"one threshold cleared, another is not exceeded", func() error {
			_, err := w.ClearBusyThreshold("m", new("active_decode_blocks_threshold"))
			return err
		}, false},
		{"set again", func() error { w.SetBusy(overload.Thresholds{DecodeBlocks: new(.5)}); return nil }, true},
		{"another worker", func() error { w.Put(servicetest.Record(2, 1)); return nil }, false},
		{"it is gone", func() error { _, err := w.DeleteWorker(2); return err }, true},
		{"another rank", func() error { _, err := w.PatchWorker(1, catalog.Patch{Size: new(uint32(2))}); return err }, false},
		{"it is gone, too", func() error { _, err := w.PatchWorker(1, catalog.Patch{Size: new(uint32(1))}); return err }, true},
		{"all thresholds cleared", func() error { w.ClearBusy(); return nil }, false},
		{"a limit on batches", func() error {
			w.SetBusy(overload.Thresholds{PrefillFraction: new(.5)})
			w.Burden("r3", 1, 0, 0, 51)
			return nil
		}, true}, // of 100
		{"a larger batch", func() error {
			_, err := w.PatchWorker(1, catalog.Patch{MaxNumBatchedTokens: new(uint64(102))})
			return err
		}, false},
	}
	for _, step := range steps {
		if err := step.do(); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if err := try(w); (err != nil) != step.busy {
			t.Fatalf("%s: busy should be %t: %v", step.name, step.busy, err)
		}
	}
}

func resize(w *servicetest.World, id, blocks uint64) error {
	_, err := w.PatchWorker(id, catalog.Patch{TotalKVBlocks: &blocks})
	return err
}

// TestPinnedSister: of a pinned worker all ranks count, in both directions; a
// reservation goes to the pinned rank, however much it carries.
func TestPinnedSister(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff, servicetest.Limits(overload.Thresholds{PrefillTokens: new(uint64(9))}))
	w.Put(servicetest.Record(1, 2))
	w.Put(servicetest.Record(2, 1))
	w.Burden("r0", 1, 0, 1, 10)
	wantFree(w, pin(1, 0))
	req := servicetest.Ask(servicetest.Prompt(1, 8))
	pin(1, 0)(req)
	sel, err := w.Select(context.Background(), req, true)
	if err != nil || sel.Rank.DP != 0 {
		t.Fatalf("chosen was %v: %v", sel.Rank, err)
	}
	w.Burden("r1", 1, 1, 1, 10)
	for dp := range uint32(2) {
		err := try(w, pin(1, dp))
		servicetest.WantError(t, err, contract.Overloaded, "pinned worker 1 is overloaded")
		var e *contract.Error
		if errors.As(err, &e); e.Message != "Service temporarily unavailable: Selected worker is overloaded, please retry later" {
			t.Errorf("the message is %q", e.Message)
		}
	}
	wantFree(w, pin(2, 0))
	wantFree(w)
}

// TestCauses: a refusal names the thresholds that are exceeded on any of the ranks
// in question, and only those.
func TestCauses(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff)
	w.Put(servicetest.Record(1, 2, servicetest.Total(10)))
	w.Put(servicetest.Record(2, 1, servicetest.Total(10)))
	w.Burden("a", 1, 0, 6, 0)
	w.Burden("b", 1, 1, 0, 60)
	w.Burden("c", 2, 0, 6, 60)
	tests := []struct {
		limits overload.Thresholds
		change func(*selection.SelectRequest)
		want   []overload.Threshold
	}{
		{overload.Thresholds{DecodeBlocks: new(.5)}, allow(2), []overload.Threshold{overload.DecodeBlocks}},
		{overload.Thresholds{PrefillTokens: new(uint64(59))}, pin(2, 0), []overload.Threshold{overload.PrefillTokens}},
		{overload.Thresholds{DecodeBlocks: new(.5), PrefillTokens: new(uint64(59))}, allow(1, 2), []overload.Threshold{overload.DecodeBlocks, overload.PrefillTokens}},
		{overload.Thresholds{DecodeBlocks: new(.5), PrefillFraction: new(.5)}, pin(1, 1), []overload.Threshold{overload.DecodeBlocks, overload.PrefillFraction}},
		{overload.Thresholds{DecodeBlocks: new(.7), PrefillTokens: new(uint64(60)), PrefillFraction: new(.5)}, allow(2), []overload.Threshold{overload.PrefillFraction}},
	}
	for i, tt := range tests {
		w.ClearBusy()
		w.SetBusy(tt.limits)
		var over *contract.OverloadError
		if !errors.As(try(w, tt.change), &over) {
			t.Errorf("%d: not refused", i)
			continue
		}
		for j := range overload.NumThresholds {
			if c := overload.Threshold(j); over.Causes.Has(c) != slices.Contains(tt.want, c) {
				t.Errorf("%d: %s is a cause: %t", i, c, over.Causes.Has(c))
			}
		}
	}
}

// TestOverloadComesLast: a request that can never work, or that no worker serves,
// gets that error however loaded all workers are; only an id that is taken is
// found when the reservation is made.
func TestOverloadComesLast(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff, servicetest.Limits(overload.Thresholds{PrefillTokens: new(uint64(0))}))
	w.Put(servicetest.Record(1, 1))
	w.Burden("r", 1, 0, 1, 1)
	tests := []struct {
		name   string
		change func(*selection.SelectRequest)
		kind   contract.Kind
		text   string
	}{
		{"no such model", func(r *selection.SelectRequest) { r.Scope.Model = "x" }, contract.Unavailable, "no schedulable workers for model=x tenant=t"},
		{"bad override", func(r *selection.SelectRequest) { r.Override.Temperature = new(-1.0) }, contract.BadRequest, "router_temperature"},
		{"half a prompt", func(r *selection.SelectRequest) { r.Prompt = selection.Prompt{HasBlockHashes: true} }, contract.BadRequest, "sequence_hashes is required without token_ids"},
		{"pinned outside its list", func(r *selection.SelectRequest) { pin(1, 0)(r); allow(2)(r) }, contract.BadRequest, "pinned worker 1 is not in allowed worker set"},
		{"no worker allowed", allow(), contract.Unavailable, "no endpoints available to route work"},
		{"taint that no worker has", func(r *selection.SelectRequest) { r.RequiredTaints = []string{"x"} }, contract.Unavailable, "no endpoints available to route work"},
		{"no such rank", pin(1, 7), contract.Unavailable, "no endpoints available to route work"},
		{"id taken", func(r *selection.SelectRequest) { r.ReservationID = new("r") }, contract.Overloaded, allBusy},
		{"empty prompt", func(r *selection.SelectRequest) { r.Prompt.TokenIDs = nil }, contract.Overloaded, allBusy},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := try(w, tt.change)
			var e *contract.Error
			if !errors.As(err, &e) || e.Kind != tt.kind || !strings.Contains(e.Error(), tt.text) {
				t.Fatalf("error is %v, want %q", err, tt.text)
			}
			want := ""
			if tt.kind == contract.Overloaded {
				want = allBusyMessage
			}
			if e.Message != want {
				t.Errorf("the message is %q", e.Message)
			}
		})
	}
	w.WantLoad("1/0: 1 1 1")
}

// TestReservationIsNeverRefused: a reservation states a fact, whatever the worker
// carries, and questions about loads are answered.
func TestReservationIsNeverRefused(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff, servicetest.Limits(overload.Thresholds{DecodeBlocks: new(0.0), PrefillTokens: new(uint64(0))}))
	w.Put(servicetest.Record(1, 1, servicetest.Total(1)))
	w.Burden("a", 1, 0, 5, 5)
	wantBusy(w)
	w.Burden("bb", 1, 0, 5, 5)
	if err := w.SlotsAdd(servicetest.SlotsReservation("s", 1, 0, 7, 903)); err != nil {
		t.Error(err)
	}
	project := &selection.ProjectRequest{Scope: servicetest.Scope, Prompt: servicetest.Ask(servicetest.Prompt(1, 8)).Prompt}
	if _, err := w.PotentialLoads(project); err != nil {
		t.Error(err)
	}
	if _, err := w.OverlapScores(project); err != nil {
		t.Error(err)
	}
	w.WantLoad("1/0: 17 11 3")
}

// TestRefusalIsCheap: a refusal does not look at the prompt. This one is too long
// for its scratch memory to be kept, so hashing it allocates megabytes.
func TestRefusalIsCheap(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff, servicetest.Limits(overload.Thresholds{PrefillTokens: new(uint64(0))}))
	w.Put(servicetest.Record(1, 1))
	tokens := servicetest.Prompt(1, 1<<20)
	allocated := func() uint64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, _ = w.Select(context.Background(), servicetest.Ask(tokens), false)
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	if n := allocated(); n < 1<<21 {
		t.Errorf("an answer took %d bytes: this test proves nothing", n)
	}
	w.Burden("r", 1, 0, 1, 1)
	if n := allocated(); n > 1<<17 {
		t.Errorf("a refusal took %d bytes", n)
	}
}

// TestStaleReservationRefusesNone: a reservation ends with its age for requests
// that it would refuse, and not only when the timer comes round, with a wait queue
// and without.
func TestStaleReservationRefusesNone(t *testing.T) {
	for name, queue := range map[string]func(*node.Config){"at once": func(*node.Config) {}, "with a queue": servicetest.Queueing(1000)} {
		for _, reserve := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				w := servicetest.Start(t, servicetest.EventsOff, servicetest.Limits(overload.Thresholds{PrefillTokens: new(uint64(0))}), queue)
				w.Put(servicetest.Record(1, 1))
				time.Sleep(5 * time.Second) // the timer ticks every 30 s
				for i := range 100 {
					w.Burden(strconv.Itoa(i), 1, 0, 1, 1)
				}
				time.Sleep(300 * time.Second)
				if _, err := w.Select(t.Context(), servicetest.Ask(servicetest.Prompt(1, 8)), reserve); err == nil {
					t.Errorf("%s, reserve %t: a reservation of 300 s refuses no request", name, reserve)
				}
				time.Sleep(time.Nanosecond)
				if _, err := w.Select(t.Context(), servicetest.Ask(servicetest.Prompt(1, 8)), reserve); err != nil {
					t.Errorf("%s, reserve %t: a reservation of more than 300 s refuses: %v", name, reserve, err)
				}
			})
		}
	}
}
