package indexer_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/indexer/hybrid"
	"github.com/select-service/select-service/test/helpers/length"
)

const mainSize = 16 // tokens of a block of the main group

// hybridEngine is a rank of a hybrid model as it is: how many copies each group has of
// the block that ends at a token of a prompt. All prompts are prefixes of one.
type hybridEngine struct {
	space  *indexer.Space
	slot   uint32
	chain  uint64 // names of blocks are chain plus the token at which they end
	main   int    // blocks that the main group has
	kinds  []hybrid.Group
	copies []map[uint64]int
}

func (e *hybridEngine) name(end uint64) uint64 { return e.chain + end }

// Has implements hybrid.Presence.
func (e *hybridEngine) Has(group int, end uint64) bool { return e.copies[group][end] > 0 }

// storeMain brings the main group to so many blocks.
func (e *hybridEngine) storeMain(blocks int) {
	e.main = max(e.main, blocks)
	ev := indexer.Store{Slot: e.slot, Counted: true}
	for i := range blocks {
		ev.EngineHashes = append(ev.EngineHashes, e.name(uint64(i+1)*mainSize))
		ev.Local = append(ev.Local, uint64(i+1))
	}
	e.space.Store(&ev)
}

// store announces that a group has the blocks from the one after start up to end. With
// some left out it announces only these others.
func (e *hybridEngine) store(group int, start, end uint64, leftOut map[uint64]bool) {
	size := e.kinds[group].BlockSize
	ev := indexer.GroupStore{
		Slot: e.slot, Group: int32(group + 1), Kind: e.kinds[group], KindKnown: true,
		MainBlockSize: mainSize, Parent: e.name(start), HasParent: start > 0, Dense: len(leftOut) == 0, Counted: true,
	}
	for at := start + size; at <= end; at += size {
		if !leftOut[at] {
			e.copies[group][at]++
			ev.EngineHashes = append(ev.EngineHashes, e.name(at))
		}
	}
	e.space.StoreInGroup(&ev)
}

func (e *hybridEngine) remove(group int, end uint64) {
	e.copies[group][end] = max(0, e.copies[group][end]-1)
	e.space.RemoveFromGroup(e.slot, int32(group+1), []uint64{e.name(end)})
}

func (e *hybridEngine) clear() {
	e.main = 0
	for i := range e.copies {
		e.copies[i] = map[uint64]int{}
	}
	e.space.Clear(e.slot)
}

// want is how many blocks of a prompt of n the engine can serve.
func (e *hybridEngine) want(n int) uint32 {
	return uint32(hybrid.Boundary(uint64(min(n, e.main))*mainSize, mainSize, e.kinds, e) / mainSize)
}

func newHybridEngine(s *indexer.Space, slot uint32, chain uint64, kinds ...hybrid.Group) *hybridEngine {
	e := &hybridEngine{space: s, slot: slot, chain: chain, kinds: kinds}
	for range kinds {
		e.copies = append(e.copies, map[uint64]int{})
	}
	return e
}

// prompt has the local hashes of n blocks.
func prompt(n int) (local []uint64) {
	for i := range n {
		local = append(local, uint64(i+1))
	}
	return local
}

// histories is how many random histories of 400 steps are played.
func histories() int {
	return length.Of(300, 60, 10)
}

