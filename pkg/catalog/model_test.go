package catalog_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/select-service/select-service/pkg/catalog"
)

// naive is the catalog written as a few maps: it shares no code with it and
// knows neither slots nor calls. A worker is out or holds some ranks.
type naive struct {
	records map[uint64]catalog.Record
	reason  map[uint64]string // joined; "" is schedulable
	held    map[uint64]*holding
}

type holding struct {
	scope   catalog.Scope
	block   uint32
	eagle   bool
	ranks   map[uint32]bool   // true: in the worker's own range
	streams map[uint32]string // "endpoint replay"
}

func (n *naive) order() []uint64 {
	return slices.SortedFunc(maps.Keys(n.records), func(a, b uint64) int {
		x, y := n.records[a], n.records[b]
		return slices.Compare([]string{x.Scope.Model, x.Scope.Tenant, fmt.Sprintf("%020d", a)},
			[]string{y.Scope.Model, y.Scope.Tenant, fmt.Sprintf("%020d", b)})
	})
}

func (n *naive) put(r catalog.Record) {
	n.records[r.ID] = r
	n.place(r.ID)
	n.settle()
}

func (n *naive) remove(id uint64) {
	delete(n.records, id)
	delete(n.reason, id)
	delete(n.held, id)
	n.settle()
}

// settle tries everybody again who failed, until that changes nothing.
func (n *naive) settle() {
	for {
		before := n.print()
		for _, id := range n.order() {
			if strings.HasPrefix(n.reason[id], "reconciliation failed") {
				n.place(id)
			}
		}
		if n.print() == before {
			return
		}
	}
}

func (n *naive) place(id uint64) {
	r := n.records[id]
	block, from, to, isEagle := uint32(0), uint32(0), uint32(1), r.IsEagle != nil && *r.IsEagle
	if r.BlockSize != nil {
		block = *r.BlockSize
	}
	if r.StartRank != nil {
		from, to = *r.StartRank, *r.StartRank+1
	}
	if r.Size != nil {
		to = from + *r.Size
	}
	sources := r.KVEventsEndpoints
	if len(sources) == 0 {
		sources = map[uint32]string{}
		if r.KVEventsEndpoint != nil && to == from+1 {
			sources[from] = *r.KVEventsEndpoint
		}
	}
	want := &holding{scope: r.Scope, block: block, eagle: isEagle, ranks: map[uint32]bool{}, streams: map[uint32]string{}}
	for dp := range sources {
		if len(r.KVEventsEndpoints) > 0 {
			want.ranks[dp] = false
		}
	}
	var why []string
	if r.Endpoint == nil || *r.Endpoint == "" {
		why = append(why, "endpoint is required")
	}
	if block == 0 {
		why = append(why, "block_size must be greater than 0")
	}
	if to == from {
		why = append(why, "data_parallel_size must be greater than 0")
	}
	for dp := from; dp < to; dp++ {
		want.ranks[dp] = true
		if sources[dp] == "" {
			why = append(why, fmt.Sprintf("kv_events endpoint is required for dp_rank %d", dp))
		}
	}
	if why == nil {
		failure := n.failure(id, want, sources, &r)
		if failure == "" {
			n.reason[id], n.held[id] = "", want
			return
		}
		why = []string{"reconciliation failed: " + failure}
	}
	n.reason[id] = strings.Join(why, "; ")
	n.shrink(id, want, sources)
}

// shrink keeps of what the worker holds whatever it still wants.
func (n *naive) shrink(id uint64, want *holding, sources map[uint32]string) {
	h := n.held[id]
	if h == nil {
		return
	}
	if h.scope != want.scope || h.block != want.block {
		delete(n.held, id)
		return
	}
	left := &holding{scope: h.scope, block: h.block, eagle: h.eagle, ranks: map[uint32]bool{}, streams: map[uint32]string{}}
	for dp, candidate := range h.ranks {
		if own, ok := want.ranks[dp]; ok {
			left.ranks[dp] = candidate && own
			if s, ok := h.streams[dp]; ok && sources[dp] != "" {
				left.streams[dp] = s
			}
		}
	}
	n.held[id] = left
	if len(left.ranks) == 0 {
		delete(n.held, id)
	}
}

