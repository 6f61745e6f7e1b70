package indexer_test

import (
	"math/rand/v2"
	"testing"

	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/memory"
	"github.com/select-service/select-service/test/helpers/length"
)

// newAccount returns an Account of so many bytes, and where they are counted.
func newAccount(limit int64) (*indexer.Account, *memory.Account) {
	bytes := memory.NewAccount("index", limit)
	return indexer.NewAccount(bytes), bytes
}

// storeOne stores a block for a slot that no other slot stores.
func storeOne(s *indexer.Space, slot uint32, n uint64) indexer.Outcome {
	name := uint64(slot)<<40 | n
	return s.Store(&indexer.Store{Slot: slot, EngineHashes: []uint64{name}, Local: []uint64{name}})
}

// TestAccountLimit: at the limit stores of every kind are refused, removals and clears
// are not and make room, and a rank alone gets three quarters of the limit.
func TestAccountLimit(t *testing.T) {
	const limit = 4 << 20
	account, bytes := newAccount(limit)
	for name, s := range map[string]*indexer.Space{"local": indexer.New(), "sequence": indexer.NewSequence(7)} {
		t.Run(name, func(t *testing.T) {
			s.SetAccount(account)
			n := uint64(1)
			for ; storeOne(s, 0, n).Refused == 0; n++ {
			}
			if used := bytes.Used(); used < limit*3/4 || used > limit+limit/2 || used < s.Stats().Bytes {
				t.Errorf("refused at %d bytes of %d, the index has %d", used, limit, s.Stats().Bytes)
			}
			if out := s.Store(&indexer.Store{Parent: 1 << 50, HasParent: true, EngineHashes: []uint64{1 << 51}, Local: []uint64{1}}); out.Refused != 1 || out.Orphaned != 0 {
				t.Errorf("an orphan beyond the limit: %+v", out)
			}
			if resolved, _ := s.StoreByEngineHash(0, indexer.Host, []uint64{1}); resolved != 0 {
				t.Error("a store by name beyond the limit")
			}
			if out := s.StoreSequence(&indexer.SequenceStore{PublisherHashes: []uint64{1 << 52}, Hashes: []uint64{1 << 52}}); name == "sequence" && out.Refused != 1 {
				t.Errorf("a store without tokens beyond the limit: %+v", out)
			}
			if bytes.Refused() == 0 {
				t.Error("no refusal is counted")
			}
			for i := uint64(1); i < n; i++ {
				if removed, _ := s.Remove(0, indexer.Device, []uint64{i}); removed != 1 {
					t.Fatalf("block %d is not removed", i)
				}
			}
			if storeOne(s, 0, n).Stored != 1 {
				t.Error("no room after everything was removed")
			}
			s.Clear(0)
			if storeOne(s, 0, n).Stored != 1 {
				t.Error("no room after a clear")
			}
			s.Forget(0)
			if used := bytes.Used(); used != 0 {
				t.Errorf("%d bytes are left", used)
			}
		})
	}
}

// TestAccountFairness: one rank that stores without end gets no more than three
// quarters, and then the others' blocks are stored as before, in all Spaces of the
// account.
func TestAccountFairness(t *testing.T) {
	const limit = 8 << 20
	account, bytes := newAccount(limit)
	flooded, other := indexer.New(), indexer.New()
	flooded.SetAccount(account)
	other.SetAccount(account)
	for slot := uint32(1); slot <= 4; slot++ {
		storeOne(flooded, slot, 1)
		storeOne(other, slot, 1)
	}
	n := uint64(1)
	for ; storeOne(flooded, 0, n).Refused == 0; n++ {
	}
	if used := bytes.Used(); used > limit*9/10 {
		t.Errorf("one rank has taken %d of %d bytes", used, limit)
	}
	for i := range uint64(1000) {
		for slot := uint32(1); slot <= 4; slot++ {
			for _, s := range []*indexer.Space{flooded, other} {
				if out := storeOne(s, slot, 2+i); out.Stored != 1 {
					t.Fatalf("block %d of slot %d: %+v", i, slot, out)
				}
			}
		}
		if out := storeOne(flooded, 0, n+i); out.Refused != 1 {
			t.Fatalf("the rank that has most gets more: %+v", out)
		}
	}
	flooded.Clear(0)
	if out := storeOne(flooded, 0, 1); out.Stored != 1 {
		t.Errorf("after its clear: %+v", out)
	}
	flooded.Discard()
	other.Discard()
	if used := bytes.Used(); used != 0 {
		t.Errorf("%d bytes are left", used)
	}
}

// TestAccountNewcomer: whatever number of ranks store without end, in Spaces of their own or
// in one, a rank that has nothing yet finds room.
func TestAccountNewcomer(t *testing.T) {
	length.Sequential(t)
	for _, ranks := range []uint32{1, 2, 8, 64} {
		for _, together := range []bool{false, true} {
			account, bytes := newAccount(32 << 20)
			spaces := make([]*indexer.Space, ranks)
			for i := range spaces {
				if i > 0 && together {
					spaces[i] = spaces[0]
					continue
				}
				spaces[i] = indexer.New()
				spaces[i].SetAccount(account)
			}
			n := uint64(1)
			for refused := uint32(0); refused < ranks; n++ {
				refused = 0
				for slot := range ranks {
					refused += uint32(storeOne(spaces[slot], slot, n).Refused)
				}
			}
			if used := bytes.Used(); used < 23<<20 {
				t.Errorf("%d ranks are refused when %d bytes are used", ranks, used)
			}
			newcomer := indexer.New()
			newcomer.SetAccount(account)
			for i := range uint64(20) {
				for _, s := range []*indexer.Space{newcomer, spaces[0]} {
					if out := storeOne(s, ranks, 1+i); out.Stored != 1 {
						t.Fatalf("beside %d ranks, together: %t, block %d of a newcomer: %+v", ranks, together, i, out)
					}
				}
			}
		}
	}
}

// TestAccountHistory: whatever happens, the account has what the Space says, and
// nothing once all ranks are forgotten.
func TestAccountHistory(t *testing.T) {
	for seed := range uint64(10) {
		r := rand.New(rand.NewPCG(seed, 1))
		account, bytes := newAccount(1 << 30)
		s := indexer.New()
		s.SetAccount(account)
		for range 3000 {
			slot, tier := uint32(r.IntN(4)), indexer.Tier(r.IntN(indexer.NumTiers))
			names, local := make([]uint64, 1+r.IntN(4)), []uint64{}
			for i := range names {
				names[i] = uint64(r.IntN(500))*4 + uint64(i) + 1
				local = append(local, uint64(r.IntN(40)))
			}
			switch r.IntN(12) {
			case 0:
				s.Clear(slot)
			case 1:
				s.ClearTier(slot, tier, 5)
			case 2:
				s.StoreByEngineHash(slot, tier, names)
			case 3, 4, 5:
				s.Remove(slot, tier, names)
			default:
				s.Store(&indexer.Store{
					Slot: slot, Tier: tier, Parent: uint64(r.IntN(2000)), HasParent: r.IntN(2) == 0,
					EngineHashes: names, Local: local, Seed: 5, SeedKnown: r.IntN(2) == 0,
				})
			}
			if used, flat := bytes.Used(), s.Stats().Bytes; used < flat {
				t.Fatalf("seed %d: the account has %d bytes, the index %d", seed, used, flat)
			}
		}
		for slot := range uint32(4) {
			s.Forget(slot)
		}
		if used := bytes.Used(); used != 0 {
			t.Fatalf("seed %d: %d bytes are left", seed, used)
		}
	}
}
