package telemetry_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/select-service/select-service/internal/selection/overload"
	"github.com/select-service/select-service/internal/telemetry"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// discard is an answer that nobody keeps.
type discard struct {
	header http.Header
	bytes  int
}

func (d *discard) Header() http.Header { return d.header }
func (d *discard) WriteHeader(int)     {}
func (d *discard) Write(b []byte) (int, error) {
	d.bytes += len(b)
	return io.Discard.Write(b)
}

// crowd is a service with so many ranks of 4 models, each with an index of some
// blocks, thresholds, and values in every histogram.
func crowd(b *testing.B, ranks int) *servicetest.World {
	w := servicetest.Start(b, servicetest.Limits(overload.Thresholds{PrefillTokens: new(uint64(1000))}))
	const models = 4
	for i := range ranks / 8 {
		id := uint64(i)
		w.Put(servicetest.Record(id, 8, servicetest.Total(1000), servicetest.OfModel("model-"+strconv.Itoa(i%models))))
		for dp := range uint32(8) {
			e := w.Engine(id, dp)
			e.Publish(dp, e.Stored(servicetest.Prompt(uint32(i)*8+dp, 64*servicetest.BlockSize), servicetest.BlockSize, nil))
		}
	}
	w.Settle()
	for i := range 200 {
		req := servicetest.Ask(servicetest.Prompt(uint32(i), 32*servicetest.BlockSize))
		req.Scope.Model = "model-" + strconv.Itoa(i%models)
		if _, err := w.Select(context.Background(), req, true); err != nil {
			b.Fatal(err)
		}
	}
	return w
}

// BenchmarkScrape is a scrape of a crowd.
func BenchmarkScrape(b *testing.B) {
	for _, ranks := range []int{256, 4096} {
		b.Run(fmt.Sprintf("ranks=%d", ranks), func(b *testing.B) {
			w := crowd(b, ranks)
			h := telemetry.Handler("", false, w.Collectors(false)...)
			req := httptest.NewRequest(http.MethodGet, "/metrics", nil)
			answer := &discard{header: http.Header{}}
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				h.ServeHTTP(answer, req)
				n++
			}
			b.ReportMetric(float64(answer.bytes)/float64(n), "bytes")
		})
	}
}

// BenchmarkCollect is the part of a scrape that looks at the service: while it
// lasts, locks are taken.
func BenchmarkCollect(b *testing.B) {
	w := crowd(b, 256)
	collectors := w.Collectors(true)
	ch := make(chan prometheus.Metric, 1<<16) // takes a whole scrape
	b.ReportAllocs()
	for b.Loop() {
		for _, c := range collectors {
			c.Collect(ch)
		}
		for len(ch) > 0 {
			<-ch
		}
	}
}
