package kvevents

import (
	"math"

	"github.com/select-service/select-service/internal/container/hashset"
	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/indexer"
)

// Index is what events are applied to; *indexer.Space is one. Its methods count blocks.
type Index interface {
	// Store adds blocks to a rank's tier.
	Store(*indexer.Store) indexer.Outcome
	// StoreByEngineHash adds blocks that the rank has announced with tokens before,
	// under the same engine hashes (decision K15).
	StoreByEngineHash(slot uint32, t indexer.Tier, hashes []uint64) (resolved, unresolved int)
	// Remove removes the blocks with these engine hashes from a rank's tier, one copy
	// each.
	Remove(slot uint32, t indexer.Tier, hashes []uint64) (removed, unknown int)
	// Clear removes all blocks of a rank from all tiers.
	Clear(slot uint32)
	// MakeProvisional is called when the number of copies of a rank's blocks is no
	// longer known, because messages were lost or are repeated (decision N3).
	MakeProvisional(slot uint32)
	// StoreInGroup adds blocks of a further attention group of a rank. It reports
	// whether the kind of the group is known.
	StoreInGroup(*indexer.GroupStore) bool
	// RemoveFromGroup removes such blocks. It reports whether the group has reported
	// any before.
	RemoveFromGroup(slot uint32, group int32, hashes []uint64) bool
	// ForgetGroups is called when another engine has taken a rank, perhaps one without
	// groups.
	ForgetGroups(slot uint32)
	// ParentSeed returns the block seed under which a rank's block was hashed.
	ParentSeed(slot uint32, parent uint64) (seed uint64, ok bool)
}

// Ranks finds the slot of one of the worker's data-parallel ranks; ok is false
// for a rank that the worker does not have (decision K12).
type Ranks func(dp uint32) (slot uint32, ok bool)

// Converter filters and hashes the events of one stream: Apply passes them to an
// Index, Each to a Sink. It remembers what the stream's events have shown: the
// kinds of attention groups, and whether cache salts are in use. Use it from one
// goroutine at a time.
type Converter struct {
	// Seeds, if not nil, is told the names behind the block seeds that Apply uses.
	Seeds SeedNames
	// Groups is what Apply does with attention groups other than the main one.
	Groups GroupRule

	layout     hashing.Layout
	rank       uint32
	ranks      Ranks
	groups     groups
	copies     copyCounting
	salted     bool              // the stream has used a salt: children may have to inherit one
	namedSeeds map[uint64]string // adapters of block seeds that were named
}

// NewConverter returns a converter for a stream that was registered for rank, in
// a scope with the given block layout. A rank that a batch states takes
// precedence over the registered one. If ranks is nil every rank is known and its
// number is its slot.
func NewConverter(layout hashing.Layout, rank uint32, ranks Ranks) *Converter {
	return &Converter{layout: layout, rank: rank, ranks: ranks, groups: groups{main: NoGroup}}
}

// scratch is memory that is reused from event to event and from batch to batch.
type scratch struct {
	local []uint64
	store indexer.Store
	seen  hashset.Set // the hashes of one event
}

// Apply applies the events of b in order and counts each in t. Standard envelopes
// are counted but not applied.
func (c *Converter) Apply(b *Batch, idx Index, t *Tally) {
	b.outcome.reset()
	for _, bad := range b.Bad {
		t.event(bad.Kind, NoTier, bad.Reason)
		b.outcome.count(bad.Reason)
	}
	dp := b.RankOr(c.rank)
	slot, known := c.slot(dp)
	repeats := c.copies.repeats
	for i := range b.Events {
		ev := &b.Events[i]
		reason := UnknownRank
		if known {
			reason = c.acceptInGroup(ev, dp, b.Events[i+1:], idx, &b.work)
		}
		if reason == Applied {
			c.copies.addRank(dp)
			if ev.Kind == Stored {
				b.outcome.ownSize = b.outcome.ownSize || ev.Tier == indexer.Device && len(ev.Tokens) > 0
				c.recordMain(ev, slot, idx)
			}
			c.apply(ev, slot, idx, &b.work, t)
			b.outcome.cleared = b.outcome.cleared || ev.Kind == Cleared
		} else if reason == FilteredGroup && c.applyToGroup(ev, slot, idx, t) {
			c.copies.addRank(dp)
			reason = Applied
		} else {
			if reason == BlockSizeMismatch && b.outcome.otherSize == 0 && ev.showsBlockSize() {
				b.outcome.otherSize, b.outcome.registered = uint32(ev.BlockSize), uint32(c.layout.BlockSize)
			}
			b.outcome.count(reason)
		}
		t.event(ev.Kind, ev.tierLabel(), reason)
	}
	b.outcome.repeats = c.copies.repeats && !repeats
}

