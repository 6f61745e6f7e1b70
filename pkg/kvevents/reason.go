package kvevents

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
	EagleMismatch     // token pairs in a pool that is not eagle, or the reverse (decision K14)
	RepeatedHash      // a hash twice in the event, or equal to the parent
	Incomplete        // not one complete block of tokens
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
	Empty:             "empty",
	EnvelopeEvent:     "envelope",
	Late:              "late_event_id",
	TooMany:           "too_many_owners_or_spaces",
	TooManyMedia:      "too_many_media",
	SeedMismatch:      "hash_seed_mismatch",
}

// Ordinary tells the reasons for which events of a healthy publisher are not
// applied.
func (r Reason) Ordinary() bool {
	return r == Remote || r == ForeignOwner || r == FilteredGroup || r == Empty
}

// String gives the reason's label.
func (r Reason) String() string {
	if int(r) < len(reasonTexts) {
		return reasonTexts[r]
	}
	return "unknown"
}
