package recovery

// Reason says why something of a dump was not used.
type Reason uint8

// Reasons. The first ones are faults of whole entries, counted once per entry;
// then of events; then of blocks whose parents are missing, counted per block;
// the last are no faults of the dump.
const (
	ErrorEntry     Reason = iota // the peer's own index has failed
	BadKey                       // no colon between model and tenant
	BadEntry                     // not an object with a block size and events
	LateBlockSize                // so many events before the block size that they are gone
	OtherBlockSize               // workers here have another block size
	BadEvent                     // of another form
	UnknownTier                  // the index has no such tier
	RepeatedHash                 // a block twice in one event, or its own parent
	TooLarge                     // an event of more than 16 MiB
	MissingParent                // blocks whose parent never came
	NoRoom                       // blocks that could not wait for their parent
	LiveRemovals                 // so much was removed live that the rank's dump cannot be merged

	NoSlot   // the rank is none of its worker's, or has none of the bounded places
	RankLeft // the worker has been deleted
	Obsolete // live events have replaced the rank's blocks

	// NumReasons counts the reasons.
	NumReasons = int(Obsolete) + 1
)

// String gives the reason's name as a label of counters.
func (r Reason) String() string {
	if int(r) < len(reasonNames) {
		return reasonNames[r]
	}
	return "unknown"
}

var reasonNames = [NumReasons]string{
	ErrorEntry: "error_entry", BadKey: "bad_key", BadEntry: "bad_entry", LateBlockSize: "late_block_size",
	OtherBlockSize: "other_block_size", BadEvent: "bad_event", UnknownTier: "unknown_tier",
	RepeatedHash: "repeated_hash", TooLarge: "too_large", MissingParent: "missing_parent", NoRoom: "no_room",
	LiveRemovals: "live_removals", NoSlot: "no_slot", RankLeft: "rank_left", Obsolete: "obsolete",
}

// Report counts what a dump brought.
type Report struct {
	Scopes  int    // entries whose events were read
	Events  uint64 // read, used or not
	Blocks  uint64 // that are new in the index
	Skipped [NumReasons]uint64
	// EndedEarly: the dump broke off, or went on as something else than a dump.
	EndedEarly bool
}

// Incomplete tells whether the dump may have more than what was taken from it.
func (r *Report) Incomplete() bool { return r.EndedEarly || r.Faults() > 0 }

// Faults counts what was skipped, except what is of no use here.
func (r *Report) Faults() (n uint64) {
	for _, skipped := range r.Skipped[:NoSlot] {
		n += skipped
	}
	return n
}

// Add joins the reports of two dumps.
func (r *Report) Add(more *Report) {
	r.Scopes += more.Scopes
	r.Events += more.Events
	r.Blocks += more.Blocks
	for i, n := range more.Skipped {
		r.Skipped[i] += n
	}
	r.EndedEarly = r.EndedEarly || more.EndedEarly
}
