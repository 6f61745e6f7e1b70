package catalog_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/select-service/select-service/pkg/catalog"
)

// naive is the catalog written as a few maps: it shares no code with it and
// knows neither slots nor calls. A worker is out or holds some ranks.
type naive struct {
	records  map[uint64]catalog.Record
	tracked  map[key]catalog.TrackedRecord
	reason   map[uint64]string // joined; "" is schedulable
	reserved map[who]*holding
	settled  string // what was reserved when everybody was tried last
	// early has the ranks with a slot whose workers are not there.
	early    map[catalog.Scope]*holding
	released bool
	// fixed is is_eagle of scopes that had a worker to select.
	fixed map[catalog.Scope]bool
	// together: a set of workers is put at once, and what they lose is still there.
	together bool
}

// who is a worker; the slot tracker's are named by their scope, too.
type who struct {
	tracked catalog.Scope
	id      uint64
	was     bool // what it had before the set that is being put
}

func newNaive() *naive {
	return &naive{
		records: map[uint64]catalog.Record{}, tracked: map[key]catalog.TrackedRecord{}, reason: map[uint64]string{},
		reserved: map[who]*holding{}, early: map[catalog.Scope]*holding{}, fixed: map[catalog.Scope]bool{},
	}
}

type holding struct {
	scope   catalog.Scope
	block   uint32
	eagle   bool
	ranks   map[uint32]bool   // true: in the worker's own range
	streams map[uint32]string // "endpoint replay"
	early   map[catalog.Rank]bool
}

func (n *naive) order() []uint64 {
	return slices.SortedFunc(maps.Keys(n.records), func(a, b uint64) int {
		x, y := n.records[a], n.records[b]
		return slices.Compare([]string{x.Scope.Model, x.Scope.Tenant, fmt.Sprintf("%020d", a)},
			[]string{y.Scope.Model, y.Scope.Tenant, fmt.Sprintf("%020d", b)})
	})
}

// put returns the error.
func (n *naive) put(r catalog.Record) string {
	if _, taken := n.tracked[key{r.Scope, r.ID}]; taken {
		return fmt.Sprintf("worker %d already registered for model=%s tenant=%s", r.ID, r.Scope.Model, r.Scope.Tenant)
	}
	if was, ok := n.records[r.ID]; ok && was.Scope != r.Scope {
		n.forget(was.Scope, r.ID)
	}
	n.records[r.ID] = r
	n.place(r.ID)
	n.settle()
	return ""
}

func (n *naive) remove(id uint64) {
	n.forget(n.records[id].Scope, id)
	delete(n.records, id)
	delete(n.reason, id)
	delete(n.reserved, who{id: id})
	n.settle()
}

// putTracked returns the error.
func (n *naive) putTracked(r catalog.TrackedRecord) string {
	for _, h := range n.reserved {
		if h.scope == r.Scope && h.block != r.BlockSize {
			return fmt.Sprintf("block_size mismatch for model=%s tenant=%s: existing=%d, requested=%d", r.Scope.Model, r.Scope.Tenant, h.block, r.BlockSize)
		}
	}
	other, registered := n.records[r.ID]
	if _, again := n.tracked[key{r.Scope, r.ID}]; again || registered && other.Scope == r.Scope {
		return fmt.Sprintf("worker %d already registered for model=%s tenant=%s", r.ID, r.Scope.Model, r.Scope.Tenant)
	}
	n.tracked[key{r.Scope, r.ID}] = r
	n.forget(r.Scope, r.ID)
	if e := n.early[r.Scope]; e != nil && e.block != r.BlockSize {
		delete(n.early, r.Scope)
		n.tidy()
	}
	h := &holding{scope: r.Scope, block: r.BlockSize, ranks: map[uint32]bool{}}
	for i := range r.Size {
		h.ranks[r.StartRank+i] = true
	}
	n.reserved[who{tracked: r.Scope, id: r.ID}] = h
	n.settle()
	return ""
}

// removeTracked returns the error.
func (n *naive) removeTracked(sc catalog.Scope, id uint64) string {
	if _, ok := n.tracked[key{sc, id}]; !ok {
		return fmt.Sprintf("worker %d not found for model=%s tenant=%s", id, sc.Model, sc.Tenant)
	}
	delete(n.tracked, key{sc, id})
	delete(n.reserved, who{tracked: sc, id: id})
	n.settle()
	return ""
}

func (n *naive) reserve(sc catalog.Scope, block uint32, r catalog.Rank) bool {
	if _, ok := n.tracked[key{sc, r.Worker}]; ok {
		return false
	}
	e := n.early[sc]
	for _, h := range n.reserved {
		if h.scope == sc && h.block != block {
			return false
		}
	}
	if e != nil && e.block != block {
		return false
	}
	if h := n.reserved[who{id: r.Worker}]; h != nil && h.scope == sc {
		_, attached := h.ranks[r.DP]
		return attached
	}
	if e != nil && e.early[r] {
		return true
	}
	if n.released {
		return false
	}
	if e == nil {
		e = &holding{block: block, early: map[catalog.Rank]bool{}}
		n.early[sc] = e
	}
	e.early[r] = true
	return true
}