// slot finds the slot of a rank.
func (c *Converter) slot(dp uint32) (slot uint32, known bool) {
	if c.ranks == nil {
		return dp, true
	}
	return c.ranks(dp)
}

// acceptTiered decides whether an event is applied: Applied, or the reason why not.
// Only engine events on media of a known tier are.
func (c *Converter) acceptTiered(ev *Event, dp uint32, work *scratch) Reason {
	if ev.Envelope != nil {
		return EnvelopeEvent
	}
	return c.accept(ev, dp, work, false)
}

// accept decides whether an engine event is applied, and cuts a store to its
// complete blocks. Without anyMedium, only media of a known tier are accepted.
func (c *Converter) accept(ev *Event, dp uint32, work *scratch, anyMedium bool) Reason {
	if ev.Kind == Stored {
		c.groups.learn(dp, ev)
	}
	switch {
	case ev.Remote:
		return Remote
	case ev.ForeignOwner:
		return ForeignOwner
	case ev.Kind == Cleared:
		return Applied
	case !c.groups.isMain(dp, ev), c.isFurtherGroup(ev):
		return FilteredGroup
	case !ev.TierKnown && !anyMedium:
		return UnknownMedium
	case len(ev.Hashes) == 0:
		return Empty
	case ev.Kind == Removed, len(ev.Tokens) == 0:
		return Applied
	}
	return acceptStore(ev, c.layout, work)
}

// showsBlockSize reports whether a store shows the block size of its engine's main cache: it says that
// it is of full attention, or of the only group. The blocks of offloading connectors may be larger than
// those of the device.
func (ev *Event) showsBlockSize() bool {
	return ev.Kind == Stored && ev.statesFull() && ev.Tier == indexer.Device && ev.BlockSize > 0 && int64(ev.BlockSize) <= math.MaxUint32 &&
		len(ev.Hashes) > 0 && len(ev.Tokens)/len(ev.Hashes) >= ev.BlockSize
}

// acceptStore decides whether a store with tokens is applied, and cuts it to its
// complete blocks.
func acceptStore(ev *Event, layout hashing.Layout, work *scratch) Reason {
	switch {
	case ev.BlockSize != layout.BlockSize:
		return BlockSizeMismatch
	case ev.Eagle != layout.Eagle:
		return EagleMismatch
	case work.seen.ChainRepeats(ev.Parent, ev.HasParent, ev.Hashes):
		return RepeatedHash
	}
	n := min(len(ev.Hashes), layout.Blocks(len(ev.Tokens)))
	tokens := n * layout.BlockSize
	if layout.Eagle {
		tokens++
	}
	switch {
	// Engines with attention groups leave out the hashes of blocks that they do not
	// have, but not their tokens. Then it is unknown which tokens a hash stands for.
	case ev.grouped() && (len(ev.Hashes) != n || len(ev.Tokens) != tokens):
		return Sparse
	case n == 0:
		return Incomplete
	}
	ev.incomplete = len(ev.Hashes) - n
	ev.Hashes, ev.Tokens = ev.Hashes[:n], ev.Tokens[:tokens]
	ev.MM, ev.Opaque = ev.MM[:min(n, len(ev.MM))], ev.Opaque[:min(n, len(ev.Opaque))]
	return Applied
}

// apply hands an accepted event to the index.
func (c *Converter) apply(ev *Event, slot uint32, idx Index, work *scratch, t *Tally) {
	switch {
	case ev.Kind == Cleared:
		idx.Clear(slot)
	case ev.Kind == Removed:
		removed, unknown := idx.Remove(slot, ev.Tier, ev.Hashes)
		n := t.BlocksOf(int(ev.Tier))
		n[BlocksRemoved] += uint64(removed)
		n[BlocksUnknown] += uint64(unknown)
	case len(ev.Tokens) == 0:
		resolved, unresolved := idx.StoreByEngineHash(slot, ev.Tier, ev.Hashes)
		n := t.BlocksOf(int(ev.Tier))
		n[BlocksResolved] += uint64(resolved)
		n[BlocksUnresolved] += uint64(unresolved)
	default:
		c.store(ev, slot, idx, work, t)
	}
}

