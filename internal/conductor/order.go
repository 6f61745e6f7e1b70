package conductor

// eventSequence follows the event_id numbers of one stream: of one owner's medium in one
// namespace.
type eventSequence struct {
	last, late uint64
	started    bool // there is a last one
	hasLate    bool // the event before was a late one
	stale      bool // events are missing since the last clear
}

// sequenceStep says what an event's number means for its stream.
type sequenceStep uint8

const (
	stepInOrder sequenceStep = iota
	stepAfterGap
	stepLate      // what it says has been overtaken
	stepRestarted // the stream counts from the beginning: a late number and its successor, which is not above the last
)

// advance moves the sequence on to an event. before is the highest number that other
// streams of the publisher are known to have used up, 0 if each counts for
// itself. missing is how many events were left out before a behindGap.
func (o *eventSequence) advance(id, before uint64) (v sequenceStep, missing uint64) {
	last := o.last
	if before > last && before < id {
		last = before
	}
	switch {
	case !o.started:
	case id > o.last:
		if missing = id - last - 1; missing > 0 {
			v, o.stale = stepAfterGap, true
		}
	case o.hasLate && id == o.late+1:
		v, o.stale = stepRestarted, true
	default:
		o.late, o.hasLate = id, true
		return stepLate, 0
	}
	o.last, o.started, o.hasLate = id, true, false
	return v, missing
}
