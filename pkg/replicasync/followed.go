package replicasync

import (
	"cmp"
	"slices"
)

// Followed is an endpoint whose reservations are followed.
type Followed struct {
	Endpoint  string
	Connected bool
	Processes []Announced // by id
}

// Announced is a process that has announced itself at an endpoint.
type Announced struct {
	Process uint64
	URL     string // base URL
	Absent  bool   // it was silent for long, or replaced
	Wanted  bool   // its snapshot is still to be read
}

// Followed lists the followed endpoints, sorted.
func (r *Replica) Followed() []Followed {
	at := make(map[string][]Announced)
	r.coreMu.Lock()
	for _, id := range r.core.identities {
		for _, s := range id.senders {
			if s.url != "" {
				at[s.peer] = append(at[s.peer], Announced{s.process, s.url, s.absent, s.wanted || s.fetching})
			}
		}
	}
	r.coreMu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]Followed, 0, len(r.peers))
	for _, p := range r.peers {
		processes := at[p.endpoint]
		slices.SortFunc(processes, func(a, b Announced) int { return cmp.Compare(a.Process, b.Process) })
		all = append(all, Followed{p.endpoint, p.up.Load(), processes})
	}
	slices.SortFunc(all, func(a, b Followed) int { return cmp.Compare(a.Endpoint, b.Endpoint) })
	return all
}