func (n *naive) release() {
	n.released = true
	clear(n.early)
	n.tidy()
}

// forget ends what is reserved early for a worker.
func (n *naive) forget(sc catalog.Scope, id uint64) {
	if e := n.early[sc]; e != nil {
		maps.DeleteFunc(e.early, func(r catalog.Rank, _ bool) bool { return r.Worker == id })
	}
	n.tidy()
}

// tidy drops the state of scopes without attached workers and reserved ranks.
func (n *naive) tidy() {
	maps.DeleteFunc(n.early, func(_ catalog.Scope, e *holding) bool { return len(e.early) == 0 })
	maps.DeleteFunc(n.fixed, func(sc catalog.Scope, _ bool) bool { return !n.inhabited(sc, who{}) && n.early[sc] == nil })
}

// inhabited: somebody else than id holds ranks there.
func (n *naive) inhabited(sc catalog.Scope, but who) bool {
	for w, h := range n.reserved {
		if h.scope == sc && (w != but || but == who{}) {
			return true
		}
	}
	return false
}

// settle tries everybody again who failed, until that changes nothing.
func (n *naive) settle() {
	n.tidy()
	for n.settled != n.holdings() {
		n.settled = n.holdings()
		for _, id := range n.order() {
			if strings.HasPrefix(n.reason[id], "reconciliation failed") {
				n.place(id)
			}
		}
	}
}

func (n *naive) holdings() string {
	all := map[string]holding{}
	for w, h := range n.reserved {
		all[fmt.Sprint(w)] = *h
	}
	return fmt.Sprint(all)
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
			n.reason[id], n.reserved[who{id: id}] = "", want
			n.fixed[want.scope] = want.eagle
			n.forget(want.scope, id)
			return
		}
		why = []string{"reconciliation failed: " + failure}
	}
	n.reason[id] = strings.Join(why, "; ")
	n.shrink(id, want, sources)
	n.tidy()
}

// shrink keeps of what the worker holds whatever it still wants.
func (n *naive) shrink(id uint64, want *holding, sources map[uint32]string) {
	h := n.reserved[who{id: id}]
	if h == nil {
		return
	}
	if h.scope != want.scope || h.block != want.block {
		delete(n.reserved, who{id: id})
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
	n.reserved[who{id: id}] = left
	if len(left.ranks) == 0 {
		delete(n.reserved, who{id: id})
	}
}

// failure tells why a complete record cannot be carried out. A worker that has
// to leave its scope first does so even if it then fails.
func (n *naive) failure(id uint64, want *holding, sources map[uint32]string, r *catalog.Record) string {
	for other, h := range n.reserved {
		eagle, fixed := n.fixed[want.scope]
		switch {
		case other == who{id: id} || h.scope != want.scope:
		case h.block != want.block:
			return fmt.Sprintf("block_size mismatch for model=%s tenant=%s: existing=%d requested=%d", h.scope.Model, h.scope.Tenant, h.block, want.block)
		case fixed && eagle != want.eagle:
			return fmt.Sprintf("is_eagle mismatch for model=%s tenant=%s: existing=%t requested=%t", h.scope.Model, h.scope.Tenant, eagle, want.eagle)
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
	if h := n.reserved[who{id: id}]; h != nil && (h.scope != want.scope || h.block != want.block || h.eagle != want.eagle) {
		delete(n.reserved, who{id: id})
		n.tidy()
	}
	if e := n.early[want.scope]; e != nil && !n.inhabited(want.scope, who{}) {
		if eagle, fixed := n.fixed[want.scope]; e.block != want.block || fixed && eagle != want.eagle {
			delete(n.early, want.scope)
			n.tidy()
		}
	}
	bound := map[string]bool{}
	for other, h := range n.reserved {
		for dp, s := range h.streams {
			_, wanted := want.ranks[dp]
			bound[strings.Fields(s)[0]] = bound[strings.Fields(s)[0]] || other != who{id: id} || n.together && !wanted
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
		if h := n.reserved[who{id: id}]; h != nil {
			fmt.Fprintf(&b, " holds %v %d %t %v %v", h.scope, h.block, h.eagle, h.ranks, h.streams)
		}
		b.WriteByte('\n')
	}
	for _, k := range sortedKeys(n.tracked) {
		fmt.Fprintf(&b, "%d %v: tracked", k.id, k.Scope)
		if h := n.reserved[who{tracked: k.Scope, id: k.id}]; h != nil {
			fmt.Fprintf(&b, " holds %v %d %v", h.scope, h.block, h.ranks)
		}
		b.WriteByte('\n')
	}
	for _, sc := range slices.SortedFunc(maps.Keys(n.early), catalog.Scope.Compare) {
		fmt.Fprintf(&b, "%v early: %d %v\n", sc, n.early[sc].block, n.early[sc].early)
	}
	return b.String()
}

func sortedKeys[V any](m map[key]V) []key {
	return slices.SortedFunc(maps.Keys(m), func(a, b key) int {
		return cmp.Or(a.Compare(b.Scope), cmp.Compare(a.id, b.id))
	})
}
