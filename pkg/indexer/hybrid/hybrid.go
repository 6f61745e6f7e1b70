package hybrid

// Kind says which blocks of a prompt a group needs to serve a length of it.
type Kind uint8

// The kinds. The zero value asks for the most.
const (
	// Full: all blocks from the first one on. Kinds that are not known count as Full.
	Full Kind = iota
	// Window: the last ceil((Span-1)/BlockSize) blocks. A shorter length needs all of its
	// blocks.
	Window
	// State: only the block that ends at the length (Mamba).
	State
	// Chunked: the blocks of the chunk of Span tokens in which the length ends; none if
	// it ends where a chunk begins.
	Chunked
)

// Group is one attention group.
type Group struct {
	Kind Kind
	// BlockSize is in tokens. It does not restrict the lengths that a State can serve.
	BlockSize uint64
	// Span is the size of the window or of the chunks in tokens. 0 means unknown: then
	// the group counts as Full.
	Span uint64
}

// Presence tells which blocks the groups have.
type Presence interface {
	// Has reports whether a group (its index) has the block that ends after the first
	// end tokens of the prompt.
	Has(group int, end uint64) bool
}

// Boundary returns the longest length in tokens, up to limit, that all groups can
// serve. It is a multiple of unit, and of the block size of each group that is not a
// State. limit is the length in tokens that the engine's main group can serve, unit is
// that group's block size.
func Boundary(limit, unit uint64, groups []Group, has Presence) uint64 {
	for _, g := range groups {
		if g.Kind == State {
			continue
		}
		if unit = lcm(unit, g.BlockSize); unit == 0 || unit > limit {
			return 0
		}
	}
	if unit == 0 {
		return 0
	}
	limit -= limit % unit
	// A full group that can serve a length can serve all shorter ones: one look is enough.
	for i, g := range groups {
		if g.needsAll() {
			limit = g.run(i, 0, limit, has)
			limit -= limit % unit
		}
	}
	// A length that one group cannot serve is out for all: shorten it until none objects.
	for length := limit; ; {
		shorter := length
		for i, g := range groups {
			if g.needsAll() {
				continue
			}
			shorter = g.longest(i, shorter, unit, has)
			shorter -= shorter % unit
		}
		if shorter == length {
			return length
		}
		length = shorter
	}
}

// needsAll reports whether the group counts as Full.
func (g *Group) needsAll() bool { return g.Kind == Full || g.Span == 0 && g.Kind != State }

// longest returns the longest length up to limit that g, which is not Full, can serve.
// i is its index; limit is a multiple of its block size.
func (g *Group) longest(i int, limit, unit uint64, has Presence) uint64 {
	switch g.Kind {
	case State:
		for ; limit > 0 && !has.Has(i, limit); limit -= unit {
		}
		return limit
	case Window:
		return g.longestWindow(i, limit, has)
	}
	return g.run(i, limit-limit%g.Span, limit, has) // Chunked
}

// longestWindow is longest for a Window. It searches from the end for enough
// neighbouring blocks.
func (g *Group) longestWindow(i int, limit uint64, has Presence) uint64 {
	needed := (g.Span - 1 + g.BlockSize - 1) / g.BlockSize
	run := uint64(0)
	for end := limit; run < needed; end -= g.BlockSize {
		switch {
		case end == 0:
			return limit // the group has all blocks from the first one on: no more are needed
		case has.Has(i, end):
			run++
		default:
			run, limit = 0, end-g.BlockSize
		}
	}
	return limit
}

// run returns where the unbroken run of blocks from start on ends, at most limit. It
// begins with the block that has start in it.
func (g *Group) run(i int, start, limit uint64, has Presence) uint64 {
	at := start - start%g.BlockSize
	for at < limit && has.Has(i, at+g.BlockSize) {
		at += g.BlockSize
	}
	return at
}

// lcm returns the least common multiple, 0 if a number is 0 or too large.
func lcm(a, b uint64) uint64 {
	const largest = 1 << 31
	if a == 0 || b == 0 || a > largest || b > largest {
		return 0
	}
	x, y := a, b
	for y != 0 {
		x, y = y, x%y
	}
	return a / x * b
}
