package kvevents

import (
	"math/bits"

	"github.com/select-service/select-service/pkg/indexer"
)

// Reason says why an event was not applied. Its text is a label of counters and
// stays as it is.
type Reason uint8

// The reasons. Applied is the absence of one.
const (
	Applied Reason = iota

	// Bad events: what their bytes say makes no sense (decision K2).

	NotAnEvent    // neither an array nor a map
	BadTag        // the tag is missing, no string, or unknown
	MissingField  // hashes, tokens or block size
	BadHash       // a block hash that is no integer and no byte string of 8 or more
	BadToken      // a token that is no integer in [0, 2^32), or a list of half pairs
	BadBlockSize  // no integer in [0, 2^31)
	BadMedium     // no string
	BadField      // another known field of a wrong type
	NoAnchor      // an envelope with neither parent nor base index
	AliasMismatch // an envelope whose legacy fields contradict it

	// Dropped events: well formed, but not for the index.

	UnknownMedium     // decision K4
	UnknownRank       // decision K12
	Remote            // locality other than LOCAL
	ForeignOwner      // ownership other than the framework
	FilteredGroup     // not a main attention group
	BlockSizeMismatch // not the registered block size
	EagleMismatch     // token pairs in a scope that is not eagle, or the reverse (decision K14)
	RepeatedHash      // a hash twice in the event, or equal to the parent
	Incomplete        // not one complete block of tokens
	Sparse            // of an attention group, and not one hash for each block of tokens
	Empty             // no hashes: nothing to do
	EnvelopeEvent     // a standard envelope on a stream that does not take them

	// Dropped by the Conductor's index.

	Late         // an event_id that its stream has passed
	TooMany      // one identity, owner or stream more than the index takes
	TooManyMedia // one further medium more than a space shows (decision C9)
	SeedMismatch // an identity that is in use with another hash seed (decision C5)

	// NumReasons counts the reasons, Applied included.
	NumReasons = int(iota)
)

var reasonTexts = [NumReasons]string{
	Applied:           "applied",
	NotAnEvent:        "not_an_event",
	BadTag:            "bad_tag",
	MissingField:      "missing_field",
	BadHash:           "bad_hash",
	BadToken:          "bad_token",
	BadBlockSize:      "bad_block_size",
	BadMedium:         "bad_medium",
	BadField:          "bad_field",
	NoAnchor:          "no_anchor",
	AliasMismatch:     "alias_mismatch",
	UnknownMedium:     "unknown_medium",
	UnknownRank:       "unknown_rank",
	Remote:            "remote",
	ForeignOwner:      "foreign_owner",
	FilteredGroup:     "filtered_group",
	BlockSizeMismatch: "block_size_mismatch",
	EagleMismatch:     "eagle_mismatch",
	RepeatedHash:      "repeated_hash",
	Incomplete:        "incomplete",
	Sparse:            "sparse",
	Empty:             "empty",
	EnvelopeEvent:     "envelope",
	Late:              "late_event_id",
	TooMany:           "too_many_owners_or_spaces",
	TooManyMedia:      "too_many_media",
	SeedMismatch:      "hash_seed_mismatch",
}

// Ordinary reports whether events of a healthy publisher may be dropped for the
// reason, too.
func (r Reason) Ordinary() bool {
	return r == Remote || r == ForeignOwner || r == FilteredGroup || r == Empty
}

// String returns the reason's label.
func (r Reason) String() string {
	if int(r) < len(reasonTexts) {
		return reasonTexts[r]
	}
	return "unknown"
}

// outcome summarizes what became of the events of a batch.
type outcome struct {
	cleared    bool   // the engine dropped all blocks of the batch's rank
	repeats    bool   // copies are not counted from now on: see Tally.CopiesAsSet
	unexpected Reason // of the first event that was dropped for a reason that is not Ordinary; else Applied
	// otherSize is the block size of the first store of the main cache on the device that is not the
	// registered one, 0 if there is none; ownSize: there was one of the registered size.
	otherSize, registered uint32
	ownSize               bool
	// unused counts the events that were not applied, by reason. any: there are some.
	unused [NumReasons]uint64
	any    bool
}

