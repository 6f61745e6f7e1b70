package admission

import "fmt"

// LimitKind is what a queue limit counts, by its name on the wire.
type LimitKind string

// What a limit counts.
const (
	LimitRequests LimitKind = "requests"
	LimitRaw      LimitKind = "raw_isl_tokens"
	LimitCached   LimitKind = "cached_tokens"
)

// LimitError says that a class takes no more waiting requests. Text and fields
// are the wire's.
type LimitError struct {
	PolicyClass string
	LimitKind   LimitKind
	Current     uint64 // what waits
	Limit       uint64 // the class's limit times the workers
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("router policy class %q queue %s limit reached (current=%d, limit=%d)",
		e.PolicyClass, e.LimitKind, e.Current, e.Limit)
}

// checkLimits compares what waits already, so the request that crosses a limit
// is still taken.
func (q *Queue) checkLimits(b *backlog, workers int) error {
	class := b.class
	checks := [...]struct {
		kind    LimitKind
		current uint64
		limit   *uint64
	}{
		{LimitRequests, uint64(b.waiting), class.RequestLimit},
		{LimitRaw, b.raw.value(), class.RawLimit},
		{LimitCached, b.cached.value(), class.CachedLimit},
	}
	for _, c := range checks {
		if c.limit == nil {
			continue
		}
		if limit := mulSaturating(*c.limit, uint64(max(workers, 0))); c.current >= limit {
			return &LimitError{PolicyClass: class.Name, LimitKind: c.kind, Current: c.current, Limit: limit}
		}
	}
	if class.RequestLimit == nil && q.unlimited >= MaxWaiting {
		return &LimitError{PolicyClass: class.Name, LimitKind: LimitRequests, Current: uint64(q.unlimited), Limit: MaxWaiting}
	}
	return nil
}
