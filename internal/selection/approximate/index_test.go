package approximate

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/memory"
	"github.com/select-service/select-service/pkg/recovery"
	"github.com/select-service/select-service/test/helpers/length"
)

// fixture is an index with one scope, on a clock of its own.
type fixture struct {
	*Index
	t     *testing.T
	clock time.Time
	scope *Scope
	space *indexer.Space // of the scope
}

// newFixture returns an index with a tick of one second: blocks are due when 65
// seconds have passed since the second of their last reservation began.
func newFixture(t *testing.T, limit int) *fixture {
	f := &fixture{t: t, clock: time.Unix(1e9, 0)}
	f.Index = New(64*time.Second, limit, nil, func() time.Time { return f.clock })
	f.addScope()
	return f
}

// addScope makes a new scope the one that is tested.
func (f *fixture) addScope() {
	f.space = indexer.New()
	f.scope = f.NewScope(recovery.NewGate(f.space, false))
}

func entry(slot uint32, worker uint64) catalog.Entry {
	return catalog.Entry{Rank: catalog.Rank{Worker: worker, DP: slot}, Slot: slot}
}

func (f *fixture) enter(e catalog.Entry) { f.scope.AssignSlot(e.Slot, e.Rank) }

// held is how many leading blocks of a prompt the index shows for a slot.
func (f *fixture) held(slot uint32, local ...uint64) int {
	var o indexer.Overlap
	f.space.Overlap(local, &o)
	device, host, disk := o.At(slot)
	if host != 0 || disk != 0 {
		f.t.Errorf("tiers below the device have %d and %d blocks", host, disk)
	}
	return int(device)
}

func (f *fixture) want(blocks int, slot uint32, local ...uint64) {
	f.t.Helper()
	if got := f.held(slot, local...); got != blocks {
		f.t.Errorf("slot %d holds %d blocks of %v, want %d", slot, got, local, blocks)
	}
}

// check returns what is wrong with the order, the ranks, or the sum of blocks in
// the index of the scope.
func (f *fixture) check() error {
	x := f.Index
	x.mu.Lock()
	defer x.mu.Unlock()
	n, tick := 0, int64(dueTick)
	byRank := make(map[uint32]int)
	for id := x.block(0).newer; id != 0; id = x.block(id).newer {
		b := x.block(id)
		if x.block(b.newer).older != id || x.block(b.older).newer != id {
			return fmt.Errorf("block %d is not linked", id)
		}
		if b.tick < tick {
			return fmt.Errorf("block %d of %d behind one of %d", id, b.tick, tick)
		}
		tick = b.tick
		r := x.ranks[b.rank]
		if r.blocks != nil && r.blocks[b.hash] != id {
			return fmt.Errorf("rank %d does not know block %d", b.rank, id)
		}
		byRank[b.rank]++
		n++
	}
	for id := uint32(1); id < x.used; id++ {
		if b := x.block(id); b.leases > 0 { // in no list
			byRank[b.rank]++
			n++
		}
	}
	for _, r := range x.ranks {
		if r == nil || r.end == 0 {
			continue
		}
		for id := x.block(r.end).newer; id != r.end; id = x.block(id).newer {
			b := x.block(id)
			if b.leases > 0 || b.rank != r.number || r.blocks[b.hash] != id {
				return fmt.Errorf("rank %d does not know block %d", b.rank, id)
			}
			byRank[r.number]++
			n++
		}
	}
	if n != x.n || n > x.limit {
		return fmt.Errorf("%d blocks in the order, %d counted, limit %d", n, x.n, x.limit)
	}
	for i, r := range x.ranks {
		if r == nil != slices.Contains(x.freeNumbers, uint32(i)) {
			return fmt.Errorf("rank %d: %v", i, r)
		}
		if r == nil {
			continue
		}
		if r.n != byRank[uint32(i)] || r.blocks != nil && len(r.blocks) != r.n {
			return fmt.Errorf("rank %d has %d blocks, knows %d and counts %d", i, byRank[uint32(i)], len(r.blocks), r.n)
		}
		if r.blocks == nil && r.n == 0 {
			return fmt.Errorf("rank %d has no blocks, and its number is not free", i)
		}
		if r.blocks != nil && r.gate == f.scope.gate {
			if held := f.space.Held(r.slot); held[indexer.Device] != r.n {
				return fmt.Errorf("slot %d holds %v blocks in the index, %d were booked", r.slot, held, r.n)
			}
		}
	}
	if o := f.space.Stats().Orphans; o != 0 {
		return fmt.Errorf("%d blocks without a parent", o)
	}
	return nil
}

