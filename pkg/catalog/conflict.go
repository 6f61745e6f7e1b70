package catalog

// Conflict says in what a worker contradicts the other workers of its scope, or its engine what it
// said before.
type Conflict uint8

// The conflicts.
const (
	NoConflict        Conflict = iota
	ConflictBlockSize          // the scope, or the engine now, has another block size
	ConflictModel              // the engine now serves another model
)

// conflictError says that a record cannot be attached because its scope has another value.
type conflictError struct {
	in   Conflict
	text string
}

func (e *conflictError) Error() string { return e.text }

// Conflict returns in what the worker is in conflict; Explain has the sentence.
func (w *Worker) Conflict() Conflict {
	if w.conflict == NoConflict && w.Describe != nil {
		return w.Describe.Conflict
	}
	return w.conflict
}

// CapacityDiffers reports whether what a record and its engine say of the same capacity, in blocks
// or in tokens, differs by more than 5 % of the record's. An engine that has started again finds
// slightly more or less memory: that is no mistake in the record.
func CapacityDiffers(record, engine uint64) bool {
	const tolerated = 0.05
	return max(record, engine)-min(record, engine) > uint64(tolerated*float64(record))
}
