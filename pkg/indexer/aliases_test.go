package indexer_test

import (
	"slices"
	"sync"
	"testing"

	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/test/helpers/length"
)

// renamed announces the chain by tokens under names of another engine's.
func (n *namespace) renamed(slot uint32, names []uint64) {
	n.space.Store(&indexer.Store{Slot: slot, EngineHashes: names, Local: n.local[:len(names)], Seed: n.key, SeedKnown: true})
}

// remove takes blocks from a slot in a tier.
func (n *namespace) remove(t *testing.T, slot uint32, tier indexer.Tier, names []uint64) {
	t.Helper()
	if removed, _ := n.space.Remove(slot, tier, names); removed != len(names) {
		t.Fatalf("slot %d: %d of %d blocks removed", slot, removed, len(names))
	}
}

// resolves announces blocks by an engine's names and wants all to be found.
func (n *namespace) resolves(t *testing.T, slot uint32, tier indexer.Tier, names []uint64) {
	t.Helper()
	ev := n.hashes(slot, names)
	ev.Tier = tier
	if out := n.space.StoreSequence(ev); out.Resolved != len(names) || out.Stored+out.Known != len(names) {
		t.Errorf("slot %d, %d blocks: %+v", slot, len(names), out)
	}
	if err := n.space.Check(); err != nil {
		t.Fatal(err)
	}
}

// ends lets all slots go: nothing may be left.
func (n *namespace) ends(t *testing.T, slots uint32) {
	t.Helper()
	for slot := range slots {
		n.space.Forget(slot)
		if err := n.space.Check(); err != nil {
			t.Fatal(err)
		}
	}
	if st := n.space.Stats(); st != (indexer.Stats{}) {
		t.Errorf("after the last: %+v", st)
	}
}

// TestResolveByAlias proves that a block with tokens is found by the name that
// any engine has for it, whichever announced it first, as long as an engine has
// that name, and that names of other namespaces do not count.
func TestResolveByAlias(t *testing.T) {
	const n = 6
	other := number(11, n)
	t.Run("another hash seed", func(t *testing.T) {
		s := newNamespace(n)
		s.tokens(0, n)
		s.renamed(1, other)
		s.resolves(t, 2, indexer.Host, other)
		if _, own := s.held(2); own != n {
			t.Errorf("slot 2 holds %d", own)
		}
		ev := s.hashes(3, other)
		ev.Seed++
		if out := s.space.StoreSequence(ev); out.Unverified != n {
			t.Errorf("other namespace: %+v", out)
		}
		// The engine leaves. What was told so still says what the name means.
		s.space.Clear(1)
		s.resolves(t, 3, indexer.Disk, other)
		s.remove(t, 2, indexer.Host, folded(other, s.key))
		s.remove(t, 3, indexer.Disk, folded(other, s.key))
		if out := s.space.StoreSequence(s.hashes(4, other)); out.Unverified != n {
			t.Errorf("nobody calls them so: %+v", out)
		}
		s.ends(t, 5)
	})
	t.Run("engine restarts", func(t *testing.T) {
		s := newNamespace(n)
		s.tokens(0, n)
		s.resolves(t, 2, indexer.Host, s.names)
		s.space.Clear(0) // the store keeps the blocks under their first names
		s.renamed(0, other)
		s.resolves(t, 3, indexer.Disk, other)
		s.resolves(t, 3, indexer.Disk, s.names)
		s.ends(t, 4)
	})
	t.Run("unverified under a name that becomes an alias", func(t *testing.T) {
		s := newNamespace(n)
		s.tokens(0, n)
		s.space.StoreSequence(s.hashes(2, other))
		s.renamed(1, other)
		if _, own := s.held(2); own != n {
			t.Errorf("slot 2 holds %d", own)
		}
		s.ends(t, 3)
	})
	t.Run("unverified under an alias", func(t *testing.T) {
		s := newNamespace(n)
		first, second := s.hashes(1, number(21, n)), s.hashes(2, number(21, n))
		second.PublisherHashes = s.names // it removes them by the engine's own names
		s.space.StoreSequence(first)
		s.space.StoreSequence(second)
		s.tokens(0, n)
		if _, own := s.held(2); own != n {
			t.Errorf("slot 2 holds %d", own)
		}
		s.ends(t, 3)
	})
	t.Run("one name of many blocks", func(t *testing.T) {
		s := newNamespace(n)
		s.tokens(0, n)
		for slot := range uint32(n) { // who holds the chain up to slot calls its end so
			names := slices.Clone(s.names[:slot+1])
			names[slot] = 99
			s.renamed(slot+1, names)
			s.renamed(slot+1+n, names)
		}
		for _, slot := range []uint32{3, 1, 3 + n, 6, 1 + n, 6 + n, 2, 5, 5 + n, 2 + n, 4} {
			s.resolves(t, 2*n+1, indexer.Host, []uint64{99})
			s.space.ClearTier(slot, indexer.Device, s.key)
		}
		s.resolves(t, 2*n+2, indexer.Host, []uint64{99})
		s.ends(t, 2*n+3)
	})
}

