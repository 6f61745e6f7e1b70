package service

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/recovery"
)

// forecast is a table of predictions with one pool, on a clock of its own.
type forecast struct {
	*predictions
	t     *testing.T
	clock time.Time
	pool  *pool
}

// newForecast: a tick is a second, so blocks leave when 65 seconds have passed
// since the second of their last booking began.
func newForecast(t *testing.T, limit int) *forecast {
	f := &forecast{t: t, clock: time.Unix(1e9, 0)}
	f.predictions = newPredictions(64*time.Second, limit, func() time.Time { return f.clock })
	f.pool = f.newPool()
	return f
}

func (f *forecast) newPool() *pool {
	space := indexer.New()
	return &pool{space: space, gate: recovery.NewGate(space, false), predictions: f.predictions}
}

func seated(slot uint32, worker uint64) catalog.Entry {
	return catalog.Entry{Rank: catalog.Rank{Worker: worker}, Slot: slot}
}

func (f *forecast) enter(e catalog.Entry) { f.pool.enter(e.Slot, e.Rank) }

// held is how many leading blocks of a prompt the index shows for a slot.
func (f *forecast) held(slot uint32, local ...uint64) int {
	var o indexer.Overlap
	f.pool.space.Overlap(local, &o)
	device, host, disk := o.At(slot)
	if host != 0 || disk != 0 {
		f.t.Errorf("tiers below the device have %d and %d blocks", host, disk)
	}
	return int(device)
}

func (f *forecast) want(blocks int, slot uint32, local ...uint64) {
	f.t.Helper()
	if got := f.held(slot, local...); got != blocks {
		f.t.Errorf("slot %d holds %d blocks of %v, want %d", slot, got, local, blocks)
	}
}

// check tells what is wrong with the order, the seats, or the sum of blocks in
// the index of the pool.
func (f *forecast) check() error {
	t := f.predictions
	t.mu.Lock()
	defer t.mu.Unlock()
	n, tick := 0, int64(0)
	bySeat := make(map[uint32]int)
	deepest := make(map[uint32]uint32)
	for id := t.block(0).newer; id != 0; id = t.block(id).newer {
		b := t.block(id)
		if t.block(b.newer).older != id || t.block(b.older).newer != id {
			return fmt.Errorf("block %d is not linked", id)
		}
		if b.tick < tick {
			return fmt.Errorf("block %d of %d behind one of %d", id, b.tick, tick)
		}
		tick = b.tick
		st := t.seats[b.seat]
		if st.blocks != nil && st.blocks[b.name] != id {
			return fmt.Errorf("seat %d does not know block %d", b.seat, id)
		}
		bySeat[b.seat]++
		deepest[b.seat] = max(deepest[b.seat], b.depth)
		n++
	}
	if n != t.n || n > t.limit {
		return fmt.Errorf("%d blocks in the order, %d counted, limit %d", n, t.n, t.limit)
	}
	for i, st := range t.seats {
		if st == nil != slices.Contains(t.vacant, uint32(i)) {
			return fmt.Errorf("seat %d: %v", i, st)
		}
		if st == nil {
			continue
		}
		if st.n != bySeat[uint32(i)] || st.blocks != nil && len(st.blocks) != st.n {
			return fmt.Errorf("seat %d has %d blocks, knows %d and counts %d", i, bySeat[uint32(i)], len(st.blocks), st.n)
		}
		if st.blocks == nil && st.n == 0 {
			return fmt.Errorf("seat %d is empty and not vacant", i)
		}
		if st.blocks != nil && st.gate == f.pool.gate {
			if held := f.pool.space.Held(st.slot); held[indexer.Device] != st.n {
				return fmt.Errorf("slot %d holds %v blocks in the index, %d were predicted", st.slot, held, st.n)
			}
		}
	}
	if o := f.pool.space.Stats().Orphans; o != 0 {
		return fmt.Errorf("%d blocks without a parent", o)
	}
	return nil
}

// TestPredictedTTL: a block lives from its last booking; the prefix that was
// booked again outlives what was behind it.
func TestPredictedTTL(t *testing.T) {
	f := newForecast(t, 100)
	a, b := seated(0, 1), seated(1, 2)
	f.enter(a)
	f.enter(b)
	f.pool.predict(a, []uint64{1, 2, 3, 4})
	f.want(4, 0, 1, 2, 3, 4, 5)
	f.want(0, 1, 1, 2, 3, 4)
	f.clock = f.clock.Add(40 * time.Second)
	f.pool.predict(a, []uint64{1, 2})
	f.pool.predict(b, []uint64{1, 2, 3})
	f.pool.predict(b, nil)
	f.clock = f.clock.Add(24 * time.Second) // 64 s
	f.sweep()
	f.want(4, 0, 1, 2, 3, 4)
	f.clock = f.clock.Add(time.Second)
	f.sweep()
	f.want(2, 0, 1, 2, 3, 4)
	f.want(3, 1, 1, 2, 3, 4)
	f.pool.predict(a, []uint64{1, 2, 3})
	f.want(3, 0, 1, 2, 3, 4)
	f.clock = f.clock.Add(65 * time.Second)
	f.sweep()
	f.want(0, 0, 1, 2, 3, 4)
	if err := f.check(); err != nil || f.n != 0 || f.used != 1 {
		t.Error(err, f.n, f.used)
	}
}

