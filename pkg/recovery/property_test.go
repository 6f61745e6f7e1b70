package recovery

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/test/helpers/length"
)

// naive is what a recovery must come to: the dump first, then all live events. It
// has the copies of each block. Block names say where a block is, so no chain is
// needed.
type naive map[naiveKey]int

type naiveKey struct {
	worker uint64
	tier   indexer.Tier
	name   uint64
}

// history is one recovery with live events in between, drawn at random.
type history struct {
	rnd   *rand.Rand
	model naive
	world *worldScope
	live  []func(naive) // in order
	// counted: live events announce copies. A dump has one of each block.
	counted bool
	lines   []string // the dump's events
	log     []string
}

const (
	workers = 3
	depth   = 6
)

// Blocks are paths in a tree with two children: path 1 is the root, and block p
// is named p+1000 and hashed p.
func block(path uint64) (name, local uint64) { return path + 1000, path }

func path(rnd *rand.Rand) uint64 {
	p := uint64(1)
	for range 1 + rnd.IntN(depth) {
		p = 2*p + rnd.Uint64N(2)
	}
	return p
}

// steps lists a path's blocks, those of the last n levels.
func steps(p uint64, n int) []uint64 {
	var out []uint64
	for ; p > 1 && n > 0; p, n = p/2, n-1 {
		out = append(out, p)
	}
	slices.Reverse(out)
	return out
}

func (h *history) tier() indexer.Tier {
	return []indexer.Tier{indexer.Device, indexer.Device, indexer.Host, indexer.Disk}[h.rnd.IntN(4)]
}

func storeOf(worker uint64, t indexer.Tier, run []uint64) *indexer.Store {
	ev := &indexer.Store{Slot: uint32(worker), Tier: t, HasParent: run[0]/2 > 1}
	if ev.HasParent {
		ev.Parent, _ = block(run[0] / 2)
	}
	for _, p := range run {
		name, local := block(p)
		ev.EngineHashes, ev.Local = append(ev.EngineHashes, name), append(ev.Local, local)
	}
	return ev
}

// draw makes the dump: chains from the root whose blocks lie in tiers at random,
// cut into events at random, in any order.
func (h *history) draw() {
	for range h.rnd.IntN(12) {
		worker := h.rnd.Uint64N(workers)
		run := steps(path(h.rnd), depth)
		for len(run) > 0 {
			n := 1 + h.rnd.IntN(len(run))
			t := h.tier()
			ev := storeOf(worker, t, run[:n])
			var blocks [][2]uint64
			for i, name := range ev.EngineHashes {
				h.model[naiveKey{worker, t, name}] = 1
				blocks = append(blocks, [2]uint64{name, ev.Local[i]})
			}
			h.lines = append(h.lines, stored(worker, 0, t.String(), ev.Parent, blocks...))
			run = run[n:]
		}
	}
	h.rnd.Shuffle(len(h.lines), func(i, k int) { h.lines[i], h.lines[k] = h.lines[k], h.lines[i] })
}

// act makes one live event.
func (h *history) act() {
	worker, t := h.rnd.Uint64N(workers), h.tier()
	slot := uint32(worker)
	run := steps(path(h.rnd), 1+h.rnd.IntN(depth))
	ev := storeOf(worker, t, run)
	ev.Counted = h.counted
	switch h.rnd.IntN(20) {
	case 0:
		h.log = append(h.log, fmt.Sprintf("clear %d", worker))
		h.world.gate.Clear(slot)
		h.live = append(h.live, func(m naive) {
			for key := range m {
				if key.worker == worker {
					delete(m, key)
				}
			}
		})
	case 1, 2, 3, 4, 5, 6, 7, 8:
		h.log = append(h.log, fmt.Sprintf("store %d %v %v", worker, t, run))
		h.world.gate.Store(ev)
		h.live = append(h.live, func(m naive) {
			for _, name := range ev.EngineHashes {
				key := naiveKey{worker, t, name}
				if m[key]++; !h.counted {
					m[key] = 1
				}
			}
		})
	default:
		h.log = append(h.log, fmt.Sprintf("remove %d %v %v", worker, t, run))
		h.world.gate.Remove(slot, t, ev.EngineHashes)
		h.live = append(h.live, func(m naive) {
			for _, name := range ev.EngineHashes {
				key := naiveKey{worker, t, name}
				m[key] = max(m[key]-1, 0)
			}
		})
	}
}