// TestTTL: a block lives from its last reservation; a prefix that was booked again
// outlives what was behind it.
func TestTTL(t *testing.T) {
	f := newFixture(t, 100)
	a, b := entry(0, 1), entry(1, 2)
	f.enter(a)
	f.enter(b)
	f.scope.Book(a, []uint64{1, 2, 3, 4})
	f.want(4, 0, 1, 2, 3, 4, 5)
	f.want(0, 1, 1, 2, 3, 4)
	f.clock = f.clock.Add(40 * time.Second)
	f.scope.Book(a, []uint64{1, 2})
	f.scope.Book(b, []uint64{1, 2, 3})
	f.scope.Book(b, nil)
	f.clock = f.clock.Add(24 * time.Second) // 64 s
	f.Sweep()
	f.want(4, 0, 1, 2, 3, 4)
	f.clock = f.clock.Add(time.Second)
	f.Sweep()
	f.want(2, 0, 1, 2, 3, 4)
	f.want(3, 1, 1, 2, 3, 4)
	f.scope.Book(a, []uint64{1, 2, 3})
	f.want(3, 0, 1, 2, 3, 4)
	f.clock = f.clock.Add(65 * time.Second)
	f.Sweep()
	f.want(0, 0, 1, 2, 3, 4)
	if err := f.check(); err != nil || f.n != 0 || f.used != 1 {
		t.Error(err, f.n, f.used)
	}
}

// TestSameTick: a second reservation in the same tick changes nothing in the
// order but what is new.
func TestSameTick(t *testing.T) {
	f := newFixture(t, 100)
	a := entry(0, 1)
	f.enter(a)
	f.scope.Book(a, []uint64{1, 2})
	f.scope.Book(a, []uint64{1, 2, 3, 4})
	f.scope.Book(a, []uint64{1, 2, 5})
	f.scope.Book(a, []uint64{1})
	f.clock = f.clock.Add(time.Second)
	f.scope.Book(a, []uint64{1, 2, 5, 6})
	var depths []uint32
	for id := f.block(0).newer; id != 0; id = f.block(id).newer {
		depths = append(depths, f.block(id).depth)
	}
	if !slices.Equal(depths, []uint32{3, 2, 3, 2, 1, 0}) {
		t.Errorf("order %v", depths)
	}
	if err := f.check(); err != nil {
		t.Error(err)
	}
}

// TestSlots: what was booked for a rank goes with it. Nothing is
// entered for one that has left, and its slot begins empty for the next one,
// as do two ranks of the same slot number in two scopes.
func TestSlots(t *testing.T) {
	f := newFixture(t, 100)
	a, b := entry(0, 1), entry(0, 2)
	f.scope.Book(a, []uint64{1, 2})
	f.want(0, 0, 1, 2)
	f.enter(a)
	f.scope.Book(a, []uint64{1, 2})
	f.enter(a) // it is there already
	f.want(2, 0, 1, 2)
	f.scope.ReleaseSlot(0)
	f.want(0, 0, 1, 2)
	f.scope.Book(a, []uint64{1, 2})
	f.want(0, 0, 1, 2)
	f.enter(b)
	f.scope.Book(a, []uint64{1, 2})
	f.want(0, 0, 1, 2)
	f.clock = f.clock.Add(30 * time.Second)
	f.scope.Book(b, []uint64{1})
	f.clock = f.clock.Add(35 * time.Second) // what a had is due
	f.Sweep()
	f.want(1, 0, 1, 2)
	f.enter(a) // the slot changes its rank without a ReleaseSlot
	f.want(0, 0, 1, 2)
	f.scope.Book(b, []uint64{1})
	f.want(0, 0, 1)

	first, firstSpace := f.scope, f.space
	f.addScope()
	f.enter(a)
	f.want(0, 0, 1)
	f.scope.Book(a, []uint64{1})
	f.scope, f.space = first, firstSpace
	f.want(0, 0, 1)
	f.scope.ReleaseSlot(0)
	f.scope.ReleaseSlot(0)
	f.clock = f.clock.Add(time.Hour)
	f.Sweep()
	if err := f.check(); err != nil {
		t.Error(err)
	}
}

// TestLimit: the oldest make room, of whichever rank, and a prompt that
// is larger than all the room is entered as far as it goes.
func TestLimit(t *testing.T) {
	f := newFixture(t, 4)
	a, b := entry(0, 1), entry(1, 2)
	f.enter(a)
	f.enter(b)
	f.scope.Book(a, []uint64{1, 2, 3})
	f.clock = f.clock.Add(time.Second)
	f.scope.Book(b, []uint64{1, 2, 3})
	f.want(1, 0, 1, 2, 3)
	f.want(3, 1, 1, 2, 3)
	f.scope.Book(b, []uint64{9, 8, 7, 6, 5, 4})
	f.want(0, 0, 1)
	f.want(0, 1, 1)
	f.want(4, 1, 9, 8, 7, 6, 5, 4)
	if err := f.check(); err != nil {
		t.Error(err)
	}
	f.clock = f.clock.Add(time.Second)
	f.scope.Book(b, []uint64{9, 8, 1, 1}) // evicts blocks of its own rank
	f.want(4, 1, 9, 8, 1, 1)
	f.want(2, 1, 9, 8, 7)
	f.scope.Book(b, []uint64{9, 8, 1, 1, 1, 1})
	f.want(4, 1, 9, 8, 1, 1, 1, 1)
	if err := f.check(); err != nil {
		t.Error(err)
	}
	none := newFixture(t, 0)
	none.enter(a)
	none.scope.Book(a, []uint64{1})
	none.want(0, 0, 1)
}

