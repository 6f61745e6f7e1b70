package overload_test

import (
	"context"
	"testing"
	"time"
)

// watchEvery is how often the loads are looked at, in real time.
const watchEvery = 5 * time.Millisecond

// watch looks at the loads of all workers until ctx ends. A request is accepted
// only where the thresholds are not exceeded, so a worker can be above them by
// that one request, and by the output blocks that its requests report.
func watch(ctx context.Context, t *testing.T, s *service, waves []*wave) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	looks := 0
	defer func() { t.Logf("looked %d times at the loads", looks) }()
	for ctx.Err() == nil {
		settled := make(map[int]uint64)
		for _, w := range waves {
			for i, e := range w.engines {
				settled[w.first+i] = e.settled.Load()
			}
		}
		all, ok := s.loadsUntil(ctx, t)
		if !ok {
			return
		}
		for _, l := range all {
			for _, w := range waves {
				if i := int(l.WorkerID) - w.first; i >= 0 && i < len(w.engines) {
					w.look(t, l, w.engines[i].sent.Load()-settled[int(l.WorkerID)])
				}
			}
		}
		looks++
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// look compares the load of one worker with the thresholds. outputs is the most
// output blocks that its requests can have had.
func (w *wave) look(t *testing.T, l load, outputs uint64) {
	w.most.Decode = max(w.most.Decode, l.Decode)
	w.most.Prefill = max(w.most.Prefill, l.Prefill)
	w.most.Requests = max(w.most.Requests, l.Requests)
	if w.decode != nil {
		if most := uint64(*w.decode*float64(slow.CacheBlocks)) + largestPrompt/blockSize + outputs; l.Decode > most {
			t.Errorf("%s: worker %d has %d blocks, more than %d", w.model, l.WorkerID, l.Decode, most)
		}
	}
	if w.tokens != nil {
		if most := *w.tokens + largestPrompt; l.Prefill > most {
			t.Errorf("%s: worker %d has %d prefill tokens, more than %d", w.model, l.WorkerID, l.Prefill, most)
		}
	}
}
