package replicasync

import (
	"testing"
	"time"

	"github.com/select-service/select-service/pkg/reservations/history"
)

// TestFreedLogBounded proves that the names of freed reservations are bounded, however
// many processes tell of them, and that the process with most of them loses them.
func TestFreedLogBounded(t *testing.T) {
	f := newFreedLog()
	name := func(i int) history.Name {
		return history.Name{Origin: history.Origin{Process: 1, Sequence: uint64(i)}}
	}
	f.add(1, name(1), epoch)
	for i := range 3 * maxAllFreed {
		f.add(2+uint64(i)%8, name(i), epoch)
	}
	total := 0
	for reporter, q := range f.from {
		total += q.len()
		if cap(q.queue) > 2*maxFreed+1 {
			t.Errorf("memory for %d names of process %d", cap(q.queue), reporter)
		}
	}
	if total != f.n || total > maxAllFreed || total < maxAllFreed/2 {
		t.Errorf("%d names, counted %d; the limit is %d", total, f.n, maxAllFreed)
	}
	if q := f.from[1]; q == nil || q.len() != 1 {
		t.Error("a process with few names has lost them")
	}
	later := epoch.Add(freedFor + time.Second)
	if got := f.names(func(uint64) bool { return true }, later); len(got) != 0 {
		t.Errorf("old names of %d processes", len(got))
	}
}
