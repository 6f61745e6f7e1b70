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
	r.mu.RLock()
	st := Stats{Publishers: len(r.publishers), Spaces: len(r.spaces), Namespaces: len(r.namespaces)}
	indexes := make([]*indexer.Space, 0, len(r.spaces))
	for _, sp := range r.spaces {
		st.Owners += sp.ownerCount
		indexes = append(indexes, sp.index)
	}
	sum := r.past
	for _, p := range r.all {
		sum.add(&p.counts)
	}
	r.mu.RUnlock()
	for _, index := range indexes {
		addIndex(&st.Index, index.Stats())
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
