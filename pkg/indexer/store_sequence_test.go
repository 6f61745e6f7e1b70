package indexer_test

import (
	"slices"
	"testing"

	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/indexer"
)

// namespace is a namespace in a sequence Space with one chain of blocks.
type namespace struct {
	space   *indexer.Space
	key     uint64
	local   []uint64
	rolling []uint64
	names   []uint64 // the engine's
}

func newNamespace(n int) *namespace {
	local := number(1, n)
	return &namespace{indexer.NewSequence(hashing.Seed), 4242, local, hashing.AppendSequence(nil, local), number(2, n)}
}

// tokens announces blocks with tokens, up to a block, from the root on.
func (n *namespace) tokens(slot uint32, to int) indexer.Outcome {
	return n.space.Store(&indexer.Store{Slot: slot, EngineHashes: n.names[:to], Local: n.local[:to], Seed: n.key, SeedKnown: true})
}

// hashes announces blocks by the given hashes, which name them, folded, too.
func (n *namespace) hashes(slot uint32, hashes []uint64) *indexer.SequenceStore {
	return &indexer.SequenceStore{Slot: slot, Seed: n.key, PublisherHashes: folded(hashes, n.key), Hashes: hashes}
}

// held returns how many blocks of the chain match, and how many a slot holds.
func (n *namespace) held(slot uint32) (matched, own int) {
	var m indexer.Match
	n.space.Match(folded(n.rolling, n.key), &m)
	held := expand(&m)
	device, host, disk := tierWalk(held, slot)
	return len(held), int(device + host + disk)
}

// TestSequenceOutcome proves what is said of hashes without tokens, whichever came
// first: the standard's are confirmed once tokens are known, an engine's own are
// resolved, others stay unverified, and all that can match matches in the end.
func TestSequenceOutcome(t *testing.T) {
	const n = 10
	cases := []struct {
		name        string
		tokensFirst bool
		own         bool // hashes are the engine's own names
		stated      bool // the engine's names are stated beside other hashes
		want        indexer.SequenceOutcome
		matched     int // of slot 1, after the tokens have come
	}{
		{"standard after tokens", true, false, false, indexer.SequenceOutcome{Outcome: indexer.Outcome{Stored: n}, Confirmed: n}, n},
		{"standard before tokens", false, false, false, indexer.SequenceOutcome{Outcome: indexer.Outcome{Stored: n}, Unverified: n}, n},
		{"own names after tokens", true, true, false, indexer.SequenceOutcome{Outcome: indexer.Outcome{Stored: n}, Resolved: n}, n},
		{"own names before tokens", false, true, false, indexer.SequenceOutcome{Outcome: indexer.Outcome{Stored: n}, Unverified: n}, n},
		{"names stated after tokens", true, true, true, indexer.SequenceOutcome{Outcome: indexer.Outcome{Stored: n}, Resolved: n}, n},
		{"names stated before tokens", false, true, true, indexer.SequenceOutcome{Outcome: indexer.Outcome{Stored: n}, Unverified: n}, n},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := newNamespace(n)
			if c.tokensFirst {
				s.tokens(0, n)
			}
			ev := s.hashes(1, s.rolling)
			if c.own {
				ev = s.hashes(1, s.names)
			}
			if c.stated {
				ev = s.hashes(1, number(7, n))
				ev.EngineHashes = s.names
			}
			if out := s.space.StoreSequence(ev); out != c.want {
				t.Errorf("%+v, want %+v", out, c.want)
			}
			if !c.tokensFirst {
				s.tokens(0, n)
			}
			if _, own := s.held(1); own != c.matched {
				t.Errorf("slot 1 holds %d", own)
			}
			known := s.space.StoreSequence(ev)
			if known.Stored != 0 || known.Known != n || known.Unverified != 0 {
				t.Errorf("announced again: %+v", known)
			}
			if removed, unknown := s.space.Remove(1, indexer.Device, ev.PublisherHashes); removed != n || unknown != 0 {
				t.Errorf("%d removed, %d unknown", removed, unknown)
			}
			if held := s.space.Held(1); held[indexer.Device] != 0 {
				t.Errorf("still holds %v", held)
			}
		})
	}
}

// A name resolves in its own namespace only, and an engine's own names that are
// stated beside the hashes go before the hashes.
func TestEngineNames(t *testing.T) {
	s := newNamespace(4)
	s.tokens(0, 4)
	ev := s.hashes(1, s.names)
	ev.Seed++
	if out := s.space.StoreSequence(ev); out.Unverified != 4 {
		t.Errorf("other namespace: %+v", out)
	}
	ev = s.hashes(2, number(9, 4))
	ev.EngineHashes = s.names
	if out := s.space.StoreSequence(ev); out.Resolved != 4 {
		t.Errorf("names stated: %+v", out)
	}
	if _, own := s.held(2); own != 4 {
		t.Errorf("slot 2 holds %d", own)
	}
}