// TestNoRoom: what the account of the scope's index refuses is not predicted, and
// nothing of it is kept. The account has what index and order take.
func TestNoRoom(t *testing.T) {
	f := newFixture(t, 100)
	account := memory.NewAccount("test", 1<<20)
	f.Index = New(time.Minute, 100, account, f.now)
	f.addScope()
	f.space.SetAccount(indexer.NewAccount(account))
	a := entry(0, 1)
	f.enter(a)
	empty := account.Used()
	f.scope.Book(a, []uint64{1, 2, 3})
	if got := account.Used() - empty; got < 3*entryBytes {
		t.Errorf("3 blocks take %d bytes", got)
	}
	account.Add(1 << 20)
	f.scope.Book(a, []uint64{1, 2, 3, 4, 5})
	f.want(3, 0, 1, 2, 3, 4, 5)
	if err := f.check(); err != nil {
		t.Error(err)
	}
	account.Add(-1 << 20)
	f.scope.Book(a, []uint64{1, 2, 3, 4, 5})
	f.want(5, 0, 1, 2, 3, 4, 5)
	f.scope.Clear(0)
	f.scope.Clear(7)
	f.clock = f.clock.Add(time.Hour)
	f.Sweep()
	f.want(0, 0, 1)
	if err := f.check(); err != nil || account.Used() < empty || account.Used() > empty+1<<16 {
		t.Error(err, empty, account.Used())
	}
}

// TestLongPrompt: a prompt that goes in parts is there as a whole, and again.
func TestLongPrompt(t *testing.T) {
	f := newFixture(t, 1<<20)
	a := entry(0, 1)
	f.enter(a)
	long := make([]uint64, 2*maxAtOnce+10)
	for i := range long {
		long[i] = uint64(i) + 1
	}
	for range 2 {
		f.scope.Book(a, long)
		f.want(len(long), 0, long...)
		if err := f.check(); err != nil {
			t.Fatal(err)
		}
		f.clock = f.clock.Add(time.Minute)
		f.Sweep()
	}
	f.clock = f.clock.Add(5 * time.Second)
	f.Sweep()
	f.want(0, 0, long...)
}

// TestEqualHashes: of two blocks with one rolling hash the rank has the one
// that came first; what is behind the other is not entered. Local hashes that
// are no hashes do no harm.
func TestEqualHashes(t *testing.T) {
	f := newFixture(t, 100)
	a := entry(0, 1)
	f.enter(a)
	f.scope.Book(a, []uint64{1, 2, 3})
	second := f.second()
	f.scope.Book(a, []uint64{second, 7})
	f.want(0, 0, second, 7)
	f.want(3, 0, 1, 2, 3)
	f.scope.Book(a, []uint64{0, 0, 0})
	f.want(3, 0, 0, 0, 0)
	f.scope.Book(a, []uint64{0, 0, 0, 5})
	f.want(4, 0, 0, 0, 0, 5)
	if err := f.check(); err != nil {
		t.Error(err)
	}
	f.clock = f.clock.Add(time.Minute + 5*time.Second)
	f.Sweep()
	f.scope.Book(a, []uint64{second, 7})
	f.want(2, 0, second, 7)
	f.scope.Book(a, []uint64{1, 2, 3})
	f.want(1, 0, 1, 2, 3)
	if err := f.check(); err != nil {
		t.Error(err)
	}
}

// second is the rolling hash of the first second block of a prompt.
func (f *fixture) second() uint64 {
	for _, b := range f.chunks[0][1:f.used] {
		if b.depth == 1 {
			return b.hash
		}
	}
	f.t.Fatal("no second block")
	return 0
}

