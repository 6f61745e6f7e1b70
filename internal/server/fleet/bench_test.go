package fleet_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/select-service/select-service/internal/server/fleet"
	"github.com/select-service/select-service/internal/server/httpapi"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/servicetest"
)

func contextOf(t *testing.T) (context.Context, context.CancelFunc) {
	return context.WithCancel(t.Context())
}

// BenchmarkFiveTabs is what five callers who ask once a second cost with 8,000 ranks, per second:
// one renewal and five answers, where no rank has changed, or each one.
func BenchmarkFiveTabs(b *testing.B) {
	for _, changed := range []bool{false, true} {
		b.Run("changed="+strconv.FormatBool(changed), func(b *testing.B) {
			w := servicetest.Start(b)
			for id := range uint64(1000) {
				w.Put(servicetest.Record(id+1, 8, servicetest.Total(10000)))
			}
			now := time.Now()
			v := fleet.New(w.Parts(), httpapi.AppendFleetRow, func() time.Time { return now })
			var version string
			var out []byte
			round := uint64(0)
			for b.Loop() {
				if changed {
					b.StopTimer()
					round++
					for id := range uint64(1000) {
						for dp := range uint32(8) {
							w.Burden(strconv.FormatUint(round*8000+id*8+uint64(dp), 10), id+1, dp, 1, 4)
						}
					}
					b.StartTimer()
				}
				now = now.Add(time.Second)
				next := ""
				for range 5 {
					v.Since(version, catalog.ScopeFilter{}, func(p *fleet.Page) {
						out = out[:0]
						for row := range p.Rows {
							out = append(out, row...)
						}
						next = p.Version
					})
				}
				version = next
			}
			b.ReportMetric(float64(len(out)), "bytes/answer")
		})
	}
}
