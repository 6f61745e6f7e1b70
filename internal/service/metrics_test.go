package service_test

import (
	"context"
	"encoding/binary"
	"testing"

	"github.com/select-service/select-service/internal/contract"
	"github.com/select-service/select-service/internal/metrics"
	"github.com/select-service/select-service/internal/service"
	"github.com/select-service/select-service/pkg/catalog"
)

// TestMetrics: known traffic gives exactly these counts.
func TestMetrics(t *testing.T) {
	w := start(t, queueing(0))
	_, err := w.Select(context.Background(), ask(prompt(1, 8)), false) // nobody is there
	wantError(t, err, contract.Unavailable, "no schedulable workers are available")
	w.put(record(1, 1))
	w.put(record(2, 2))
	if _, err := w.PutWorker(catalog.Record{ID: 3, Scope: scope}); err != nil {
		t.Fatal(err)
	}

	e := w.engine(1, 0)
	a := prompt(1, 40)
	e.publish(0, e.stored(a, blockSize, nil), e.stored(a[:16], blockSize, dict{"medium": "CPU"}))
	e.publish(0, e.removed(a, blockSize, 7, "GPU"), e.stored(a, blockSize, dict{"medium": "MOON"}))
	e.publish(0, e.stored(a, 5, nil), dict{"type": "Nonsense"})
	e.publish(9, cleared())
	e.seq += 3 // a gap that nothing can fill
	e.publish(0, e.stored(a[:8], blockSize, nil))
	w.net.at(endpoint(1, 0)).send([]byte("kv"), []byte("short"), nil)
	w.net.at(endpoint(1, 0)).send([]byte("kv"), binary.BigEndian.AppendUint64(nil, e.seq), []byte{0xc1})
	w.settle()

	w.book("r", a)
	if _, err := w.Select(context.Background(), ask(a), false); err != nil {
		t.Fatal(err)
	}
	failing := map[string]func(*service.SelectRequest){
		"id_taken":    func(r *service.SelectRequest) { r.ReservationID = new("r") },
		"no_endpoint": func(r *service.SelectRequest) { r.HasAllowedWorkers = true },
		"invalid":     func(r *service.SelectRequest) { r.Prompt = service.Prompt{} },
	}
	for name, change := range failing {
		req := ask(a)
		change(req)
		if _, err := w.Select(context.Background(), req, true); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	w.book("s", prompt(5, 8))
	if err := w.Free("r"); err != nil {
		t.Fatal(err)
	}
	m := w.Metrics()
	checks := []struct {
		family metrics.Samples
		labels []string
		want   float64
	}{
		{m.KVMessages, []string{"received"}, 6},
		{m.KVMessages, []string{"applied"}, 6},
		{m.KVMessages, []string{"bad_frames"}, 1},
		{m.KVMessages, []string{"undecodable"}, 1},
		{m.KVMessagesLost, nil, 3},
		{m.KVGaps, []string{"seen"}, 1},
		{m.KVGaps, []string{"unrepaired"}, 1},
		{m.KVReplays, nil, 0},
		{m.KVRestarts, nil, 0},
		{m.KVStreams, nil, 3},
		{m.KVEvents, nil, 8},
		{m.KVEvents, []string{"stored", "device", "applied"}, 2},
		{m.KVEvents, []string{"stored", "host_pinned", "applied"}, 1},
		{m.KVEvents, []string{"removed", "device", "applied"}, 1},
		{m.KVEvents, []string{"unknown_medium"}, 1},
		{m.KVEvents, []string{"block_size_mismatch"}, 1},
		{m.KVEvents, []string{"bad_tag"}, 1},
		{m.KVEvents, []string{"cleared", "unknown_rank"}, 1},
		{m.KVEventBlocks, []string{"device", "stored"}, 10},
		{m.KVEventBlocks, []string{"device", "known"}, 2},
		{m.KVEventBlocks, []string{"device", "removed"}, 3},
		{m.KVEventBlocks, []string{"host_pinned", "stored"}, 4},
		{m.IndexBlocks, []string{"device"}, 7},
		{m.IndexBlocks, []string{"host_pinned"}, 4},
		{m.IndexBlocks, nil, 11},
		{m.IndexUniqueBlocks, nil, 7},
		{m.IndexOrphans, nil, 0},
		{m.Workers, []string{"schedulable"}, 2},
		{m.Workers, []string{"incomplete"}, 1},
		{m.Selections, nil, 7},
		{m.Selections, []string{"not_ready"}, 1},
		{m.Selections, []string{"selected"}, 1},
		{m.Selections, []string{"reserved"}, 2},
		{m.Selections, []string{"id_taken"}, 1},
		{m.Selections, []string{"no_endpoint"}, 1},
		{m.Selections, []string{"invalid"}, 1},
		{m.ReservationsLive, nil, 1},
		{m.ReservationEvents, []string{"booked"}, 2},
		{m.ReservationEvents, []string{"freed"}, 1},
		{m.QueuedRequests, nil, 0},
		{m.QueuedTokens, nil, 0},
	}
	for i, c := range checks {
		if got := sum(c.family, c.labels...); got != c.want {
			t.Errorf("check %d, %v: %v, want %v", i, c.labels, got, c.want)
		}
	}
	if bytes := sum(m.IndexBytes); bytes <= 0 {
		t.Errorf("index bytes are %v", bytes)
	}
}