func (o *outcome) reset() {
	o.cleared, o.repeats, o.unexpected = false, false, Applied
	o.otherSize, o.ownSize = 0, false
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

// unexpectedEvents counts the events that were dropped for reasons that are not Ordinary.
func (o *outcome) unexpectedEvents() (n uint64) {
	for reason := int(Applied) + 1; reason < NumReasons; reason++ {
		if !Reason(reason).Ordinary() {
			n += o.unused[reason]
		}
	}
	return n
}

// Unused returns how many events of the batch the last Converter.Apply or
// Converter.Each did not apply, by reason; nil if none. It is valid until the next
// such call.
func (b *Batch) Unused() *[NumReasons]uint64 {
	if !b.outcome.any {
		return nil
	}
	return &b.outcome.unused
}

// NoTier is the tier of events that have none: clears, unknown media, and bad
// events.
const NoTier = indexer.NumTiers

// BlockOutcome says what became of a block of an applied event.
type BlockOutcome uint8

// The outcomes. A block may count under several: a new one with an opaque key
// is stored and opaque.
const (
	BlocksStored       BlockOutcome = iota // new to the rank and tier
	BlocksKnown                            // held already
	BlocksOrphaned                         // waiting for the parent (decision K7)
	BlocksDropped                          // orphans that gave way to newer ones
	BlocksCopied                           // held already, and counted as a further copy (decision N3)
	BlocksRemoved                          // removed, or one copy of them
	BlocksUnknown                          // to be removed, but not held
	BlocksResolved                         // stored by name alone (decision K15)
	BlocksUnresolved                       // named without tokens, but not known; not stored
	BlocksOpaque                           // stored, but never matched: an extra key that no prompt can express
	BlocksIncomplete                       // named, but not all of their tokens were in the event; not stored
	BlocksGrouped                          // of a further attention group: kept beside the tree
	BlocksRefused                          // not stored: no memory left for the index
	BlocksUnidentified                     // stored, but never matched: only the name is known (Event.OmitsKeys)
	// NumBlockOutcomes counts the outcomes.
	NumBlockOutcomes = int(iota)
)

var blockOutcomeTexts = [NumBlockOutcomes]string{
	BlocksStored:       "stored",
	BlocksKnown:        "known",
	BlocksOrphaned:     "orphaned",
	BlocksDropped:      "orphans_dropped",
	BlocksCopied:       "copied",
	BlocksRemoved:      "removed",
	BlocksUnknown:      "unknown",
	BlocksResolved:     "resolved",
	BlocksUnresolved:   "unresolved",
	BlocksOpaque:       "opaque",
	BlocksIncomplete:   "incomplete",
	BlocksGrouped:      "grouped",
	BlocksRefused:      "refused",
	BlocksUnidentified: "unidentified",
}

// String returns the outcome's label.
func (o BlockOutcome) String() string {
	if int(o) < len(blockOutcomeTexts) {
		return blockOutcomeTexts[o]
	}
	return "unknown"
}

// Tally counts events by kind, tier and reason (Applied is the first), and
// blocks by tier and outcome. The last tier is NoTier. It is not safe for
// concurrent use: each goroutine fills its own, which is then added to a shared one
// under a lock.
type Tally struct {
	Events [NumKinds][NoTier + 1][NumReasons]uint64
	Blocks [NoTier + 1][NumBlockOutcomes]uint64
	// CopiesAsSet counts the streams whose events announced more copies of blocks than
	// the rank has room for. From then on their copies are not counted.
	CopiesAsSet uint64

	// counted is a bit set of the rows of Events and Blocks that were used since the last
	// moveTo, which then need not go through all of them. Rows of Blocks are the upper bits.
	counted uint32
}

// blockRows is the first bit of Tally.counted that stands for a row of Blocks.
const blockRows = NumKinds * (NoTier + 1)

// event counts an event.
func (t *Tally) event(k Kind, tier int, r Reason) {
	t.Events[k][tier][r]++
	t.counted |= 1 << (int(k)*(NoTier+1) + tier)
}

// BlocksOf returns the counters of the blocks of a tier (or NoTier), to be increased.
func (t *Tally) BlocksOf(tier int) *[NumBlockOutcomes]uint64 {
	t.counted |= 1 << (blockRows + tier)
	return &t.Blocks[tier]
}

// moveTo adds t to o and empties t.
func (t *Tally) moveTo(o *Tally) {
	for rows := t.counted; rows != 0; rows &= rows - 1 {
		row := bits.TrailingZeros32(rows)
		if row >= blockRows {
			move(o.Blocks[row-blockRows][:], t.Blocks[row-blockRows][:])
		} else {
			kind, tier := row/(NoTier+1), row%(NoTier+1)
			move(o.Events[kind][tier][:], t.Events[kind][tier][:])
		}
	}
	o.CopiesAsSet += t.CopiesAsSet
	t.CopiesAsSet, t.counted = 0, 0
}

func move(to, from []uint64) {
	for i, n := range from {
		to[i] += n
	}
	clear(from)
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
	t.CopiesAsSet += o.CopiesAsSet
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
