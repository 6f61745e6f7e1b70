package reservations

import "sort"

// entryLog lists the reservations of a scope in the order of their entry, each under
// a serial number that is never used again, so that a walk over many of them can
// let go of the lock and go on later.
type entryLog struct {
	lines []line // by serial; may have gaps
	gone  int    // lines without a reservation
	last  uint64 // serial given
}

type line struct {
	serial uint64
	r      *entry // nil: ended
}

func (o *entryLog) add(r *entry) {
	o.last++
	r.inLog = int32(len(o.lines))
	o.lines = append(o.lines, line{o.last, r})
}

func (o *entryLog) remove(r *entry) {
	o.lines[r.inLog].r = nil
	o.gone++
	if o.gone > 32 && 2*o.gone > len(o.lines) { // each removal pays for two moves
		o.compact()
	}
}

func (o *entryLog) compact() {
	kept := o.lines[:0]
	for _, x := range o.lines {
		if x.r != nil {
			x.r.inLog = int32(len(kept))
			kept = append(kept, x)
		}
	}
	clear(o.lines[len(kept):])
	o.lines, o.gone = kept, 0
}

// trim gives spare memory back.
func (o *entryLog) trim() {
	if 4*len(o.lines) < cap(o.lines) {
		o.lines = append([]line(nil), o.lines...)
	}
}

// after returns the index of the first line beyond that serial.
func (o *entryLog) after(serial uint64) int {
	return sort.Search(len(o.lines), func(i int) bool { return o.lines[i].serial > serial })
}