// Blocks that were announced by an engine's names keep all the names by which
// their holder removes them when they are found to be blocks with tokens.
func TestMergeKeepsNames(t *testing.T) {
	s := newNamespace(2)
	other := s.hashes(1, s.names)
	other.PublisherHashes = []uint64{71, 72}
	s.space.StoreSequence(s.hashes(1, s.names))
	s.space.StoreSequence(other)
	s.tokens(0, 2)
	if matched, own := s.held(1); matched != 2 || own != 2 {
		t.Errorf("%d match, slot 1 holds %d", matched, own)
	}
	s.space.Remove(1, indexer.Device, other.PublisherHashes)
	if _, own := s.held(1); own != 2 {
		t.Errorf("one name of each is left, slot 1 holds %d", own)
	}
	s.space.Remove(1, indexer.Device, folded(s.names, s.key))
	if _, own := s.held(1); own != 0 {
		t.Errorf("slot 1 holds %d", own)
	}
	if err := s.space.Check(); err != nil {
		t.Error(err)
	}
}

// TestDepths proves what is known of a block's depth: from the root, a parent or
// a base, which does not count where it contradicts the others, and that a list
// of hashes from the middle of a chain matches nothing then.
func TestDepths(t *testing.T) {
	const n = 12
	cases := []struct {
		name     string
		tokens   int // blocks known before
		from     int
		base     int64 // < 0: none
		parent   bool
		depth    int64 // of the first block, < 0: unknown
		mismatch bool
	}{
		{"base", 0, 5, 5, false, 5, false},
		{"no base", 0, 5, -1, false, -1, false},
		{"unknown parent", 0, 5, -1, true, -1, false},
		{"known parent", 5, 5, -1, true, 5, false},
		{"known parent and base", 5, 5, 5, true, 5, false},
		{"known parent, other base", 5, 5, 7, true, 5, true},
		{"known block, other base", 9, 5, 7, false, 5, true},
		{"no such base", 0, 5, 1<<32 - 2, false, -1, false},
		{"base at the end", 0, 5, 1<<31 - 1, false, 1<<31 - 1, false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := newNamespace(n)
			if c.tokens > 0 {
				s.tokens(0, c.tokens)
			}
			ev := s.hashes(1, s.rolling[c.from:])
			if c.base >= 0 {
				ev.Base, ev.HasBase = uint32(c.base), true
			}
			if c.parent {
				ev.Parent, ev.HasParent = s.rolling[c.from-1], true
			}
			if out := s.space.StoreSequence(ev); out.BaseMismatch != c.mismatch {
				t.Errorf("%+v", out)
			}
			depth, known := s.space.DepthOf(1, indexer.Device, ev.PublisherHashes[0])
			if known != (c.depth >= 0) || known && int64(depth) != c.depth {
				t.Errorf("depth %d, known %v", depth, known)
			}
			var m indexer.Match
			s.space.Match(folded(s.rolling[c.from:], s.key), &m)
			if (len(m.Steps) == 0) != (c.depth > 0) {
				t.Errorf("from the middle: %d blocks", m.Blocks())
			}
			// Tokens tell the truth.
			s.tokens(2, n)
			if matched, _ := s.held(1); matched != n {
				t.Errorf("%d blocks match", matched)
			}
			if depth, known := s.space.DepthOf(1, indexer.Device, ev.PublisherHashes[0]); !known || int(depth) != c.from {
				t.Errorf("depth %d, known %v", depth, known)
			}
			if err := s.space.Check(); err != nil {
				t.Error(err)
			}
		})
	}
}

// Long events are dealt with in parts; a part begins where the last one ended.
func TestLongSequenceEvent(t *testing.T) {
	const n = 10_000
	s := newNamespace(n)
	ev := s.hashes(1, s.rolling)
	ev.HasBase = true
	if out := s.space.StoreSequence(ev); out.Stored != n || out.Unverified != n || out.BaseMismatch {
		t.Errorf("%+v", out)
	}
	if st := s.space.Stats(); st.Runs > 3 {
		t.Errorf("%d runs", st.Runs)
	}
	if matched, own := s.held(1); matched != n || own != n {
		t.Errorf("%d match, %d held", matched, own)
	}
	if depth, known := s.space.DepthOf(1, indexer.Device, ev.PublisherHashes[n-1]); depth != n-1 || !known {
		t.Errorf("depth %d, known %v", depth, known)
	}
	ev = s.hashes(2, s.names)
	ev.EngineHashes = s.names
	s.tokens(0, n)
	if out := s.space.StoreSequence(ev); out.Resolved != n {
		t.Errorf("%+v", out)
	}
	if n := s.space.ClearTier(1, indexer.Device, s.key+1); n != 0 {
		t.Errorf("%d of another namespace cleared", n)
	}
	if cleared := s.space.ClearTier(1, indexer.Device, s.key); cleared != n {
		t.Errorf("%d cleared", cleared)
	}
	for slot := range uint32(3) {
		s.space.Forget(slot)
	}
	if st := s.space.Stats(); st != (indexer.Stats{}) {
		t.Errorf("after the last: %+v", st)
	}
}

