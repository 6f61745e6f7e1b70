package kubernetes

import (
	"maps"
	"slices"
	"time"

	"github.com/select-service/select-service/internal/workers/kubernetes/mapping"
)

// table has the pods of a source with what happened to them. It is what the API server says,
// and what it no longer says but is kept for a while. It is not safe for concurrent use.
type table struct {
	source *source
	grace  time.Duration
	pods   map[string]*pod // by mapping.Pod.Key
	// served has the workers that pods had when the process started, by UID.
	served map[string][]place
}

// pod is a pod of a source with what happened to it.
type pod struct {
	*mapping.Pod
	source *source
	key    string // its Key
	// target, if it is not 0, is the target port of the pod alone (of a slice); noTarget: its
	// slice has none.
	target   uint16
	noTarget bool
	pool     mapping.Pool // the target ports at the last plan while it was the source's
	former   []formerPool // target ports that it had before, the newest last
	places   []place      // its workers at the last plan

	everReady bool
	readyTurn uint64    // how often it has become ready
	notReady  time.Time // since when it is not ready; zero: it is
	left      time.Time // since when the source no longer has it; zero: it has
	warned    bool      // of annotations
}

// place is a target port and the id of the worker there.
type place struct {
	port uint16
	id   uint64
}

// formerPool are target ports that a pod had until since.
type formerPool struct {
	mapping.Pool
	since time.Time
}

// maxFormer bounds the former target ports of a pod.
const maxFormer = 4

const (
	// maxTracked bounds the pods of a table, also those without workers.
	maxTracked = 65_536
	// deadAfter is how long after its deletionTimestamp a pod counts as gone even if the API
	// server has it still: its node has died.
	deadAfter = time.Minute
)

func newTable(of *source) *table {
	return &table{source: of, grace: of.entry.NotReadyGrace, pods: make(map[string]*pod)}
}

// set takes a pod's state.
func (t *table) set(p *mapping.Pod, now time.Time) {
	key := p.Key()
	old := t.pods[key]
	if old == nil && len(t.pods) >= maxTracked {
		return
	}
	next := &pod{Pod: p, source: t.source, key: key, everReady: t.served[p.UID] != nil, places: t.served[p.UID]}
	if old != nil && old.UID == p.UID {
		*next = *old
		next.Pod, next.left = p, zero
		if old.Same(p) {
			t.pods[key] = next
			return
		}
	}
	switch {
	case p.Ready && (!next.everReady || !next.notReady.IsZero()):
		next.everReady, next.notReady = true, zero
		next.readyTurn++
	case p.Ready && old != nil && old.Restarts != p.Restarts:
		next.readyTurn++ // a new engine behind the same pod
	case !p.Ready && next.notReady.IsZero():
		next.notReady = now
	}
	t.pods[key] = next
}

// remove takes the end of a pod: if it was not being deleted, the source only has it no more.
func (t *table) remove(p *mapping.Pod, now time.Time) {
	key := p.Key()
	old := t.pods[key]
	if old == nil || old.UID != p.UID {
		return
	}
	if p.Deleted.IsZero() && !p.Terminating && !p.Ended {
		t.leave(key, now)
		return
	}
	delete(t.pods, key)
}

// leave notes that the source no longer has a pod.
func (t *table) leave(key string, now time.Time) {
	old := t.pods[key]
	switch {
	case !old.left.IsZero():
	case !old.everReady, t.grace == 0:
		delete(t.pods, key)
	default:
		next := *old
		next.left = now
		t.pods[key] = &next
	}
}

// leaveAll notes that the source has no pods any more.
func (t *table) leaveAll(now time.Time) {
	for key := range t.pods {
		t.leave(key, now)
	}
}

// replace takes all pods. Those that are not among them, nor in keep, are gone, or have left if
// another set of pods is listed than before. It ends the time of those that have left already.
func (t *table) replace(all []*mapping.Pod, keep map[string]bool, another bool, now time.Time) {
	present := make(map[string]bool, len(all))
	for _, p := range all {
		present[p.Key()] = true
		t.set(p, now)
	}
	for key, old := range t.pods {
		switch {
		case present[key] || keep[key]:
		case another || !old.left.IsZero():
			t.leave(key, now)
		default:
			delete(t.pods, key)
		}
	}
}

// phase is what a pod is to the catalog.
type phase uint8

const (
	absent   phase = iota // it has no worker
	waiting               // not yet
	draining              // it keeps what it has
	serving
)

// judge returns what a pod is to the catalog at a moment, why it drains, and when that may change
// without an event; zero: never.
func (t *table) judge(p *pod, cordoned bool, now time.Time) (ph phase, why string, until time.Time) {
	drains := func(why string) string {
		if p.Name == "" {
			return "endpoint " + p.IP + why
		}
		return "pod " + p.key + why
	}
	ends := func(at time.Time, why string) (phase, string, time.Time) {
		if !now.Before(at) {
			return absent, "", zero
		}
		return draining, drains(why), at
	}
	switch {
	case p.Ended:
		return absent, "", zero
	case !p.left.IsZero():
		return ends(p.left.Add(t.grace), " left "+t.source.where)
	case !p.everReady || p.IP == "":
		if !p.Deleted.IsZero() || p.Terminating {
			return absent, "", zero
		}
		return waiting, "", zero
	case !p.Deleted.IsZero():
		return ends(p.Deleted.Add(deadAfter), " is terminating")
	case p.Terminating:
		return draining, drains(" is terminating"), zero
	case !p.Ready:
		ph, why, until = ends(p.notReady.Add(t.grace), " is not ready")
		if ph == absent {
			ph = waiting
		}
		return ph, why, until
	case cordoned:
		return draining, drains(" is cordoned"), zero
	}
	return serving, "", zero
}

// move takes the workers that a pod has now. It returns the ids that another engine has now: the order of
// the target ports has changed, by which they are given.
func (p *pod) move(now []place) (moved []uint64) {
	at := func(places []place, port uint16) uint64 {
		for _, at := range places {
			if at.port == port {
				return at.id
			}
		}
		return 0
	}
	for _, was := range p.places {
		id := at(now, was.port)
		if id == 0 || slices.Contains(p.places, place{was.port, id}) {
			continue
		}
		for _, other := range [...]uint64{id, was.id} {
			had := slices.ContainsFunc(p.places, func(at place) bool { return at.id == other })
			has := slices.ContainsFunc(now, func(at place) bool { return at.id == other })
			if had && has && !slices.Contains(moved, other) {
				moved = append(moved, other)
			}
		}
	}
	p.places = now
	return moved
}

// forget drops pods whose time is over. One that was not ready for too long has lost its workers: it
// is as if it had never been ready, however it ends.
func (t *table) forget(now time.Time) {
	for _, p := range t.pods {
		if ph, _, _ := t.judge(p, false, now); ph == waiting {
			p.everReady, p.pool, p.former, p.places = false, mapping.Pool{}, nil, nil
		}
	}
	maps.DeleteFunc(t.pods, func(_ string, p *pod) bool {
		return !p.left.IsZero() && !now.Before(p.left.Add(t.grace))
	})
}
