package kubernetes_test

import (
	"fmt"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/select-service/select-service/test/checks/e2e"
	"github.com/select-service/select-service/test/helpers/kubetest"
)

// TestThousandPods: of thousands of pods of which a thousand flip in a few seconds, the final state
// is right, and where nothing else runs they are applied in time (scenario 27). Times, CPU time of the
// whole process and memory are logged.
func TestThousandPods(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long under the race detector")
	}
	for _, pods := range []int{1000, 5000} {
		t.Run(fmt.Sprint(pods), func(t *testing.T) {
			api := kubetest.Any(t)
			at := func(i int) string { return fmt.Sprintf("10.1.%d.%d", i/250, i%250+1) }
			for i := range pods {
				api.Put("pods", kubetest.Pod("llm", fmt.Sprint("p-", i), at(i)))
			}
			api.Put("inferencepools", kubetest.Pool("llm", "llm", "vllm", 8000))
			heap, cpu, begin := liveHeap(), cpuTime(t), time.Now()
			w := start(t, api, pool())
			w.await("all pods", func() bool { return w.catalog.CountSchedulable() == pods })
			took := time.Since(begin)
			t.Logf("listed in %v, %v of CPU", took, cpuTime(t)-cpu)
			if took > time.Second && e2e.Alone() && pods == 1000 {
				t.Errorf("listed in %v, want 1 s", took)
			}
			live := float64(liveHeap()-heap) / (1 << 20)
			t.Logf("%.1f MiB more are live, the catalog's included", live)
			if most := map[int]float64{1000: 8, 5000: 28}[pods]; live > most && e2e.Alone() {
				t.Errorf("%.1f MiB more are live, want %.0f with the catalog's", live, most)
			}
			const flips = 1000
			cpu, begin = cpuTime(t), time.Now()
			next := time.NewTicker(4 * time.Second / flips)
			defer next.Stop()
			for i := range flips {
				<-next.C
				ready := i%2 != 0 // each second pod is not ready in the end
				api.Put("pods", kubetest.Pod("llm", fmt.Sprint("p-", i), at(i), kubetest.Ready(!ready)))
				api.Put("pods", kubetest.Pod("llm", fmt.Sprint("p-", i), at(i), kubetest.Ready(ready)))
			}
			sent := time.Now()
			w.await("half of them", func() bool {
				st := w.d.Status().Sources[0]
				return w.catalog.CountSchedulable() == pods-flips/2 && st.Draining == flips/2
			})
			t.Logf("%d changes in %v, applied %v after the last, %v of CPU", 2*flips, sent.Sub(begin), time.Since(sent), cpuTime(t)-cpu)
			if share := w.appliedWithin(0.5); share < 0.99 && e2e.Alone() && pods == 1000 {
				t.Errorf("%.3f of the batches were in the catalog within 0.5 s, want 0.99", share)
			}
			w.lostNone()
		})
	}
}

func liveHeap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func cpuTime(t *testing.T) time.Duration {
	t.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		t.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// appliedWithin returns the share of the batches of changes that reached the catalog within so many
// seconds of their first event, and logs them all.
func (w *world) appliedWithin(seconds float64) (share float64) {
	w.t.Helper()
	registry := prometheus.NewRegistry()
	if err := registry.Register(w.d.Collector()); err != nil {
		w.t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, f := range families {
		if !strings.HasSuffix(f.GetName(), "kube_apply_seconds") {
			continue
		}
		h := f.GetMetric()[0].GetHistogram()
		for _, b := range h.GetBucket() {
			w.t.Logf("from event to catalog: %d of %d batches within %v s", b.GetCumulativeCount(), h.GetSampleCount(), b.GetUpperBound())
			if b.GetUpperBound() == seconds {
				share = float64(b.GetCumulativeCount()) / float64(h.GetSampleCount())
			}
		}
	}
	return share
}
