package catalog_test

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/length"
)

// print prints what the catalog shows, and what the Reconciler was told, in the
// same form.
func (w *world) print() string {
	var b strings.Builder
	tracked := map[key]struct{}{}
	for _, worker := range w.catalog.List(nil, nil) {
		if worker.Tracked {
			tracked[key{worker.Scope, worker.ID}] = struct{}{}
			if worker.Lifecycle != catalog.Incomplete || len(worker.Explain()) != 1 {
				w.t.Fatalf("tracked worker is %s: %q", worker.Lifecycle, worker.Explain())
			}
			continue
		}
		fmt.Fprintf(&b, "%d %v: %q", worker.ID, worker.Scope, strings.Join(worker.Explain(), "; "))
		if (worker.Lifecycle == catalog.Schedulable) != (len(worker.Explain()) == 0) {
			b.WriteString(" but " + worker.Lifecycle)
		}
		if a := w.inForce[key{worker.Scope, worker.ID}]; a != nil {
			ranks, streams := map[uint32]bool{}, map[uint32]string{}
			for _, r := range a.Ranks() {
				ranks[r.DP] = r.Candidate
			}
			for _, s := range a.Streams {
				streams[s.DP] = strings.TrimSpace(s.Endpoint + " " + s.Replay)
			}
			fmt.Fprintf(&b, " holds %v %d %t %v %v", a.Scope, a.BlockSize, a.Eagle, ranks, streams)
		}
		b.WriteByte('\n')
	}
	for _, k := range sortedKeys(tracked) {
		fmt.Fprintf(&b, "%d %v: tracked", k.id, k.Scope)
		if a := w.inForce[k]; a != nil && a.Tracked {
			ranks := map[uint32]bool{}
			for _, r := range a.Ranks() {
				ranks[r.DP] = r.Candidate
			}
			fmt.Fprintf(&b, " holds %v %d %v", a.Scope, a.BlockSize, ranks)
		}
		b.WriteByte('\n')
	}
	for _, sc := range slices.SortedFunc(maps.Keys(w.reserved), catalog.Scope.Compare) {
		early := map[catalog.Rank]bool{}
		for r := range w.reserved[sc].slots {
			early[r] = true
		}
		fmt.Fprintf(&b, "%v early: %d %v\n", sc, w.reserved[sc].block, early)
	}
	return b.String()
}

// checkSnapshots computes every snapshot again from the list of workers and from
// what is in force.
func (w *world) checkSnapshots() {
	w.t.Helper()
	want := map[catalog.Scope]*readable{}
	ready := 0
	for _, worker := range w.catalog.List(nil, nil) {
		a := w.inForce[key{worker.Scope, worker.ID}]
		if worker.Lifecycle == catalog.Schedulable {
			ready++
		}
		if a == nil {
			continue
		}
		s := want[a.Scope]
		if s == nil {
			s = &readable{Scope: a.Scope, BlockSize: a.BlockSize, Ranks: []catalog.Entry{}}
			want[a.Scope] = s
		}
		s.Eagle = s.Eagle || a.Eagle
		if worker.Lifecycle == catalog.Schedulable {
			s.Workers = append(s.Workers, worker)
		}
		for _, r := range a.Ranks() {
			e := catalog.Entry{Rank: catalog.Rank{Worker: worker.ID, DP: r.DP}, Slot: r.Slot, CarriesLoad: r.Candidate, Worker: worker}
			s.Known = append(s.Known, e)
			s.Slots = max(s.Slots, int(r.Slot)+1)
			if worker.Lifecycle == catalog.Schedulable && r.Candidate {
				s.Ranks = append(s.Ranks, e)
			}
		}
	}
	got := map[catalog.Scope]*readable{}
	for _, s := range w.catalog.Scopes() {
		snap := w.catalog.Snapshot(s)
		got[s] = &readable{snap.Scope, snap.BlockSize, snap.Eagle, snap.Workers, snap.Ranks(), snap.Known(), snap.Slots}
		if snap.NumRanks != len(snap.Ranks()) {
			w.t.Errorf("%d ranks, %d counted", len(snap.Ranks()), snap.NumRanks)
		}
		prompts := 0
		for _, e := range snap.Ranks() {
			takes := !e.Worker.OnlyEncodes()
			if takes {
				prompts++
			}
			if has := snap.PromptSlots()[e.Slot/64]>>(e.Slot%64)&1 == 1; has != takes || snap.BySlot(e.Slot) != e {
				w.t.Errorf("the slot of %v takes prompts: %t, want %t; it is that of %v", e.Rank, has, takes, snap.BySlot(e.Slot))
			}
		}
		if snap.NumPrompts != prompts {
			w.t.Errorf("%d ranks take prompts, %d counted", prompts, snap.NumPrompts)
		}
	}
	equal(w.t, "snapshots", got, want)
	equal(w.t, "Ready", w.catalog.CountSchedulable(), ready)
}

