package indexer

import "github.com/select-service/select-service/pkg/hashing"

// Offloading connectors announce copies with tokens but without the keys that the blocks
// have beside them (vLLM 0.33: extra_keys null). Tokens alone then do not say which block
// it is. An engine's hash covers all keys, so a name that the rank has announced before
// identifies it. Until any keys are shown, the tokens do (Store.KeysOmitted).

// Unidentified is the block seed, in a sequence Space the key, of blocks of which only
// the name is known. No prompt matches them; they are kept so that they can be removed.
const Unidentified uint64 = 0x9b6e_52f1_c70d_a843

// ShowKeys says that blocks with a salt, an adapter or other keys are in use. There is no
// way back.
func (s *Space) ShowKeys() {
	if !s.keyed.Load() {
		s.keyed.Store(true)
	}
}

// KeysShown reports whether any keys have been shown: by ShowKeys or by a store.
func (s *Space) KeysShown() bool { return s.keyed.Load() }

// Unidentified returns how many blocks of the index are known by their names only.
func (s *Space) Unidentified() (blocks int) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	number, used := s.tree.seeds.of[Unidentified]
	for id := uint32(1); used && id < s.tree.next; id++ {
		if nd := s.tree.node(id); nd.used && nd.seed == number {
			blocks += int(nd.n)
		}
	}
	return blocks
}

// noteKeys records that a store shows keys. In a sequence Space keys are namespaces, which
// the caller knows.
func (s *Space) noteKeys(ev *Store) {
	if ev.ShowsKeys || !s.sequence && ev.SeedKnown && ev.Seed != hashing.Seed {
		s.ShowKeys()
	}
}

// namesOnly reports whether the blocks of a store are known by their names only.
func (s *Space) namesOnly(ev *Store) bool {
	return ev.SeedKnown && ev.Seed == Unidentified || ev.KeysOmitted && s.KeysShown()
}

// isUnidentified reports whether a run has blocks of which only the name is known.
func (t *tree) isUnidentified(nd *node) bool {
	return nd.seed != 0 && t.seeds.seed(nd.seed) == Unidentified
}

// fits reports whether blocks with this seed may be those of an event.
func (s *Store) fits(seed uint64) bool {
	return s.Fits == nil || seed == Unidentified || s.Fits(seed)
}

// storeNames applies a store whose blocks are known by their names only.
func (s *Space) storeNames(ev *Store) (out Outcome) {
	by := holderOf(ev.Slot, ev.Tier)
	r := &s.ranks[ev.Slot]
	r.unkeyedCopies = true
	r.removed.indexByName()
	var c restoreCache
	for i, name := range ev.EngineHashes {
		switch s.storeName(by, ev, name, &c) {
		case nameHeld:
			out.Known++
			if ev.Counted && !ev.Provisional && r.copies.add(name, ev.Tier) {
				out.Copies++
			}
		case nameStored:
			out.Stored++
		case nameWaits:
			out.Orphaned++
			continue
		case nameUnknown:
			out.Unidentified++
			stored, copies := s.storeUnidentified(ev, name)
			out.Stored, out.Known, out.Copies = out.Stored+stored, out.Known+1-stored, out.Copies+copies
			continue
		}
		s.joinOrphans(by, ev.EngineHashes[i:i+1])
	}
	if out.Copies > 0 {
		out.Held = r.blocks[ev.Tier] + r.copies.further[ev.Tier]
	}
	return out
}

// nameResult is what storeName did.
type nameResult uint8

const (
	nameUnknown nameResult = iota
	nameHeld               // the holder has the block under the name
	nameStored             // it has not had it before
	nameWaits              // the block is an orphan
)

// storeName makes by a holder of the block that its rank has announced under a name.
func (s *Space) storeName(by holder, ev *Store, name uint64, c *restoreCache) nameResult {
	t := &s.tree
	r := &s.ranks[by.slot()]
	if cell := s.findInTier(by, name); cell != 0 && ev.fits(t.seedOf(cell)) {
		return nameHeld
	}
	unidentified := uint32(0)
	for tier := range Tier(NumTiers) {
		cell := s.findInTier(holderOf(by.slot(), tier), name)
		if cell == 0 || !ev.fits(t.seedOf(cell)) {
			continue
		}
		if !t.isUnidentified(t.nodeAt(cell)) {
			s.holdUncounted(by, cell, name, ev.Provisional)
			return nameStored
		}
		unidentified = cell
	}
	if r.orphans.addNamed(name, ev) {
		return nameWaits
	}
	if b, ok := r.removed.find(name); ok && ev.fits(b.seed) {
		if cell := s.findInTier(by, name); cell != 0 {
			s.removeName(by, name, cell) // the name stood for a block with other keys
		}
		if s.restore(by, name, c) {
			if !ev.Provisional {
				r.copies.addFirst(name, by.tier())
			} else if !r.copies.provisional {
				r.makeProvisional()
			}
			return nameStored
		}
	}
	if unidentified != 0 {
		s.holdUncounted(by, unidentified, name, ev.Provisional)
		return nameStored
	}
	return nameUnknown
}

// storeUnidentified keeps a block of which only the name is known. Its local hash is made
// from the name, so that it is the same wherever the name is.
func (s *Space) storeUnidentified(ev *Store, name uint64) (stored, copies int) {
	stored, copies, _ = s.insert(&Store{
		Slot: ev.Slot, Tier: ev.Tier,
		EngineHashes: []uint64{name}, Local: []uint64{hashing.Unmatched(Unidentified, name)},
		Seed: Unidentified, SeedKnown: true,
		Counted: ev.Counted, Provisional: ev.Provisional,
	})
	return stored, copies
}

// addNamed makes an orphan wait in the tier of an event too. It reports whether there is
// an orphan with that name that may be the event's block.
func (o *orphans) addNamed(name uint64, ev *Store) bool {
	id, ok := o.byName[name]
	if !ok {
		return false
	}
	if row := &o.rows[id]; ev.Fits != nil && (!row.seedKnown || !ev.fits(row.seed)) {
		return false
	}
	return o.addTier(name, ev.Tier)
}

// seedOf returns the block seed of a block.
func (t *tree) seedOf(cell uint32) uint64 { return t.seeds.seed(t.nodeAt(cell).seed) }

// identify moves what a rank holds in other tiers under an event's names to the event's
// blocks: an event that states the keys says what these names stand for. Counted copies
// stay.
func (s *Space) identify(ev *Store) {
	r := &s.ranks[ev.Slot]
	if !r.unkeyedCopies || ev.KeysOmitted || ev.Provisional && ev.Tier != Device || !s.KeysShown() {
		return
	}
	for _, name := range ev.EngineHashes {
		cell := s.findInTier(holderOf(ev.Slot, ev.Tier), name)
		if cell == 0 {
			continue
		}
		for t := range Tier(NumTiers) {
			by := holderOf(ev.Slot, t)
			if old := s.findInTier(by, name); old != 0 && old != cell {
				n, counted := r.copies.counts[aliasKey{name, t}]
				s.holdCell(by, cell, name)
				if counted {
					r.copies.set(name, t, n)
				}
			}
		}
	}
}
