package indexer_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/test/helpers/length"
)

// script plays a history that is written in bytes to the index and to the
// model. Every byte string is a history, and one byte changes one thing in it.
type script struct {
	t     testing.TB
	space *indexer.Space
	model *model
	next  func() (byte, bool)
	slots uint32
	// ownSeeds: every second rank names blocks by a hash seed of its own, and by
	// another one when a new rank takes its slot.
	ownSeeds bool
	// collide: names of different blocks may be equal.
	collide bool
	// renames: a rank may give a block several names.
	renames bool
	born    map[uint32]uint64 // ranks that had a slot
	forgot  func(slot uint32) // told of removals, if set
	touched uint32            // slot of the last step
	prompts [][]uint64
	o       indexer.Overlap
}

func newScript(t testing.TB, next func() (byte, bool), slots uint32) *script {
	s := &script{t: t, space: indexer.New(), model: newModel(), next: next, slots: slots, born: map[uint32]uint64{}}
	mode := s.byte()
	s.ownSeeds, s.collide, s.renames = mode&1 != 0, mode&2 != 0, mode&4 != 0
	return s
}

func (s *script) byte() byte {
	b, _ := s.next()
	return b
}

func (s *script) tier() indexer.Tier { return indexer.Tier(s.byte() & 3) }

func (s *script) slot() uint32 { return uint32(s.byte()) % s.slots }

// salts is how many block seeds there are; the local hashes of each are apart.
const salts = 3

// prompt reads a chain: stretches of equal local hashes, so that chains share
// prefixes and part at any depth.
func (s *script) prompt() (local []uint64, salt uint64) {
	head := s.byte()
	salt = uint64(head>>2) % salts
	for range head&3 + 1 {
		b := s.byte()
		for range b>>2 + 1 {
			local = append(local, 100+1000*salt+uint64(b&3))
		}
	}
	s.prompts = append(s.prompts, local)
	return local, salt
}

// names are a rank's hashes of a chain.
func (s *script) names(slot uint32, local []uint64) []uint64 {
	names := make([]uint64, len(local))
	h := uint64(17)
	if s.ownSeeds && slot%2 == 1 {
		h += uint64(slot)<<32 + s.born[slot]
	}
	if s.renames {
		h += uint64(s.byte()&3) << 56
	}
	for i, l := range local {
		h = h*6364136223846793005 + l
		names[i] = h
	}
	if s.collide {
		names[int(s.byte())%len(names)] = uint64(s.byte() & 3)
	}
	return names
}

// run plays the history to its end.
func (s *script) run() {
	for n := 1; ; n++ {
		op, more := s.next()
		if !more {
			break
		}
		s.step(op)
		if n%64 == 0 {
			s.check()
		}
	}
	s.check()
	for _, local := range s.prompts[max(0, len(s.prompts)-10):] {
		s.query(local)
	}
	for slot := range s.slots {
		s.space.Forget(slot)
	}
	if st := s.space.Stats(); st != (indexer.Stats{}) {
		s.t.Fatalf("after the last rank: %+v", st)
	}
}

func (s *script) step(op byte) {
	slot, tier := s.slot(), s.tier()
	s.touched = slot
	switch op & 15 {
	default:
		s.store(slot, tier, op)
	case 8, 9, 10, 11:
		local, _ := s.prompt()
		names := s.names(slot, local)
		names = names[int(s.byte())%len(names):]
		if op&16 != 0 {
			slices.Reverse(names)
		}
		if op&32 != 0 {
			names = names[:1]
		}
		s.space.Remove(slot, tier, names)
		s.model.remove(slot, tier, names)
	case 12, 13:
		local, _ := s.prompt()
		names := s.names(slot, local)
		if s.ownSeeds || s.collide || s.renames {
			return // what a name meant before is not what it means
		}
		names = names[int(s.byte())%len(names):]
		if op&16 != 0 {
			slices.Reverse(names)
		}
		s.space.StoreByEngineHash(slot, tier, names)
		s.model.storeNamed(slot, tier, names)
	case 14:
		if op&32 != 0 {
			s.space.MakeProvisional(slot)
			s.model.rank(slot).doubt()
			return
		}
		if op&16 == 0 {
			s.space.Clear(slot)
		} else {
			s.space.Forget(slot)
			s.born[slot]++
			if s.forgot != nil {
				s.forgot(slot)
			}
		}
		s.model.clear(slot)
	case 15:
		local, _ := s.prompt()
		s.query(local)
	}
}