// TestMoves proves that a store which moves blocks between media keeps their
// place in the chain if no other slot holds them. The removal comes first, for
// all blocks at once or one by one, back and forth, and also with engine hashes
// besides hashes of the publisher. Other slots find the blocks by the engine
// hashes afterwards.
func TestMoves(t *testing.T) {
	const n = 6
	for _, stated := range []bool{false, true} {
		for _, size := range []int{1, 2, n} {
			s := newNamespace(n)
			ev := s.hashes(2, s.names)
			if stated {
				ev = s.hashes(2, number(7, n))
				ev.EngineHashes = s.names
			}
			ev.Tier = indexer.Host
			s.tokens(0, n)
			s.space.StoreSequence(ev)
			s.remove(t, 0, indexer.Device, s.names)
			tiers := []indexer.Tier{indexer.Host, indexer.Disk, indexer.External, indexer.Disk}
			for move, to := range tiers[1:] {
				for i := 0; i < n; i += size {
					part := *ev
					part.PublisherHashes, part.Hashes, part.Tier = ev.PublisherHashes[i:i+size], ev.Hashes[i:i+size], to
					if stated {
						part.EngineHashes = ev.EngineHashes[i : i+size]
					}
					s.remove(t, 2, tiers[move], part.PublisherHashes)
					out := s.space.StoreSequence(&part)
					if out.Resolved != size || out.Stored != size {
						t.Errorf("stated %v, blocks %d to %d: %+v", stated, i, i+size, out)
					}
					if depth, known := s.space.DepthOf(2, to, part.PublisherHashes[0]); !known || int(depth) != i {
						t.Errorf("block %d has depth %d, known %v", i, depth, known)
					}
				}
				if matched, own := s.held(2); matched != n {
					t.Errorf("stated %v, %d at once: %d match, slot 2 holds %d", stated, size, matched, own)
				}
				if st := s.space.Stats(); st.Runs != 1 {
					t.Errorf("%d at once: %d runs", size, st.Runs)
				}
			}
			s.resolves(t, 3, indexer.Host, s.names)
			s.ends(t, 4)
		}
	}
}

// What a slot removed is no more than it was when it went: a claim stays one,
// other slots do not know of it, nor do other namespaces.
func TestMemoryOfClaims(t *testing.T) {
	const n = 4
	s := newNamespace(n)
	claims := s.hashes(1, s.names)
	s.space.StoreSequence(claims)
	s.remove(t, 1, indexer.Device, claims.PublisherHashes)
	if out := s.space.StoreSequence(claims); out.Unverified != n || out.Stored != n {
		t.Errorf("claims: %+v", out)
	}
	s.tokens(0, n)
	s.remove(t, 1, indexer.Device, claims.PublisherHashes)
	s.remove(t, 0, indexer.Device, s.names)
	for _, other := range []indexer.SequenceStore{
		{Slot: 2, Seed: s.key, PublisherHashes: claims.PublisherHashes, Hashes: claims.Hashes},
		{Slot: 1, Seed: s.key + 1, PublisherHashes: claims.PublisherHashes, Hashes: claims.Hashes},
	} {
		if out := s.space.StoreSequence(&other); out.Unverified != n {
			t.Errorf("slot %d, namespace %d: %+v", other.Slot, other.Seed, out)
		}
	}
	s.resolves(t, 1, indexer.Host, s.names)
	s.ends(t, 3)
}

