package conductor_test

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/select-service/select-service/internal/conductor"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// TestConductorDuringChanges: publishers come, publish and go, several clients
// at each, and a worker of selection does, while others ask. An answer has no
// instance that nobody registered and no hit where nothing was published; in the
// end every publisher that is in force has its stream, and nothing of the others
// is left.
func TestConductorDuringChanges(t *testing.T) {
	w := servicetest.Start(t)
	p := servicetest.Prompt(1, 32)
	always := servicetest.Registration("always", 0)
	w.Register(always)
	e := w.Publisher(always)
	e.Publish(0, e.Stored(p, servicetest.BlockSize, nil))
	wantHits(w, servicetest.Identity, p, "", gpu("always", 32))

	var changers, askers sync.WaitGroup
	var done atomic.Bool
	for c := range 4 { // two at each of two instances
		changers.Go(func() {
			name := fmt.Sprint("i", c%2)
			for i := range uint32(100) {
				r := servicetest.Registration(name, i%3, func(r *conductor.Registration) { r.Replay = "tcp://" + name + ":1" })
				w.Register(r) // the same as the other's is no error
				e := w.Publisher(r)
				e.Publish(r.Rank, e.Stored(p[:16], servicetest.BlockSize, nil))
				f := servicetest.Instance(name)
				if i%2 == 0 {
					f.Rank = &r.Rank
				}
				_, _ = w.Conductor().Unregister(f) // NotFound: the other was first
			}
		})
	}
	changers.Go(func() { // and a worker of selection
		for range 100 {
			w.Put(servicetest.Record(5, 2))
			e := w.Engine(5, 1)
			e.Publish(1, e.Stored(p[:8], servicetest.BlockSize, nil))
			w.Remove(5)
		}
	})
	for range 2 {
		askers.Go(func() {
			var a conductor.Answer
			for !done.Load() {
				w.Conductor().Services()
				if err := w.Conductor().Query(&conductor.Query{Identity: servicetest.Identity, Tokens: p}, &a); err != nil {
					t.Error(err)
					return
				}
				text := answerText(&a)
				if !strings.Contains(text, gpu("always", 32)) {
					t.Errorf("answer is %s", text)
				}
				for _, in := range a.Instances {
					most, known := map[string]uint64{"always": 32, "i0": 16, "i1": 16, "5": 8}[in.Instance]
					if !known || in.Longest > most || len(in.Ranks) > 3 {
						t.Errorf("row %+v", in)
					}
				}
			}
		})
	}
	changers.Wait()
	done.Store(true)
	askers.Wait()
	for _, row := range w.Conductor().Services() {
		if row.Instance != "always" {
			_, _ = w.Conductor().Unregister(servicetest.Instance(row.Instance)) // NotFound: gone with another rank
		}
	}
	wantHits(w, servicetest.Identity, p, "", gpu("always", 32))
	if _, live := w.Net.Count(); live != 1 {
		t.Errorf("%d sockets are open, want that of the publisher in force", live)
	}
	m := w.Metrics()
	if publishers, blocks := servicetest.Sum(m["conductor_publishers"]), servicetest.Sum(m["conductor_index_blocks"]); publishers != 1 || blocks != 8 {
		t.Errorf("%v publishers with %v blocks are left, want 1 with 8", publishers, blocks)
	}

	r := servicetest.Registration("i0", 0)
	w.Register(r)
	e = w.Publisher(r)
	e.Publish(0, e.Stored(p[:8], servicetest.BlockSize, nil))
	wantHits(w, servicetest.Identity, p, "i0", gpu("i0", 8))
}

// TestConductorUnregisterWhileOpening: what is unregistered while its stream is
// being opened leaves no stream behind, and the next registration works.
func TestConductorUnregisterWhileOpening(t *testing.T) {
	w := servicetest.Start(t)
	r := servicetest.Registration("i", 0)
	opening := make(chan struct{}, 1)
	w.Net.Opening = func(string) {
		opening <- struct{}{}
		for range 1000 { // let the other get as far as it can
			runtime.Gosched()
		}
	}
	for range 20 {
		done := make(chan error, 1)
		go func() { done <- w.Conductor().Register(r) }()
		<-opening
		w.Unregister(servicetest.Instance("i"), "i|t|0")
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if _, live := w.Net.Count(); live != 0 || len(w.Conductor().Services()) != 0 {
			t.Fatalf("%d sockets are open, in force is %+v", live, w.Conductor().Services())
		}
	}
}

// TestConductorCloseDuringChanges: registrations that race with the end of the
// service leave no stream open, whichever side they fall on.
func TestConductorCloseDuringChanges(t *testing.T) {
	w := servicetest.Start(t)
	var clients sync.WaitGroup
	for c := range 4 {
		clients.Go(func() {
			for i := range 50 {
				r := servicetest.Registration(fmt.Sprint("i", c), uint32(i))
				if w.Conductor().Register(r) != nil {
					return // shutting down
				}
				if i%3 == 0 {
					f := servicetest.Instance(r.Instance)
					f.Rank = &r.Rank
					_, _ = w.Conductor().Unregister(f)
				}
			}
		})
	}
	w.Close()
	w.Stop()
	clients.Wait()
	if _, live := w.Net.Count(); live != 0 {
		t.Errorf("%d sockets are open", live)
	}
}
