package kvevents

import "slices"

// CopyRule says what a stored event means for a block that the rank has already
// (decision N3). The zero value takes what a rank has as a set.
type CopyRule struct {
	// Counted: the engine has one more copy of the block, and announces the end of each.
	// Otherwise it only says so again.
	Counted bool
	// Limit is how many blocks a rank has room for on its device, 0 if that is not
	// known. A publisher that announces more copies only repeats itself.
	Limit uint64
}

// copyCounting is how the copies of a stream's blocks are counted.
type copyCounting struct {
	rule CopyRule
	// repeats: the publisher has announced more copies than there is room for. They are
	// not counted any more.
	repeats bool
	// ranks are the data-parallel ranks of which the stream has brought events.
	ranks []uint32
}

// counted reports whether copies are counted. Of several main groups they are not, which
// have copies of their own under the same hashes.
func (c *Converter) counted() bool {
	return c.copies.rule.Counted && !c.copies.repeats && !c.groups.several
}

// met notes a rank.
func (c *copyCounting) met(dp uint32) {
	if !slices.Contains(c.ranks, dp) {
		c.ranks = append(c.ranks, dp)
	}
}

// exceededBy reports whether a rank that has so many blocks and copies on its device
// shows that the publisher repeats itself. It does so once.
func (c *copyCounting) exceededBy(held int) bool {
	if c.rule.Limit == 0 || uint64(held) <= c.rule.Limit || c.repeats {
		return false
	}
	c.repeats = true
	return true
}

// CountCopies sets the rule of the events that come now. If it is another one, what
// was counted by the old one counts no more.
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

// MakeProvisional says that messages of the stream were lost, or come again: the
// number of copies is not known of the blocks of all ranks that it has brought.
func (c *Converter) MakeProvisional(idx Index) {
	for _, dp := range c.copies.ranks {
		if slot, known := c.slot(dp); known {
			idx.MakeProvisional(slot)
		}
	}
}
