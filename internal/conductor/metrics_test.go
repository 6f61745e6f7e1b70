package conductor_test

import (
	"testing"

	"github.com/select-service/select-service/internal/conductor"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// TestConductorMetrics: known traffic of an engine and of a cache backend gives
// exactly these counts, beside those of selection.
func TestConductorMetrics(t *testing.T) {
	w := servicetest.Start(t)
	w.Put(servicetest.Record(1, 1))
	engine, store := servicetest.Registration("i1", 0), servicetest.Registration("i2", 0, func(r *conductor.Registration) { r.Type = conductor.Standard })
	w.Register(engine)
	w.Register(store)

	p := servicetest.Prompt(1, 16)
	seq := servicetest.Sequence(p, servicetest.BlockSize)
	sel := w.Engine(1, 0)
	sel.Publish(0, sel.Stored(p[:8], servicetest.BlockSize, nil))
	e := w.Publisher(engine)
	e.Publish(0, e.Stored(p, servicetest.BlockSize, nil))
	wantHits(w, servicetest.Identity, p, "i1", gpu("i1", 16)) // the engine's tokens are known before the backend's hashes

	b := w.Publisher(store)
	root := servicetest.Dict{"base_block_idx": 0}
	b.Publish(0, servicetest.Envelope(1, "stored", seq, root))                                                                                     // as the engine's tokens say
	b.Publish(0, servicetest.Envelope(1, "stored", e.Names(p, servicetest.BlockSize)[:2], servicetest.Dict{"base_block_idx": 0, "medium": "cpu"})) // the engine's own names
	b.Publish(0, servicetest.Envelope(5, "stored", servicetest.Sequence(servicetest.Prompt(2, 16), servicetest.BlockSize), root))                  // 2 to 4 are missing
	b.Publish(0, servicetest.Envelope(5, "stored", servicetest.Sequence(servicetest.Prompt(3, 16), servicetest.BlockSize), root))                  // late
	b.Publish(0, servicetest.Envelope(6, "removed", seq[3:], servicetest.Dict{"base_block_idx": 2}))                                               // it is at 3
	wantHits(w, servicetest.Identity, p, "i2", "i2: 12 GPU 12 CPU 8 DISK 0 DP 0:12")
	b.Publish(0, servicetest.Envelope(1, "stored", seq, root))                                                                    // late
	b.Publish(0, servicetest.Envelope(2, "stored", servicetest.Sequence(servicetest.Prompt(4, 16), servicetest.BlockSize), root)) // its successor: a new process
	wantHits(w, servicetest.Identity, p, "i2", "i2: 8 GPU 0 CPU 8 DISK 0 DP 0:8")
	wantHits(w, servicetest.Identity, servicetest.Prompt(4, 16), "i2", gpu("i2", 16))

	type check struct {
		name   string
		family []servicetest.Sample
		labels []string
		want   float64
	}
	checks := func(m servicetest.Scraped) []check {
		return []check{
			{"publishers", m["conductor_publishers"], nil, 2},
			{"Spaces", m["conductor_spaces"], nil, 1},
			{"namespaces", m["conductor_namespaces"], nil, 1},
			{"owners", m["conductor_owners"], nil, 2},
			{"blocks", m["conductor_index_blocks"], nil, 10},
			{"blocks", m["conductor_index_blocks"], []string{"device"}, 8},
			{"blocks", m["conductor_index_blocks"], []string{"host_pinned"}, 2},
			{"unique blocks", m["conductor_index_unique_blocks"], nil, 8},
			{"orphans", m["conductor_index_orphan_blocks"], nil, 0},
			{"announced", m["conductor_blocks_total"], []string{"tokens"}, 4},
			{"announced", m["conductor_blocks_total"], []string{"standard"}, 4},
			{"announced", m["conductor_blocks_total"], []string{"own"}, 2},
			{"announced", m["conductor_blocks_total"], []string{"unverified"}, 8},
			{"gaps", m["conductor_event_id_gaps_total"], nil, 1},
			{"missed", m["conductor_event_ids_missed_total"], nil, 3},
			{"late", m["conductor_late_events_total"], nil, 2},
			{"restarts", m["conductor_stream_restarts_total"], nil, 1},
			{"base mismatches", m["conductor_base_mismatches_total"], nil, 1},

			// What selection has is not in there, and the streams' counters have both.
			{"selection's blocks", m["index_blocks"], nil, 2},
			{"messages", m["kv_messages_total"], []string{"received"}, 9},
			{"messages", m["kv_messages_total"], []string{"applied"}, 9},
			{"streams", m["kv_streams"], nil, 3},
			{"events", m["kv_events_total"], nil, 9},
			{"events", m["kv_events_total"], []string{"stored", "applied"}, 6},
			{"events", m["kv_events_total"], []string{"removed", "device", "applied"}, 1},
			{"events", m["kv_events_total"], []string{"late_event_id"}, 2},
		}
	}
	for _, c := range checks(w.Metrics()) {
		if got := servicetest.Sum(c.family, c.labels...); got != c.want {
			t.Errorf("%s %v: %v, want %v", c.name, c.labels, got, c.want)
		}
	}
	if servicetest.Sum(w.Metrics()["conductor_index_bytes"]) <= 0 {
		t.Error("the index has no bytes")
	}

	w.Unregister(servicetest.Instance("i2"), "i2|t|0")
	for i, c := range checks(w.Metrics()) {
		if i < 9 {
			continue // gauges
		}
		if got := servicetest.Sum(c.family, c.labels...); c.name != "streams" && got != c.want {
			t.Errorf("%s %v fell to %v with its publisher, from %v", c.name, c.labels, got, c.want)
		}
	}
}
