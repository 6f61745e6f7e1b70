package conductor

import (
	"testing"

	"github.com/select-service/select-service/pkg/kvevents"
)

// TestOrder: what each number in a row means.
func TestOrder(t *testing.T) {
	type step struct {
		id      uint64
		want    sequenceStep
		missing uint64
	}
	tests := map[string][]step{
		"in order":             {{5, stepInOrder, 0}, {6, stepInOrder, 0}, {7, stepInOrder, 0}},
		"gap":                  {{5, stepInOrder, 0}, {9, stepAfterGap, 3}, {10, stepInOrder, 0}},
		"duplicate":            {{5, stepInOrder, 0}, {5, stepLate, 0}, {6, stepInOrder, 0}},
		"one late":             {{5, stepInOrder, 0}, {2, stepLate, 0}, {6, stepInOrder, 0}},
		"two that do not rise": {{9, stepInOrder, 0}, {2, stepLate, 0}, {2, stepLate, 0}, {1, stepLate, 0}, {10, stepInOrder, 0}},
		"two with a hole":      {{9, stepInOrder, 0}, {2, stepLate, 0}, {4, stepLate, 0}, {10, stepInOrder, 0}},
		"two apart":            {{9, stepInOrder, 0}, {2, stepLate, 0}, {10, stepInOrder, 0}, {3, stepLate, 0}},
		"restart":              {{9, stepInOrder, 0}, {0, stepLate, 0}, {1, stepRestarted, 0}, {2, stepInOrder, 0}},
		"restart, then late":   {{9, stepInOrder, 0}, {3, stepLate, 0}, {4, stepRestarted, 0}, {4, stepLate, 0}, {5, stepInOrder, 0}},
		"up to the last":       {{2, stepInOrder, 0}, {1, stepLate, 0}, {2, stepRestarted, 0}, {3, stepInOrder, 0}},
		"highest":              {{1<<64 - 1, stepInOrder, 0}, {0, stepLate, 0}, {1, stepRestarted, 0}},
		"all missing":          {{0, stepInOrder, 0}, {1<<64 - 1, stepAfterGap, 1<<64 - 2}},
	}
	for name, steps := range tests {
		t.Run(name, func(t *testing.T) {
			var o eventSequence
			stale := false
			for i, s := range steps {
				v, missing := o.advance(s.id, 0)
				stale = stale || v == stepAfterGap || v == stepRestarted
				if v != s.want || missing != s.missing || o.stale != stale {
					t.Fatalf("step %d: take(%d) = %v, %d, stale %v, want %v, %d, %v", i, s.id, v, missing, o.stale, s.want, s.missing, stale)
				}
			}
		})
	}
}