// TestGroupsAgainstEngines plays random histories of several ranks, which name blocks
// alike or not and have groups of any kind and block size.
func TestGroupsAgainstEngines(t *testing.T) {
	const blocks = 24
	for seed := range uint64(histories()) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			space := indexer.New()
			account, bytes := newAccount(1 << 30)
			space.SetAccount(account)
			var engines []*hybridEngine
			for slot := range uint32(3) {
				var kinds []hybrid.Group
				for range 1 + rnd.IntN(3) {
					kinds = append(kinds, hybrid.Group{
						Kind: hybrid.Kind(rnd.IntN(4)), BlockSize: []uint64{4, 8, 16, 16, 32}[rnd.IntN(5)], Span: rnd.Uint64N(80),
					})
				}
				engines = append(engines, newHybridEngine(space, slot, rnd.Uint64N(2)<<32, kinds...))
				for group, kind := range kinds {
					engines[slot].store(group, 0, kind.BlockSize, nil) // it reports
				}
			}
			engines = append(engines, newHybridEngine(space, 3, 0)) // without other groups
			var o indexer.Overlap
			for range 400 {
				e := engines[rnd.IntN(len(engines))]
				if e.main == 0 || rnd.IntN(8) == 0 {
					e.storeMain(1 + rnd.IntN(blocks))
				}
				if len(e.kinds) > 0 {
					group := rnd.IntN(len(e.kinds))
					size := e.kinds[group].BlockSize
					switch at := func() uint64 { return rnd.Uint64N(blocks*mainSize/size+1) * size }; rnd.IntN(12) {
					case 0:
						if rnd.IntN(10) == 0 {
							e.clear()
						}
					case 1, 2, 3, 4, 5:
						e.remove(group, at())
					case 6:
						// What is left out of a finer group's event ties no names together: the
						// index then knows less.
						if size >= mainSize {
							e.store(group, 0, blocks*mainSize, map[uint64]bool{at(): true, at(): true})
						}
					default:
						from := at()
						e.store(group, from, from+at(), nil)
					}
				}
				n := rnd.IntN(blocks + 2)
				space.Overlap(prompt(n), &o)
				for _, e := range engines {
					if got, _, _ := o.At(e.slot); got != e.want(n) {
						t.Fatalf("slot %d, prompt of %d blocks, groups %v that have %v: %d, want %d", e.slot, n, e.kinds, e.copies, got, e.want(n))
					}
				}
				if err := space.Check(); err != nil {
					t.Fatal(err)
				}
			}
			for slot := range uint32(4) {
				space.Forget(slot)
			}
			if used := bytes.Used(); used != 0 {
				t.Errorf("%d bytes are left", used)
			}
		})
	}
}

// windowEngine is a rank of a model whose only group has a window: how many copies it
// has of each block, by number and by which of two prompts it is of.
type windowEngine struct {
	slot   uint32
	needed int // blocks of a window
	chain  uint64
	copies map[uint64]int // by local hash
}

// forkedPrompt has the local hashes of n blocks of one of two prompts, equal up to the
// eighth.
func forkedPrompt(which, n int) []uint64 {
	local := prompt(n)
	for i := 8; i < n; i++ {
		local[i] += uint64(1000 * which)
	}
	return local
}

// want tries every length.
func (e *windowEngine) want(local []uint64) uint32 {
	for length := len(local); length > 0; length-- {
		held := true
		for _, l := range local[max(0, length-e.needed):length] {
			held = held && e.copies[l] > 0
		}
		if held {
			return uint32(length)
		}
	}
	return 0
}

