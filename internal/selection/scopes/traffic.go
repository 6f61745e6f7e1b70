package scopes

import (
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

// Unserved returns the selections of a scope of the last 30 s for which it had no workers.
func (r *Registry) Unserved(sc catalog.Scope) (requests uint64) {
	r.unservedMu.Lock()
	defer r.unservedMu.Unlock()
	if t := r.unserved[catalog.Scope{Model: catalog.Clip(sc.Model), Tenant: catalog.Clip(sc.Tenant)}]; t != nil {
		requests, _ = t.Recent()
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
}

// quiet reports whether there was nothing in the last 30 s.
func (t *Traffic) quiet() bool {
	requests, _ := t.Recent()
	return requests == 0
}
