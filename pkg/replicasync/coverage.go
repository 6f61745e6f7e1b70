package replicasync

import (
	"slices"

	"github.com/select-service/select-service/pkg/reservations/history"
)

// coverage records which of one sender's numbered events have arrived here.
type coverage struct {
	// started: a first number is known. Earlier messages do not count as
	// lost.
	started bool
	// high is the highest number that is known to be used.
	high uint64
	// snapshot: the sender's snapshots have shown the effects of all events up to this
	// number.
	snapshot uint64
	// missing are the numbers up to high that have not arrived, ascending.
	missing []history.Range
}

// maxMissing bounds the gaps that are remembered of one sender. The oldest ones are
// forgotten; an event that arrives late for such a gap counts as a duplicate.
const maxMissing = 1024

// arrival classifies an event by its number.
type arrival uint8

const (
	fresh     arrival = iota // a number above all before
	late                     // it was counted as lost before
	duplicate                // it has arrived before, or its gap is forgotten
	jump                     // too far ahead to be believed without a snapshot
)

// jumps reports whether a number is too far ahead of those known to be used.
func (c *coverage) jumps(n uint64) bool {
	return c.started && n > max(c.high, c.snapshot)+maxJump
}

// disprove records that the sender has not used any number above n, although messages
// in its name had shown one.
func (c *coverage) disprove(n uint64) {
	*c = coverage{started: true, high: n, snapshot: min(c.snapshot, n)}
}

// onNumber records the arrival of an event. lost is the number of events before it that
// are newly missing.
func (c *coverage) onNumber(n uint64) (what arrival, lost uint64) {
	switch {
	case n > c.high || !c.started:
		lost = c.advanceTo(n - 1)
		c.high = n
		return fresh, lost
	case c.fill(n):
		return late, 0
	}
	return duplicate, 0
}

// advanceTo records that the sender has used all numbers up to n, and returns how many
// of them are newly missing.
func (c *coverage) advanceTo(n uint64) (lost uint64) {
	first := !c.started
	c.started = true
	if n <= c.high {
		return 0
	}
	from := c.high + 1
	c.high = n
	if first {
		return 0
	}
	c.forgetOldest()
	c.missing = append(c.missing, history.Range{From: from, To: n})
	return n - from + 1
}

// forgetOldest makes room in missing.
func (c *coverage) forgetOldest() {
	if len(c.missing) == maxMissing {
		c.missing = slices.Delete(c.missing, 0, maxMissing/8)
	}
}

// lose records that n, which has arrived, counts as missing nevertheless.
func (c *coverage) lose(n uint64) {
	c.forgetOldest()
	if i, found := c.find(n); !found {
		c.missing = slices.Insert(c.missing, i, history.Range{From: n, To: n})
	}
}

// find returns the index of the range in missing that has n, or where it would be.
func (c *coverage) find(n uint64) (i int, found bool) {
	return slices.BinarySearchFunc(c.missing, n, func(r history.Range, n uint64) int {
		switch {
		case r.To < n:
			return -1
		case r.From > n:
			return 1
		}
		return 0
	})
}

// fill removes n from the missing numbers. It reports whether it was missing.
func (c *coverage) fill(n uint64) bool {
	i, found := c.find(n)
	if !found {
		return false
	}
	r := c.missing[i]
	switch {
	case r.From == r.To:
		c.missing = slices.Delete(c.missing, i, i+1)
	case n == r.From:
		c.missing[i].From++
	case n == r.To:
		c.missing[i].To--
	default:
		c.missing[i].To = n - 1
		c.missing = slices.Insert(c.missing, i+1, history.Range{From: n + 1, To: r.To})
	}
	return true
}

// hasGap reports whether there is a missing number whose effect is not known from a
// snapshot either.
func (c *coverage) hasGap() bool {
	return len(c.missing) > 0 && c.missing[len(c.missing)-1].To > c.snapshot
}

// completeUpTo returns the number up to which all effects are known, from events or from
// snapshots.
func (c *coverage) completeUpTo() uint64 {
	for _, r := range c.missing {
		if r.To > c.snapshot {
			return max(c.snapshot, r.From-1)
		}
	}
	return max(c.snapshot, c.high)
}

// noteSnapshot records that a snapshot with the effects of all numbers up to n was read.
func (c *coverage) noteSnapshot(n uint64) { c.snapshot = max(c.snapshot, n) }