// TestEventOrder: numbers count for each (namespace, backend, rank, medium) by
// itself; gaps make a stream stale until it is cleared, late events are dropped,
// a stream that starts again loses its blocks.
func TestEventOrder(t *testing.T) {
	hashes := rolling(prompt(1, 4))
	w := newWorld(t)
	p := w.add(base("i", 0))
	check := func(want Status) {
		t.Helper()
		st := p.Status()
		got := Status{
			LastEventID: st.LastEventID, HasEventID: st.HasEventID, Streams: st.Streams, Stale: st.Stale,
			EventGaps: st.EventGaps, EventsMissed: st.EventsMissed, LateEvents: st.LateEvents, Restarts: st.Restarts,
		}
		want.HasEventID = true
		if got.LastEventID != want.LastEventID || got.Streams != want.Streams || got.Stale != want.Stale ||
			got.EventGaps != want.EventGaps || got.EventsMissed != want.EventsMissed ||
			got.LateEvents != want.LateEvents || got.Restarts != want.Restarts || got.HasEventID != want.HasEventID {
			t.Errorf("Status = %+v\nwant %+v", got, want)
		}
	}
	w.apply(p, stored(hashes[:1], "gpu", "event_id", 7), stored(hashes[1:2], "gpu", "base_block_idx", 1, "event_id", 8))
	w.apply(p, stored(hashes[:2], "cpu", "event_id", 3), stored(hashes[:2], "gpu", "event_id", 1, "backend_id", "x"),
		stored(hashes[:2], "gpu", "event_id", 5, "dp_rank", 1), stored(hashes[:2], "gpu", "event_id", 6, "lora_name", "a"))
	check(Status{LastEventID: 6, Streams: 5})
	w.apply(p, stored(hashes[2:3], "gpu", "base_block_idx", 2)) // without a number: no order
	w.want(p.Identity, prompt(1, 4), "i 12 GPU=12 CPU=8 0:12 1:8")

	w.apply(p, stored(hashes[3:4], "gpu", "base_block_idx", 3, "event_id", 12))
	check(Status{LastEventID: 12, Streams: 5, EventGaps: 1, EventsMissed: 3, Stale: true})
	w.want(p.Identity, prompt(1, 4), "i 16 GPU=16 CPU=8 0:16 1:8")

	w.apply(p, removed(hashes[1:2], "gpu", "event_id", 9), cleared("gpu", "event_id", 2))
	w.wantReasons(map[kvevents.Reason]uint64{kvevents.Late: 2})
	check(Status{LastEventID: 12, Streams: 5, EventGaps: 1, EventsMissed: 3, LateEvents: 2, Stale: true})
	w.want(p.Identity, prompt(1, 4), "i 16 GPU=16 CPU=8 0:16 1:8")

	// An event that is no use counts for the order all the same.
	w.apply(p, stored([]uint64{4, 4}, "gpu", "event_id", 13), event{"event_type": "stored", "event_id": 14, "medium": "gpu", "backend_id": "cache"},
		removed(hashes[3:4], "gpu", "event_id", 15))
	w.reasons()
	check(Status{LastEventID: 15, Streams: 5, EventGaps: 1, EventsMissed: 3, LateEvents: 2, Stale: true})
	w.want(p.Identity, prompt(1, 4), "i 12 GPU=12 CPU=8 0:12 1:8")

	w.apply(p, cleared("gpu", "event_id", 16))
	check(Status{LastEventID: 16, Streams: 5, EventGaps: 1, EventsMissed: 3, LateEvents: 2})

	w.apply(p, stored(hashes[:3], "gpu", "event_id", 17))
	w.apply(p, stored(hashes[:2], "gpu", "event_id", 0), stored(hashes[:1], "gpu", "event_id", 1), stored(hashes[1:2], "gpu", "base_block_idx", 1, "event_id", 2))
	check(Status{LastEventID: 2, Streams: 5, EventGaps: 1, EventsMissed: 3, LateEvents: 3, Restarts: 1, Stale: true})
	// Only that stream started again: backend x still has two blocks.
	w.want(p.Identity, prompt(1, 4), "i 8 GPU=8 CPU=8 0:8 1:8")
	w.apply(p, cleared("gpu", "backend_id", "x"))
	w.want(p.Identity, prompt(1, 4), "i 8 GPU=8 CPU=8 0:8 1:8")

	p.Clear()
	check2 := p.Status()
	if check2.Streams != 0 || check2.Stale || check2.HasEventID || check2.blocks() != "GPU=0 CPU=0 DISK=0" {
		t.Errorf("after a restart of the engine: %+v", check2)
	}
	w.want(p.Identity, prompt(1, 4), "i 0 0:0")
	w.apply(p, stored(hashes, "gpu", "event_id", 0))
	w.want(p.Identity, prompt(1, 4), "i 16 GPU=16 0:16")
}

