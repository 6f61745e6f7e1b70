package kvevents

import (
	"strings"

	"github.com/select-service/select-service/pkg/indexer"
)

// Kind is what an event says about its blocks.
type Kind uint8

// The kinds of events.
const (
	Stored Kind = iota
	Removed
	Cleared
	// Unreadable is the kind of a bad event whose tag could not be read.
	Unreadable
	// NumKinds counts the kinds.
	NumKinds = 4
)

// String returns the kind's label in counters.
func (k Kind) String() string {
	switch k {
	case Stored:
		return "stored"
	case Removed:
		return "removed"
	case Cleared:
		return "cleared"
	}
	return "unreadable"
}

// NoGroup is the Group of an event that names no attention group.
const NoGroup = -1

// Event is one event of a batch. Its slices belong to the Decoder that made it and
// are valid until that Decoder's next Decode; its strings stay valid.
type Event struct {
	Kind Kind

	// Medium is the storage medium in upper case; "" is absent and means the device.
	// Tier is its tier, if TierKnown.
	Medium    string
	Tier      indexer.Tier
	TierKnown bool

	// Hashes are the engine's own hashes of the blocks, in chain order; Parent is
	// that of the block before the first one.
	Hashes    []uint64
	Parent    uint64
	HasParent bool

	// Tokens of the blocks, BlockSize each. With Eagle they came as pairs: blocks
	// look one token ahead.
	Tokens    []uint32
	BlockSize int
	Eagle     bool

	LoRA string
	// LoRAID is the engine's own number of the adapter, if HasLoRAID. Older engines
	// state no adapter name.
	LoRAID    uint64
	HasLoRAID bool
	// Salt is the cache salt that the event itself states. SaltSeen: it was found as
	// an untagged string among the extra keys.
	Salt     string
	SaltSeen bool

	// HasExtraKeys: the event has extra keys, even if no block has one.
	HasExtraKeys bool

	// MM has each block's multimodal object hashes (nil: none in any block; it
	// may be shorter than Hashes).
	MM [][]uint64
	// Opaque has for each block 0, or a digest of extra keys that no prompt can
	// express (nil: none in any block; it may be shorter than Hashes).
	Opaque []uint64

	// Group is the attention group, or NoGroup; SpecKind the kind of its cache
	// ("" = absent).
	Group    int32
	SpecKind string
	// Window is the size of the group's sliding window in tokens, 0 if none is stated.
	Window int32

	// Remote: the blocks are not in the sender's own cache. ForeignOwner: they belong
	// to something other than the engine's framework.
	Remote       bool
	ForeignOwner bool

	// Envelope has what only the standard envelope says; nil for engine events.
	// An envelope's Hashes are its seq_hashes.
	Envelope *Envelope

	badLoRAID  bool // the adapter's number is no integer
	incomplete int  // blocks cut off by the Converter
}

// OmitsKeys reports whether a store with tokens does not say which keys its blocks have
// beside them: one of a medium other than the device with neither a salt nor extra keys.
// Such a store on the device has no such keys.
func (ev *Event) OmitsKeys() bool {
	return (ev.Tier != indexer.Device || !ev.TierKnown) && ev.Salt == "" && !ev.HasExtraKeys
}

// ShowsKeys reports whether an event states a key of a block beside its tokens: an
// adapter, a salt, a multimodal object, or one that no prompt can express.
func (ev *Event) ShowsKeys() bool {
	return ev.LoRA != "" || ev.HasLoRAID || ev.Salt != "" || ev.MM != nil || ev.Opaque != nil
}

// ofOwnCache reports whether an event is about the sender's own cache.
func (ev *Event) ofOwnCache() bool { return !ev.Remote && !ev.ForeignOwner }

// grouped reports whether an event states an attention group or its kind.
func (ev *Event) grouped() bool { return ev.Group != NoGroup || ev.SpecKind != "" }