// TestPredictedOnce: a second booking in the same tick changes nothing in the
// order but what is new.
func TestPredictedOnce(t *testing.T) {
	f := newForecast(t, 100)
	a := seated(0, 1)
	f.enter(a)
	f.pool.predict(a, []uint64{1, 2})
	f.pool.predict(a, []uint64{1, 2, 3, 4})
	f.pool.predict(a, []uint64{1, 2, 5})
	f.pool.predict(a, []uint64{1})
	f.clock = f.clock.Add(time.Second)
	f.pool.predict(a, []uint64{1, 2, 5, 6})
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

// TestPredictedSlots: what was predicted for a rank goes with it. Nothing is
// predicted for one that has left, and its slot begins empty for the next one,
// as do two ranks of the same slot number in two pools.
func TestPredictedSlots(t *testing.T) {
	f := newForecast(t, 100)
	a, b := seated(0, 1), seated(0, 2)
	f.pool.predict(a, []uint64{1, 2})
	f.want(0, 0, 1, 2)
	f.enter(a)
	f.pool.predict(a, []uint64{1, 2})
	f.enter(a) // it is there already
	f.want(2, 0, 1, 2)
	f.pool.leave(0)
	f.want(0, 0, 1, 2)
	f.pool.predict(a, []uint64{1, 2})
	f.want(0, 0, 1, 2)
	f.enter(b)
	f.pool.predict(a, []uint64{1, 2})
	f.want(0, 0, 1, 2)
	f.clock = f.clock.Add(30 * time.Second)
	f.pool.predict(b, []uint64{1})
	f.clock = f.clock.Add(35 * time.Second) // what a had is due
	f.sweep()
	f.want(1, 0, 1, 2)
	f.enter(a) // a slot that changes hands without a word
	f.want(0, 0, 1, 2)
	f.pool.predict(b, []uint64{1})
	f.want(0, 0, 1)

	first := f.pool
	f.pool = f.newPool()
	f.enter(a)
	f.want(0, 0, 1)
	f.pool.predict(a, []uint64{1})
	f.pool = first
	f.want(0, 0, 1)
	f.pool.leave(0)
	f.pool.leave(0)
	f.clock = f.clock.Add(time.Hour)
	f.sweep()
	if err := f.check(); err != nil {
		t.Error(err)
	}
}

// TestPredictedLimit: the oldest make room, of whichever rank, and a prompt that
// is larger than all the room is predicted as far as it goes.
func TestPredictedLimit(t *testing.T) {
	f := newForecast(t, 4)
	a, b := seated(0, 1), seated(1, 2)
	f.enter(a)
	f.enter(b)
	f.pool.predict(a, []uint64{1, 2, 3})
	f.clock = f.clock.Add(time.Second)
	f.pool.predict(b, []uint64{1, 2, 3})
	f.want(1, 0, 1, 2, 3)
	f.want(3, 1, 1, 2, 3)
	f.pool.predict(b, []uint64{9, 8, 7, 6, 5, 4})
	f.want(0, 0, 1)
	f.want(0, 1, 1)
	f.want(4, 1, 9, 8, 7, 6, 5, 4)
	if err := f.check(); err != nil {
		t.Error(err)
	}
	f.clock = f.clock.Add(time.Second)
	f.pool.predict(b, []uint64{9, 8, 1, 1}) // makes room among its own cousins
	f.want(4, 1, 9, 8, 1, 1)
	f.want(2, 1, 9, 8, 7)
	f.pool.predict(b, []uint64{9, 8, 1, 1, 1, 1})
	f.want(4, 1, 9, 8, 1, 1, 1, 1)
	if err := f.check(); err != nil {
		t.Error(err)
	}
	none := newForecast(t, 0)
	none.enter(a)
	none.pool.predict(a, []uint64{1})
	none.want(0, 0, 1)
}

// TestPredictedLong: a prompt that goes in parts is there as a whole, and again.
func TestPredictedLong(t *testing.T) {
	f := newForecast(t, 1<<20)
	a := seated(0, 1)
	f.enter(a)
	long := make([]uint64, 2*maxAtOnce+10)
	for i := range long {
		long[i] = uint64(i) + 1
	}
	for range 2 {
		f.pool.predict(a, long)
		f.want(len(long), 0, long...)
		if err := f.check(); err != nil {
			t.Fatal(err)
		}
		f.clock = f.clock.Add(time.Minute)
		f.sweep()
	}
	f.clock = f.clock.Add(5 * time.Second)
	f.sweep()
	f.want(0, 0, long...)
}

// TestPredictedNames: of two blocks with one rolling hash the rank has the one
// that came first; what is behind the other is not predicted. Local hashes that
// are no hashes do no harm.
func TestPredictedNames(t *testing.T) {
	f := newForecast(t, 100)
	a := seated(0, 1)
	f.enter(a)
	f.pool.predict(a, []uint64{1, 2, 3})
	second := f.second()
	f.pool.predict(a, []uint64{second, 7})
	f.want(0, 0, second, 7)
	f.want(3, 0, 1, 2, 3)
	f.pool.predict(a, []uint64{0, 0, 0})
	f.want(3, 0, 0, 0, 0)
	f.pool.predict(a, []uint64{0, 0, 0, 5})
	f.want(4, 0, 0, 0, 0, 5)
	if err := f.check(); err != nil {
		t.Error(err)
	}
	f.clock = f.clock.Add(time.Minute + 5*time.Second)
	f.sweep()
	f.pool.predict(a, []uint64{second, 7})
	f.want(2, 0, second, 7)
	f.pool.predict(a, []uint64{1, 2, 3})
	f.want(1, 0, 1, 2, 3)
	if err := f.check(); err != nil {
		t.Error(err)
	}
}

// second is the name of the first second block of a prompt.
func (f *forecast) second() uint64 {
	for _, b := range f.chunks[0][1:f.used] {
		if b.depth == 1 {
			return b.name
		}
	}
	f.t.Fatal("no second block")
	return 0
}

// TestPredictedAgainstNaive plays bookings of random prompts, pauses, and ranks
// that come and go against a map of prefixes with the time of their last
// booking.
func TestPredictedAgainstNaive(t *testing.T) {
	for seed := range uint64(150) {
		r := rand.New(rand.NewPCG(seed, 11))
		f := newForecast(t, 1<<20)
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
			switch r.IntN(8) {
			case 0:
				if worker[slot]++; r.IntN(2) == 0 {
					f.pool.leave(uint32(slot))
				}
				f.enter(seated(uint32(slot), worker[slot]))
				last[slot] = make(map[string]time.Time)
			case 1:
				if r.IntN(3) == 0 {
					f.pool.leave(uint32(slot))
					last[slot] = nil
				}
			case 2:
				f.clock = f.clock.Add(time.Duration(r.IntN(25)) * time.Second)
			case 3:
				f.sweep()
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
				f.pool.predict(seated(uint32(slot), worker[slot]), prompt)
				f.pool.predict(seated(uint32(slot), worker[slot]+1), prompts[0]) // somebody else
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

// TestPredictedRoom plays bookings against a small limit: what was booked last
// is there as far as there was room beside what was booked in the same second,
// and no block is without its parent.
func TestPredictedRoom(t *testing.T) {
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 12))
		f := newForecast(t, 1+r.IntN(25))
		for slot := range uint32(3) {
			f.enter(seated(slot, 1))
		}
		for step := range 200 {
			f.clock = f.clock.Add(time.Duration(r.IntN(3)) * time.Second)
			prompt := make([]uint64, 1+r.IntN(8))
			for i := range prompt {
				prompt[i] = 1 + r.Uint64N(3)
			}
			slot := uint32(r.IntN(3))
			f.pool.predict(seated(slot, 1), prompt)
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

// TestPredictedAtOnce: bookings, sweeps, and ranks that come and go at the same
// time leave nothing behind.
func TestPredictedAtOnce(t *testing.T) {
	f := newForecast(t, 500)
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
				f.pool.enter(slot, seated(slot, i/10).Rank)
				if i%10 == 9 {
					f.pool.leave(slot)
				}
			}
		})
		wg.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(slot)))
			for range 1000 {
				f.pool.predict(seated(slot, r.Uint64N(30)), []uint64{1, r.Uint64N(9), r.Uint64N(9), 1})
			}
		})
	}
	wg.Go(func() {
		for range 200 {
			f.sweep()
		}
	})
	wg.Wait()
	if err := f.check(); err != nil {
		t.Error(err)
	}
	for slot := range uint32(4) {
		f.pool.leave(slot)
		if !f.pool.space.Empty(slot) {
			t.Errorf("slot %d is not empty", slot)
		}
	}
	now = now.Add(time.Hour)
	f.sweep()
	if f.n != 0 {
		t.Errorf("%d blocks are left", f.n)
	}
	if err := f.check(); err != nil {
		t.Error(err)
	}
}
