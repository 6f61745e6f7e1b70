package conductor

// order follows the event_id numbers of one stream: of one owner's medium in one
// namespace.
type order struct {
	last, late uint64
	any        bool // there is a last one
	hasLate    bool // the event before was a late one
	stale      bool // events are missing since the last clear
}

// verdict says what an event's number means for its stream.
type verdict uint8

const (
	inOrder verdict = iota
	behindGap
	tooLate // what it says has been overtaken
	anew    // the stream counts from the beginning: a late number and its successor, which is not above the last
)

// take moves the order on to an event. before is the highest number that other
// streams of the publisher are known to have used up, 0 if each counts for
// itself. missing tells how many events were left out before a behindGap.
func (o *order) take(id, before uint64) (v verdict, missing uint64) {
	last := o.last
	if before > last && before < id {
		last = before
	}
	switch {
	case !o.any:
	case id > o.last:
		if missing = id - last - 1; missing > 0 {
			v, o.stale = behindGap, true
		}
	case o.hasLate && id == o.late+1:
		v, o.stale = anew, true
	default:
		o.late, o.hasLate = id, true
		return tooLate, 0
	}
	o.last, o.any, o.hasLate = id, true, false
	return v, missing
}