// A standard hash that somebody claims meanwhile is what the slot remembers to
// be known from tokens, and is confirmed by that.
func TestMemoryConfirms(t *testing.T) {
	const n = 4
	s := newNamespace(n)
	s.tokens(0, n)
	s.resolves(t, 1, indexer.Host, s.names)
	s.remove(t, 0, indexer.Device, s.names)
	s.remove(t, 1, indexer.Host, folded(s.names, s.key))
	standard := s.hashes(2, s.rolling)
	if out := s.space.StoreSequence(standard); out.Unverified != n {
		t.Errorf("%+v", out)
	}
	s.resolves(t, 1, indexer.Disk, s.names)
	if out := s.space.StoreSequence(standard); out.Confirmed != n || out.Known != n {
		t.Errorf("%+v", out)
	}
	s.resolves(t, 3, indexer.Disk, s.names)
	if depth, known := s.space.DepthOf(2, indexer.Device, standard.PublisherHashes[n-1]); !known || depth != n-1 {
		t.Errorf("depth %d, known %v", depth, known)
	}
	// The same where the slot itself goes by standard hashes.
	s.remove(t, 2, indexer.Device, standard.PublisherHashes)
	s.space.Clear(1)
	s.space.Clear(3)
	if out := s.space.StoreSequence(standard); out.Confirmed != n || out.Stored != n {
		t.Errorf("%+v", out)
	}
	s.ends(t, 4)
}

// A hostile event that has one name for a block that is there and for one that
// is remembered ends, and breaks nothing.
func TestMemoryOfOneNameTwice(t *testing.T) {
	const n = 2
	s := newNamespace(n)
	s.tokens(0, n)
	s.resolves(t, 1, indexer.Host, s.names)
	s.remove(t, 0, indexer.Device, s.names[1:])
	names := folded(s.names, s.key)
	s.remove(t, 1, indexer.Host, names)
	s.space.StoreSequence(&indexer.SequenceStore{
		Slot: 1, Tier: indexer.Host, Seed: s.key,
		PublisherHashes: []uint64{names[1], names[1], names[1]},
		Hashes:          []uint64{s.rolling[0], s.names[1], 77},
	})
	s.remove(t, 1, indexer.Host, names[1:])
	for slot := range uint32(2) {
		s.space.Forget(slot)
	}
	if st := s.space.Stats(); st != (indexer.Stats{}) {
		t.Errorf("after the last: %+v", st)
	}
}

// Long events are dealt with in parts also where all comes out of memory.
func TestLongMove(t *testing.T) {
	length.Sequential(t)
	const n = 10_000
	s := newNamespace(n)
	s.tokens(0, n)
	s.resolves(t, 1, indexer.Host, s.names)
	s.remove(t, 0, indexer.Device, s.names)
	// The ring of a slot that never asked is short: the last blocks are in it.
	const kept = 4096
	gone := folded(s.names, s.key)
	s.remove(t, 1, indexer.Host, gone)
	s.resolves(t, 1, indexer.Disk, s.names[n-kept:])
	if out := s.space.StoreSequence(s.hashes(1, s.names[:n-kept])); out.Unverified != n-kept {
		t.Errorf("%+v", out)
	}
	s.space.Clear(1)
	s.tokens(0, n)
	s.resolves(t, 1, indexer.Host, s.names)
	s.remove(t, 0, indexer.Device, s.names)
	s.remove(t, 1, indexer.Host, gone)
	s.resolves(t, 1, indexer.Disk, s.names)
	if matched, _ := s.held(1); matched != n {
		t.Errorf("%d match", matched)
	}
	s.ends(t, 2)
}

// TestClearBesideNames proves that clears of slots with aliases, which let others
// in, leave no name behind that stands for a block no more.
func TestClearBesideNames(t *testing.T) {
	const n = 6000
	s := newNamespace(n)
	other := number(11, n)
	var wg sync.WaitGroup
	for slot := range uint32(4) {
		wg.Go(func() {
			for range 3 {
				switch slot {
				case 0:
					s.tokens(slot, n)
				case 1:
					s.renamed(slot, other)
				default:
					s.space.StoreSequence(s.hashes(slot, other))
				}
				s.space.Remove(slot, indexer.Device, folded(other[n/2:], s.key))
				s.space.Clear(slot)
			}
		})
	}
	wg.Wait()
	if err := s.space.Check(); err != nil {
		t.Error(err)
	}
	s.ends(t, 4)
}
