package kvevents

import "github.com/select-service/select-service/pkg/indexer"

// NoTier is the tier of events that have none: clears, unknown media, and bad
// events.
const NoTier = indexer.NumTiers

// BlockOutcome says what became of a block of an applied event.
type BlockOutcome uint8

// The outcomes. A block may count under several: a new one with an opaque key
// is stored and opaque.
const (
	BlocksStored     BlockOutcome = iota // new to the rank and tier
	BlocksKnown                          // there already
	BlocksOrphaned                       // waiting for the parent (decision K7)
	BlocksDropped                        // orphans that gave way to newer ones
	BlocksRemoved                        // gone
	BlocksUnknown                        // to be removed, but not there
	BlocksResolved                       // stored by name alone (decision K15)
	BlocksUnresolved                     // stored by a name that the rank never announced with tokens
	BlocksOpaque                         // kept, but never matched: an extra key that no prompt can express
	BlocksIncomplete                     // named, but their tokens were not all there
	// NumBlockOutcomes counts the outcomes.
	NumBlockOutcomes = int(iota)
)

var blockOutcomeTexts = [NumBlockOutcomes]string{
	BlocksStored:     "stored",
	BlocksKnown:      "known",
	BlocksOrphaned:   "orphaned",
	BlocksDropped:    "orphans_dropped",
	BlocksRemoved:    "removed",
	BlocksUnknown:    "unknown",
	BlocksResolved:   "resolved",
	BlocksUnresolved: "unresolved",
	BlocksOpaque:     "opaque",
	BlocksIncomplete: "incomplete",
}

// String gives the outcome's label.
func (o BlockOutcome) String() string {
	if int(o) < len(blockOutcomeTexts) {
		return blockOutcomeTexts[o]
	}
	return "unknown"
}

// Tally counts events by kind, tier and reason (Applied is the first), and
// blocks by tier and outcome. The last tier is NoTier. It is plain memory of one
// goroutine: fill one, then Add it to the shared one under that one's lock.
type Tally struct {
	Events [NumKinds][NoTier + 1][NumReasons]uint64
	Blocks [NoTier + 1][NumBlockOutcomes]uint64
}

// Add adds o to t.
func (t *Tally) Add(o *Tally) {
	for k := range o.Events {
		for tier := range o.Events[k] {
			for r, n := range o.Events[k][tier] {
				t.Events[k][tier][r] += n
			}
		}
	}
	for tier := range o.Blocks {
		for out, n := range o.Blocks[tier] {
			t.Blocks[tier][out] += n
		}
	}
}

// ByReason adds up the events of all kinds and tiers, Applied ones included.
func (t *Tally) ByReason() [NumReasons]uint64 {
	var sum [NumReasons]uint64
	for kind := range t.Events {
		for tier := range t.Events[kind] {
			for reason, n := range t.Events[kind][tier] {
				sum[reason] += n
			}
		}
	}
	return sum
}

// TierLabel names a tier index of a Tally.
func TierLabel(tier int) string {
	if tier == NoTier {
		return "none"
	}
	return indexer.Tier(tier).String()
}

// tierLabel is the event's tier index in a Tally.
func (ev *Event) tierLabel() int {
	if ev.Kind == Cleared || !ev.TierKnown {
		return NoTier
	}
	return int(ev.Tier)
}
