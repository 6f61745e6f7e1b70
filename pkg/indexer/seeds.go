package indexer

import "github.com/select-service/select-service/pkg/hashing"

// seedTable numbers the block seeds in use, so that a node stores four bytes.
// Number 0 is the base seed and is not counted.
type seedTable struct {
	rows []seedRow
	free []uint32
	of   map[uint64]uint32
}

type seedRow struct {
	seed uint64
	refs int
}

func (t *seedTable) seed(n uint32) uint64 {
	if n == 0 {
		return hashing.Seed
	}
	return t.rows[n-1].seed
}

// take returns the number of seed and counts one more user of it.
func (t *seedTable) take(seed uint64) uint32 {
	if seed == hashing.Seed {
		return 0
	}
	if n, ok := t.of[seed]; ok {
		return t.share(n)
	}
	var n uint32
	if l := len(t.free); l > 0 {
		n = t.free[l-1]
		t.free = t.free[:l-1]
	} else {
		t.rows = append(t.rows, seedRow{})
		n = uint32(len(t.rows))
	}
	t.rows[n-1] = seedRow{seed: seed, refs: 1}
	if t.of == nil {
		t.of = make(map[uint64]uint32)
	}
	t.of[seed] = n
	return n
}

func (t *seedTable) share(n uint32) uint32 {
	if n != 0 {
		t.rows[n-1].refs++
	}
	return n
}

func (t *seedTable) release(n uint32) {
	if n == 0 {
		return
	}
	r := &t.rows[n-1]
	if r.refs--; r.refs > 0 {
		return
	}
	delete(t.of, r.seed)
	t.free = append(t.free, n)
	if len(t.of) == 0 {
		*t = seedTable{}
	}
}