func (s *script) store(slot uint32, tier indexer.Tier, op byte) {
	local, salt := s.prompt()
	names := s.names(slot, local)
	ev := &indexer.Store{Slot: slot, Tier: tier, EngineHashes: names, Local: local, Seed: hashing.Seed + salt, SeedKnown: true}
	if op&16 != 0 { // the chain goes on from a block
		if from := int(s.byte()) % len(names); from > 0 {
			ev.Parent, ev.HasParent = names[from-1], true
			ev.EngineHashes, ev.Local = names[from:], local[from:]
			ev.SeedKnown = op&32 != 0
		}
	}
	switch how := s.byte(); {
	case how < 200:
		ev.Counted = true
	case how < 230: // names of blocks with several ones stay doubtful for longer
		ev.Provisional = !s.ownSeeds && !s.collide && !s.renames
	}
	if distinct(ev.EngineHashes, ev.Parent, ev.HasParent) {
		s.space.Store(ev)
		s.model.store(ev)
	}
}

// query compares the answers to a prompt for all ranks.
func (s *script) query(local []uint64) {
	s.t.Helper()
	s.space.Overlap(local, &s.o)
	for slot := range s.slots {
		d, h, k := s.o.At(slot)
		if md, mh, mk := s.model.overlap(slot, local); d != md || h != mh || k != mk {
			s.t.Fatalf("slot %d, prompt %v: index says %d/%d/%d, model %d/%d/%d", slot, local, d, h, k, md, mh, mk)
		}
	}
}

// check compares what can be counted, and asks for the seed of every block.
func (s *script) check() {
	s.t.Helper()
	if err := s.space.Check(); err != nil {
		s.t.Fatal(err)
	}
	st := s.space.Stats()
	for tier := range indexer.Tier(indexer.NumTiers) {
		if got, want := st.Blocks[tier], s.model.blocks(tier); got != want {
			s.t.Fatalf("%v: %d entries, model has %d", tier, got, want)
		}
	}
	if want := s.model.copies(); st.Copies != want {
		s.t.Fatalf("%d further copies, model has %d", st.Copies, want)
	}
	held := s.space.DeviceBlocks(nil)
	for slot := range uint32(max(len(held), int(s.slots))) {
		got := 0
		if int(slot) < len(held) {
			got = held[slot]
		}
		if want := s.model.ranks[slot].blocks(indexer.Device); got != want || got != s.space.Held(slot)[indexer.Device] {
			s.t.Fatalf("slot %d: %d blocks held, model has %d", slot, got, want)
		}
	}
	waiting := 0
	for slot, r := range s.model.ranks {
		waiting += len(r.waiting)
		if s.collide {
			continue
		}
		for t := range r.named {
			for name, p := range r.named[t] {
				want := hashing.Seed + s.model.up[p].local/1000
				if got, ok := s.space.ParentSeed(slot, name); got != want || !ok {
					s.t.Fatalf("slot %d, name %d: seed %d, %v, want %d", slot, name, got, ok, want)
				}
			}
		}
	}
	if st.Orphans != waiting {
		s.t.Fatalf("%d orphans, model has %d", st.Orphans, waiting)
	}
}

// TestHistories proves exactness for long random histories with salts and many
// ranks that come and go, new ranks in old slots with names of their own.
func TestHistories(t *testing.T) {
	bytes := length.Of(15_000, 3_000, 1_500)
	for mode := range byte(8) {
		for _, slots := range []uint32{2, 9, 70, 200} {
			t.Run(fmt.Sprintf("mode=%d/slots=%d", mode, slots), func(t *testing.T) {
				t.Parallel()
				rnd := rand.New(rand.NewPCG(uint64(mode), uint64(slots)))
				left := bytes
				newScript(t, func() (byte, bool) {
					if left--; left == bytes-1 {
						return mode, true
					}
					return byte(rnd.Uint32()), left > 0
				}, slots).run()
			})
		}
	}
}

// FuzzHistory lets the fuzzer write histories byte by byte.
func FuzzHistory(f *testing.F) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for mode := range byte(8) {
		for _, n := range []int{40, 400, 1200} {
			seed := []byte{mode}
			for range n {
				seed = append(seed, byte(rnd.Uint32()))
			}
			f.Add(seed, mode*15)
		}
	}
	f.Fuzz(func(t *testing.T, history []byte, slots byte) {
		if len(history) > 4000 {
			return // the model is slow
		}
		newScript(t, func() (b byte, more bool) {
			if len(history) == 0 {
				return 0, false
			}
			b, history = history[0], history[1:]
			return b, true
		}, uint32(slots)%130+1).run()
	})
}
