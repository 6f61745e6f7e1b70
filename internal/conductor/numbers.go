package conductor

// numbering gives keys dense numbers, each kept while it is in use. The zero
// value is ready.
type numbering[K comparable] struct {
	of   map[K]uint32
	rows []numberRow[K]
	free []uint32
}

type numberRow[K comparable] struct {
	key  K
	refs int
}

// take returns the number of a key and counts one more user of it.
func (n *numbering[K]) take(key K) uint32 {
	i, ok := n.of[key]
	if !ok {
		if l := len(n.free); l > 0 {
			i = n.free[l-1]
			n.free = n.free[:l-1]
		} else {
			i = uint32(len(n.rows))
			n.rows = append(n.rows, numberRow[K]{})
		}
		if n.of == nil {
			n.of = make(map[K]uint32)
		}
		n.of[key] = i
		n.rows[i].key = key
	}
	n.rows[i].refs++
	return i
}

// release ends one use of a number.
func (n *numbering[K]) release(i uint32) {
	row := &n.rows[i]
	if row.refs--; row.refs > 0 {
		return
	}
	delete(n.of, row.key)
	*row = numberRow[K]{}
	n.free = append(n.free, i)
}

func (n *numbering[K]) key(i uint32) K { return n.rows[i].key }

// size is one more than the highest number in use may be.
func (n *numbering[K]) size() int { return len(n.rows) }