// Envelope is the part of a standardised event (Conductor contract; Mooncake's
// master publishes it too) that engine events do not have. Absent and nil
// strings are empty: the registration's value holds.
type Envelope struct {
	EventID    uint64
	HasEventID bool
	Model      string
	Tenant     string
	Backend    string
	Salt       string // additional_salt
	DPRank     uint32
	HasDPRank  bool
	// Base is the depth of the first block in its sequence, if HasBase.
	Base    uint32
	HasBase bool
	// HasTokens reports whether the event has a token list, which may be empty.
	HasTokens bool

	// Mooncake's names of the object that holds the blocks.
	Group         string // group_id, an integer or a string
	ObjectKey     string
	ConnectorHash string // connector_block_hash, hex
}

// BadEvent is an event that was skipped while the rest of its batch was used.
type BadEvent struct {
	Kind   Kind
	Reason Reason
	// Before is how many good events of the batch came before it.
	Before uint32
	// Numbered is a standard envelope with the fields that could be read: the identity
	// of its stream and its event_id, but no blocks. It is nil for engine events, and
	// if the identity or the number could not be read.
	Numbered *Event
}

// Batch is one decoded message. It is reused: pass the same Batch to the same
// Decoder again.
type Batch struct {
	// Rank is the data-parallel rank that the sender states, if HasRank; else
	// the events belong to the registered rank.
	Rank    uint32
	HasRank bool
	// Time is the sender's, in the unit it chose (engines: Unix seconds;
	// standard publishers: milliseconds).
	Time   float64
	Events []Event
	Bad    []BadEvent

	work    scratch // for the Converter that applies the batch
	outcome outcome // what the Converter did with the events
}

// RankOr returns the batch's data-parallel rank, or the registered one.
func (b *Batch) RankOr(registered uint32) uint32 {
	if b.HasRank {
		return b.Rank
	}
	return registered
}

// mayLackRemoval reports whether one of the bad events may have removed blocks.
func (b *Batch) mayLackRemoval() bool {
	for i := range b.Bad {
		if k := b.Bad[i].Kind; k == Removed || k == Unreadable {
			return true
		}
	}
	return false
}

// ParseMedium returns the upper-case name of a storage medium and its tier; ok
// is false for a medium that no tier is known for. The absent or empty medium
// is the device. The names are those of dynamo-kv-router 1.6.1, plus vLLM's FS
// and OBJ; case does not matter (decision K4).
func ParseMedium(medium []byte) (name string, tier indexer.Tier, ok bool) {
	switch string(medium) { // the fast path of nearly all events
	case "GPU":
		return "GPU", indexer.Device, true
	case "CPU":
		return "CPU", indexer.Host, true
	}
	var upper [16]byte // longer than every known name
	if len(medium) > len(upper) {
		return strings.ToUpper(string(medium)), 0, false
	}
	for i, c := range medium {
		if 'a' <= c && c <= 'z' {
			c -= 'a' - 'A'
		}
		upper[i] = c
	}
	for i := range media {
		if media[i].name == string(upper[:len(medium)]) {
			return media[i].name, media[i].tier, true
		}
	}
	return strings.ToUpper(string(medium)), 0, false
}

var media = [...]struct {
	name string
	tier indexer.Tier
}{
	{"GPU", indexer.Device},
	{"CPU", indexer.Host},
	{"", indexer.Device},
	{"CPU_PINNED", indexer.Host},
	{"DEVICE", indexer.Device},
	{"CPU_TIER1", indexer.Host},
	{"CPU_TIER2", indexer.Disk},
	{"DISK", indexer.Disk},
	{"NVME", indexer.Disk},
	{"STORAGE", indexer.Disk},
	{"FS", indexer.Disk},
	{"OBJ", indexer.Disk},
	{"EXTERNAL", indexer.External},
	{"NETWORK", indexer.External},
	{"REMOTE", indexer.External},
	{"SHARED", indexer.External},
}
