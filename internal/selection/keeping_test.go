package selection_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

func homes(c *node.Config) { c.Selection.HomeTTL = time.Hour }

// soft is a request of a soft session that parent has started; "": nobody.
func soft(session, parent string) func(*selection.SelectRequest) {
	return func(r *selection.SelectRequest) {
		r.Session, r.Parent, r.SessionMode, r.Groups = session, parent, selection.SoftSessions, true
	}
}

// family starts a service of eight engines with predicted-ttft, which compute 12,000 tokens a second.
func family(t *testing.T, change ...func(*node.Config)) *servicetest.World {
	w := servicetest.Start(t, append([]func(*node.Config){servicetest.EventsOff, homes, keeping, servicetest.Policy(t, "predicted-ttft", "")}, change...)...)
	for id := range uint64(8) {
		w.Put(servicetest.Record(id, 1))
	}
	return w
}

// child is the prompt of a sub-agent: a head of 6,000 tokens that all children of a parent have, and 400 tokens of its own.
func child(parent, i uint32) []uint32 {
	return append(servicetest.Prompt(1000+parent, 6000), servicetest.Prompt(5000+i, 400)...)
}

// fanOut starts children of a parent, from number from on and all at once, and returns how many went to each worker.
func fanOut(w *servicetest.World, parent string, from, n int, change ...func(*selection.SelectRequest)) map[uint64]int {
	w.T.Helper()
	var mu sync.Mutex
	var g sync.WaitGroup
	at := make(map[uint64]int)
	for i := from; i < from+n; i++ {
		g.Go(func() {
			name := fmt.Sprint(parent, " ", i)
			all := append([]func(*selection.SelectRequest){soft(name, parent)}, change...)
			sel, err := reserve(w, name, child(1, uint32(i)), all...)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				w.T.Error(err)
			}
			at[sel.Rank.Worker]++
		})
	}
	g.Wait()
	return at
}

// TestFanOut: children of one parent that start at once come to few ranks, beside a parent that is busy.
func TestFanOut(t *testing.T) {
	w := family(t)
	root, err := reserve(w, "p", servicetest.Prompt(1, 6000), soft("p", ""))
	if err != nil {
		t.Fatal(err)
	}
	at := fanOut(w, "p", 0, 16)
	if len(at) > 3 || at[root.Rank.Worker] != 0 {
		t.Errorf("the parent is on worker %d, its children on %v", root.Rank.Worker, at)
	}
	// Later turns of a child stay where it is.
	for i := range 16 {
		name := fmt.Sprint("p ", i)
		x, err := w.Explain(t.Context(), func() *selection.SelectRequest {
			r := servicetest.Ask(child(1, uint32(i)))
			soft(name, "p")(r)
			return r
		}())
		if err != nil || x.Session != name || x.Group != "p" || x.Home == nil || at[x.Home.Worker] == 0 {
			t.Fatalf("%s: %+v, %v", name, x, err)
		}
	}
}

// TestFanOutSpreads: where the home of a group is saturated, the rest of the children go elsewhere.
func TestFanOutSpreads(t *testing.T) {
	w := family(t)
	first := fanOut(w, "p", 0, 1)
	for id := range first {
		w.Burden("work", id, 0, 100, 1_000_000)
	}
	for id, n := range fanOut(w, "p", 1, 8) {
		if first[id] != 0 {
			t.Errorf("%d children came to the saturated worker", n)
		}
	}
}

// TestGroupName: the name is Dynamo's (subagent_group_affinity_id). The hash of "abc" is that of BLAKE3's own tests.
func TestGroupName(t *testing.T) {
	if got, want := selection.GroupName("abc"), "\x01sg:6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
