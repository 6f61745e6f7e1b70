package conductor

import (
	"strconv"

	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/kvevents"
)

// applyEngine applies an event in an engine's own format. It concerns the rank that the batch
// names, and the space of the registration: an engine does not name tenant and model, and its
// block size must be the registered one.
func (p *Publisher) applyEngine(ev *kvevents.Event, dp uint32, t *kvevents.Tally) kvevents.Reason {
	if dp != p.Rank && !p.registry.hasRank(p.rankKey(dp)) {
		return kvevents.UnknownRank
	}
	o := p.owners[ownerKey{p.namespace.space, "", dp}]
	n := blocksOf(ev, t)
	switch {
	case ev.Kind == kvevents.Cleared:
		if o != nil {
			o.clear()
		}
		return kvevents.Applied
	case ev.Kind == kvevents.Stored && len(ev.Tokens) > 0:
		return p.storeEngine(o, ev, dp, n)
	}
	i := -1
	if o != nil {
		name, _ := mediumOf(ev)
		i = o.mediumSlotIndex(name)
	}
	switch {
	case ev.Kind == kvevents.Stored:
		return p.storeByEngineHash(o, ev, n)
	case i < 0:
		n[kvevents.BlocksUnknown] += uint64(len(ev.Hashes))
	default:
		p.remove(o, &o.mediumSlots[i], ev.Hashes, n)
	}
	return kvevents.Applied
}

// storeByEngineHash stores blocks by the engine's hash alone (decision K15). The owner exists,
// because the blocks were announced with tokens before.
func (p *Publisher) storeByEngineHash(o *owner, ev *kvevents.Event, n *[kvevents.NumBlockOutcomes]uint64) kvevents.Reason {
	if o == nil {
		n[kvevents.BlocksUnresolved] += uint64(len(ev.Hashes))
		p.counts.add(unresolved, uint64(len(ev.Hashes)))
		return kvevents.Applied
	}
	i, reason := p.mediumSlotFor(o, ev)
	if reason != kvevents.Applied {
		return reason
	}
	s := &o.mediumSlots[i]
	found, missing := o.space.index.StoreByEngineHash(s.Slot, s.Tier, ev.Hashes)
	n[kvevents.BlocksResolved] += uint64(found)
	n[kvevents.BlocksUnresolved] += uint64(missing)
	p.counts.add(unresolved, uint64(missing))
	return kvevents.Applied
}

// storeEngine stores blocks with tokens.
func (p *Publisher) storeEngine(o *owner, ev *kvevents.Event, dp uint32, n *[kvevents.NumBlockOutcomes]uint64) kvevents.Reason {
	key, certain := p.engineKey(o, ev, dp)
	m, reason := p.join(key)
	if reason != kvevents.Applied {
		return reason
	}
	i, reason := p.mediumSlotFor(m.owner, ev)
	if reason != kvevents.Applied {
		return reason
	}
	p.hash(m.ns.space, ev, n)
	s := &m.owner.mediumSlots[i]
	p.store = indexer.Store{
		Slot: s.Slot, Tier: s.Tier,
		Parent: ev.Parent, HasParent: ev.HasParent,
		EngineHashes: ev.Hashes, Local: p.local,
		Seed: m.ns.seed, SeedKnown: certain,
		KeysOmitted: ev.OmitsKeys(), ShowsKeys: ev.ShowsKeys(),
	}
	if p.store.KeysOmitted && (ev.LoRA != "" || ev.HasLoRAID) {
		p.store.Fits = func(seed uint64) bool {
			lora, known := p.loras[seed]
			return known && lora == key.LoRA
		}
	}
	countStore(m.ns.space.index.Store(&p.store), n)
	p.counts.add(fromTokens, uint64(len(ev.Hashes)))
	return kvevents.Applied
}

// hash computes the local hashes of an event's blocks into p.local. A block with a key that no
// prompt can express is stored so that it can be removed, but never matched.
func (p *Publisher) hash(sp *space, ev *kvevents.Event, n *[kvevents.NumBlockOutcomes]uint64) {
	p.local = sp.layout().AppendLocal(p.local[:0], ev.Tokens, sp.key.HashSeed, ev.MM)
	for i, digest := range ev.Opaque {
		if digest != 0 {
			p.local[i] = hashing.Unmatched(p.local[i], digest)
			n[kvevents.BlocksOpaque]++
		}
	}
}

// engineKey returns the namespace of an engine's store. certain is false if the event states no
// salt and its parent, whose salt it inherits, is not known yet.
func (p *Publisher) engineKey(o *owner, ev *kvevents.Event, dp uint32) (key memberKey, certain bool) {
	key = memberKey{nsKey: nsKey{Identity: p.Identity}, rank: dp}
	switch {
	case ev.LoRA != "":
		key.LoRA = ev.LoRA
	case key.LoRA == "" && ev.HasLoRAID:
		key.LoRA = strconv.FormatUint(ev.LoRAID, 10)
	}
	switch {
	case ev.Salt == "" || ev.Salt == key.Salt:
	case key.Salt == "":
		key.Salt = ev.Salt
	default:
		key.innerSalt = ev.Salt
	}
	if ev.Salt != "" || !ev.HasParent {
		return key, true
	}
	// A parent 0 that is no known block is the root (decision K10).
	root := ev.Parent == 0
	if o == nil || o.members == 0 || o.members == 1 && p.find(key) != nil {
		return key, root
	}
	if seed, ok := o.seedOf(ev.Parent); ok {
		return p.inherit(key, o.space, seed)
	}
	return key, root
}

// inherit gives a store the salt of its parent's namespace. If that namespace has gone, the
// block goes where its parent is: no query sees either.
func (p *Publisher) inherit(key memberKey, sp *space, seed uint64) (memberKey, bool) {
	p.registry.mu.RLock()
	defer p.registry.mu.RUnlock()
	ns := sp.namespaces[seed]
	if ns == nil {
		return key, false
	}
	key.Salt, key.innerSalt = ns.key.Salt, ns.key.innerSalt
	return key, true
}
