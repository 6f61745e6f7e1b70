package kvevents

// IndexApplier applies one stream to an index.
type IndexApplier struct {
	Converter *Converter
	Index     Index
	Slot      uint32 // of the stream's rank
}

// Apply decodes a batch, converts its events and applies them.
func (a *IndexApplier) Apply(payload []byte, w *Workspace) error {
	if err := w.Decoder.Decode(payload, &w.Batch); err != nil {
		return err
	}
	a.Converter.Apply(&w.Batch, a.Index, &w.Tally)
	return nil
}

// recovered is an Index that has blocks from elsewhere, too.
type recovered interface {
	// Replayed says that what comes now replaces such blocks of a rank.
	Replayed(slot uint32)
}

// Replayed tells the index, if it is one that wants to know.
func (a *IndexApplier) Replayed() {
	if idx, ok := a.Index.(recovered); ok {
		idx.Replayed(a.Slot)
	}
}

// Clear removes the rank's blocks from all tiers.
func (a *IndexApplier) Clear() { a.Index.Clear(a.Slot) }
