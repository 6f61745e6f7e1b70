package reservations

import "sort"

// entryLog lists the reservations of a scope in the order of their entry, each under
// a serial number that is never used again, so that a walk over many of them can
// let go of the lock and go on later.
type entryLog struct {
	records []logRecord // by serial; may have gaps
	ended   int         // lines without a reservation
	last    uint64      // serial given
}

type logRecord struct {
	serial uint64
	entry  *entry // nil: ended
}

func (o *entryLog) add(r *entry) {
	o.last++
	r.inLog = int32(len(o.records))
	o.records = append(o.records, logRecord{o.last, r})
}

func (o *entryLog) remove(r *entry) {
	o.records[r.inLog].entry = nil
	o.ended++
	if o.ended > 32 && 2*o.ended > len(o.records) { // each removal pays for two moves
		o.compact()
	}
}

func (o *entryLog) compact() {
	kept := o.records[:0]
	for _, x := range o.records {
		if x.entry != nil {
			x.entry.inLog = int32(len(kept))
			kept = append(kept, x)
		}
	}
	clear(o.records[len(kept):])
	o.records, o.ended = kept, 0
}

// trim gives spare memory back.
func (o *entryLog) trim() {
	if 4*len(o.records) < cap(o.records) {
		o.records = append([]logRecord(nil), o.records...)
	}
}

// after returns the index of the first line beyond that serial.
func (o *entryLog) after(serial uint64) int {
	return sort.Search(len(o.records), func(i int) bool { return o.records[i].serial > serial })
}
