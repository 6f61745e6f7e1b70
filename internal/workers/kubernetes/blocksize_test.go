package kubernetes_test

import (
	"testing"

	"github.com/select-service/select-service/internal/workers/kubernetes/mapping"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/kubetest"
)

// TestCorrectBlockSize: the events of an engine correct the block size that it has told, once and for
// later answers that say the same; not one that is given.
func TestCorrectBlockSize(t *testing.T) {
	t.Parallel()
	api := kubetest.New(t)
	api.Put("inferencepools", kubetest.Pool("llm", "llm", "vllm", 8000))
	api.Put("pods", kubetest.Pod("llm", "given", "10.0.0.2", kubetest.Annotations(mapping.AnnotationPrefix+"block-size", "4", mapping.AnnotationPrefix+"model", "other")))
	w := start(t, api, pool(func(e *mapping.Entry) { e.Ask, e.Worker.BlockSize, e.Worker.TotalKVBlocks = true, nil, nil }))
	said := answer{Model: "m", BlockSize: 4, TotalKVBlocks: 1000, KVTokens: 4000, Ranks: 1}
	w.says("http://10.0.0.1:8000", said)
	w.says("http://10.0.0.2:8000", said)
	api.Put("pods", kubetest.Pod("llm", "told", "10.0.0.1"))
	w.has("given:8000 schedulable", "told:8000 schedulable")
	if x := w.worker("given"); w.correct(x, 16) {
		t.Error("a given block size is corrected")
	}
	before := w.worker("told")
	if !w.correct(before, 16) || w.correct(before, 16) {
		t.Error("not corrected once")
	}
	is := func(size uint32, blocks uint64) func() bool {
		return func() bool {
			x := w.worker("told")
			return x.Lifecycle == catalog.Schedulable && *x.BlockSize == size && *x.TotalKVBlocks == blocks
		}
	}
	w.await("the corrected size", is(16, 250))
	if w.correct(w.worker("told"), 8) {
		t.Error("corrected twice")
	}
	asked := w.asks("http://10.0.0.1:8000")
	api.Put("pods", kubetest.Pod("llm", "told", "10.0.0.1", kubetest.Ready(false)))
	w.await("not ready", func() bool { return w.worker("told").Lifecycle == catalog.Draining })
	api.Put("pods", kubetest.Pod("llm", "told", "10.0.0.1"))
	w.await("another question", func() bool { return w.asks("http://10.0.0.1:8000") > asked })
	w.await("the corrected size stays", func() bool {
		x := w.worker("told")
		return x.Lifecycle == catalog.Schedulable && *x.BlockSize == 16 && *x.TotalKVBlocks == 250
	})
	said.BlockSize, said.TotalKVBlocks = 32, 125
	w.says("http://10.0.0.1:8000", said)
	api.Put("pods", kubetest.Pod("llm", "told", "10.0.0.1", kubetest.Ready(false)))
	w.await("not ready", func() bool { return w.worker("told").Lifecycle == catalog.Draining })
	api.Put("pods", kubetest.Pod("llm", "told", "10.0.0.1"))
	w.await("what it tells anew", func() bool { return *w.worker("told").BlockSize == 32 })
}

// correct gives a worker the block size of its events, as the service does, and reports whether it did.
func (w *world) correct(x *catalog.Worker, size uint32) bool {
	_, changed := w.catalog.CorrectBlockSize(x, size)
	return changed
}
