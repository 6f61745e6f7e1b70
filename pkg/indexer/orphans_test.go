package indexer_test

import (
	"testing"

	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/test/helpers/length"
)

// depths asks for one rank's overlap.
func depths(s *indexer.Space, slot uint32, local ...uint64) [3]uint32 {
	var o indexer.Overlap
	s.Overlap(local, &o)
	device, host, disk := o.At(slot)
	return [3]uint32{device, host, disk}
}

// An orphan's tier counts as soon as its place is known, in whatever tier and
// event the parent, or the block itself, comes.
func TestOrphanJoinsInItsTier(t *testing.T) {
	late := func(s *indexer.Space) { // block 2 in host memory, its parent is unknown
		s.Store(&indexer.Store{Tier: indexer.Host, Parent: 1, HasParent: true, EngineHashes: []uint64{2}, Local: []uint64{20}})
	}
	cases := []struct {
		name string
		then func(s *indexer.Space)
	}{
		{"parent on the device", func(s *indexer.Space) {
			s.Store(&indexer.Store{EngineHashes: []uint64{1}, Local: []uint64{10}})
		}},
		{"parent and block on the device in one event", func(s *indexer.Space) {
			s.Store(&indexer.Store{EngineHashes: []uint64{1, 2}, Local: []uint64{10, 20}})
			s.Remove(0, indexer.Device, []uint64{2})
		}},
		{"block on the device, then gone there", func(s *indexer.Space) {
			s.Store(&indexer.Store{EngineHashes: []uint64{1, 2, 3}, Local: []uint64{10, 20, 30}})
			s.Remove(0, indexer.Device, []uint64{3, 2})
		}},
		{"waits in two tiers", func(s *indexer.Space) {
			s.Store(&indexer.Store{Tier: indexer.Disk, Parent: 1, HasParent: true, EngineHashes: []uint64{2}, Local: []uint64{20}})
			s.Store(&indexer.Store{EngineHashes: []uint64{1}, Local: []uint64{10}})
			s.Remove(0, indexer.Disk, []uint64{2})
		}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := indexer.New()
			late(s)
			if got := depths(s, 0, 10, 20); got != [3]uint32{} {
				t.Errorf("before: %v", got)
			}
			c.then(s)
			if got := depths(s, 0, 10, 20); got != [3]uint32{1, 1, 0} {
				t.Errorf("device, host, disk: %v, want 1, 1, 0", got)
			}
			if removed, _ := s.Remove(0, indexer.Host, []uint64{2}); removed != 1 {
				t.Error("the block cannot be removed")
			}
			if st := s.Stats(); st.Orphans != 0 {
				t.Errorf("%d orphans left", st.Orphans)
			}
		})
	}
}

// TestOrphansAreBounded proves decision K13: 65,536 a rank, the oldest go first,
// also when some were removed, or announced again, meanwhile.
func TestOrphansAreBounded(t *testing.T) {
	length.Sequential(t)
	const limit = 65536
	s := indexer.New()
	names := number(1, limit+3)
	put := func(i int) indexer.Outcome {
		return s.Store(&indexer.Store{Parent: 7, HasParent: true, EngineHashes: names[i : i+1], Local: names[i : i+1]})
	}
	for i := range limit {
		if out := put(i); out != (indexer.Outcome{Orphaned: 1}) {
			t.Fatalf("orphan %d: %+v", i, out)
		}
	}
	// The first was removed and came again: it is now the youngest.
	s.Remove(0, indexer.Device, names[:1])
	put(0)
	for i := limit; i < len(names); i++ {
		if out := put(i); out != (indexer.Outcome{Orphaned: 1, Dropped: 1}) {
			t.Errorf("orphan %d: %+v", i, out)
		}
	}
	if st := s.Stats(); st.Orphans != limit {
		t.Errorf("%d orphans", st.Orphans)
	}
	s.Store(&indexer.Store{EngineHashes: []uint64{7}, Local: []uint64{7}})
	for i, name := range names {
		want := uint32(2)
		if i >= 1 && i <= 3 { // the oldest three
			want = 1
		}
		if got := depths(s, 0, 7, name)[0]; got != want {
			t.Errorf("orphan %d: %d blocks, want %d", i, got, want)
		}
	}
	s.Forget(0)
	if st := s.Stats(); st.Bytes != 0 {
		t.Errorf("%d bytes left", st.Bytes)
	}
}

// A removed orphan never joins; one chain of more orphans than there is room
// for loses its head.
func TestLongOrphanChain(t *testing.T) {
	const limit, n = 65536, 65536 + 100
	s := indexer.New()
	names := number(1, n)
	out := s.Store(&indexer.Store{Parent: 7, HasParent: true, EngineHashes: names, Local: names})
	if out != (indexer.Outcome{Orphaned: n, Dropped: n - limit}) {
		t.Fatalf("%+v", out)
	}
	s.Remove(0, indexer.Device, names[n-1:])
	if out := s.Store(&indexer.Store{EngineHashes: []uint64{7}, Local: []uint64{7}}); out.Stored != 1 {
		t.Errorf("%+v", out)
	}
	if st := s.Stats(); st.Orphans != limit-1 || st.Unique != 1 {
		t.Errorf("without the head nothing joins: %+v", st)
	}
	s.Store(&indexer.Store{Parent: 7, HasParent: true, EngineHashes: names[:n-limit], Local: names[:n-limit]})
	if st := s.Stats(); st.Orphans != 0 || st.Unique != n {
		t.Errorf("all but the removed one join: %+v, want %d unique", st, n)
	}
}
