package kubernetes

import (
	"slices"
	"time"

	"github.com/select-service/select-service/internal/workers"
	"github.com/select-service/select-service/internal/workers/kubernetes/mapping"
	"github.com/select-service/select-service/pkg/catalog"
)

// Pods counts the pods of a source.
type Pods struct {
	Selected    int `json:"selected"` // by the source, now
	Schedulable int `json:"schedulable"`
	Draining    int `json:"draining"`
	Incomplete  int `json:"incomplete"`
	Waiting     int `json:"waiting"` // not ready yet
	Excluded    int `json:"excluded"`
}

// add counts a pod with workers, by what they are in the catalog: one that needs mending hides
// others that serve.
func (p *Pods) add(of *decision, lifecycles map[uint64]catalog.Lifecycle) {
	has := func(l catalog.Lifecycle) bool {
		return slices.ContainsFunc(of.ids, func(id uint64) bool { return lifecycles[id] == l })
	}
	switch {
	case of.phase == draining:
		p.Draining++
	case has(catalog.Incomplete):
		p.Incomplete++
	case has(catalog.Schedulable):
		p.Schedulable++
	default: // drained over the API
		p.Draining++
	}
}

// Excluded is a pod that has no workers although its source selects it.
type Excluded struct {
	Source string `json:"source"`
	Pod    string `json:"pod"`
	Reason string `json:"reason"` // one of the constants mapping.Excluded…
	Why    string `json:"message"`
}

// SourceStatus is a source as GET /kubernetes shows it.
type SourceStatus struct {
	Kind      mapping.Kind `json:"kind"`
	Name      string       `json:"name"`
	Namespace string       `json:"namespace"`
	State     State        `json:"state"`
	Since     time.Time    `json:"since"`
	Error     string       `json:"error,omitempty"`
	Selector  string       `json:"selector,omitempty"`
	Ports     []uint16     `json:"ports,omitempty"`
	Pods
	// Message is when the API server last said something; zero: not yet.
	Message time.Time `json:"-"`
}

// maxShown is how many excluded pods are shown.
const maxShown = 100

// Status is what discovery knows.
type Status struct {
	Enabled  bool           `json:"enabled"`
	Synced   bool           `json:"synced"` // every source has been listed
	Sources  []SourceStatus `json:"sources"`
	Excluded []Excluded     `json:"excluded"` // at most 100
	// MoreExcluded is how many are not in Excluded.
	MoreExcluded int          `json:"more_excluded"`
	Peers        *PeersStatus `json:"peers,omitempty"`
}

// result is what is shown of a plan.
type result struct {
	sources  []Pods // without those of serving
	serving  []*decision
	excluded []Excluded
}

func (p *plan) result() result {
	return result{p.counts, slices.DeleteFunc(p.serving, func(d *decision) bool { return d.excluded }), p.excluded}
}

// counts returns the pods of each source, nil before the first plan.
func (r *result) counts(of *catalog.Catalog) []Pods {
	counts := slices.Clone(r.sources)
	lifecycles := make(map[uint64]catalog.Lifecycle, len(r.serving))
	for _, w := range of.List(nil, nil) {
		if w.Source.Kind == catalog.SourceKubernetes {
			lifecycles[w.ID] = w.Lifecycle
		}
	}
	for _, pod := range r.serving {
		counts[pod.source.index].add(pod, lifecycles)
	}
	return counts
}

// Report is part of workers.Reporter; its detail is Status.
func (d *Discovery) Report() workers.Report {
	st := d.Status()
	r := workers.Report{Kind: d.Kind(), Synced: st.Synced, Parts: []workers.Part{}, Detail: st}
	for _, s := range st.Sources {
		r.Parts = append(r.Parts, workers.Part{Name: s.Name, State: string(s.State)})
	}
	return r
}

// Status returns what discovery knows now.
func (d *Discovery) Status() Status {
	d.mu.Lock()
	defer d.mu.Unlock()
	st := Status{Enabled: true, Synced: d.ready, Sources: make([]SourceStatus, 0, len(d.sources)), Excluded: d.result.excluded}
	counts := d.result.counts(d.config.Catalog)
	for i, s := range d.sources {
		of := s.status()
		shown := SourceStatus{
			Kind: s.entry.Kind, Name: s.entry.Name, Namespace: s.entry.Namespace, State: of.State, Since: of.Since.UTC(), Error: of.Problem,
			Selector: s.selector, Ports: s.current.Ports, Message: of.Message,
		}
		if i < len(counts) {
			shown.Pods = counts[i]
		}
		st.Sources = append(st.Sources, shown)
	}
	if st.Excluded == nil {
		st.Excluded = []Excluded{}
	}
	if d.peers != nil {
		st.Peers = d.peers.statusLocked()
	}
	if n := len(st.Excluded); n > maxShown {
		st.Excluded, st.MoreExcluded = st.Excluded[:maxShown], n-maxShown
	}
	return st
}

// ExcludedBy counts the excluded pods by reason.
func (d *Discovery) ExcludedBy() map[string]int {
	d.mu.Lock()
	defer d.mu.Unlock()
	by := make(map[string]int)
	for _, e := range d.result.excluded {
		by[e.Reason]++
	}
	return by
}

// Counts returns the counters.
func (d *Discovery) Counts() Counts { return d.counts.Read() }
