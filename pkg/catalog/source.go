package catalog

import (
	"fmt"
	"strings"
)

// SourceKind is the kind of a worker's source. The values are those of records.
type SourceKind string

// The kinds of sources.
const (
	// SourceAPI: somebody registered the worker over HTTP. A source without a kind is this one.
	SourceAPI SourceKind = "api"
	// SourceFile: the workers file has it.
	SourceFile SourceKind = "file"
	// SourceKubernetes: it was discovered as a pod.
	SourceKubernetes SourceKind = "kubernetes"
)

// sources has a row for each kind: how errors name it, and whether it discovers workers.
var sources = [...]struct {
	kind       SourceKind
	name       string
	discovered bool
}{
	{SourceAPI, "the API", false},
	{SourceFile, "the workers file", false},
	{SourceKubernetes, "Kubernetes", true},
}

// SourceKinds are all kinds.
var SourceKinds = func() (all []SourceKind) {
	for _, s := range sources {
		all = append(all, s.kind)
	}
	return all
}()

// Source is where a worker's record comes from (decision W1). The zero value is the API.
type Source struct {
	Kind SourceKind `json:"kind,omitempty"`
	// The names of a discovered worker. Namespace and Pod are empty for an endpoint without a
	// pod. A worker with another UID is another worker, see Catalog.Reconcile.
	Namespace string `json:"namespace,omitempty"`
	Pod       string `json:"pod,omitempty"`
	UID       string `json:"uid,omitempty"`
	Pool      string `json:"pool,omitempty"`
}

// KindOrAPI returns the kind, SourceAPI if there is none.
func (s *Source) KindOrAPI() SourceKind {
	if s.Kind == "" {
		return SourceAPI
	}
	return s.Kind
}

// Discovered reports whether workers of that kind belong to their source alone. Those of the API
// and of the workers file do not: each of the two may change the workers of the other.
func (k SourceKind) Discovered() bool {
	for i := range sources {
		if sources[i].kind == k {
			return sources[i].discovered
		}
	}
	return false
}

// sharesWorkers reports whether a set of one kind replaces workers of the other.
func (k SourceKind) sharesWorkers(o SourceKind) bool {
	return k == o || !k.Discovered() && !o.Discovered()
}

// String names the source for errors that refuse to change its worker.
func (s Source) String() string {
	name := sources[0].name
	for _, known := range sources {
		if known.kind == s.Kind {
			name = known.name
		}
	}
	switch {
	case !s.Kind.Discovered():
	case s.Pod != "":
		name += fmt.Sprintf(" (pod %s)", strings.TrimPrefix(s.Namespace+"/"+s.Pod, "/"))
	case s.Pool != "":
		name += fmt.Sprintf(" (pool %s)", s.Pool)
	}
	return name
}

// ManagedError refuses a change of a worker that another source has.
type ManagedError struct {
	ID     uint64
	Source Source // which has the worker
}

// Error names the worker and its source.
func (e *ManagedError) Error() string {
	return fmt.Sprintf("worker %d is managed by %s", e.ID, e.Source)
}

// checkOwner returns a *ManagedError if sources of the kind may not change the member. m may be
// nil.
func (k SourceKind) checkOwner(m *member) error {
	if m == nil || k.sharesWorkers(m.worker.Source.KindOrAPI()) {
		return nil
	}
	return &ManagedError{ID: m.worker.ID, Source: m.worker.Source}
}
