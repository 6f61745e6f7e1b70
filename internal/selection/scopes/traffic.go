package scopes

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/select-service/select-service/pkg/catalog"
)

// trafficSeconds is the time over which Traffic.Recent counts.
const trafficSeconds = 30

// Traffic counts the selections of a scope. The zero Traffic has none.
type Traffic struct {
	requests, refused atomic.Uint64

	mu     sync.Mutex // guards the fields below
	past   [trafficSeconds]counted
	oldest int // index in past
}

// counted are the counts at one moment.
type counted struct{ requests, refused uint64 }

// Note counts a selection that has ended; refused: because there was no room for it.
func (t *Traffic) Note(refused bool) {
	t.requests.Add(1)
	if refused {
		t.refused.Add(1)
	}
}

// Total returns the selections since the scope got its first worker.
func (t *Traffic) Total() (requests, refused uint64) { return t.requests.Load(), t.refused.Load() }

// Recent returns the selections of the last 30 s.
func (t *Traffic) Recent() (requests, refused uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	from := t.past[t.oldest]
	return t.requests.Load() - from.requests, t.refused.Load() - from.refused
}

// sample must be called every second.
func (t *Traffic) sample() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.past[t.oldest] = counted{t.requests.Load(), t.refused.Load()}
	t.oldest = (t.oldest + 1) % trafficSeconds
}

// maxUnserved bounds the scopes without workers whose selections are counted.
const maxUnserved = 1024

// NoteUnserved counts a selection of a scope without workers.
func (r *Registry) NoteUnserved(sc catalog.Scope) {
	r.unservedMu.Lock()
	defer r.unservedMu.Unlock()
	sc = catalog.Scope{Model: catalog.Clip(sc.Model), Tenant: catalog.Clip(sc.Tenant)}
	t := r.unserved[sc]
	if t == nil {
		if len(r.unserved) >= maxUnserved {
			return
		}
		t = new(Traffic)
		sc.Model, sc.Tenant = strings.Clone(sc.Model), strings.Clone(sc.Tenant) // the request's are borrowed
		if r.unserved == nil {
			r.unserved = make(map[catalog.Scope]*Traffic)
		}
		r.unserved[sc] = t
	}
	t.Note(true)
}

// Unserved returns the selections and demands of a scope of the last 30 s for which it had no workers.
func (r *Registry) Unserved(sc catalog.Scope) (requests uint64) {
	r.unservedMu.Lock()
	defer r.unservedMu.Unlock()
	if t := r.unserved[catalog.Scope{Model: catalog.Clip(sc.Model), Tenant: catalog.Clip(sc.Tenant)}]; t != nil {
		requests, _ = t.Recent()
	}
	if d := r.demands[sc]; d != nil {
		n, _ := d.all.Recent()
		requests += n
	}
	return requests
}

// demand counts the requests for a scope that came to a gateway, and that no worker could take.
type demand struct {
	all Traffic // while it had no worker
	// partly: while it had workers, none of which has what the request needs.
	partly Traffic
}

// NoteDemand counts a request for a scope that came to a gateway while the scope had no worker or, with
// partly, none that has what the request needs. Unlike that of NoteUnserved, its name is known: it is
// configured, or workers had it.
func (r *Registry) NoteDemand(sc catalog.Scope, partly bool) {
	r.unservedMu.Lock()
	defer r.unservedMu.Unlock()
	d := r.demands[sc]
	if d == nil {
		if len(r.demands) >= maxUnserved {
			return
		}
		d = new(demand)
		if r.demands == nil {
			r.demands = make(map[catalog.Scope]*demand)
		}
		sc.Model, sc.Tenant = strings.Clone(sc.Model), strings.Clone(sc.Tenant) // they may be a request's
		r.demands[sc] = d
	}
	if partly {
		d.partly.Note(true)
	} else {
		d.all.Note(true)
	}
}

// Demanded lists the scopes that NoteDemand has counted a request for in the last 30 s, in no order.
func (r *Registry) Demanded() []catalog.Scope {
	r.unservedMu.Lock()
	defer r.unservedMu.Unlock()
	return slices.Collect(maps.Keys(r.demands))
}

// PartlyUnserved returns the requests of a scope of the last 30 s for which none of its workers had what
// they need.
func (r *Registry) PartlyUnserved(sc catalog.Scope) (requests uint64) {
	r.unservedMu.Lock()
	defer r.unservedMu.Unlock()
	if d := r.demands[sc]; d != nil {
		requests, _ = d.partly.Recent()
	}
	return requests
}

// SampleTraffic must be called every second.
func (r *Registry) SampleTraffic() {
	for _, state := range r.All() {
		state.Traffic.sample()
	}
	r.unservedMu.Lock()
	defer r.unservedMu.Unlock()
	for sc, t := range r.unserved {
		if t.sample(); t.quiet() {
			delete(r.unserved, sc)
		}
	}
	for sc, d := range r.demands {
		d.all.sample()
		d.partly.sample()
		if d.all.quiet() && d.partly.quiet() {
			delete(r.demands, sc)
		}
	}
}

// quiet reports whether there was nothing in the last 30 s.
func (t *Traffic) quiet() bool {
	requests, _ := t.Recent()
	return requests == 0
}
