package policies

import (
	"cmp"
	"encoding/binary"
	"slices"

	"github.com/zeebo/xxh3"
)

// Consistent hashing with bounded loads (KubeAI's balance_chwbl.go; lib/router-plugins/builtin/src/chwbl.rs, ai-dynamo/dynamo at
// 67803200, with its defaults): the first 256 tokens give an order of the engines, and the request goes to the first one that has
// at most 1.25 times the mean number of requests, the new one included.
func startCHWBL(w *world) Rule {
	return byBoard(func(b *Board, r *Request) int {
		n := min(256/blockSize, len(r.Blocks))
		if n == 0 {
			return b.least(nil, b.requests)
		}
		weight := func(i int) uint64 {
			return xxh3.HashSeed(binary.LittleEndian.AppendUint64(nil, r.Blocks[n-1]), uint64(i))
		}
		order, total := all(b), 0
		for i := range b.Engines {
			total += b.Engines[i].Requests
		}
		slices.SortFunc(order, func(i, k int) int { return cmp.Compare(weight(k), weight(i)) })
		for _, i := range order {
			if total == 0 || b.requests(i) <= 1.25*float64(total+1)/float64(len(order)) {
				return i
			}
		}
		return order[0]
	}).start(w)
}
