package reservations

import (
	"math/bits"

	"github.com/select-service/select-service/internal/keyhash"
)

// tableRow is one row of a flat table. b == 0 marks an empty row, so every stored
// row has b >= 1; what a, b and extra mean is up to the user of the table.
type tableRow[X any] struct {
	extra X // first: a last field of size zero would be padded
	key   uint64
	a, b  uint32
}

const (
	segmentBits = 8
	segments    = 1 << segmentBits
	minSegment  = 8 // rows
)

// flat is an open-addressing table without pointers per row: 16 bytes a row and the
// extra, linear probing, no tombstones. It is divided into segments that grow one by
// one, so that no insertion ever pays for rehashing the whole table.
//
// A *tableRow is valid until the next put, remove or trim of the same table.
type flat[X any] struct {
	// key is the key of the hash that decides where a row belongs: its top bits choose
	// the segment, its low bits the row.
	key  keyhash.Key
	segs *[segments]segment[X] // nil while nothing was ever stored
	live int
}

type segment[X any] struct {
	rows []tableRow[X] // length zero or a power of two
	live int
}

// find returns the row of key, or nil.
func (t *flat[X]) find(key uint64) *tableRow[X] { return t.findAt(key, t.key.Sum(key)) }

// findAt is find for a key whose hash is known.
func (t *flat[X]) findAt(key, h uint64) *tableRow[X] {
	if t.live == 0 {
		return nil
	}
	rows := t.segs[h>>(64-segmentBits)].rows
	if len(rows) == 0 {
		return nil
	}
	mask := uint64(len(rows) - 1)
	for i := h & mask; ; i = (i + 1) & mask {
		switch e := &rows[i]; {
		case e.b == 0:
			return nil
		case e.key == key:
			return e
		}
	}
}

// put returns the row of key. In a new one (found is false) all but the key is zero;
// the caller must set b before it uses the table again.
func (t *flat[X]) put(key uint64) (e *tableRow[X], found bool) {
	return t.putAt(key, t.key.Sum(key))
}

// putAt is put for a key whose hash is known.
func (t *flat[X]) putAt(key, h uint64) (e *tableRow[X], found bool) {
	if t.segs == nil {
		t.segs = new([segments]segment[X])
	}
	s := &t.segs[h>>(64-segmentBits)]
	if 8*(s.live+1) > 5*len(s.rows) { // fuller than 5/8 the runs of rows get long
		t.resize(s, max(minSegment, 2*len(s.rows)))
	}
	mask := uint64(len(s.rows) - 1)
	for i := h & mask; ; i = (i + 1) & mask {
		e := &s.rows[i]
		if e.b == 0 {
			e.key = key
			s.live++
			t.live++
			return e, false
		}
		if e.key == key {
			return e, true
		}
	}
}

// ahead is how many keys are looked up at a time: their rows fit into a processor's
// smallest cache.
const ahead = 32

// lookAhead fills in the hashes of at most ahead keys and reads their home rows, before
// the caller puts or locates them one by one. Those look-ups wait for memory one after the
// other, because the processor cannot know how far each has to go. Here no read depends
// on another, so that the waits overlap. The sum has no meaning; the caller must use it, or
// the compiler may remove the reads.
func (t *flat[X]) lookAhead(keys []uint64, hashes *[ahead]uint64) (sum uint32) {
	if t.segs == nil {
		t.segs = new([segments]segment[X])
	}
	for i, key := range keys {
		h := t.key.Sum(key)
		hashes[i%ahead] = h
		if rows := t.segs[h>>(64-segmentBits)].rows; len(rows) > 0 {
			sum += rows[h&uint64(len(rows)-1)].b
		}
	}
	return sum
}

// locate returns the place of the row of key, which must be in the table.
func (t *flat[X]) locate(key uint64) (s *segment[X], i uint64) {
	return t.locateAt(key, t.key.Sum(key))
}

// locateAt is locate for a key whose hash is known.
func (t *flat[X]) locateAt(key, h uint64) (s *segment[X], i uint64) {
	s = &t.segs[h>>(64-segmentBits)]
	mask := uint64(len(s.rows) - 1)
	for i = h & mask; s.rows[i].key != key || s.rows[i].b == 0; i = (i + 1) & mask {
	}
	return s, i
}

// remove deletes key, which must be in the table.
func (t *flat[X]) remove(key uint64) {
	s, i := t.locate(key)
	t.removeAt(s, i)
}

// removeAt deletes a row and fills the hole with later rows of the same run.
func (t *flat[X]) removeAt(s *segment[X], hole uint64) {
	mask := uint64(len(s.rows) - 1)
	for i := (hole + 1) & mask; s.rows[i].b != 0; i = (i + 1) & mask {
		home := t.key.Sum(s.rows[i].key) & mask
		if (i-home)&mask >= (i-hole)&mask {
			s.rows[hole] = s.rows[i]
			hole = i
		}
	}
	s.rows[hole] = tableRow[X]{}
	s.live--
	t.live--
}

// trim gives back the spare memory of segment i.
func (t *flat[X]) trim(i int) {
	if t.segs == nil {
		return
	}
	s := &t.segs[i]
	switch {
	case s.live == 0:
		s.rows = nil
	case 8*s.live < len(s.rows) && len(s.rows) > minSegment:
		t.resize(s, max(minSegment, 1<<bits.Len(uint(2*s.live))))
	}
}

// reset forgets everything and gives all memory back.
func (t *flat[X]) reset() { t.segs, t.live = nil, 0 }

// resize rehashes a segment into n rows, n a power of two above its live count.
func (t *flat[X]) resize(s *segment[X], n int) {
	old := s.rows
	s.rows = make([]tableRow[X], n)
	mask := uint64(n - 1)
	for _, e := range old {
		if e.b == 0 {
			continue
		}
		i := t.key.Sum(e.key) & mask
		for s.rows[i].b != 0 {
			i = (i + 1) & mask
		}
		s.rows[i] = e
	}
}