// TestAgainstNaive plays reservations of random prompts, pauses, and ranks
// that come and go against a map of prefixes with the time of their last
// reservation.
func TestAgainstNaive(t *testing.T) {
	for seed := range uint64(length.Of(150, 150, 30)) {
		r := rand.New(rand.NewPCG(seed, 11))
		f := newFixture(t, 1<<20)
		const slots = 3
		last := [slots]map[string]time.Time{} // by prefix; nil: no rank
		worker := [slots]uint64{}
		var prompts [][]uint64
		for range 6 {
			prompt := make([]uint64, 1+r.IntN(6))
			for i := range prompt {
				prompt[i] = 1 + r.Uint64N(2)
			}
			prompts = append(prompts, prompt)
		}
		for step := range 150 {
			slot := r.IntN(slots)
			switch r.IntN(9) {
			case 0:
				if worker[slot]++; r.IntN(2) == 0 {
					f.scope.ReleaseSlot(uint32(slot))
				}
				f.enter(entry(uint32(slot), worker[slot]))
				last[slot] = make(map[string]time.Time)
			case 1:
				if r.IntN(3) == 0 {
					f.scope.ReleaseSlot(uint32(slot))
					last[slot] = nil
				}
			case 2:
				f.clock = f.clock.Add(time.Duration(r.IntN(25)) * time.Second)
			case 4:
				f.scope.Clear(uint32(slot))
				clear(last[slot])
			case 3:
				f.Sweep()
				for _, m := range last {
					for prefix, at := range m {
						if f.clock.Sub(at) >= 65*time.Second {
							delete(m, prefix)
						}
					}
				}
			default:
				prompt := prompts[r.IntN(len(prompts))]
				prompt = prompt[:1+r.IntN(len(prompt))]
				f.scope.Book(entry(uint32(slot), worker[slot]), prompt)
				f.scope.Book(entry(uint32(slot), worker[slot]+1), prompts[0]) // somebody else
				if last[slot] != nil {
					for i := range prompt {
						last[slot][fmt.Sprint(prompt[:i+1])] = f.clock
					}
				}
			}
			for slot, m := range last {
				for _, prompt := range prompts {
					n := 0
					for n < len(prompt) && !m[fmt.Sprint(prompt[:n+1])].IsZero() {
						n++
					}
					if got := f.held(uint32(slot), prompt...); got != n {
						t.Fatalf("seed %d step %d: slot %d holds %d blocks of %v, want %d", seed, step, slot, got, prompt, n)
					}
				}
			}
			if err := f.check(); err != nil {
				t.Fatalf("seed %d step %d: %v", seed, step, err)
			}
		}
	}
}

// TestEvictionOrder plays reservations against a small limit: what was booked last
// is there as far as there was room beside what was booked in the same second,
// and no block is without its parent.
func TestEvictionOrder(t *testing.T) {
	for seed := range uint64(length.Of(100, 100, 30)) {
		r := rand.New(rand.NewPCG(seed, 12))
		f := newFixture(t, 1+r.IntN(25))
		for slot := range uint32(3) {
			f.enter(entry(slot, 1))
		}
		for step := range 200 {
			f.clock = f.clock.Add(time.Duration(r.IntN(3)) * time.Second)
			prompt := make([]uint64, 1+r.IntN(8))
			for i := range prompt {
				prompt[i] = 1 + r.Uint64N(3)
			}
			slot := uint32(r.IntN(3))
			f.scope.Book(entry(slot, 1), prompt)
			if err := f.check(); err != nil {
				t.Fatalf("seed %d step %d: %v", seed, step, err)
			}
			got := f.held(slot, prompt...)
			if room := min(len(prompt), f.limit); got < room {
				oldest := f.block(f.block(0).newer)
				if newest := f.block(f.block(0).older); oldest.tick != newest.tick {
					t.Fatalf("seed %d step %d: %d of %d blocks, although there are older ones", seed, step, got, room)
				}
			}
		}
	}
}

// TestConcurrent: reservations, sweeps, and ranks that come and go at the same
// time leave nothing behind.
func TestConcurrent(t *testing.T) {
	f := newFixture(t, 500)
	var mu sync.Mutex
	now := f.clock
	f.now = func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		now = now.Add(100 * time.Millisecond)
		return now
	}
	var wg sync.WaitGroup
	for slot := range uint32(4) {
		wg.Go(func() {
			for i := range uint64(300) {
				f.scope.AssignSlot(slot, entry(slot, i/10).Rank)
				if i%10 == 9 {
					f.scope.ReleaseSlot(slot)
				}
			}
		})
		wg.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(slot)))
			for range 1000 {
				f.scope.Book(entry(slot, r.Uint64N(30)), []uint64{1, r.Uint64N(9), r.Uint64N(9), 1})
			}
		})
	}
	wg.Go(func() {
		for range 200 {
			f.Sweep()
		}
	})
	wg.Wait()
	if err := f.check(); err != nil {
		t.Error(err)
	}
	for slot := range uint32(4) {
		f.scope.ReleaseSlot(slot)
		if !f.space.Empty(slot) {
			t.Errorf("slot %d is not empty", slot)
		}
	}
	now = now.Add(time.Hour)
	f.Sweep()
	if f.n != 0 {
		t.Errorf("%d blocks are left", f.n)
	}
	if err := f.check(); err != nil {
		t.Error(err)
	}
}
