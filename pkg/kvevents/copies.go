package kvevents

import "slices"

// CopyRule says what a stored event means for a block that the rank already has
// (decision N3). By the zero value copies are not counted.
type CopyRule struct {
	// Counted: the engine has one more copy of the block, and will announce the removal
	// of each copy. Otherwise the event repeats what is known.
	Counted bool
	// Limit is the capacity of a rank's device in blocks, 0 if it is not known. A
	// publisher that announces more copies than that merely repeats itself.
	Limit uint64
}

// copyCounting is how the copies of a stream's blocks are counted.
type copyCounting struct {
	rule CopyRule
	// repeats: the publisher has announced more copies than the device has room for. From
	// then on copies are not counted.
	repeats bool
	// ranks are the data-parallel ranks of which events have come on the stream.
	ranks []uint32
}

// counted reports whether copies are counted. They are not if the stream has several main
// groups, each of which has copies of its own under the same hashes.
func (c *Converter) counted() bool {
	return c.copies.rule.Counted && !c.copies.repeats && !c.groups.several
}

// addRank records a rank of which an event has come.
func (c *copyCounting) addRank(dp uint32) {
	if !slices.Contains(c.ranks, dp) {
		c.ranks = append(c.ranks, dp)
	}
}

// exceededBy reports whether a rank with this many blocks on its device, copies included,
// exceeds the limit for the first time. Then repeats is set.
func (c *copyCounting) exceededBy(held int) bool {
	if c.rule.Limit == 0 || uint64(held) <= c.rule.Limit || c.repeats {
		return false
	}
	c.repeats = true
	return true
}

// CountCopies sets the rule for the events that follow. If copies were counted by another
// rule before, their counts become void.
func (c *Converter) CountCopies(rule CopyRule, idx Index) {
	if rule == c.copies.rule {
		return
	}
	was := c.counted()
	c.copies.rule, c.copies.repeats = rule, false
	if was != rule.Counted {
		c.MakeProvisional(idx)
	}
}

// MakeProvisional makes the blocks of all ranks of the stream provisional in idx, because
// messages were lost or are repeated: the number of their copies is unknown.
func (c *Converter) MakeProvisional(idx Index) {
	for _, dp := range c.copies.ranks {
		if slot, known := c.slot(dp); known {
			idx.MakeProvisional(slot)
		}
	}
}
