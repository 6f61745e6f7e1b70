package kvevents

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/indexer"
)

// TestCopies proves what makes a stream count copies, and what makes it forget how
// many there are: block 1 of rank 0 is stored several times and removed once.
func TestCopies(t *testing.T) {
	type message struct {
		seq    uint64
		rank   int
		events []any
		raw    string
	}
	of := func(seq uint64, events ...any) message { return message{seq: seq, events: events} }
	remove := list{"BlockRemoved", list{1}, "GPU"}
	inGroup := func(group int) any {
		return dict{
			"type": "BlockStored", "block_hashes": list{1}, "token_ids": list{1, 2}, "block_size": 2,
			"group_idx": group, "kv_cache_spec_kind": "full_attention",
		}
	}
	counted, set := CopyRule{Counted: true}, CopyRule{}
	for name, tc := range map[string]struct {
		rule     CopyRule
		messages []message
		held     bool
	}{
		"counted":               {counted, []message{of(0, storedEvent(1)), of(1, storedEvent(1)), of(2, remove)}, true},
		"in one message":        {counted, []message{of(0, storedEvent(1), storedEvent(1), remove)}, true},
		"removed as often":      {counted, []message{of(0, storedEvent(1), storedEvent(1), remove, remove)}, false},
		"a set":                 {set, []message{of(0, storedEvent(1)), of(1, storedEvent(1)), of(2, remove)}, false},
		"a duplicate":           {counted, []message{of(0), of(1, storedEvent(1)), of(1, storedEvent(1)), of(2, remove)}, false},
		"a clear":               {counted, []message{of(0, storedEvent(1), storedEvent(1), clearedEvent, storedEvent(1), remove)}, false},
		"a gap":                 {counted, []message{of(0, storedEvent(1), storedEvent(1)), of(5, remove)}, false},
		"a gap, stored once":    {counted, []message{of(0, storedEvent(1)), of(5, storedEvent(1), remove)}, false},
		"a gap, stored twice":   {counted, []message{of(0, storedEvent(1)), of(5, storedEvent(1), storedEvent(1), remove)}, true},
		"another rank's batch":  {counted, []message{of(0, storedEvent(1), storedEvent(1)), {seq: 5, rank: 1}, of(6, remove)}, false},
		"an unreadable message": {counted, []message{of(0, storedEvent(1), storedEvent(1)), {seq: 1, raw: "\xc1"}, of(2, remove)}, false},
		"an unreadable event":   {counted, []message{of(0, storedEvent(1), storedEvent(1), list{nil}), of(1, remove)}, false},
		"an unreadable removal": {counted, []message{of(0, storedEvent(1), storedEvent(1), list{"BlockRemoved", "x"}), of(1, remove)}, false},
		"an unreadable store":   {counted, []message{of(0, storedEvent(1), storedEvent(1), list{"BlockStored", "x"}), of(1, remove)}, true},
		"one main group":        {counted, []message{of(0, inGroup(3), inGroup(3), remove)}, true},
		"two main groups":       {counted, []message{of(0, inGroup(3), inGroup(4), remove)}, false},
		"two, the first twice":  {counted, []message{of(0, inGroup(3), inGroup(3), inGroup(4), remove)}, false},
		"within the limit":      {CopyRule{true, 2}, []message{of(0, storedEvent(1), storedEvent(1), remove)}, true},
		"beyond the limit":      {CopyRule{true, 2}, []message{of(0, storedEvent(1), storedEvent(1), storedEvent(1), remove)}, false},
		"set from then on": {CopyRule{true, 2}, []message{
			of(0, storedEvent(1), storedEvent(1), storedEvent(1), clearedEvent, storedEvent(1), storedEvent(1), remove),
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, pub := startRig(t, "")
				defer r.stop()
				r.count(tc.rule)
				for _, m := range tc.messages {
					if m.raw == "" {
						m.raw = r.batch(0, m.rank, m.events...)
					}
					pub.live(m.seq, m.raw)
				}
				if held := r.holds(1); held != tc.held {
					t.Errorf("held: %v, want %v", held, tc.held)
				}
			})
		})
	}
}

