//go:build unix

package selection_test

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// BenchmarkSelectWide is /select of 64 blocks by hashes in scopes of up to 32,000 ranks, of
// which every second one has the first half of the prompt and every fourth one is loaded:
// as it is, and with every rank looked at, by a decay of the overlap credit that changes
// no choice. cpu-ns/op is the processor's time, of all goroutines.
func BenchmarkSelectWide(b *testing.B) {
	for _, look := range []string{"by-load", "all"} {
		for _, size := range []struct{ workers, dp int }{{8, 1}, {64, 1}, {256, 1}, {1000, 1}, {4000, 1}, {4000, 8}} {
			b.Run(fmt.Sprintf("look=%s/workers=%d/dp=%d", look, size.workers, size.dp), func(b *testing.B) {
				w := servicetest.Start(b, servicetest.EventsOff, func(c *node.Config) {
					if look == "all" {
						c.Selection.Weights.CreditDecay = 1e-9
					}
				})
				for id := range uint64(size.workers) {
					w.Put(servicetest.Record(id, uint32(size.dp), func(r *catalog.Record) { r.KVEventsEndpoints = nil }))
				}
				tokens := servicetest.Prompt(1, 64*servicetest.BlockSize)
				req := &selection.SelectRequest{Scope: servicetest.Scope, Prompt: servicetest.Hashes(tokens)}
				half := req.Prompt.BlockHashes[:32]
				for i, e := range w.RanksOf(servicetest.Scope) {
					if i%2 == 0 {
						w.Space(servicetest.Scope).Store(&indexer.Store{Slot: e.Slot, EngineHashes: half, Local: half})
					}
					if i%4 == 1 {
						w.Burden(fmt.Sprint(i), e.Worker.ID, e.DP, 1+uint64(i%50), uint64(i%300))
					}
				}
				from := cpuTime()
				for b.Loop() {
					if _, err := w.Select(context.Background(), req, false); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64((cpuTime()-from).Nanoseconds())/float64(b.N), "cpu-ns/op")
			})
		}
	}
}

// cpuTime is what the process has used so far.
func cpuTime() time.Duration {
	var use syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &use); err != nil {
		panic(err)
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}
