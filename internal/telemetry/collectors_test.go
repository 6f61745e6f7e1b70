package telemetry_test

import (
	"context"
	"encoding/binary"
	"testing"

	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// TestMetrics: known traffic gives exactly these counts.
func TestMetrics(t *testing.T) {
	w := servicetest.Start(t, servicetest.Queueing(0))
	_, err := w.Select(context.Background(), servicetest.Ask(servicetest.Prompt(1, 8)), false) // nobody is there
	servicetest.WantError(t, err, contract.Unavailable, "no schedulable workers are available")
	w.Put(servicetest.Record(1, 1))
	w.Put(servicetest.Record(2, 2))
	if _, err := w.PutWorker(catalog.Record{ID: 3, Scope: servicetest.Scope}); err != nil {
		t.Fatal(err)
	}

	e := w.Engine(1, 0)
	a := servicetest.Prompt(1, 40)
	e.Publish(0, e.Stored(a, servicetest.BlockSize, nil), e.Stored(a[:16], servicetest.BlockSize, servicetest.Dict{"medium": "CPU"}))
	e.Publish(0, e.Removed(a, servicetest.BlockSize, 7, "GPU"), e.Stored(a, servicetest.BlockSize, servicetest.Dict{"medium": "MOON"}))
	e.Publish(0, e.Stored(a, 5, nil), servicetest.Dict{"type": "Nonsense"})
	e.Publish(9, servicetest.Cleared())
	e.Seq += 3 // a gap that nothing can fill
	e.Publish(0, e.Stored(a[:8], servicetest.BlockSize, nil))
	w.Net.At(servicetest.Endpoint(1, 0)).Send([]byte("kv"), []byte("short"), nil)
	w.Net.At(servicetest.Endpoint(1, 0)).Send([]byte("kv"), binary.BigEndian.AppendUint64(nil, e.Seq), []byte{0xc1})
	w.Settle()

	w.Book("r", a)
	if _, err := w.Select(context.Background(), servicetest.Ask(a), false); err != nil {
		t.Fatal(err)
	}
	failing := map[string]func(*selection.SelectRequest){
		"id_taken":    func(r *selection.SelectRequest) { r.ReservationID = new("r") },
		"no_endpoint": func(r *selection.SelectRequest) { r.HasAllowedWorkers = true },
		"invalid":     func(r *selection.SelectRequest) { r.Prompt = selection.Prompt{} },
	}
	for name, change := range failing {
		req := servicetest.Ask(a)
		change(req)
		if _, err := w.Select(context.Background(), req, true); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	w.Book("s", servicetest.Prompt(5, 8))
	if err := w.Free("r"); err != nil {
		t.Fatal(err)
	}
	m := w.Metrics()
	checks := []struct {
		family []servicetest.Sample
		labels []string
		want   float64
	}{
		{m["kv_messages_total"], []string{"received"}, 6},
		{m["kv_messages_total"], []string{"applied"}, 6},
		{m["kv_messages_total"], []string{"bad_frames"}, 1},
		{m["kv_messages_total"], []string{"undecodable"}, 1},
		{m["kv_messages_lost_total"], nil, 3},
		{m["kv_gaps_total"], []string{"seen"}, 1},
		{m["kv_gaps_total"], []string{"unrepaired"}, 1},
		{m["kv_replays_total"], nil, 0},
		{m["kv_engine_restarts_total"], nil, 0},
		{m["kv_streams"], nil, 3},
		{m["kv_events_total"], nil, 8},
		{m["kv_events_total"], []string{"stored", "device", "applied"}, 2},
		{m["kv_events_total"], []string{"stored", "host_pinned", "applied"}, 1},
		{m["kv_events_total"], []string{"removed", "device", "applied"}, 1},
		{m["kv_events_total"], []string{"unknown_medium"}, 1},
		{m["kv_events_total"], []string{"block_size_mismatch"}, 1},
		{m["kv_events_total"], []string{"bad_tag"}, 1},
		{m["kv_events_total"], []string{"cleared", "unknown_rank"}, 1},
		{m["kv_event_blocks_total"], []string{"device", "stored"}, 10},
		{m["kv_event_blocks_total"], []string{"device", "known"}, 2},
		{m["kv_event_blocks_total"], []string{"device", "removed"}, 3},
		{m["kv_event_blocks_total"], []string{"host_pinned", "stored"}, 4},
		{m["index_blocks"], []string{"device"}, 7},
		{m["index_blocks"], []string{"host_pinned"}, 4},
		{m["index_blocks"], nil, 11},
		{m["index_unique_blocks"], nil, 7},
		{m["index_orphan_blocks"], nil, 0},
		{m["workers"], []string{"schedulable"}, 2},
		{m["workers"], []string{"incomplete"}, 1},
		{m["selections_total"], nil, 7},
		{m["selections_total"], []string{"not_ready"}, 1},
		{m["selections_total"], []string{"selected"}, 1},
		{m["selections_total"], []string{"reserved"}, 2},
		{m["selections_total"], []string{"id_taken"}, 1},
		{m["selections_total"], []string{"no_endpoint"}, 1},
		{m["selections_total"], []string{"invalid"}, 1},
		{m["reservations_live"], nil, 1},
		{m["reservation_events_total"], []string{"booked"}, 2},
		{m["reservation_events_total"], []string{"freed"}, 1},
		{m["queued_requests"], nil, 0},
		{m["queued_tokens"], nil, 0},
	}
	for i, c := range checks {
		if got := servicetest.Sum(c.family, c.labels...); got != c.want {
			t.Errorf("check %d, %v: %v, want %v", i, c.labels, got, c.want)
		}
	}
	if bytes := servicetest.Sum(m["index_bytes"]); bytes <= 0 {
		t.Errorf("index bytes are %v", bytes)
	}
}
