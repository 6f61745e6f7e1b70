package catalog

import "fmt"

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

// SourceKinds are all kinds.
var SourceKinds = []SourceKind{SourceAPI, SourceFile, SourceKubernetes}

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
func (k SourceKind) Discovered() bool { return k == SourceKubernetes }

// sharesWorkers reports whether a set of one kind replaces workers of the other.
func (k SourceKind) sharesWorkers(o SourceKind) bool {
	return k == o || !k.Discovered() && !o.Discovered()
}

// String names the source for errors that refuse to change its worker.
func (s Source) String() string {
	switch {
	case s.Kind == SourceFile:
		return "the workers file"
	case s.Kind != SourceKubernetes:
		return "the API"
	case s.Pod != "":
		return fmt.Sprintf("Kubernetes (pod %s/%s)", s.Namespace, s.Pod)
	case s.Pool != "":
		return fmt.Sprintf("Kubernetes (pool %s)", s.Pool)
	}
	return "Kubernetes"
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
