package offheap_test

import (
	"testing"

	"github.com/select-service/select-service/internal/container/offheap"
)

// TestMemory proves that pieces of all sizes are zeros that can be written, also where others were
// before, and that what is handed out is counted; Close gives back all that is outside.
func TestMemory(t *testing.T) {
	var m offheap.Memory
	if offheap.Make[uint64](&m, 0) != nil || m.Bytes() != 0 {
		t.Error("nothing takes something")
	}
	for range 3 {
		var all [][]uint32
		total := int64(0)
		for _, n := range []int{1, 100, 4095, 4096, 4097, 1 << 18} {
			piece := offheap.Make[uint32](&m, n)
			for i := range piece {
				if piece[i] != 0 {
					t.Fatalf("piece of %d: %d at %d", n, piece[i], i)
				}
				piece[i] = uint32(n)
			}
			all, total = append(all, piece), total+int64(4*n)
			if m.Bytes() != total || m.Outside() > total {
				t.Errorf("%d bytes, %d outside, want %d", m.Bytes(), m.Outside(), total)
			}
		}
		for _, piece := range all {
			if piece[len(piece)-1] != uint32(len(piece)) {
				t.Errorf("a piece of %d was overwritten", len(piece))
			}
			offheap.Free(&m, piece)
		}
		if m.Bytes() != 0 || m.Outside() != 0 {
			t.Errorf("%d bytes, %d outside are left", m.Bytes(), m.Outside())
		}
	}
	offheap.Make[uint64](&m, 1<<20)
	onHeap := m.Bytes() - m.Outside()
	if m.Close(); m.Bytes() != onHeap || m.Outside() != 0 {
		t.Errorf("%d bytes, %d outside are left by Close", m.Bytes(), m.Outside())
	}
}
