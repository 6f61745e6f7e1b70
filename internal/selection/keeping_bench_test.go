//go:build unix

package selection_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// BenchmarkSelectSessions is /select of 64 blocks by predicted-ttft, without sessions, and of 65,536 soft sessions in turn, whose
// homes are known. cpu-ns/op is the processor's time.
func BenchmarkSelectSessions(b *testing.B) {
	const sessions = 65536
	for _, ranks := range []int{1000, 8000} {
		for _, live := range []int{0, sessions} {
			b.Run(fmt.Sprintf("ranks=%d/sessions=%d", ranks, live), func(b *testing.B) {
				w := servicetest.Start(b, servicetest.EventsOff, homes, servicetest.Policy(b, "predicted-ttft", ""))
				for id := range uint64(ranks / 8) {
					w.Put(servicetest.Record(id, 8, func(r *catalog.Record) { r.KVEventsEndpoints = nil }))
				}
				for i, e := range w.RanksOf(servicetest.Scope) {
					if i%4 == 1 {
						w.Burden(fmt.Sprint(i), e.Worker.ID, e.DP, 1+uint64(i%50), uint64(i%300))
					}
				}
				tokens := servicetest.Prompt(1, 64*servicetest.BlockSize)
				req := &selection.SelectRequest{Scope: servicetest.Scope, Prompt: servicetest.Hashes(tokens)}
				names := make([]string, live)
				for i := range names {
					names[i] = fmt.Sprintf("%036d", i)
					w.SettleSession(servicetest.Scope, names[i], catalog.Rank{Worker: uint64(i % (ranks / 8)), DP: uint32(i % 8)})
				}
				n, from := 0, cpuTime()
				b.ReportAllocs()
				for b.Loop() {
					if live > 0 {
						req.Session, req.SessionMode = names[n%live], selection.SoftSessions
						n += 7919
					}
					if _, err := w.Select(context.Background(), req, false); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64((cpuTime()-from).Nanoseconds())/float64(b.N), "cpu-ns/op")
			})
		}
	}
}