// A decoding request's blocks, which come one by one, make one run; chains that
// are offloaded by name, too.
func TestUnverifiedRuns(t *testing.T) {
	const n = 500
	s := newNamespace(n)
	for i := range s.rolling {
		ev := s.hashes(1, s.rolling[i:i+1])
		if i == 0 {
			ev.HasBase = true
		} else {
			ev.Parent, ev.HasParent = s.rolling[i-1], true
		}
		s.space.StoreSequence(ev)
	}
	if st := s.space.Stats(); st.Runs > 2 || st.Unique != n {
		t.Errorf("%+v", st)
	}
	names := folded(s.rolling, s.key)
	s.space.Remove(1, indexer.Device, names)
	if resolved, _ := s.space.StoreByEngineHash(1, indexer.Host, names); resolved != n {
		t.Errorf("%d resolved", resolved)
	}
	if st := s.space.Stats(); st.Runs > 2 {
		t.Errorf("recalled: %+v", st)
	}
	if _, own := s.held(1); own != n {
		t.Errorf("%d held", own)
	}
}

// Hashes and names that no honest publisher sends, equal ones or such that point
// at each other, break nothing.
func TestHostileHashes(t *testing.T) {
	s := newNamespace(6)
	same := slices.Repeat(s.rolling[2:3], 4)
	ev := s.hashes(1, same)
	ev.PublisherHashes = []uint64{1, 2, 3, 4}
	s.space.StoreSequence(ev)
	ev.Parent, ev.HasParent = same[0], true
	s.space.StoreSequence(ev)
	// Names that come twice, for blocks that had one before.
	s.space.Store(&indexer.Store{Slot: 1, EngineHashes: []uint64{5, 6, 7, 8}, Local: s.local[:4], Seed: s.key, SeedKnown: true})
	s.space.Store(&indexer.Store{Slot: 1, EngineHashes: []uint64{8, 8, 8, 5}, Local: s.local[:4], Seed: s.key, SeedKnown: true})
	s.space.StoreSequence(&indexer.SequenceStore{Slot: 1, Seed: s.key, PublisherHashes: []uint64{5, 5, 5}, Hashes: s.rolling[:3]})
	// The first block's name points at a later block of the same event.
	s.space.StoreSequence(s.hashes(1, s.rolling[4:6]))
	s.space.Store(&indexer.Store{EngineHashes: []uint64{s.rolling[5], s.rolling[4], 9, 8, 7, 6}, Local: s.local, Seed: s.key, SeedKnown: true})
	s.space.Remove(1, indexer.Device, []uint64{1, 2, 3, 4})
	s.tokens(2, 6)
	for slot := range uint32(3) {
		s.space.Forget(slot)
	}
	if st := s.space.Stats(); st != (indexer.Stats{}) {
		t.Errorf("after the last: %+v", st)
	}
}

// Tokens put claims of a wrong order right, and leave all names that stood for
// the blocks in force.
func TestConfirm(t *testing.T) {
	const n = 6
	s := newNamespace(n)
	backwards := slices.Clone(s.rolling)
	slices.Reverse(backwards)
	first := s.hashes(1, backwards)
	s.space.StoreSequence(first)
	// Slot 1 calls the blocks as the engine does, too, and by third names.
	second, third := s.hashes(1, s.rolling), s.hashes(1, s.rolling)
	second.PublisherHashes, third.PublisherHashes = s.names, number(8, n)
	s.space.StoreSequence(second)
	s.space.StoreSequence(third)
	s.tokens(0, n)
	for i, ev := range []*indexer.SequenceStore{second, third, first} {
		if matched, own := s.held(1); matched != n || own != n {
			t.Errorf("before the %d. removal: %d match, slot 1 holds %d", i+1, matched, own)
		}
		if removed, _ := s.space.Remove(1, indexer.Device, ev.PublisherHashes); removed != n {
			t.Errorf("%d removed", removed)
		}
		if err := s.space.Check(); err != nil {
			t.Error(err)
		}
	}
	if _, own := s.held(1); own != 0 {
		t.Errorf("slot 1 holds %d", own)
	}
	if st := s.space.Stats(); st.Unique != n {
		t.Errorf("%+v", st)
	}
}
