package kvevents

// Normalize returns the events of b that Apply would apply, cut to their complete
// blocks, and standard envelopes as they are. Like Apply it learns from the batch
// and changes it.
func (c *Converter) Normalize(b *Batch) []Event {
	dp := b.RankOr(c.rank)
	out := make([]Event, 0, len(b.Events))
	for i := range b.Events {
		ev := &b.Events[i]
		if reason := c.acceptTiered(ev, dp, &b.work); reason == Applied || reason == EnvelopeEvent {
			out = append(out, *ev)
		}
	}
	return out
}
