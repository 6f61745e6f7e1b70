package reservations

import (
	"math/bits"

	"github.com/select-service/select-service/internal/container/keyhash"
)

// tableRow is one row of a flat table. b == 0 marks an empty row, so every stored
// row has b >= 1; what a and b mean is up to the user of the table.
type tableRow struct {
	key uint64
	owners
}

const (
	segmentBits = 8
	segments    = 1 << segmentBits
	minSegment  = 8 // rows
)

// flat is an open-addressing table without pointers per row: 16 bytes a row,
// linear probing, no tombstones. It is divided into segments that grow one by
// one, so that no insertion ever pays for rehashing the whole table.
//
// A *tableRow is valid until the next put, remove or trim of the same table.
type flat struct {
	// key is the key of the hash that decides where a row belongs: its top bits choose
	// the segment, its low bits the row.
	key  keyhash.Key
	segs *[segments]segment // nil while nothing was ever stored
	live int
}

type segment struct {
	rows []tableRow // length zero or a power of two
	live int
}

// find returns the row of key, or nil.
func (f *flat) find(key uint64) *tableRow {
	if f.live == 0 {
		return nil
	}
	h := f.key.Sum(key)
	rows := f.segs[h>>(64-segmentBits)].rows
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
func (f *flat) put(key uint64) (e *tableRow, found bool) {
	h := f.key.Sum(key)
	if f.segs == nil {
		f.segs = new([segments]segment)
	}
	s := &f.segs[h>>(64-segmentBits)]
	if 8*(s.live+1) > 5*len(s.rows) { // fuller than 5/8 the runs of rows get long
		f.resize(s, max(minSegment, 2*len(s.rows)))
	}
	mask := uint64(len(s.rows) - 1)
	for i := h & mask; ; i = (i + 1) & mask {
		e := &s.rows[i]
		if e.b == 0 {
			e.key = key
			s.live++
			f.live++
			return e, false
		}
		if e.key == key {
			return e, true
		}
	}
}

// locate returns the place of the row of key, which must be in the table.
func (f *flat) locate(key uint64) (s *segment, i uint64) {
	h := f.key.Sum(key)
	s = &f.segs[h>>(64-segmentBits)]
	mask := uint64(len(s.rows) - 1)
	for i = h & mask; s.rows[i].key != key || s.rows[i].b == 0; i = (i + 1) & mask {
	}
	return s, i
}

// remove deletes key, which must be in the table.
func (f *flat) remove(key uint64) {
	s, i := f.locate(key)
	f.removeAt(s, i)
}

// removeAt deletes a row and fills the hole with later rows of the same run.
func (f *flat) removeAt(s *segment, hole uint64) {
	mask := uint64(len(s.rows) - 1)
	for i := (hole + 1) & mask; s.rows[i].b != 0; i = (i + 1) & mask {
		home := f.key.Sum(s.rows[i].key) & mask
		if (i-home)&mask >= (i-hole)&mask {
			s.rows[hole] = s.rows[i]
			hole = i
		}
	}
	s.rows[hole] = tableRow{}
	s.live--
	f.live--
}

// trim gives back the spare memory of segment i.
func (f *flat) trim(i int) {
	if f.segs == nil {
		return
	}
	s := &f.segs[i]
	switch {
	case s.live == 0:
		s.rows = nil
	case 8*s.live < len(s.rows) && len(s.rows) > minSegment:
		f.resize(s, max(minSegment, 1<<bits.Len(uint(2*s.live))))
	}
}

// reset forgets everything and gives all memory back.
func (f *flat) reset() { f.segs, f.live = nil, 0 }

// resize rehashes a segment into n rows, n a power of two above its live count.
func (f *flat) resize(s *segment, n int) {
	old := s.rows
	s.rows = make([]tableRow, n)
	mask := uint64(n - 1)
	for _, e := range old {
		if e.b == 0 {
			continue
		}
		i := f.key.Sum(e.key) & mask
		for s.rows[i].b != 0 {
			i = (i + 1) & mask
		}
		s.rows[i] = e
	}
}