// failure tells why a complete record cannot be carried out. A worker that has
// to leave its scope first does so even if it then fails.
func (n *naive) failure(id uint64, want *holding, sources map[uint32]string, r *catalog.Record) string {
	for other, h := range n.held {
		switch {
		case other == id || h.scope != want.scope:
		case h.block != want.block:
			return fmt.Sprintf("block_size mismatch for model=%s tenant=%s: existing=%d requested=%d", h.scope.Model, h.scope.Tenant, h.block, want.block)
		case h.eagle != want.eagle:
			return fmt.Sprintf("is_eagle mismatch for model=%s tenant=%s: existing=%t requested=%t", h.scope.Model, h.scope.Tenant, h.eagle, want.eagle)
		}
	}
	for _, dp := range slices.Sorted(maps.Keys(want.ranks)) {
		back, given := r.ReplayEndpoints[dp]
		if !given && r.ReplayEndpoint != nil {
			back, given = *r.ReplayEndpoint, true
		}
		if !strings.HasPrefix(sources[dp], "tcp://") { // the generator knows no other fault
			return fmt.Sprintf("invalid kv_events endpoint for worker %d dp_rank %d: invalid ZMQ endpoint `%s`: missing scheme", id, dp, sources[dp])
		}
		if given && strings.Contains(back, "*") {
			return fmt.Sprintf("invalid replay endpoint for worker %d dp_rank %d: invalid ZMQ endpoint `%s`: wildcard host", id, dp, back)
		}
		want.streams[dp] = strings.TrimSpace(sources[dp] + " " + back)
	}
	if h := n.held[id]; h != nil && (h.scope != want.scope || h.block != want.block || h.eagle != want.eagle) {
		delete(n.held, id)
	}
	bound := map[string]bool{}
	for other, h := range n.held {
		for _, s := range h.streams {
			bound[strings.Fields(s)[0]] = bound[strings.Fields(s)[0]] || other != id
		}
	}
	for _, dp := range slices.Sorted(maps.Keys(want.streams)) {
		if s := sources[dp]; strings.Contains(s, "*") {
			if bound[s] {
				return fmt.Sprintf("bind %s: address already in use", s)
			}
			bound[s] = true
		}
	}
	return ""
}

