package client

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestFreedBound proves, against a list, that exactly the latest freed ids are
// remembered and that what is kept is bounded.
func TestFreedBound(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	var turns turns
	var list []string // "" was booked again
	for range 40_000 {
		id := fmt.Sprint(rnd.IntN(3 * maxFreed))
		at := slices.Index(list, id)
		if turns.wasFreed(id) != (at >= 0) {
			t.Fatalf("%s: remembered %v at %d of %d", id, turns.wasFreed(id), at, len(list))
		}
		switch {
		case rnd.IntN(4) == 0:
			turns.booked(id)
			if at >= 0 {
				list[at] = ""
			}
		case at < 0:
			turns.free(id)
			list = append(list, id)
			list = list[max(0, len(list)-maxFreed):]
		}
		if len(turns.freed) > maxFreed || len(turns.order) > maxFreed || len(turns.lines) != 0 {
			t.Fatalf("keeps %d ids, %d places, %d lines", len(turns.freed), len(turns.order), len(turns.lines))
		}
	}
}
