package catalog_test

import (
	"strings"
	"testing"

	"github.com/select-service/select-service/pkg/catalog"
)

// TestWithoutEvents proves that a worker whose engine publishes no KV events is complete without an
// endpoint for them and has no stream, whatever else its record or its engine says, and that one of which
// nothing is said needs the endpoint, as Dynamo's contract has it.
func TestWithoutEvents(t *testing.T) {
	none := func(r *catalog.Record) { r.KVEvents = new(false) }
	for name, row := range map[string]struct {
		record catalog.Record
		told   *catalog.Description
	}{
		"no endpoint": {record: record(1, none, func(r *catalog.Record) { r.KVEventsEndpoint = nil })},
		"an endpoint": {record: record(1, none, func(r *catalog.Record) { r.KVEventsEndpoint = new("tcp://w:1") })},
		"described":   {record: asked(none), told: told(2, func(d *catalog.Description) { d.Unknown["kv_events_endpoints"] = "none" })},
	} {
		t.Run(name, func(t *testing.T) {
			c, world := newWorld(t, events)
			w, err := c.Put(row.record)
			if err != nil {
				t.Fatal(err)
			}
			if row.told != nil {
				w, _ = c.Describe(w, row.told, "")
			}
			if w.Lifecycle != catalog.Schedulable || len(w.KVEventsEndpoints) > 0 && row.told != nil {
				t.Errorf("%s", shown(w))
			}
			for _, a := range world.inForce {
				if n := len(a.Streams); n > 0 {
					t.Errorf("%d streams", n)
				}
			}
			w, err = c.Patch(1, catalog.Patch{KVEvents: new(true)})
			if err != nil {
				t.Fatal(err)
			}
			if name == "no endpoint" && !strings.Contains(strings.Join(w.Explain(), ";"), "kv_events endpoint is required for dp_rank 0") {
				t.Errorf("with events: %s", shown(w))
			}
		})
	}
}
