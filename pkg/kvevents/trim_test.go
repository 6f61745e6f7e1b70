package kvevents

import (
	"encoding/binary"
	"errors"
	"testing"
)

// TestManyEvents: a batch of more events than maxEvents is refused before memory is spent
// on them, and what a large one has taken is not kept.
func TestManyEvents(t *testing.T) {
	batch := func(n int) []byte { // of events [x]: each is bad by itself
		b := binary.BigEndian.AppendUint32([]byte{0x93, 0xc0, 0xdd}, uint32(n))
		for range n {
			b = append(b, 0x91, 0xa1, 'x')
		}
		return append(b, 0)
	}
	var w Workspace
	if err := w.Decoder.Decode(batch(maxEvents+1), &w.Batch); !errors.Is(err, ErrTooManyEvents) {
		t.Errorf("error %v", err)
	}
	if n := cap(w.Batch.Events) + cap(w.Batch.Bad); n != 0 {
		t.Errorf("it has taken memory for %d events", n)
	}
	for n, want := range map[int]bool{maxEvents: false, 100: true} {
		if err := w.Decoder.Decode(batch(n), &w.Batch); err != nil || len(w.Batch.Bad) != n {
			t.Fatalf("%d of %d events, %v", len(w.Batch.Bad), n, err)
		}
		w.trim()
		if kept := cap(w.Batch.Bad) > 0; kept != want {
			t.Errorf("the memory of %d events is kept: %t", n, kept)
		}
		w = Workspace{}
	}
}
