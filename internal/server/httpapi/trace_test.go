package httpapi

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/telemetry"
	"github.com/select-service/select-service/internal/telemetry/tracing"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// BenchmarkTraced is /select of 1,000 tokens among eight ranks, without the network, and what tracing adds to
// its CPU: in turn without a tracer, with one that samples a request in a hundred and with one that samples
// all, the sending of the spans and the collector's part of HTTP included; medians of all rounds.
func BenchmarkTraced(b *testing.B) {
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
	defer collector.Close()
	w := servicetest.Start(b)
	w.Put(servicetest.Record(1, 8, func(r *catalog.Record) { r.Scope = catalog.Scope{Model: "model", Tenant: catalog.DefaultName} }))
	body := tokenBody(1000)
	const requests = 2000 // of a turn
	turn := func(ratio string) float64 {
		var tracer *tracing.Tracer
		if ratio != "" {
			getenv := func(name string) string {
				return map[string]string{"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": ratio}[name]
			}
			var err error
			if tracer, err = tracing.New(context.Background(), tracing.Options{Endpoint: collector.URL, Getenv: getenv, Log: zerolog.Nop()}); err != nil {
				b.Fatal(err)
			}
		}
		h := New(w.UseCases, w.Conductor(), Options{Log: zerolog.Nop(), Tracer: tracer, Requests: telemetry.NewRequests().Listener("selection")})
		text := bytes.NewReader(body)
		r := httptest.NewRequest(http.MethodPost, "/select", io.NopCloser(text))
		r.Header.Set("Content-Type", "application/json")
		r.ContentLength = int64(len(body))
		answer := &discard{header: http.Header{}}
		before := processTime(b)
		for range requests {
			text.Reset(body)
			if h.ServeHTTP(answer, r); answer.status != http.StatusOK {
				b.Fatal(answer.status)
			}
		}
		if err := tracer.Close(context.Background()); err != nil {
			b.Fatal(err)
		}
		return float64(processTime(b)-before) / requests
	}
	took := map[string][]float64{}
	for b.Loop() {
		for _, ratio := range []string{"", "0.01", "1"} {
			took[ratio] = append(took[ratio], turn(ratio))
		}
	}
	median := func(of string) float64 {
		slices.Sort(took[of])
		return took[of][len(took[of])/2]
	}
	b.ReportMetric(median(""), "off-ns/request")
	b.ReportMetric(median("0.01")-median(""), "sampling-1%-ns/request")
	b.ReportMetric(median("1")-median(""), "sampling-all-ns/request")
}

// processTime is the CPU time of this process so far.
func processTime(b *testing.B) time.Duration {
	var use syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &use); err != nil {
		b.Fatal(err)
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}