func (c *Converter) store(ev *Event, slot uint32, idx Index, work *scratch, t *Tally) {
	seed, known := c.seed(ev, slot, idx)
	n := t.BlocksOf(int(ev.Tier))
	work.local = c.layout.AppendLocal(work.local[:0], ev.Tokens, seed, ev.MM)
	for i, digest := range ev.Opaque {
		if digest != 0 {
			work.local[i] = hashing.Unmatched(work.local[i], digest)
			n[BlocksOpaque]++
		}
	}
	work.store = indexer.Store{
		Slot: slot, Tier: ev.Tier,
		Parent: ev.Parent, HasParent: ev.HasParent,
		EngineHashes: ev.Hashes, Local: work.local,
		Seed: seed, SeedKnown: known,
		Counted:     c.counted(),
		KeysOmitted: ev.OmitsKeys(),
		ShowsKeys:   ev.ShowsKeys(),
	}
	if work.store.KeysOmitted && ev.LoRA != "" {
		work.store.Fits = func(seed uint64) bool { return c.hasAdapter(seed, ev.LoRA) }
	}
	out := idx.Store(&work.store)
	if out.Copies > 0 && ev.Tier == indexer.Device && c.copies.exceededBy(out.Held) {
		c.MakeProvisional(idx)
		t.CopiesAsSet++
	}
	n[BlocksStored] += uint64(out.Stored)
	n[BlocksKnown] += uint64(out.Known - out.Copies)
	n[BlocksCopied] += uint64(out.Copies)
	n[BlocksOrphaned] += uint64(out.Orphaned)
	n[BlocksDropped] += uint64(out.Dropped)
	n[BlocksRefused] += uint64(out.Refused)
	n[BlocksUnidentified] += uint64(out.Unidentified)
	n[BlocksIncomplete] += uint64(ev.incomplete)
}

// seed returns the block seed of a store, and whether it is certain. An event that
// states no salt inherits its parent's. The index is asked for that only once this
// stream has used salts (decision K11).
func (c *Converter) seed(ev *Event, slot uint32, idx Index) (seed uint64, known bool) {
	if ev.Salt != "" {
		c.salted = true
	} else if ev.HasParent {
		if c.salted {
			if seed, ok := idx.ParentSeed(slot, ev.Parent); ok {
				return seed, true
			}
		}
		// A parent 0 that names no block is the root (decision K10).
		return c.localSeed(ev.LoRA, ""), c.salted && ev.Parent == 0
	}
	return c.localSeed(ev.LoRA, ev.Salt), true
}

// Sink takes the events of one stream for an index in which adapter, salt and medium
// are keys (the Conductor's), from engine events and standard envelopes alike.
type Sink interface {
	// Event takes an accepted event of a rank and counts the outcome of its blocks
	// in t. Each counts the event itself under the returned reason.
	Event(ev *Event, dp uint32, t *Tally) Reason
	// Skipped is called for a standard envelope that is not applied but has an
	// event_id. Its stream has then passed that id. Its blocks must not be used.
	Skipped(ev *Event, dp uint32)
}

// MaxKey bounds each text that is part of an event's identity, in bytes, and so the
// memory of a Sink that keeps identities.
const MaxKey = 4096

// Each passes the accepted events of b to sink, in order, and counts all events in
// t, bad ones included. Stores with tokens are cut to complete blocks; an engine's
// blocks have the registered size, an envelope's its own. An envelope without a
// BlockSize gets the registered one. The rank of an envelope is the one that it
// states, else the registered one, but never the batch's: external stores publish
// batches of rank 0 whatever the rank of the blocks. The sink decides about media:
// the tier may be unknown.
func (c *Converter) Each(b *Batch, sink Sink, t *Tally) {
	engine := b.RankOr(c.rank)
	_, known := c.slot(engine)
	bad := b.Bad
	b.outcome.reset()
	for i := range b.Events {
		for len(bad) > 0 && int(bad[0].Before) <= i {
			c.eachBad(b, &bad[0], sink, t)
			bad = bad[1:]
		}
		ev := &b.Events[i]
		var reason Reason
		switch {
		case ev.Envelope != nil:
			reason = c.eachEnvelope(ev, sink, &b.work, t)
		case !known:
			reason = UnknownRank
		default:
			if reason = c.acceptKeyed(ev, engine, &b.work); reason == Applied {
				reason = sink.Event(ev, engine, t)
			}
		}
		if reason == Applied {
			t.BlocksOf(ev.tierLabel())[BlocksIncomplete] += uint64(ev.incomplete)
			b.outcome.cleared = b.outcome.cleared || ev.Kind == Cleared && ev.Envelope == nil
		} else {
			b.outcome.count(reason)
		}
		t.event(ev.Kind, ev.tierLabel(), reason)
	}
	for i := range bad {
		c.eachBad(b, &bad[i], sink, t)
	}
}