// TestMooncakeOrder: Mooncake's master numbers the events of all its streams
// together, so that a stream's own numbers have holes; numbers of its own are
// fine, too.
func TestMooncakeOrder(t *testing.T) {
	reg := base("i", 0)
	reg.Type = Mooncake
	w := newWorld(t)
	p := w.add(reg)
	next := uint64(0)
	send := func(media ...string) {
		for _, medium := range media {
			next++
			w.apply(p, stored([]uint64{next}, medium, "event_id", next))
		}
	}
	send("cpu", "disk", "cpu", "cpu", "disk", "disk", "cpu", "gpu", "disk")
	w.apply(p, removed([]uint64{1}, "cpu", "event_id", 10, "tenant_id", "unknown"), cleared("npu", "event_id", 11),
		event{"event_type": "stored", "event_id": 12, "medium": "tape"}, cleared("gpu", "event_id", 13).with("medium", nil),
		stored([]uint64{1, 1}, "gpu", "event_id", 14))
	w.reasons()
	next = 14
	send("disk", "cpu", "gpu")
	if st := p.Status(); st.EventGaps != 0 || st.Stale {
		t.Errorf("Status = %+v, want no gap", st)
	}
	next += 2
	send("cpu", "disk")
	if st := p.Status(); st.EventGaps != 1 || st.EventsMissed != 2 || !st.Stale {
		t.Errorf("Status = %+v, want a gap of 2", st)
	}
	q := w.add(func() Registration { g := reg; g.Endpoint = "tcp://other:1"; return g }())
	for id := range uint64(4) {
		for _, medium := range []string{"gpu", "cpu", "disk"} {
			w.apply(q, stored([]uint64{id}, medium, "event_id", id))
		}
	}
	if st := q.Status(); st.EventGaps != 0 || st.LateEvents != 0 || st.Streams != 3 {
		t.Errorf("Status = %+v, want three streams in order", st)
	}
	w.wantReasons(nil)
}

// TestMooncakeRestart: a master that counts from the beginning again, on whichever
// streams, has forgotten all that it announced before. One late number is late,
// and so are several that do not rise by one.
func TestMooncakeRestart(t *testing.T) {
	reg := base("i", 0)
	reg.Type = Mooncake
	w := newWorld(t)
	p := w.add(reg)
	send := func(id uint64, medium string) { w.apply(p, stored([]uint64{id << 8}, medium, "event_id", id)) }
	for id := uint64(1); id < 100; id += 2 {
		send(id, "cpu")
		send(id+1, "disk")
	}
	send(50, "cpu")
	send(60, "disk")
	send(61, "gpu") // of a stream of its own: nothing is late
	w.wantReasons(map[kvevents.Reason]uint64{kvevents.Late: 2})
	if st := p.Status(); st.blocks() != "GPU=1 CPU=50 DISK=50" || st.Restarts != 0 || st.Stale {
		t.Errorf("Status = %+v", st)
	}
	send(1, "cpu")
	send(2, "disk")
	send(3, "cpu")
	send(4, "npu")
	w.wantReasons(map[kvevents.Reason]uint64{kvevents.Late: 1})
	st := p.Status()
	if st.blocks() != "GPU=0 CPU=1 DISK=1 NPU=1" || st.Restarts != 1 || !st.Stale || st.Streams != 3 || st.EventGaps != 0 || st.LastEventID != 4 {
		t.Errorf("Status = %+v, want what came since the restart", st)
	}
	w.apply(p, cleared("gpu", "event_id", 5).with("medium", nil))
	if st := p.Status(); st.blocks() != "GPU=0 CPU=0 DISK=0 NPU=0" || st.Stale {
		t.Errorf("Status = %+v, want nothing and nothing stale", st)
	}
}

// TestRewound: a replay that repeats what was applied is applied from its first
// event on.
func TestRewound(t *testing.T) {
	w := newWorld(t)
	p := w.add(base("i", 0))
	h := rolling(prompt(1, 4))
	events := []event{
		stored(h[:1], "gpu", "event_id", 1), stored(h[1:2], "gpu", "base_block_idx", 1, "event_id", 2),
		stored(h[2:3], "gpu", "base_block_idx", 2, "event_id", 3), removed(h[:1], "gpu", "event_id", 4),
		stored(h[:1], "gpu", "event_id", 5),
	}
	w.apply(p, events[0], events[3], events[4])
	p.Rewound()
	w.apply(p, events...)
	w.wantReasons(nil)
	w.want(p.Identity, prompt(1, 4), "i 12 GPU=12 0:12")
	if st := p.Status(); st.Restarts != 0 || st.LateEvents != 0 || st.Stale || st.Streams != 1 {
		t.Errorf("Status = %+v", st)
	}
}
