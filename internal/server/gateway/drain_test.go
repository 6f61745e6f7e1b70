package gateway_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// TestDrain: the answers of a draining worker run on, booked as before, also when the worker
// flaps meanwhile; new requests go to others, and with the last answer the worker is gone.
func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, begin, stop := inBubble(t, servicetest.Start(t))
		defer stop()
		w.put(1, 1)
		want := func(load string) {
			t.Helper()
			time.Sleep(2 * bubbleLease)
			synctest.Wait()
			if got := w.loads(); got != load {
				t.Errorf("loads are %s, want %s", got, load)
			}
		}
		chat, light := begin(0, 4), begin(3, 7, 6)
		want("1/0: 9 2 2")
		drain := func() {
			t.Helper()
			if _, err := w.DrainWorkerIn(catalog.ScopeFilter{}, 1, nil); err != nil {
				t.Fatal(err)
			}
		}
		drain()
		w.put(2, 1)
		other := begin(0, 4)
		want("1/0: 9 2 2; 2/0: 9 2 1")
		w.Remove(1)
		if _, err := w.PutWorker(servicetest.Record(1, 1, func(r *catalog.Record) {
			r.Endpoint, r.Draining = new("http://"+at(1)), "its source says so"
		})); err != nil {
			t.Fatal(err)
		}
		want("1/0: 9 2 2; 2/0: 9 2 1")
		drain()
		chat()
		want("1/0: 0 0 1; 2/0: 9 2 1")
		light()
		want("2/0: 9 2 1")
		other()
		want("2/0: 0 0 0")
	})
}
