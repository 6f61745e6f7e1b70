package gateway

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/server/access"
	"github.com/select-service/select-service/pkg/catalog"
)

// models maps the model names of requests to scopes and their workers.
type models struct {
	catalog *catalog.Catalog
	// named are the configured names; nil: every model of the tenant default has its own name.
	named map[string]catalog.Scope
	// expected are scopes that sources of workers name, whether they have workers now or not.
	expected []catalog.Scope

	mu    sync.Mutex // guards pools
	pools map[catalog.Scope]*pool
}

// target is the scope and adapter that a model name stands for.
type target struct {
	scope catalog.Scope
	lora  string // name of the adapter; "": none
	base  string // the engines' name of the model without the adapter
}

// pool is what the workers of a scope's snapshot can do.
type pool struct {
	snapshot *catalog.Snapshot
	workers  []*catalog.Worker // all but those that only encode, of which nothing is asked
	adapters map[string]bool   // the adapters that at least one worker has
	// prefills: there are workers that only prefill. The others decode, and prefill too if none
	// of those did.
	prefills bool
}

// maxPools bounds the remembered pools; those of scopes that have gone stay until it is
// reached.
const maxPools = 4096

// find returns the target of a model name that the caller may see. The empty name stands for
// the only model, if there is just one.
func (m *models) find(name string, caller *access.Caller) (target, bool) {
	t, ok := m.lookUp(name)
	return t, ok && caller.Sees(t.scope)
}

func (m *models) lookUp(name string) (target, bool) {
	if m.named != nil {
		if sc, ok := m.named[name]; ok {
			return target{scope: m.scopeOf(sc), base: name}, true
		}
	} else if sc := m.catalog.Named(catalog.Scope{Model: name, Tenant: catalog.DefaultName}); name != "" && m.registered(sc) {
		return target{scope: sc, base: name}, true
	}
	all := m.scopes()
	if name == "" {
		if len(all) == 1 {
			return all[0], true
		}
		return target{}, false
	}
	if m.named != nil {
		for _, t := range all {
			if sc, ok := m.catalog.Alias(catalog.Scope{Model: name, Tenant: t.scope.Tenant}); ok && sc == t.scope {
				return target{scope: sc, base: name}, true
			}
		}
	}
	for _, t := range all {
		p := m.pool(t.scope)
		if p == nil {
			continue
		}
		for _, adapter := range t.adaptersOf(name) {
			if p.adapters[adapter] {
				t.lora = adapter
				return t, true
			}
		}
	}
	return m.away(name)
}

// scopeOf returns the scope that a configured name stands for: of a further name of a model, also of one whose workers
// have left, it is the model's.
func (m *models) scopeOf(sc catalog.Scope) catalog.Scope {
	if of := m.catalog.Named(sc); of != sc || m.registered(sc) {
		return of
	}
	return m.catalog.LeftAs(sc)
}

// adaptersOf returns which adapters of the target a name may stand for: SGLang's form has the model too.
func (t *target) adaptersOf(name string) []string {
	ofModel, _ := strings.CutPrefix(name, t.base+":")
	return []string{name, strings.TrimSpace(ofModel)}
}

// knownFor is how long the name of a model or an adapter without workers stays known.
const knownFor = 10 * time.Minute

// away returns the target of a name whose workers are all away: they have left lately, they are
// registered but cannot be chosen, or a source of workers names their model and has none.
func (m *models) away(name string) (target, bool) {
	if sc := (catalog.Scope{Model: name, Tenant: catalog.DefaultName}); m.named == nil && (slices.Contains(m.expected, sc) || m.leftLately(sc, "")) {
		return target{scope: m.catalog.LeftAs(sc), base: name}, true
	}
	for _, sc := range m.named {
		if further := (catalog.Scope{Model: name, Tenant: sc.Tenant}); further != sc && m.catalog.LeftAs(further) == sc && m.leftLately(further, "") {
			return target{scope: sc, base: name}, true
		}
	}
	_, ofModel, _ := strings.Cut(name, ":")
	for _, adapter := range [2]string{name, strings.TrimSpace(ofModel)} {
		for _, sc := range m.catalog.WithAdapter(adapter) {
			if t, ok := m.adapterAway(sc, adapter, name); ok {
				return t, true
			}
		}
		for _, sc := range m.catalog.LeftWith(adapter) {
			if t, ok := m.adapterAway(sc, adapter, name); ok && m.leftLately(sc, adapter) {
				return t, true
			}
		}
	}
	return target{}, false
}

func (m *models) leftLately(sc catalog.Scope, adapter string) bool {
	at, ok := m.catalog.Left(sc, adapter)
	return ok && time.Since(at) < knownFor
}

// adapterAway returns the target of an adapter of a scope, if requests can name the scope, and name
// stands for the adapter there.
func (m *models) adapterAway(sc catalog.Scope, adapter, name string) (target, bool) {
	t := target{scope: sc, base: sc.Model, lora: adapter}
	if m.named == nil {
		return t, sc.Tenant == catalog.DefaultName && slices.Contains(t.adaptersOf(name), adapter)
	}
	for _, t = range m.scopes() {
		if t.lora = adapter; t.scope == sc && slices.Contains(t.adaptersOf(name), adapter) {
			return t, true
		}
	}
	return target{}, false
}