func pick[T any](rnd *rand.Rand, from ...T) T { return from[rnd.IntN(len(from))] }

// randomPatch sets each field with some probability to a value that is mostly
// harmless.
func randomPatch(rnd *rand.Rand) catalog.Patch {
	var p catalog.Patch
	given := func(oneIn int) bool { return rnd.IntN(oneIn) == 0 }
	if given(3) {
		p.Endpoint = new(pick(rnd, "http://a", "http://b", ""))
	}
	if given(3) {
		p.BlockSize = new(pick(rnd, uint32(4), 4, 4, 8, 0))
	}
	if given(4) {
		p.StartRank = new(rnd.Uint32N(3))
	}
	if given(3) {
		p.Size = new(pick(rnd, uint32(1), 1, 2, 3, 0))
	}
	if given(6) {
		p.IsEagle = new(given(3))
	}
	endpoints := []string{"tcp://h:1", "tcp://h:2", "tcp://h:3", "tcp://*:1", "tcp://*:2", "bad", ""}
	if given(3) {
		p.KVEventsEndpoint = new(pick(rnd, endpoints...))
	}
	if given(2) {
		p.KVEventsEndpoints = map[uint32]string{}
		for dp := range uint32(5) {
			if given(2) {
				p.KVEventsEndpoints[dp] = endpoints[rnd.IntN(2+rnd.IntN(len(endpoints)-1))]
			}
		}
	}
	if given(8) {
		p.ReplayEndpoint = new(pick(rnd, "tcp://r:1", "tcp://r:2", "tcp://*:9"))
	}
	if given(4) {
		p.ReplayEndpoints = map[uint32]string{}
		for dp := range uint32(4) {
			if given(4) {
				p.ReplayEndpoints[dp] = "tcp://r:3"
			}
		}
	}
	if given(3) {
		p.Taints = []string{pick(rnd, "x", "y")}
	}
	if given(6) {
		p.Role = new(pick(rnd, catalog.RoleEncode, catalog.RoleDecode))
	}
	return p
}

// TestAgainstModel plays random histories of both contracts and of a recovery
// into the catalog and the naive model. After every step they agree on errors,
// reasons, ranks, streams and reserved ranks; snapshots equal the ones made from
// scratch; and the world has checked every call.
func TestAgainstModel(t *testing.T) {
	length.Sequential(t)
	steps := length.Of(10_000, 1_000, 0)
	rnd := rand.New(rand.NewPCG(1, 2))
	var sum tally
	for history := range steps / 100 {
		c, world := newWorld(t, events)
		model := newNaive()
		for step := range 100 {
			what := play(t, rnd, c, model, &sum)
			if got, want := world.print(), model.print(); got != want {
				t.Fatalf("history %d step %d: %s\ngot:\n%s\nwant:\n%s", history, step, what, got, want)
			}
			world.checkSnapshots()
			if t.Failed() {
				t.FailNow()
			}
			sum.schedulable += c.CountSchedulable()
			for _, w := range c.List(nil, nil) {
				if w.Tracked {
					sum.tracked++
				}
			}
		}
		for _, call := range world.took() {
			sum.calls++
			if strings.HasPrefix(call, "release") {
				sum.released++
			}
		}
	}
	if sum.schedulable < steps/2 || sum.tracked < steps/2 || sum.calls < steps/4 || sum.refused < steps/50 || sum.reserved < steps/50 || sum.released < steps/100 || sum.sets < steps/20 {
		t.Errorf("histories are too dull: %+v in %d steps", sum, steps)
	}
}

// tally reports whether the histories had everything in them.
type tally struct{ schedulable, tracked, calls, refused, reserved, released, sets int }

