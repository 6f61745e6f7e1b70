package kvevents

// outcome is what became of the events of a batch.
type outcome struct {
	cleared    bool   // the engine dropped all blocks of the batch's rank
	unexpected Reason // of the first event dropped for a reason that is not Ordinary, if any
	// unused counts the events that were not applied, if any were not.
	unused [NumReasons]uint64
	any    bool
}

func (o *outcome) reset() {
	o.cleared, o.unexpected = false, Applied
	if o.any {
		o.any, o.unused = false, [NumReasons]uint64{}
	}
}

// count counts an event that was not applied.
func (o *outcome) count(reason Reason) {
	o.any = true
	o.unused[reason]++
	if o.unexpected == Applied && !reason.Ordinary() {
		o.unexpected = reason
	}
}

// Unused returns how many events were not applied, by reason, when the batch
// went to Converter.Apply or Converter.Each last; nil if all were. It is good
// until the next such call.
func (b *Batch) Unused() *[NumReasons]uint64 {
	if !b.outcome.any {
		return nil
	}
	return &b.outcome.unused
}