// TestCopiesAsSet proves that a stream which announces more copies than there is room
// for is counted once, with an example.
func TestCopiesAsSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, pub := startRig(t, "")
		defer r.stop()
		r.count(CopyRule{Counted: true, Limit: 3})
		for seq := range uint64(10) {
			pub.live(seq, r.batch(0, 0, storedEvent(1), storedEvent(2)))
		}
		synctest.Wait()
		if tally := r.subs.Tally(); tally.CopiesAsSet != 1 || tally.Blocks[indexer.Device][BlocksCopied] != 2 {
			t.Errorf("%d streams, %d copies; want 1 and 2", tally.CopiesAsSet, tally.Blocks[indexer.Device][BlocksCopied])
		}
		if some := r.subs.Samples(); len(some) != 1 || some[0] != (Sample{rank(0), "more copies of blocks than total_kv_blocks"}) {
			t.Errorf("samples %v", some)
		}
		if n := r.index.Stats().Copies; n != 0 {
			t.Errorf("%d further copies are left", n)
		}
	})
}

// TestCopiesReplayed proves that a replay which goes over messages that were applied
// counts their copies once.
func TestCopiesReplayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, pub := startRig(t, "rep")
		defer r.stop()
		r.count(CopyRule{Counted: true})
		remove := r.batch(0, 0, list{"BlockRemoved", list{1}, "GPU"})
		store := r.batch(0, 0, storedEvent(1))
		synctest.Wait()
		pub.live(2, store) // joined late
		synctest.Wait()
		time.Sleep(DefaultConfig(1).Silence) // the replay server says nothing,
		pub.status(true)                     // and another connection asks again
		synctest.Wait()
		r.src.open("rep").answers(store, store, store)
		pub.live(3, remove)
		pub.live(4, remove)
		if !r.holds(1) {
			t.Error("a copy is left, and the block is not held")
		}
		pub.live(5, remove)
		if r.holds(1) {
			t.Error("no copy is left, and the block is held")
		}
	})
}

// TestCopyRuleChanges proves that what was counted by one rule does not count by the
// next.
func TestCopyRuleChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, pub := startRig(t, "")
		defer r.stop()
		remove := list{"BlockRemoved", list{1}, "GPU"}
		r.count(CopyRule{Counted: true})
		pub.live(0, r.batch(0, 0, storedEvent(1), storedEvent(1)))
		r.count(CopyRule{})
		pub.live(1, r.batch(0, 0, remove))
		if r.holds(1) {
			t.Error("a set holds what was counted before")
		}
		pub.live(2, r.batch(0, 0, storedEvent(1), storedEvent(1)))
		r.count(CopyRule{Counted: true, Limit: 1})
		pub.live(3, r.batch(0, 0, storedEvent(1), remove))
		if r.holds(1) {
			t.Error("a block of the set is counted beyond the first store")
		}
		r.count(CopyRule{Counted: true, Limit: 100})
		pub.live(4, r.batch(0, 0, storedEvent(1), storedEvent(1), remove))
		if !r.holds(1) {
			t.Error("another limit does not count")
		}
	})
}

// count changes the rule of the rig's stream, whose converter stays.
func (r *rig) count(rule CopyRule) {
	r.Helper()
	synctest.Wait()
	c := r.config
	applier := *c.Applier.(*IndexApplier)
	applier.Copies = rule
	c.Applier = &applier
	if err := r.subs.Update(c); err != nil {
		r.Fatal(err)
	}
}

// holds reports whether rank 0 has a block of storedEvent once all is applied.
func (r *rig) holds(name uint32) bool {
	synctest.Wait()
	var o indexer.Overlap
	r.index.Overlap(hashing.Layout{BlockSize: 2}.AppendLocal(nil, []uint32{name, name + 1}, hashing.LocalSeed("", ""), nil), &o)
	device, _, _ := o.At(0)
	return device == 1
}