// Read hands the dump over event by event, with live events in between: the
// reader has applied everything that it got when it wants more.
func (h *history) Read(p []byte) (int, error) {
	for h.rnd.IntN(2) == 0 {
		h.act()
	}
	if len(h.lines) == 0 {
		return 0, io.EOF
	}
	line := h.lines[0]
	h.log = append(h.log, line)
	h.lines = h.lines[1:]
	return copy(p, line), nil
}

// Fits and Place make the history a Target.
func (h *history) Fits(catalog.Scope, uint32) bool { return true }

func (h *history) ShowKeys(catalog.Scope) {}

func (h *history) Place(_ catalog.Scope, _ uint32, r catalog.Rank) (*Gate, uint32, bool) {
	return h.world.gate, uint32(r.Worker), true
}

// TestAnyOrder: whatever the order of a dump, and whatever happens live while it
// is read, the index ends as if the dump had come first as a whole.
func TestAnyOrder(t *testing.T) { anyOrder(t, false) }

// TestAnyOrderCounted: if live events announce copies, the index ends with no block
// that would not be there if the dump had come first, with one copy of each.
func TestAnyOrderCounted(t *testing.T) { anyOrder(t, true) }

func anyOrder(t *testing.T, counted bool) {
	t.Helper()
	runs := length.Of(1000, 500, 100)
	for seed := range uint64(runs) {
		h := &history{rnd: rand.New(rand.NewPCG(seed, 1)), model: naive{}, world: newWorldScope(), counted: counted}
		for worker := range uint64(workers) {
			h.world.gate.AssignSlot(uint32(worker), catalog.Rank{Worker: worker})
		}
		h.draw()
		for i := range h.lines[:max(0, len(h.lines)-1)] {
			h.lines[i] += ","
		}
		h.lines = slices.Concat([]string{`{"m:t":{"block_size":4,"events":[`}, h.lines, []string{"]}}"})
		report, err := Read(context.Background(), h, h, Options{})
		if err != nil || report.Faults() > 0 {
			t.Fatalf("seed %d: %+v, %v\n%v", seed, report, err, h.log)
		}
		if h.rnd.IntN(2) == 0 {
			h.world.gate.EndRecovery()
		}
		for range h.rnd.IntN(20) {
			h.act()
		}
		for _, apply := range h.live {
			apply(h.model)
		}
		h.check(t, seed)
	}
}

func (h *history) check(t *testing.T, seed uint64) {
	t.Helper()
	var o indexer.Overlap
	for leaf := uint64(1) << depth; leaf < 2<<depth; leaf++ {
		run := steps(leaf, depth)
		h.world.space.Overlap(run, &o)
		for worker := range uint64(workers) {
			var want [3]uint32
			at := 0
			for i, tier := range []indexer.Tier{indexer.Device, indexer.Host, indexer.Disk} {
				for ; at < len(run); at++ {
					if name, _ := block(run[at]); h.model[naiveKey{worker, tier, name}] == 0 {
						break
					}
					want[i]++
				}
			}
			device, host, disk := o.At(uint32(worker))
			fits := [3]uint32{device, host, disk} == want
			if h.counted {
				fits = device <= want[0] && device+host+disk <= want[0]+want[1]+want[2]
			}
			if !fits {
				t.Fatalf("seed %d: worker %d has %d %d %d of %v, want %v\n%v", seed, worker, device, host, disk, run, want, h.log)
			}
		}
	}
}