// eachBad counts a bad event of a batch, and passes it to the sink as skipped if it
// is an envelope with an event_id.
func (c *Converter) eachBad(b *Batch, bad *BadEvent, sink Sink, t *Tally) {
	t.event(bad.Kind, NoTier, bad.Reason)
	b.outcome.count(bad.Reason)
	if bad.Numbered != nil && !bad.Numbered.overlong() {
		sink.Skipped(bad.Numbered, c.completeEnvelope(bad.Numbered))
	}
}

// eachEnvelope passes a standard envelope to the sink if it is accepted.
func (c *Converter) eachEnvelope(ev *Event, sink Sink, work *scratch, t *Tally) Reason {
	if ev.overlong() {
		return BadField
	}
	dp := c.completeEnvelope(ev)
	reason := c.acceptEnvelope(ev, work)
	if reason == Applied {
		return sink.Event(ev, dp, t)
	}
	if ev.Envelope.HasEventID {
		sink.Skipped(ev, dp)
	}
	return reason
}

// completeEnvelope gives an envelope the registered block size if it has none, and
// returns its rank.
func (c *Converter) completeEnvelope(ev *Event) (dp uint32) {
	if ev.BlockSize == 0 {
		ev.BlockSize = c.layout.BlockSize
	}
	if ev.Envelope.HasDPRank {
		return ev.Envelope.DPRank
	}
	return c.rank
}

// acceptEnvelope decides whether a standard envelope is applied, and cuts a store
// with tokens to its complete blocks. An empty list of tokens counts as none.
func (c *Converter) acceptEnvelope(ev *Event, work *scratch) Reason {
	switch {
	case ev.Kind == Cleared:
		return Applied
	case len(ev.Hashes) == 0:
		return Empty
	case ev.Kind == Removed:
		return Applied
	case len(ev.Tokens) > 0:
		return acceptStore(ev, hashing.Layout{BlockSize: ev.BlockSize, Eagle: c.layout.Eagle}, work)
	case work.seen.ChainRepeats(ev.Parent, ev.HasParent, ev.Hashes):
		return RepeatedHash
	}
	return Applied
}

// acceptKeyed is accept for a Sink, where adapter and medium are keys.
func (c *Converter) acceptKeyed(ev *Event, dp uint32, work *scratch) Reason {
	if ev.overlong() || ev.badLoRAID && ev.LoRA == "" {
		return BadField
	}
	return c.accept(ev, dp, work, true)
}

// overlong reports whether a text of the event's identity is longer than MaxKey.
func (ev *Event) overlong() bool {
	if len(ev.LoRA) > MaxKey || len(ev.Salt) > MaxKey || len(ev.Medium) > MaxKey {
		return true
	}
	env := ev.Envelope
	return env != nil && (len(env.Model) > MaxKey || len(env.Tenant) > MaxKey ||
		len(env.Backend) > MaxKey || len(env.Salt) > MaxKey)
}

// SeedNames is told what block seeds stand for, because adapter and salt cannot be
// computed from a seed.
type SeedNames interface {
	// NameSeed is called when a stream first uses an adapter or a salt, from that
	// stream's goroutine. For a stream that uses very many it may be called again.
	NameSeed(seed uint64, lora, salt string)
}

// maxNamedSeeds bounds the seeds that a Converter remembers to have named.
const maxNamedSeeds = 4096

// localSeed returns the block seed of an adapter and a salt, and names it.
func (c *Converter) localSeed(lora, salt string) uint64 {
	seed := hashing.LocalSeed(lora, salt)
	if lora == "" && salt == "" {
		return seed
	}
	if _, done := c.namedSeeds[seed]; !done {
		if c.namedSeeds == nil || len(c.namedSeeds) >= maxNamedSeeds {
			c.namedSeeds = make(map[uint64]string)
		}
		c.namedSeeds[seed] = lora
		if c.Seeds != nil {
			c.Seeds.NameSeed(seed, lora, salt)
		}
	}
	return seed
}

// hasAdapter reports whether a block seed is known to be of an adapter. It cannot be
// computed from a seed with a salt that this stream has not used (or not for long).
func (c *Converter) hasAdapter(seed uint64, lora string) bool {
	if seed == hashing.LocalSeed(lora, "") {
		return true
	}
	named, ok := c.namedSeeds[seed]
	return ok && named == lora
}