// play makes one random step, and compares what is answered.
func play(t *testing.T, rnd *rand.Rand, c *catalog.Catalog, model *naive, sum *tally) (what string) {
	t.Helper()
	id, sc := pick(rnd, uint64(0), 1, 2, 7, 1<<64-1), pick(rnd, m1, m1, m2)
	_, registered := model.records[id]
	p := randomPatch(rnd)
	refused := func(err error, want string) {
		if fmt.Sprint(err) != cmp.Or(want, "<nil>") {
			t.Fatalf("%s: error %v, want %q", what, err, want)
		}
		if err != nil {
			sum.refused++
		}
	}
	switch op := rnd.IntN(18); {
	case op == 0:
		r := catalog.TrackedRecord{ID: id, Scope: sc, BlockSize: pick(rnd, uint32(4), 4, 4, 8), StartRank: rnd.Uint32N(3), Size: 1 + rnd.Uint32N(3)}
		what = fmt.Sprintf("put tracked %+v", r)
		_, err := c.PutTracked(r)
		refused(err, model.putTracked(r))
	case op < 3:
		what = fmt.Sprintf("delete tracked %d %v", id, sc)
		refused(c.DeleteTracked(sc, id), model.removeTracked(sc, id))
	case op < 5:
		r, block := catalog.Rank{Worker: id, DP: rnd.Uint32N(4)}, pick(rnd, uint32(4), 4, 8)
		what = fmt.Sprintf("reserve %s %v %d", r, sc, block)
		_, ok := c.ReserveSlot(sc, block, r)
		if want := model.reserve(sc, block, r); ok != want {
			t.Fatalf("%s: %t, want %t", what, ok, want)
		}
		if ok {
			sum.reserved++
		}
	case op == 5 && rnd.IntN(20) == 0:
		what = "release slots"
		c.ReleaseReservedSlots()
		model.release()
	case op == 6 && registered:
		what = fmt.Sprintf("delete %d", id)
		remove(t, c, id)
		model.remove(id)
	case op < 13 && registered:
		what = fmt.Sprintf("patch %d", id)
		r := patched(model.records[id], p)
		patch(t, c, id, p)
		model.put(r)
	case op >= 16:
		records, f := randomSet(rnd, model)
		what = fmt.Sprintf("reconcile %s", describeSet(records, f))
		got, err := c.Reconcile(catalog.Set{Records: records, Scope: f})
		want, refusal := model.reconcile(records, f)
		refused(err, refusal)
		equal(t, what+": the difference", got, want)
		sum.sets++
	default:
		what = fmt.Sprintf("put %d %v", id, sc)
		r := catalog.Record{ID: id, Scope: sc}
		r = patched(r, catalog.Patch{Endpoint: new("http://w"), BlockSize: new(uint32(4)), KVEventsEndpoint: new("tcp://h:9")})
		r = patched(r, p)
		_, err := c.Put(r)
		refused(err, model.put(r))
	}
	return what
}

// patched is Patch on a plain record.
func patched(r catalog.Record, p catalog.Patch) catalog.Record {
	r.Endpoint, r.KVEventsEndpoint = or(p.Endpoint, r.Endpoint), or(p.KVEventsEndpoint, r.KVEventsEndpoint)
	r.ReplayEndpoint, r.BlockSize = or(p.ReplayEndpoint, r.ReplayEndpoint), or(p.BlockSize, r.BlockSize)
	r.StartRank, r.Size, r.IsEagle = or(p.StartRank, r.StartRank), or(p.Size, r.Size), or(p.IsEagle, r.IsEagle)
	r.Role = or(p.Role, r.Role)
	if p.KVEventsEndpoints != nil {
		r.KVEventsEndpoints = p.KVEventsEndpoints
	}
	if p.ReplayEndpoints != nil {
		r.ReplayEndpoints = p.ReplayEndpoints
	}
	if p.Taints != nil {
		r.Taints = p.Taints
	}
	return r
}

func or[T any](a, b *T) *T {
	if a != nil {
		return a
	}
	return b
}

// readable is what a snapshot says.
type readable struct {
	Scope        catalog.Scope
	BlockSize    uint32
	Eagle        bool
	Workers      []*catalog.Worker
	Ranks, Known []catalog.Entry
	Slots        int
}
