package kvevents

import (
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/indexer/hybrid"
)

// GroupRule says how events of attention groups other than the main one are treated.
type GroupRule struct {
	// Exact: their blocks on the device are kept too, so that a prefix ends where all
	// groups can serve it (decision N2). Otherwise their events are filtered out.
	Exact bool
	// ChunkSize is the chunk size of groups with chunked local attention, in tokens, which
	// events do not state. 0 means unknown: then such a group must have all blocks.
	ChunkSize uint64
}

// isFurtherGroup reports whether groups are kept apart and an event is of another group
// than the first main one of the stream.
func (c *Converter) isFurtherGroup(ev *Event) bool {
	return c.Groups.Exact && ev.Group != NoGroup && c.groups.main != NoGroup && ev.Group != c.groups.main
}

// acceptInGroup is acceptTiered for Apply: if the model has no full attention, a group
// with sliding windows becomes the main one. rest are the events after ev in its batch.
func (c *Converter) acceptInGroup(ev *Event, dp uint32, rest []Event, idx Index, work *scratch) Reason {
	if !c.groups.full && ev.statesFull() {
		c.groups.full = true
		c.leaveWindow(idx)
	}
	reason := c.acceptTiered(ev, dp, work)
	if reason == FilteredGroup && c.takeWindow(ev, dp, rest) {
		reason = c.acceptTiered(ev, dp, work)
	}
	return reason
}

// maxAhead is how many events of a batch are searched for full attention. The events of
// one request follow each other, one for each group.
const maxAhead = 64

// takeWindow makes the group of a stored event the main one, and reports whether it did:
// if the group has sliding windows and blocks of the registered size, and the stream has
// no main group. Engines store the blocks of all groups at once, so a group with full
// attention would have reported before or would be among the rest.
func (c *Converter) takeWindow(ev *Event, dp uint32, rest []Event) bool {
	if !c.Groups.Exact || c.groups.full || c.groups.main != NoGroup ||
		ev.Kind != Stored || ev.Group == NoGroup || ev.Window <= 0 || c.Groups.kind(ev).Kind != hybrid.Window ||
		ev.BlockSize != c.layout.BlockSize {
		return false
	}
	for i := range min(len(rest), maxAhead) {
		if next := &rest[i]; next.ofOwnCache() && next.Kind == Stored && len(next.Tokens) > 0 && c.groups.isMain(dp, next) {
			return false
		}
	}
	c.groups.main, c.groups.window = ev.Group, true
	return true
}

// leaveWindow undoes takeWindow, because the model has full attention after all: it clears
// the ranks of the stream.
func (c *Converter) leaveWindow(idx Index) {
	if !c.groups.window {
		return
	}
	c.groups.main, c.groups.window = NoGroup, false
	for _, dp := range c.copies.ranks {
		if slot, known := c.slot(dp); known {
			idx.Clear(slot)
			idx.ForgetGroups(slot)
		}
	}
}

// statesFull reports whether a stored event is of full attention.
func (ev *Event) statesFull() bool {
	return ev.ofOwnCache() && ev.Kind == Stored && len(ev.Tokens) > 0 &&
		(isMainKind(ev.SpecKind) || ev.SpecKind == "" && ev.Group == NoGroup)
}

// recordMain records the group of a stored event of the main cache. A group with windows is
// passed to the index, but not from an event without tokens, whose block size means nothing.
func (c *Converter) recordMain(ev *Event, slot uint32, idx Index) {
	if c.groups.addMain(ev.Group) {
		c.MakeProvisional(idx)
	}
	if c.groups.window && ev.Group == c.groups.main && len(ev.Tokens) > 0 {
		idx.StoreInGroup(&indexer.GroupStore{
			Slot: slot, Group: ev.Group, Main: true,
			Kind: c.Groups.kind(ev), KindKnown: ev.SpecKind != "",
			MainBlockSize: uint64(c.layout.BlockSize),
		})
	}
}

// forgetGroups drops what is known of the engine's groups, because it has been replaced:
// for the rank in slot and all other ranks of the stream.
func (c *Converter) forgetGroups(slot uint32, idx Index) {
	c.groups = groups{main: NoGroup}
	idx.ForgetGroups(slot)
	for _, dp := range c.copies.ranks {
		if other, known := c.slot(dp); known && other != slot {
			idx.ForgetGroups(other)
		}
	}
}

