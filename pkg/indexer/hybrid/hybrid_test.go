package hybrid_test

import (
	"math/rand/v2"
	"testing"

	"github.com/select-service/select-service/pkg/indexer/hybrid"
)

// held has the ends of the blocks of each group.
type held []map[uint64]bool

func (h held) Has(group int, end uint64) bool { return h[group][end] }

func ends(ends ...uint64) map[uint64]bool {
	m := make(map[uint64]bool)
	for _, end := range ends {
		m[end] = true
	}
	return m
}

// TestBoundary shows the rules one by one. Blocks have 16 tokens unless it says else.
func TestBoundary(t *testing.T) {
	window := hybrid.Group{Kind: hybrid.Window, BlockSize: 16, Span: 32} // two blocks
	state := hybrid.Group{Kind: hybrid.State, BlockSize: 64}
	chunked := hybrid.Group{Kind: hybrid.Chunked, BlockSize: 16, Span: 64}
	full := hybrid.Group{BlockSize: 16}
	of := func(groups ...hybrid.Group) []hybrid.Group { return groups }
	tests := map[string]struct {
		limit  uint64
		groups []hybrid.Group
		held   held
		want   uint64
	}{
		"no other group":                    {48, nil, nil, 48},
		"no whole block":                    {15, nil, nil, 0},
		"window holds its last blocks":      {64, of(window), held{ends(48, 64)}, 64},
		"window is searched from the right": {96, of(window), held{ends(32, 48, 80)}, 48},
		"window from the first block":       {64, of(window), held{ends(16)}, 16},
		"window, a short run further on":    {64, of(window), held{ends(48)}, 0},
		"window of one token":               {64, of(hybrid.Group{Kind: hybrid.Window, BlockSize: 16, Span: 1}), held{nil}, 64},
		"window of a token and a block":     {64, of(hybrid.Group{Kind: hybrid.Window, BlockSize: 16, Span: 17}), held{ends(32)}, 32},
		"window of unknown size":            {64, of(hybrid.Group{Kind: hybrid.Window, BlockSize: 16}), held{ends(16, 48, 64)}, 16},
		"state at the end alone":            {64, of(state), held{ends(64)}, 64},
		"state before the end":              {64, of(state), held{ends(16, 48)}, 48},
		"no state":                          {64, of(state), held{nil}, 0},
		"chunk that holds the end":          {112, of(chunked), held{ends(80, 96)}, 96},
		"chunk begins":                      {80, of(chunked), held{nil}, 64},
		"chunk of unknown size":             {112, of(hybrid.Group{Kind: hybrid.Chunked, BlockSize: 16}), held{ends(16, 80, 96)}, 16},
		"another full group":                {64, of(full), held{ends(16, 32, 64)}, 32},
		"one length for all":                {64, of(window, state), held{ends(32, 48, 64), ends(32, 48)}, 48},
		"each has one, none is shared":      {64, of(window, state), held{ends(48, 64), ends(32)}, 0},
		"larger blocks":                     {80, of(hybrid.Group{Kind: hybrid.Window, BlockSize: 32, Span: 33}), held{ends(64)}, 64},
		"smaller blocks":                    {48, of(hybrid.Group{Kind: hybrid.Window, BlockSize: 8, Span: 17}), held{ends(24, 32, 40)}, 32},
		"sizes that share nothing":          {64, of(hybrid.Group{BlockSize: 24}), held{ends(24, 48)}, 48},
		"no block size":                     {64, of(hybrid.Group{}), held{nil}, 0},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := hybrid.Boundary(tc.limit, 16, tc.groups, tc.held); got != tc.want {
				t.Errorf("%d, want %d", got, tc.want)
			}
		})
	}
}

// serves says it as the rules do: whether a group can continue after a length.
func serves(g hybrid.Group, blocks map[uint64]bool, length uint64) bool {
	has := func(from uint64) bool {
		for end := length; end > from; end -= min(end, g.BlockSize) {
			if !blocks[end] {
				return false
			}
		}
		return true
	}
	switch {
	case g.Kind == hybrid.State:
		return length == 0 || blocks[length]
	case g.Kind == hybrid.Window && g.Span > 0:
		tail := (g.Span + g.BlockSize - 2) / g.BlockSize * g.BlockSize
		return has(length - min(length, tail))
	case g.Kind == hybrid.Chunked && g.Span > 0:
		return has(length / g.Span * g.Span)
	}
	return has(0)
}

// TestBoundaryIsTheLongest compares with trying all lengths, over random groups.
func TestBoundaryIsTheLongest(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	sizes := []uint64{4, 8, 12, 16}
	for range 50_000 {
		limit, unit := rnd.Uint64N(200), sizes[rnd.IntN(len(sizes))]
		groups := make([]hybrid.Group, rnd.IntN(4))
		blocks := make(held, len(groups))
		density := rnd.Float64()
		for i := range groups {
			groups[i] = hybrid.Group{
				Kind: hybrid.Kind(rnd.IntN(4)), BlockSize: sizes[rnd.IntN(len(sizes))], Span: rnd.Uint64N(60),
			}
			blocks[i] = make(map[uint64]bool)
			for end := uint64(4); end <= limit; end += 4 {
				blocks[i][end] = rnd.Float64() < density
			}
		}
		want := uint64(0)
		for length := limit; length > 0 && want == 0; length-- {
			all := length%unit == 0
			for i, g := range groups {
				all = all && (g.Kind == hybrid.State || length%g.BlockSize == 0) && serves(g, blocks[i], length)
			}
			if all {
				want = length
			}
		}
		if got := hybrid.Boundary(limit, unit, groups, blocks); got != want {
			t.Fatalf("limit %d, blocks of %d, groups %v that have %v: %d, want %d", limit, unit, groups, blocks, got, want)
		}
	}
}
