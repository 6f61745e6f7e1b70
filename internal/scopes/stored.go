package scopes

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/kvevents"
)

// storedWatches are the prompts that somebody waits for: until the events of the rank that
// computes one have stored it to its last complete block.
type storedWatches struct {
	space *indexer.Space
	count atomic.Int64 // of all: without any an event costs one look at it

	mu sync.Mutex // guards of; innermost
	of map[uint32][]*storedWatch
}

// storedWatch is one prompt that is being computed.
type storedWatch struct {
	slot   uint32
	local  []uint64 // local hashes of its complete blocks, at least one
	stored func()
}

// WatchStored calls stored, once at most, when events say that a rank has stored the last of
// a prompt's blocks, whose local hashes are only lent. It is called by the apply worker of
// the rank, or before WatchStored returns if the rank has them already, and must not block.
// The watch ends with that or with stop, which may come late and twice. Without blocks, and
// where nobody may watch, no event will say it: stop is nil.
func (s *State) WatchStored(e catalog.Entry, local []uint64, stored func()) (stop func()) {
	if s.stored == nil || len(local) == 0 {
		return nil
	}
	w := &storedWatch{slot: e.Slot, local: slices.Clone(local), stored: stored}
	s.stored.add(w)
	// The event may have come since the caller looked: nobody was told of it then.
	s.stored.tellIfComplete(w)
	return func() { s.stored.remove(w) }
}

func (t *storedWatches) add(w *storedWatch) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.of == nil {
		t.of = make(map[uint32][]*storedWatch)
	}
	t.of[w.slot] = append(t.of[w.slot], w)
	t.count.Add(1)
}

// remove reports whether the watch had not ended.
func (t *storedWatches) remove(w *storedWatch) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := t.of[w.slot]
	i := slices.Index(all, w)
	if i < 0 {
		return false
	}
	if all = slices.Delete(all, i, i+1); len(all) == 0 {
		delete(t.of, w.slot)
	} else {
		t.of[w.slot] = all
	}
	t.count.Add(-1)
	return true
}

// complete reports whether a rank has a prompt to its last complete block, on its device.
func (t *storedWatches) complete(slot uint32, local []uint64) bool {
	var o indexer.Overlap
	t.space.Overlap(local, &o)
	device, _, _ := o.At(slot)
	return int(device) == len(local)
}

// noteStored looks whether blocks that were stored just now complete a prompt.
func (t *storedWatches) noteStored(ev *indexer.Store) {
	var last []*storedWatch // whose last block is among them
	t.mu.Lock()
	for _, w := range t.of[ev.Slot] {
		if slices.Contains(ev.Local, w.local[len(w.local)-1]) {
			last = append(last, w)
		}
	}
	t.mu.Unlock()
	for _, w := range last {
		t.tellIfComplete(w) // another prompt may end with a block of the same tokens
	}
}

// tellIfComplete ends a watch whose prompt is stored, and says so.
func (t *storedWatches) tellIfComplete(w *storedWatch) {
	if t.complete(w.slot, w.local) && t.remove(w) {
		w.stored()
	}
}

// watchedIndex is an index whose stored blocks somebody may wait for.
type watchedIndex struct {
	kvevents.Index
	watches *storedWatches
}

// Store implements kvevents.Index.
func (i watchedIndex) Store(ev *indexer.Store) indexer.Outcome {
	out := i.Index.Store(ev)
	if ev.Tier == indexer.Device && i.watches.count.Load() > 0 {
		i.watches.noteStored(ev)
	}
	return out
}