// applyToGroup applies an event that was filtered out because of its group, and reports
// whether it could. It cannot if no event has stated the kind of the group: then it is
// unknown which blocks the group needs.
func (c *Converter) applyToGroup(ev *Event, slot uint32, idx Index, t *Tally) bool {
	if !c.Groups.Exact || ev.Group == NoGroup || !ev.TierKnown || ev.Tier != indexer.Device || len(ev.Hashes) == 0 {
		return false
	}
	if ev.Kind == Removed {
		return idx.RemoveFromGroup(slot, ev.Group, ev.Hashes)
	}
	if ev.BlockSize <= 0 {
		return false
	}
	noted := idx.StoreInGroup(&indexer.GroupStore{
		Slot: slot, Group: ev.Group,
		Kind: c.Groups.kind(ev), KindKnown: ev.SpecKind != "",
		MainBlockSize: uint64(c.layout.BlockSize),
		EngineHashes:  ev.Hashes,
		Parent:        ev.Parent, HasParent: ev.HasParent,
		Dense:   len(ev.Tokens) == len(ev.Hashes)*ev.BlockSize,
		Counted: c.counted(),
	})
	if noted {
		t.BlocksOf(int(ev.Tier))[BlocksGrouped] += uint64(len(ev.Hashes))
	}
	return noted
}

// kind returns the group as a stored event describes it (with the kinds of vLLM 0.33.0).
// Groups of unknown kinds need all blocks.
func (r GroupRule) kind(ev *Event) hybrid.Group {
	g := hybrid.Group{BlockSize: uint64(ev.BlockSize)}
	switch ev.SpecKind {
	case "sliding_window", "sliding_window_mla":
		g.Kind, g.Span = hybrid.Window, uint64(max(ev.Window, 0))
	case "mamba":
		g.Kind = hybrid.State
	case "chunked_local_attention":
		g.Kind, g.Span = hybrid.Chunked, r.ChunkSize
	}
	return g
}

// maxGroups bounds the groups that are remembered of one stream, over all its ranks.
// Engines have a few per rank.
const maxGroups = 4096

// groups knows which attention groups hold the main cache: the one whose blocks
// a prefix match is about (dynamo-kv-router 1.3.1 and 1.6.1). Sliding windows,
// state caches and cross attention are filtered out.
type groups struct {
	kinds map[groupKey]bool
	// main is the first main group among the stream's stored events, NoGroup if there is
	// none so far. several: there are others.
	main    int32
	several bool
	// window: the main group has sliding windows, because none with full attention has
	// reported (takeWindow).
	window bool
	// full: a stored event of full attention has come, applied or not.
	full bool
}

type groupKey struct {
	dp    uint32
	group int32
}

// learn records the kind of a group from a stored event that states both.
func (g *groups) learn(dp uint32, ev *Event) {
	if ev.SpecKind == "" || ev.Group == NoGroup {
		return
	}
	if g.kinds == nil {
		g.kinds = make(map[groupKey]bool)
	}
	key := groupKey{dp, ev.Group}
	if _, known := g.kinds[key]; known || len(g.kinds) < maxGroups {
		g.kinds[key] = isMainKind(ev.SpecKind)
	}
}

// addMain records the group of a stored event of the main cache, and reports whether it
// is the second such group. Removed events do not count: they do not state a kind.
func (g *groups) addMain(group int32) (second bool) {
	switch {
	case group == NoGroup || group == g.main || g.several:
		return false
	case g.main == NoGroup:
		g.main = group
		return false
	}
	g.several = true
	return true
}

// isMain reports whether an event is about the main cache: by its own kind, else
// by what is known of its group, else only without a group or for group 0.
func (g *groups) isMain(dp uint32, ev *Event) bool {
	if g.window && ev.Group == g.main {
		return true
	}
	if ev.SpecKind != "" {
		return isMainKind(ev.SpecKind)
	}
	if ev.Group == NoGroup {
		return true
	}
	if is, known := g.kinds[groupKey{dp, ev.Group}]; known {
		return is
	}
	return ev.Group == 0
}

func isMainKind(kind string) bool {
	return kind == "full_attention" || kind == "mla_attention" || kind == "sink_full_attention"
}
