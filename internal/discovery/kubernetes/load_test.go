package kubernetes_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/select-service/select-service/test/kubetest"
)

// TestThousandPods: of a thousand pods that flip, the final state is right (scenario 27); the
// times are logged.
func TestThousandPods(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long under the race detector")
	}
	const pods = 1000
	api := kubetest.Any(t)
	at := func(i int) string { return fmt.Sprintf("10.1.%d.%d", i/250, i%250+1) }
	for i := range pods {
		api.Put("pods", kubetest.Pod("llm", fmt.Sprint("p-", i), at(i)))
	}
	api.Put("inferencepools", kubetest.Pool("llm", "llm", "vllm", 8000))
	begin := time.Now()
	w := start(t, api, pool())
	w.await("all pods", func() bool { return w.catalog.CountSchedulable() == pods })
	t.Logf("%d pods are workers after %v", pods, time.Since(begin))
	begin = time.Now()
	for i := range pods {
		name := fmt.Sprint("p-", i)
		api.Put("pods", kubetest.Pod("llm", name, at(i), kubetest.Ready(false)))
		if i%2 == 0 {
			api.Put("pods", kubetest.Pod("llm", name, at(i)))
		}
	}
	sent := time.Now()
	w.await("half of them", func() bool {
		st := w.d.Status().Sources[0]
		return w.catalog.CountSchedulable() == pods/2 && st.Draining == pods/2
	})
	t.Logf("1500 changes in %v, applied %v after the last", sent.Sub(begin), time.Since(sent))
	w.lostNone()
}