// TestWindowsAloneAgainstEveryLength plays random histories of ranks of models without
// full attention, beside one of another model, and compares with trying every length.
func TestWindowsAloneAgainstEveryLength(t *testing.T) {
	const blocks = 24
	longer := 0
	for seed := range uint64(histories()) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		space := indexer.New()
		var engines []*windowEngine
		for slot := range uint32(3) {
			e := &windowEngine{slot, 1 + rnd.IntN(6), rnd.Uint64N(2) << 32, map[uint64]int{}}
			engines = append(engines, e)
			space.StoreInGroup(&indexer.GroupStore{
				Slot: slot, Main: true, MainBlockSize: mainSize, KindKnown: true,
				Kind: hybrid.Group{Kind: hybrid.Window, BlockSize: mainSize, Span: uint64(e.needed*mainSize) - rnd.Uint64N(mainSize-1)},
			})
		}
		full := &windowEngine{3, blocks, 0, map[uint64]int{}} // needs all blocks
		engines = append(engines, full)
		var o indexer.Overlap
		for range 400 {
			e := engines[rnd.IntN(len(engines))]
			local := forkedPrompt(rnd.IntN(2), blocks)
			switch at := rnd.IntN(blocks); {
			case rnd.IntN(100) == 0:
				space.Clear(e.slot)
				clear(e.copies)
			case rnd.IntN(3) > 0:
				if l := local[at]; e.copies[l] > 0 {
					e.copies[l]--
				}
				space.Remove(e.slot, indexer.Device, []uint64{e.chain + local[at]})
			default:
				for at > 0 && e.copies[local[at-1]] == 0 {
					at-- // what is stored follows a block that is there
				}
				ev := indexer.Store{Slot: e.slot, Counted: true, HasParent: at > 0, Local: local[at : at+1+rnd.IntN(blocks-at)]}
				if at > 0 {
					ev.Parent = e.chain + local[at-1]
				}
				for _, l := range ev.Local {
					e.copies[l]++
					ev.EngineHashes = append(ev.EngineHashes, e.chain+l)
				}
				space.Store(&ev)
			}
			asked := forkedPrompt(rnd.IntN(2), rnd.IntN(blocks+2))
			space.Overlap(asked, &o)
			for _, e := range engines {
				got, _, _ := o.At(e.slot)
				if want := e.want(asked); got != want {
					t.Fatalf("seed %d, slot %d needs %d, prompt %v, has %v: %d, want %d", seed, e.slot, e.needed, asked, e.copies, got, want)
				}
				if got > 0 && e.copies[1] == 0 {
					longer++
				}
			}
			if err := space.Check(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if longer < 1000 {
		t.Errorf("only %d prefixes without their first block", longer)
	}
}

// TestWindowsAloneLife: behind a prefix without all of its blocks no other tier
// continues; a rank that is being cleared has none, a further group shortens it.
func TestWindowsAloneLife(t *testing.T) {
	s := indexer.New()
	main := indexer.GroupStore{Kind: aWindow, KindKnown: true, MainBlockSize: mainSize, Main: true}
	s.StoreInGroup(&main)
	chain(s, 0, 0, 1, 2, 3, 4)
	s.Store(&indexer.Store{Tier: indexer.Host, Parent: 4, HasParent: true, EngineHashes: []uint64{5}, Local: []uint64{5}})
	want := func(device, host uint32) {
		t.Helper()
		var o indexer.Overlap
		s.Overlap(prompt(6), &o)
		if d, h, _ := o.At(0); d != device || h != host {
			t.Errorf("%d/%d, want %d/%d", d, h, device, host)
		}
	}
	want(4, 1)
	s.Remove(0, indexer.Device, []uint64{1})
	want(4, 0)
	other := indexer.GroupStore{Group: 1, Kind: aWindow, KindKnown: true, MainBlockSize: mainSize, EngineHashes: []uint64{2, 3}}
	s.StoreInGroup(&other)
	want(3, 0)
	s.Remove(0, indexer.Device, []uint64{2})
	want(0, 0)
	s.ForgetGroups(0)
	chain(s, 0, 0, 1, 2)
	want(4, 1)
	s.StoreInGroup(&main)
	s.Hide(0)
	want(0, 0)
}

var aWindow = hybrid.Group{Kind: hybrid.Window, BlockSize: mainSize, Span: 2*mainSize + 1}

// TestGroupsProvisional: after a loss the first removal ends a block, and the first
// store makes it one of one copy.
func TestGroupsProvisional(t *testing.T) {
	s := indexer.New()
	e := newHybridEngine(s, 0, 0, aWindow)
	e.storeMain(4)
	e.store(0, 0, 64, nil)
	e.store(0, 0, 64, nil)
	s.MakeProvisional(0)
	e.store(0, 32, 48, nil) // one copy again
	e.remove(0, 64)
	if got := deviceOf(s, 4); got != 3 {
		t.Errorf("after a removal %d blocks, want 3", got)
	}
	e.remove(0, 48)
	if got := deviceOf(s, 4); got != 2 {
		t.Errorf("after another %d blocks, want 2", got)
	}
}

// deviceOf returns slot 0's prefix of a prompt of n blocks.
func deviceOf(s *indexer.Space, n int) uint32 {
	var o indexer.Overlap
	s.Overlap(prompt(n), &o)
	device, _, _ := o.At(0)
	return device
}

// TestGroupsLife: groups that never reported do not count; those of an engine that is
// another one are forgotten, and a clear forgets blocks only.
func TestGroupsLife(t *testing.T) {
	s := indexer.New()
	var counted indexer.HybridStats
	s.SetHybridStats(&counted)
	e := newHybridEngine(s, 0, 0, aWindow)
	e.storeMain(4)
	if s.RemoveFromGroup(0, 1, []uint64{1}) || s.RemoveFromGroup(9, 1, []uint64{1}) {
		t.Error("a group that never reported is known")
	}
	if s.StoreInGroup(&indexer.GroupStore{Group: 1, EngineHashes: []uint64{1}}) {
		t.Error("a group of an unknown kind is noted")
	}
	if got := deviceOf(s, 4); got != 4 {
		t.Errorf("without reports %d blocks, want 4", got)
	}
	e.store(0, 0, 64, map[uint64]bool{64: true, 16: true})
	if got := deviceOf(s, 4); got != 3 {
		t.Errorf("with a window %d blocks, want 3", got)
	}
	if w, sh, b := counted.Whole.Load(), counted.Shortened.Load(), counted.Blocks.Load(); w != 0 || sh != 1 || b != 1 {
		t.Errorf("counted %d whole, %d shortened by %d", w, sh, b)
	}
	e.clear()
	e.storeMain(4)
	if got := deviceOf(s, 4); got != 0 {
		t.Errorf("after a clear %d blocks, want 0", got)
	}
	s.ForgetGroups(0)
	s.ForgetGroups(9)
	if got := deviceOf(s, 4); got != 4 {
		t.Errorf("of another engine %d blocks, want 4", got)
	}
}

// TestGroupsLowerTiers: behind a prefix that was shortened nothing continues.
func TestGroupsLowerTiers(t *testing.T) {
	s := indexer.New()
	e := newHybridEngine(s, 0, 0, aWindow)
	e.storeMain(4)
	for _, tier := range []indexer.Tier{indexer.Host, indexer.Disk} {
		end := 64 + 16*uint64(tier)
		s.Store(&indexer.Store{Tier: tier, Parent: e.name(end - 16), HasParent: true, EngineHashes: []uint64{e.name(end)}, Local: []uint64{end / 16}})
	}
	want := func(device, host, disk uint32) {
		t.Helper()
		var o indexer.Overlap
		s.Overlap(prompt(6), &o)
		if d, h, k := o.At(0); d != device || h != host || k != disk {
			t.Errorf("%d/%d/%d, want %d/%d/%d", d, h, k, device, host, disk)
		}
	}
	e.store(0, 0, 64, nil)
	want(4, 1, 1)
	e.remove(0, 64)
	want(3, 0, 0)
}

// TestGroupsBounds: a slot with too many groups, or too little memory, promises nothing
// that it does not know.
func TestGroupsBounds(t *testing.T) {
	s := indexer.New()
	for group := range int32(100) {
		ev := &indexer.GroupStore{Group: group, Kind: hybrid.Group{BlockSize: mainSize}, KindKnown: true, MainBlockSize: mainSize, EngineHashes: []uint64{16}}
		s.StoreInGroup(ev)
	}
	newHybridEngine(s, 0, 0).storeMain(1)
	if got := deviceOf(s, 1); got != 0 {
		t.Errorf("with 100 groups %d blocks, want 0", got)
	}

	const limit = 1 << 20
	account, bytes := newAccount(limit)
	s = indexer.New()
	s.SetAccount(account)
	e := newHybridEngine(s, 0, 0, aWindow)
	e.storeMain(4)
	for range 1000 {
		e.store(0, 64, 64+160*mainSize, nil)
		e.chain += 1 << 32
	}
	if used := bytes.Used(); used < limit*3/4 || used > limit*3/2 || bytes.Refused() == 0 {
		t.Errorf("%d bytes of %d, %d refused", used, limit, bytes.Refused())
	}
}

// TestRoomIsCharged: removals of all names but one leave the memory of the others.
func TestRoomIsCharged(t *testing.T) {
	const blocks = 1000
	account, bytes := newAccount(1 << 30)
	s := indexer.New()
	s.SetAccount(account)
	e := newHybridEngine(s, 0, 0, aWindow)
	e.storeMain(blocks)
	base := bytes.Used()
	e.storeMain(blocks) // copies
	e.store(0, 0, blocks*mainSize, nil)
	full := bytes.Used()
	for i := range uint64(blocks - 1) {
		e.remove(0, (i+1)*mainSize)
		s.Remove(0, indexer.Device, []uint64{e.name((i + 1) * mainSize)})
	}
	if left := bytes.Used(); full == base || left != full {
		t.Errorf("%d bytes, full %d, but for one %d", base, full, left)
	}
	e.remove(0, blocks*mainSize)
	s.Remove(0, indexer.Device, []uint64{e.name(blocks * mainSize)})
	if left := bytes.Used(); left != base {
		t.Errorf("%d bytes at the end, want %d", left, base)
	}
}

// TestGroupsBoundLookUps: groups that agree on no length make an Overlap give up, not
// look at the prompt once more for each of its blocks.
func TestGroupsBoundLookUps(t *testing.T) {
	const blocks = 1000
	s := indexer.New()
	state := hybrid.Group{Kind: hybrid.State, BlockSize: mainSize}
	e := newHybridEngine(s, 0, 0, hybrid.Group{Kind: hybrid.Window, BlockSize: mainSize, Span: 1 << 31}, state, state)
	e.storeMain(blocks)
	e.store(0, 0, blocks*mainSize, nil)
	odd, even := map[uint64]bool{}, map[uint64]bool{}
	for i := range uint64(blocks + 1) {
		[]map[uint64]bool{even, odd}[i%2][i*mainSize] = true
	}
	delete(odd, mainSize)
	delete(even, 2*mainSize) // one has all odd blocks, the other all even ones and the first
	e.store(1, 0, blocks*mainSize, even)
	e.store(2, 0, blocks*mainSize, odd)
	if got := deviceOf(s, blocks); got != 0 {
		t.Errorf("%d blocks of many, want 0", got)
	}
	if got := deviceOf(s, 50); got != e.want(50) || got == 0 {
		t.Errorf("%d blocks of a short prompt, want %d", got, e.want(50))
	}
}

// BenchmarkOverlapHybrid looks up a prompt of 512 blocks on 16 ranks of a model with
// five groups of windows, which have the last window of the prompt or none at all.
func BenchmarkOverlapHybrid(b *testing.B) {
	const blocks = 512
	window := hybrid.Group{Kind: hybrid.Window, BlockSize: mainSize, Span: 1024}
	for name, kept := range map[string]uint64{"kept": blocks * mainSize, "gone": 0} {
		b.Run(name, func(b *testing.B) {
			s := indexer.New()
			for slot := range uint32(16) {
				e := newHybridEngine(s, slot, 0, window, window, window, window, window)
				e.storeMain(blocks)
				for group := range e.kinds {
					e.store(group, 0, kept, nil)
					e.store(group, blocks*mainSize, blocks*mainSize+2000*mainSize, nil) // of other prompts
				}
			}
			local := prompt(blocks)
			var o indexer.Overlap
			b.ReportAllocs()
			for b.Loop() {
				s.Overlap(local, &o)
			}
		})
	}
}

// BenchmarkOverlapWindowsAlone looks up a prompt of 512 blocks on 256 ranks of a model
// without full attention. All have its first 32 blocks, one has all.
func BenchmarkOverlapWindowsAlone(b *testing.B) {
	const blocks = 512
	s := indexer.New()
	for slot := range uint32(256) {
		s.StoreInGroup(&indexer.GroupStore{
			Slot: slot, Main: true, MainBlockSize: mainSize, KindKnown: true,
			Kind: hybrid.Group{Kind: hybrid.Window, BlockSize: mainSize, Span: 1024},
		})
		local := prompt(32)
		if slot == 0 {
			local = prompt(blocks)
		}
		s.Store(&indexer.Store{Slot: slot, Counted: true, EngineHashes: local, Local: local})
	}
	local := prompt(blocks)
	var o indexer.Overlap
	b.ReportAllocs()
	for b.Loop() {
		s.Overlap(local, &o)
	}
}
