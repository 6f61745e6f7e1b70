package reports_test

import (
	"testing"
	"time"

	"github.com/select-service/select-service/internal/engines/load"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// BenchmarkReport: one report of 1,000 workers with 8 ranks each, which report five times a second.
// What is told to the ledger every 100 ms is done beside it.
func BenchmarkReport(b *testing.B) {
	const workers, ranks = 1000, 8
	w := &world{servicetest.Start(b, servicetest.EventsOff)}
	for id := range uint64(workers) {
		w.Put(servicetest.Record(id, ranks))
	}
	r := load.Report{
		Running: load.Known(3), Waiting: load.Known(1), KVTokensUsed: load.Known(9000), KVTokensTotal: load.Known(1 << 20),
		WaitingUncachedTokens: load.Known(100), Source: load.Push, Interval: time.Second,
	}
	sink := w.Reports()
	n := uint64(0)
	for b.Loop() {
		n++
		r.KVTokensUsed = load.Known(9000 + n%5000)
		sink.Report(catalog.Rank{Worker: n % workers, DP: uint32(n / workers % ranks)}, r, time.Now())
	}
}
