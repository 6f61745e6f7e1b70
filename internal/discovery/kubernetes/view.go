package kubernetes

import (
	"time"

	"github.com/select-service/select-service/internal/discovery/kubernetes/mapping"
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

func (p *Pods) add(ph phase, complete bool, n int) {
	switch {
	case ph == draining:
		p.Draining += n
	case complete:
		p.Schedulable += n
	default:
		p.Incomplete += n
	}
}

// Excluded is a pod that has no workers although its source selects it.
type Excluded struct {
	Source string `json:"source"`
	Pod    string `json:"pod"`
	Reason string `json:"reason"` // one of the constants mapping.Excluded…, or invalid
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

// view is the result of the last plan.
type view struct {
	sources  []Pods
	excluded []Excluded
}

func (p *plan) view() view {
	v := view{excluded: p.excluded}
	for _, s := range p.sources {
		v.sources = append(v.sources, *p.counts[s])
	}
	return v
}

// Status returns what discovery knows now. A nil Discovery is not enabled.
func (d *Discovery) Status() Status {
	if d == nil {
		return Status{}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	st := Status{Enabled: true, Synced: d.ready, Sources: make([]SourceStatus, 0, len(d.sources)), Excluded: d.seen.excluded}
	for i, s := range d.sources {
		of := s.status()
		shown := SourceStatus{
			Kind: s.entry.Kind, Name: s.entry.Name, Namespace: s.entry.Namespace, State: of.State, Since: of.Since.UTC(), Error: of.Problem,
			Selector: s.selector, Ports: s.current.Ports, Message: of.Message,
		}
		if i < len(d.seen.sources) {
			shown.Pods = d.seen.sources[i]
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
	for _, e := range d.seen.excluded {
		by[e.Reason]++
	}
	return by
}

// Counts returns the counters.
func (d *Discovery) Counts() Counts { return d.counts.Read() }
