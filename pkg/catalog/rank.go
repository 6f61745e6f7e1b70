package catalog

import "fmt"

// Rank is one data-parallel rank of one worker: the unit that holds a KV cache,
// carries load and is chosen.
type Rank struct {
	Worker uint64
	DP     uint32
}

// String gives the form that the wire contract uses in its error texts
// (dynamo-kv-router 1.3.1).
func (r Rank) String() string {
	return fmt.Sprintf("WorkerWithDpRank { worker_id: %d, dp_rank: %d }", r.Worker, r.DP)
}

// Compare orders ranks by worker, then by data-parallel rank.
func (r Rank) Compare(o Rank) int {
	switch {
	case r.Worker != o.Worker:
		if r.Worker < o.Worker {
			return -1
		}
		return 1
	case r.DP != o.DP:
		if r.DP < o.DP {
			return -1
		}
		return 1
	}
	return 0
}