// base returns the engines' name of a scope's model.
func (m *models) base(sc catalog.Scope) string {
	for _, t := range m.scopes() {
		if t.scope == sc {
			return t.base
		}
	}
	return sc.Model
}

// registered reports whether the scope has a worker, in any state.
func (m *models) registered(sc catalog.Scope) bool {
	return m.catalog.Snapshot(sc) != nil || m.catalog.HasModel(sc.Model) && len(m.catalog.List(&sc.Model, &sc.Tenant)) > 0
}

// scopes lists the scopes that requests can name: the configured ones, or those of the tenant
// default that have workers.
func (m *models) scopes() (all []target) {
	if m.named == nil {
		for _, s := range m.catalog.Snapshots() {
			if s.Scope.Tenant == catalog.DefaultName {
				all = append(all, target{scope: s.Scope, base: s.Scope.Model})
			}
		}
		return all
	}
	for name, sc := range m.named {
		all = append(all, target{scope: m.scopeOf(sc), base: name})
	}
	slices.SortFunc(all, func(a, b target) int {
		if c := a.scope.Compare(b.scope); c != 0 {
			return c
		}
		if a.base < b.base {
			return -1
		}
		return 1
	})
	return all
}

// visible lists the names that a caller's requests can have now, of models, also further ones, and of adapters, in
// order.
func (m *models) visible(caller *access.Caller) (names []string) {
	for _, t := range m.scopes() {
		if p := m.pool(t.scope); p != nil && caller.Sees(t.scope) {
			names = append(names, t.base)
			names = slices.AppendSeq(names, maps.Keys(p.adapters))
			for _, w := range p.workers {
				for _, name := range w.Aliases {
					if m.catalog.Named(catalog.Scope{Model: name, Tenant: t.scope.Tenant}) == t.scope {
						names = append(names, name)
					}
				}
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// haveWorkers reports whether any model that requests can name has workers.
func (m *models) haveWorkers() bool {
	return slices.ContainsFunc(m.scopes(), func(t target) bool { return m.pool(t.scope) != nil })
}

// pool returns the scope's pool for the current snapshot; nil if it has no workers, or only such that encode.
func (m *models) pool(sc catalog.Scope) *pool {
	if snap := m.catalog.Snapshot(sc); snap != nil {
		if p := m.poolOf(snap); len(p.workers) > 0 {
			return p
		}
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.pools, sc)
	return nil
}

func (m *models) poolOf(snap *catalog.Snapshot) *pool {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.pools[snap.Scope]
	if p == nil || p.snapshot != snap {
		p = newPool(snap)
		if m.pools == nil || len(m.pools) >= maxPools {
			m.pools = make(map[catalog.Scope]*pool)
		}
		m.pools[snap.Scope] = p
	}
	return p
}

func newPool(snap *catalog.Snapshot) *pool {
	p := &pool{snapshot: snap, workers: snap.Workers, adapters: make(map[string]bool)}
	if snap.Encoders {
		p.workers = slices.DeleteFunc(slices.Clone(p.workers), func(w *catalog.Worker) bool { return w.OnlyEncodes() })
	}
	for _, w := range p.workers {
		for _, name := range w.Adapters {
			p.adapters[name] = true
		}
		p.prefills = p.prefills || selection.OnlyPrefills(w)
	}
	return p
}

// filter says which ranks may take one leg of a request.
type filter struct {
	models    *models
	endpoints *endpoints
	prefill   bool          // the prefill leg, for workers that only prefill; else for all others
	lora      string        // the adapter that the worker must have; "": none
	subset    Subset        // of the endpoints
	without   []uint64      // ids of workers whose address is unknown
	only      *catalog.Rank // that has what the request is about; nil: any
}

// eligible implements selection.Eligible. A rank whose host name was never looked up is in no
// subset.
func (f *filter) eligible(snap *catalog.Snapshot) func(catalog.Entry) bool {
	if f.key() == "" && !f.models.poolOf(snap).prefills && !snap.Encoders {
		return nil
	}
	return func(e catalog.Entry) bool {
		w := e.Worker
		if f.only != nil && e.Rank != *f.only {
			return false
		}
		if w.OnlyEncodes() || selection.OnlyPrefills(w) != f.prefill || slices.Contains(f.without, w.ID) ||
			f.lora != "" && !slices.Contains(w.Adapters, f.lora) {
			return false
		}
		if !f.subset.given {
			return true
		}
		at, ok := f.endpoints.known(w, e.DP)
		return ok && f.subset.has(at)
	}
}

// key is the same for filters of equal effect; "": every worker that does not only prefill.
func (f *filter) key() string {
	if !f.prefill && f.lora == "" && !f.subset.given && len(f.without) == 0 && f.only == nil {
		return ""
	}
	var in []string
	if f.subset.given {
		in = append(slices.Sorted(maps.Keys(f.subset.of)), "")
	}
	only := ""
	if f.only != nil {
		only = fmt.Sprint(*f.only)
	}
	return fmt.Sprintf("%t %q %v %q %s", f.prefill, f.lora, f.without, in, only)
}
