package reservations

import (
	"math/rand/v2"
	"testing"

	"github.com/select-service/select-service/internal/container/keyhash"
	"github.com/select-service/select-service/internal/container/offheap"
	"github.com/select-service/select-service/internal/container/slotset"
)

// TestFlatAgainstMap proves that the table answers as a Go map for a random
// history of puts, removes and trims, also when keys collide heavily.
func TestFlatAgainstMap(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	table, want := flat{key: keyhash.New()}, make(map[uint64]uint32)
	for step := range 300_000 {
		// The number of keys swells and shrinks.
		limit := uint64(200 + 20_000*(step/50_000%2))
		key := rnd.Uint64N(limit)
		switch rnd.IntN(5) {
		case 0, 1:
			e, found := table.put(key)
			if _, known := want[key]; found != known {
				t.Fatalf("put(%d): found %v, want %v", key, found, known)
			}
			e.b = rnd.Uint32() | 1
			want[key] = e.b
		case 2, 3:
			if _, known := want[key]; known {
				table.remove(key)
				delete(want, key)
			}
		case 4:
			table.trim(rnd.IntN(segments))
		}
		e := table.find(key)
		if b, known := want[key]; (e != nil) != known || known && (e.key != key || e.b != b) {
			t.Fatalf("find(%d) = %v, want %d", key, e, b)
		}
	}
	if table.live != len(want) {
		t.Errorf("%d live, want %d", table.live, len(want))
	}
	for key, b := range want {
		if e := table.find(key); e == nil || e.b != b {
			t.Fatalf("find(%d) = %v, want %d", key, e, b)
		}
	}
}

// TestFlatTrim proves that trim leaves no more than a few rows per entry.
func TestFlatTrim(t *testing.T) {
	table := flat{key: keyhash.New()}
	for key := range uint64(100_000) {
		e, _ := table.put(key)
		e.b = 1
	}
	for key := range uint64(99_000) {
		table.remove(key)
	}
	rows := 0
	for i := range segments {
		table.trim(i)
		rows += len(table.segs[i].rows)
	}
	if most := 8*1_000 + minSegment*segments; rows > most {
		t.Errorf("%d rows for 1000 entries, want at most %d", rows, most)
	}
	for key := uint64(99_000); key < 100_000; key++ {
		if table.find(key) == nil {
			t.Fatalf("%d is lost", key)
		}
	}
}

// TestWordArena proves that sets keep their members while others come and go,
// while all are widened and while empty chunks are given back.
func TestWordArena(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	sets, want := wordArena{mem: new(offheap.Memory), words: 1}, make(map[uint32]uint32) // set: only member
	for step := range 20_000 {
		grow := step/2_500%2 == 0
		if len(want) == 0 || rnd.IntN(10) < 7 == grow {
			id := sets.alloc()
			if _, taken := want[id]; taken {
				t.Fatalf("set %d given out twice", id)
			}
			for _, word := range sets.get(id) {
				if word != 0 {
					t.Fatalf("set %d is not empty", id)
				}
			}
			want[id] = rnd.Uint32N(uint32(64 * sets.words))
			setBit(sets.get(id), want[id])
		} else {
			for id := range want {
				sets.release(id)
				delete(want, id)
				break
			}
		}
		switch step {
		case 5_000, 9_000:
			sets.widen(sets.words + 2)
		case 7_000, 15_000:
			sets.trim()
		}
	}
	for id, member := range want {
		set := sets.get(id)
		if first := firstBit(set); first != member {
			t.Errorf("set %d begins with %d, want %d", id, first, member)
		}
		clearBit(set, member)
		if slotset.Set(set).Has(member) {
			t.Errorf("set %d keeps %d", id, member)
		}
		sets.release(id)
	}
	sets.trim()
	if len(sets.chunks) != 0 {
		t.Errorf("%d chunks left", len(sets.chunks))
	}
}

// TestDistinct proves that repeats go, order stays, and legal input is not copied.
func TestDistinct(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	for n := range 300 {
		in := make([]uint64, n)
		for i := range in {
			in[i] = rnd.Uint64N(uint64(n) * 4)
		}
		var want []uint64
		seen := make(map[uint64]bool)
		for _, h := range in {
			if !seen[h] {
				seen[h] = true
				want = append(want, h)
			}
		}
		got := distinct(in)
		if len(got) != len(want) {
			t.Fatalf("distinct(%v) = %v", in, got)
		}
		for i := range got {
			if got[i] != want[i] {
				t.Fatalf("distinct(%v) = %v", in, got)
			}
		}
		if len(want) == n && n > 0 && &got[0] != &in[0] {
			t.Fatalf("distinct copied %d hashes without repeats", n)
		}
	}
}
