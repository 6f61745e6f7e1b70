package scopes

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/indexer"
)

// storedWatches has the prompts being watched: each until events say that the rank which
// computes it has stored its last complete block.
type storedWatches struct {
	space *indexer.Space
	count atomic.Int64 // number of watches; while it is 0, an event costs just this load

	mu     sync.Mutex // guards bySlot; innermost
	bySlot map[uint32][]*storedWatch
}

// storedWatch is a prompt that is being computed.
type storedWatch struct {
	slot   uint32
	local  []uint64 // local hashes of its complete blocks, at least one
	stored func()
}

// WatchStored calls stored, at most once, when events say that the rank has stored all blocks
// of a prompt. local has the blocks' local hashes and is borrowed. The rank's apply worker
// calls stored, or WatchStored itself if the blocks are there already; stored must not block.
// stop ends the watch; it may be called late and more than once. If there are no blocks, or
// watching is off, stored is never called and stop is nil.
func (s *State) WatchStored(e catalog.Entry, local []uint64, stored func()) (stop func()) {
	if s.stored == nil || len(local) == 0 {
		return nil
	}
	w := &storedWatch{slot: e.Slot, local: slices.Clone(local), stored: stored}
	s.stored.add(w)
	// The event may have come after the caller's lookup and before the watch was added.
	s.stored.notifyIfComplete(w)
	return func() { s.stored.remove(w) }
}

// any reports whether prompts are being watched. t may be nil.
func (s *storedWatches) any() bool { return s != nil && s.count.Load() > 0 }

func (s *storedWatches) add(w *storedWatch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bySlot == nil {
		s.bySlot = make(map[uint32][]*storedWatch)
	}
	s.bySlot[w.slot] = append(s.bySlot[w.slot], w)
	s.count.Add(1)
}

// remove ends a watch, and reports whether it had not ended before.
func (s *storedWatches) remove(w *storedWatch) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.bySlot[w.slot]
	i := slices.Index(all, w)
	if i < 0 {
		return false
	}
	if all = slices.Delete(all, i, i+1); len(all) == 0 {
		delete(s.bySlot, w.slot)
	} else {
		s.bySlot[w.slot] = all
	}
	s.count.Add(-1)
	return true
}

// complete reports whether a rank has all the given blocks on its device.
func (s *storedWatches) complete(slot uint32, local []uint64) bool {
	var o indexer.Overlap
	s.space.Overlap(local, &o)
	device, _, _ := o.At(slot)
	return int(device) == len(local)
}

// noteStored ends the watches whose prompts are complete with the blocks just stored.
func (s *storedWatches) noteStored(ev *indexer.Store) {
	var last []*storedWatch // watches whose last block is among the stored ones
	s.mu.Lock()
	for _, w := range s.bySlot[ev.Slot] {
		if slices.Contains(ev.Local, w.local[len(w.local)-1]) {
			last = append(last, w)
		}
	}
	s.mu.Unlock()
	for _, w := range last {
		s.notifyIfComplete(w) // another prompt may end with a block of the same tokens, so check all blocks
	}
}

// noteGroup ends the watches of a slot whose prompts are complete now that a further attention
// group has stored blocks. Its events do not say which prompt's, so all are checked.
func (s *storedWatches) noteGroup(slot uint32) {
	s.mu.Lock()
	all := slices.Clone(s.bySlot[slot])
	s.mu.Unlock()
	for _, w := range all {
		s.notifyIfComplete(w)
	}
}

// notifyIfComplete ends a watch whose prompt is stored, and calls its function.
func (s *storedWatches) notifyIfComplete(w *storedWatch) {
	if s.complete(w.slot, w.local) && s.remove(w) {
		w.stored()
	}
}
