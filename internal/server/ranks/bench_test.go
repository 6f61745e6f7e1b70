package ranks_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/server/httpapi"
	"github.com/select-service/select-service/internal/server/ranks"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

func contextOf(t *testing.T) (context.Context, context.CancelFunc) {
	return context.WithCancel(t.Context())
}

// BenchmarkFiveTabs is what five callers who ask once a second cost with 8,000 ranks, per second: one
// renewal and five answers of GET /fleet without the network, where no rank has changed, or each one.
// "cpu-ms/s" is the process's CPU time, which other programs on the machine do not change.
func BenchmarkFiveTabs(b *testing.B) {
	for _, changed := range []bool{false, true} {
		b.Run("changed="+strconv.FormatBool(changed), func(b *testing.B) {
			w := servicetest.Start(b)
			for id := range uint64(1000) {
				w.Put(servicetest.Record(id+1, 8, servicetest.Total(10000)))
			}
			now := time.Now()
			v := ranks.New(w.Parts(), httpapi.AppendRank, func() time.Time { return now })
			h := httpapi.New(w.UseCases, w.Conductor(), httpapi.Options{Log: zerolog.Nop(), Operators: httpapi.Operators{Ranks: v}})
			version, bytes := "", 0
			took := make([]time.Duration, 0, b.N)
			round := uint64(0)
			for b.Loop() {
				b.StopTimer()
				if changed {
					round++
					for id := range uint64(1000) {
						for dp := range uint32(8) {
							w.Burden(strconv.FormatUint(round*8000+id*8+uint64(dp), 10), id+1, dp, 1, 4)
						}
					}
				}
				runtime.GC() // what the test has left behind
				b.StartTimer()
				now = now.Add(time.Second)
				next := ""
				before := processTime(b)
				for range 5 {
					a := &answer{header: http.Header{}}
					h.ServeHTTP(a, httptest.NewRequest(http.MethodGet, "/v1.6/fleet?since="+version, nil))
					next, bytes = a.version(), a.bytes
				}
				took = append(took, processTime(b)-before)
				version = next
			}
			slices.Sort(took)
			b.ReportMetric(took[len(took)/2].Seconds()*1000, "cpu-ms/s")
			b.ReportMetric(float64(bytes), "bytes/answer")
		})
	}
}

// answer is a ResponseWriter that keeps the beginning alone.
type answer struct {
	header http.Header
	bytes  int
	head   []byte
}

func (a *answer) Header() http.Header { return a.header }
func (a *answer) WriteHeader(int)     {}
func (a *answer) Write(p []byte) (int, error) {
	if a.bytes == 0 {
		a.head = slices.Clone(p[:min(len(p), 100)])
	}
	a.bytes += len(p)
	return len(p), nil
}

// version is the first member of the answer.
func (a *answer) version() string { return strings.Split(string(a.head), `"`)[3] }

// processTime is the CPU time of this process so far.
func processTime(b *testing.B) time.Duration {
	var use syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &use); err != nil {
		b.Fatal(err)
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}