// print is the whole state in one string, for comparison.
func (n *naive) print() string {
	var b strings.Builder
	for _, id := range n.order() {
		fmt.Fprintf(&b, "%d %v: %q", id, n.records[id].Scope, n.reason[id])
		if h := n.held[id]; h != nil {
			fmt.Fprintf(&b, " holds %v %d %t %v %v", h.scope, h.block, h.eagle, h.ranks, h.streams)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// view prints what the catalog shows, and what the Reconciler was told, in the
// same form.
func (w *world) print() string {
	var b strings.Builder
	for _, worker := range w.catalog.List(nil, nil) {
		fmt.Fprintf(&b, "%d %v: %q", worker.ID, worker.Scope, strings.Join(worker.Reasons, "; "))
		if (worker.Lifecycle == catalog.Schedulable) != (len(worker.Reasons) == 0) {
			b.WriteString(" but " + worker.Lifecycle)
		}
		if a := w.inForce[worker.ID]; a != nil {
			ranks, streams := map[uint32]bool{}, map[uint32]string{}
			for _, r := range a.Ranks {
				ranks[r.DP] = r.Candidate
			}
			for _, s := range a.Streams {
				streams[s.DP] = strings.TrimSpace(s.Endpoint + " " + s.Replay)
			}
			fmt.Fprintf(&b, " holds %v %d %t %v %v", a.Scope, a.BlockSize, a.Eagle, ranks, streams)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// checkSnapshots makes every snapshot anew from the list of workers and from
// what is in force.
func (w *world) checkSnapshots() {
	w.t.Helper()
	want := map[catalog.Scope]*catalog.Snapshot{}
	ready := 0
	for _, worker := range w.catalog.List(nil, nil) {
		a := w.inForce[worker.ID]
		if worker.Lifecycle == catalog.Schedulable {
			ready++
		}
		if a == nil {
			continue
		}
		s := want[a.Scope]
		if s == nil {
			s = &catalog.Snapshot{Scope: a.Scope, BlockSize: a.BlockSize, Eagle: a.Eagle, Ranks: []catalog.Entry{}}
			want[a.Scope] = s
		}
		if worker.Lifecycle == catalog.Schedulable {
			s.Workers = append(s.Workers, worker)
		}
		for _, r := range a.Ranks {
			e := catalog.Entry{Rank: catalog.Rank{Worker: worker.ID, DP: r.DP}, Slot: r.Slot, Worker: worker}
			s.Known = append(s.Known, e)
			s.Slots = max(s.Slots, int(r.Slot)+1)
			if worker.Lifecycle == catalog.Schedulable && r.Candidate {
				s.Ranks = append(s.Ranks, e)
			}
		}
	}
	got := map[catalog.Scope]*catalog.Snapshot{}
	for _, s := range w.catalog.Scopes() {
		got[s] = w.catalog.Snapshot(s)
	}
	equal(w.t, "snapshots", got, want)
	equal(w.t, "Ready", w.catalog.Ready(), ready)
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
	return p
}

// TestAgainstModel plays random histories into the catalog and the naive model.
// After every step they agree on reasons, ranks and streams; snapshots equal the
// ones made from scratch; and the world has checked every call.
func TestAgainstModel(t *testing.T) {
	steps := 10_000
	if testing.Short() {
		steps = 2_000
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	ids := []uint64{0, 1, 2, 7, 1<<64 - 1}
	schedulable, taken := 0, 0
	for history := range steps / 100 {
		c, world := newWorld(t, events)
		model := &naive{records: map[uint64]catalog.Record{}, reason: map[uint64]string{}, held: map[uint64]*holding{}}
		for step := range 100 {
			id := pick(rnd, ids...)
			_, registered := model.records[id]
			p := randomPatch(rnd)
			r := catalog.Record{ID: id, Scope: pick(rnd, m1, m1, m2)}
			if op := rnd.IntN(10); op == 0 && registered {
				remove(t, c, id)
				model.remove(id)
			} else if op < 7 && registered {
				r = patched(model.records[id], p)
				patch(t, c, id, p)
				model.put(r)
			} else {
				r = patched(r, catalog.Patch{Endpoint: new("http://w"), BlockSize: new(uint32(4)), KVEventsEndpoint: new("tcp://h:9")})
				r = patched(r, p)
				put(t, c, r)
				model.put(r)
			}
			if got, want := world.print(), model.print(); got != want {
				t.Fatalf("history %d step %d: worker %d\ngot:\n%s\nwant:\n%s", history, step, id, got, want)
			}
			world.checkSnapshots()
			if t.Failed() {
				t.FailNow()
			}
			schedulable += c.Ready()
		}
		taken += len(world.took())
	}
	if schedulable < steps || taken < steps/4 {
		t.Errorf("histories are too dull: %d schedulable workers, %d calls in %d steps", schedulable, taken, steps)
	}
}

// patched is Patch on a plain record.
func patched(r catalog.Record, p catalog.Patch) catalog.Record {
	r.Endpoint, r.KVEventsEndpoint = or(p.Endpoint, r.Endpoint), or(p.KVEventsEndpoint, r.KVEventsEndpoint)
	r.ReplayEndpoint, r.BlockSize = or(p.ReplayEndpoint, r.ReplayEndpoint), or(p.BlockSize, r.BlockSize)
	r.StartRank, r.Size, r.IsEagle = or(p.StartRank, r.StartRank), or(p.Size, r.Size), or(p.IsEagle, r.IsEagle)
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
