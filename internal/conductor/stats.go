package conductor

import "github.com/select-service/select-service/pkg/indexer"

// Stats describes a Registry. Index sums up all indexes; the counters after it
// never fall.
type Stats struct {
	Publishers, Spaces, Namespaces, Owners int
	Index                                  indexer.Stats

	Gaps, Missed, Late, Restarts, BaseMismatches uint64 // see Status
	Tokens, Confirmed, Resolved, Unverified      uint64 // blocks, see Status
}

// Stats returns sizes and counters.
func (r *Registry) Stats() Stats {
	st := r.Counts()
	st.Index = r.IndexStats()
	return st
}

// IndexStats returns the Index of Stats, for which it looks at every index.
func (r *Registry) IndexStats() (sum indexer.Stats) {
	r.mu.RLock()
	indexes := make([]*indexer.Space, 0, len(r.spaces))
	for _, sp := range r.spaces {
		indexes = append(indexes, sp.index)
	}
	r.mu.RUnlock()
	for _, index := range indexes {
		addIndex(&sum, index.Stats())
	}
	return sum
}

// Counts returns Stats without Index.
func (r *Registry) Counts() Stats {
	r.mu.RLock()
	defer r.mu.RUnlock()
	st := Stats{Publishers: len(r.publishers), Spaces: len(r.spaces), Namespaces: len(r.namespaces)}
	for _, sp := range r.spaces {
		st.Owners += sp.ownerCount
	}
	sum := r.droppedCounts
	for _, p := range r.all {
		sum.add(&p.counts)
	}
	st.Gaps, st.Missed, st.Late, st.Restarts = sum[gaps], sum[missed], sum[late], sum[restarts]
	st.BaseMismatches = sum[baseMismatches]
	st.Tokens, st.Confirmed, st.Resolved, st.Unverified = sum[fromTokens], sum[confirmed], sum[resolved], sum[unverified]
	return st
}

func addIndex(sum *indexer.Stats, st indexer.Stats) {
	for t, n := range st.Blocks {
		sum.Blocks[t] += n
	}
	sum.Unique += st.Unique
	sum.Runs += st.Runs
	sum.Orphans += st.Orphans
	sum.Bytes += st.Bytes
}
