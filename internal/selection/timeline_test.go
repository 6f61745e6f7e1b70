package selection_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/telemetry/tracing"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
	"github.com/select-service/select-service/test/helpers/tracetest"
)

// TestTimeline: a traced selection has a span for each step, with the decision's ids, which its entry
// in the decisions has too; what fails says why; a waiting one shows its wait; what is not traced
// leaves nothing.
func TestTimeline(t *testing.T) {
	c := tracetest.Start(t)
	tracer, err := tracing.New(t.Context(), tracing.Options{Endpoint: c.GRPC, Getenv: func(name string) string {
		return map[string]string{"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}[name]
	}, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	traced := func(span *tracing.Span) func(*selection.SelectRequest) {
		return func(r *selection.SelectRequest) { r.Trace = span }
	}
	ids := make(map[string]string) // of traces, by case
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t, servicetest.EventsOff, servicetest.Queueing(0), func(c *node.Config) { c.Selection.DecisionBytes = 1 << 20 })
		w.Put(servicetest.Record(1, 1))
		begin := func(name string) *tracing.Span {
			span := tracer.Serve("to "+name, tracing.Context{})
			ids[name] = span.TraceID()
			return span
		}
		reserved := begin("reserve")
		startCall(w, "r-1", servicetest.Prompt(1, 64), traced(reserved)).served(t)
		reserved.End()
		waited := begin("wait")
		second := startCall(w, "r-2", servicetest.Prompt(2, 64), traced(waited))
		if !second.waits() {
			t.Fatal("the second request does not wait")
		}
		time.Sleep(time.Second)
		free := func(id string) {
			if err := w.Free(id); err != nil {
				t.Fatal(err)
			}
		}
		free("r-1")
		second.served(t)
		waited.End()
		free("r-2")
		startCall(w, "untraced", servicetest.Prompt(7, 64)).served(t)
		free("untraced")

		selected := begin("select")
		req := servicetest.Ask(servicetest.Prompt(3, 64))
		req.SelectionID, req.Trace = new("s-1"), selected
		if _, err := w.Select(t.Context(), req, false); err != nil {
			t.Fatal(err)
		}
		selected.End()
		refused := begin("refuse")
		req = servicetest.Ask(servicetest.Prompt(4, 64))
		req.Scope.Model, req.Trace = "unknown", refused
		if _, err := w.Select(t.Context(), req, true); err == nil {
			t.Fatal("an unknown model is selected")
		}
		refused.End()
		kept := make(map[string]string)
		for _, d := range w.Decisions(catalog.ScopeFilter{}, 10) {
			kept[d.ReservationID+d.SelectionID] = d.TraceID
		}
		if kept["r-1"] != ids["reserve"] || kept["r-2"] != ids["wait"] || kept["s-1"] != ids["select"] || kept["untraced"] != "" {
			t.Errorf("decisions have the traces %v, want those of %v", kept, ids)
		}
	})
	if err := tracer.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []struct{ name, tree, key, value string }{
		{"reserve", "select(hash look up choose book)", "select_service.reservation_id", "r-1"},
		{"wait", "select(hash look up wait choose book)", "select_service.worker_id", "1"},
		{"select", "select(hash look up choose)", "select_service.selection_id", "s-1"},
		{"refuse", "select", "select_service.model", "unknown"},
	} {
		got := c.Await(t, ids[want.name], "to "+want.name)
		root := got.Named("to " + want.name)[0]
		if tree := got.Under(root.ID); tree != want.tree {
			t.Errorf("%s: %s, want %s", want.name, tree, want.tree)
		}
		of := got.Named("select")
		if len(of) != 1 || of[0].Attributes[want.key] != want.value || (of[0].Fault != "") != (want.name == "refuse") {
			t.Errorf("%s:\n%v", want.name, got)
		}
		for _, s := range got.Named("wait") {
			if s.End.Sub(s.Start) != time.Second {
				t.Errorf("waited %v", s.End.Sub(s.Start))
			}
		}
	}
	if all := c.Await(t, "", "to refuse"); len(all.Named("select")) != 4 {
		t.Errorf("%d selections are traced, want 4", len(all.Named("select")))
	}
}
