package kvevents

import (
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/indexer/hybrid"
)

// GroupRule says what is made of the events of attention groups beside the main one.
type GroupRule struct {
	// Exact: their blocks on the device are noted, so that a prefix ends where all groups
	// can serve it (decision N2). Otherwise they are filtered out.
	Exact bool
	// ChunkSize is that of groups with chunked local attention, in tokens; events do not
	// have it. 0 is unknown: such a group is then asked for all blocks.
	ChunkSize uint64
}

// isFurtherGroup reports whether an event is of another group than the first main one
// of the stream, where groups are kept apart.
func (c *Converter) isFurtherGroup(ev *Event) bool {
	return c.Groups.Exact && ev.Group != NoGroup && c.groups.main != NoGroup && ev.Group != c.groups.main
}

// acceptInGroup decides about an event as acceptTiered does, where of a model without
// full attention a group of windows is the main one. rest are the events after it.
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

// maxAhead is how many events of a batch are looked at for full attention. One request's
// events follow each other, one for each group.
const maxAhead = 64

// takeWindow makes the group of a stored event the main one if it has sliding windows of
// blocks that the index can have, and the stream has no main group. Engines store blocks of
// all groups at once, so that one with full attention would have reported before or be
// among the rest.
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

// leaveWindow takes back what the ranks hold in a window taken for the main group: the
// model has full attention after all.
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

// meetMain notes the group of a stored event of the main cache. One without tokens does
// not say what blocks its group has.
func (c *Converter) meetMain(ev *Event, slot uint32, idx Index) {
	if c.groups.metMain(ev.Group) {
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

// forgetGroups forgets which groups the engine has, as it is another one now: on the rank
// in slot, and on all others that the stream has brought.
func (c *Converter) forgetGroups(slot uint32, idx Index) {
	c.groups = groups{main: NoGroup}
	idx.ForgetGroups(slot)
	for _, dp := range c.copies.ranks {
		if other, known := c.slot(dp); known && other != slot {
			idx.ForgetGroups(other)
		}
	}
}

// applyToGroup applies an event that the main group's filter has left out, and reports
// whether it means anything. A group whose kind no event has stated says nothing of
// what it needs.
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

// kind returns what a stored event says of its group (the kinds of vLLM 0.33.0). Kinds
// that are not known need all blocks.
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

// maxGroups bounds what one stream can make groups remember. Engines have a few
// groups a rank.
const maxGroups = 4096

// groups knows which attention groups hold the main cache: the one whose blocks
// a prefix match is about (dynamo-kv-router 1.3.1 and 1.6.1). Sliding windows,
// state caches and cross attention are filtered out.
type groups struct {
	kinds map[groupKey]bool
	// main is the first main group of the stream's stored events, NoGroup if none has
	// been stated; several: there are more.
	main    int32
	several bool
	// window: the main group has sliding windows, as none with full attention has been
	// stated (takeWindow).
	window bool
	// full: a stored event of full attention has come, whatever became of it.
	full bool
}

type groupKey struct {
	dp    uint32
	group int32
}

// learn takes the kind of a group from a stored event that states both.
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

// metMain notes the main group of a stored event, and reports whether it is the second
// one. Removed events do not state the kind of theirs.
func (g *groups) metMain(group int32) (second bool) {
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
