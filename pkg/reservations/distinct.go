package reservations

import (
	"sync"

	"github.com/select-service/select-service/internal/container/hashset"
)

// hashSets are scratch sets of distinct.
var hashSets = sync.Pool{New: func() any { return new(hashset.Set) }}

// distinct returns hashes without repeats: the slice itself if there are none,
// as in every prompt hashed by the rules, else a copy of the first occurrences.
func distinct(hashes []uint64) []uint64 {
	if len(hashes) < 2 {
		return hashes
	}
	seen := hashSets.Get().(*hashset.Set)
	seen.Reset(len(hashes))
	out := hashes
	for i, h := range hashes {
		switch added := seen.Add(h); {
		case added && len(out) != len(hashes):
			out = append(out, h)
		case !added && len(out) == len(hashes):
			out = append(make([]uint64, 0, len(hashes)-1), hashes[:i]...)
		}
	}
	hashSets.Put(seen)
	return out
}
