package reservations

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/select-service/select-service/pkg/catalog"
)

// TestPagesUnderChurn proves that a walk over small pages has every reservation that
// is live during all of it exactly once, whatever comes and goes meanwhile.
func TestPagesUnderChurn(t *testing.T) {
	l, _ := withRanks(1, nil)
	other := catalog.Scope{Model: "other"}
	l.PutRank(other, 0, catalog.Rank{})
	standing := make(map[string]bool)
	for i := range 300 {
		for _, sc := range []catalog.Scope{testScope, other} {
			id := fmt.Sprint(sc.Model, i)
			standing[id] = true
			bookOn(t, l, sc, id, 0, nil)
			bookOn(t, l, sc, "gone "+id, 0, nil)
		}
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			bookOn(t, l, other, fmt.Sprint("churn", i), 0, nil)
			_ = l.Free(fmt.Sprint("churn", i-5))
			_ = l.Free(fmt.Sprint("gone m", i))
			_ = l.Free(fmt.Sprint("gone other", i))
		}
	})
	for range 20 {
		seen := make(map[string]bool)
		at := Cursor{}
		for more := true; more && len(seen) < 10_000; {
			var page []Reservation
			page, at, more = l.Reservations(at, 7)
			for _, b := range page {
				if seen[b.ID] {
					t.Errorf("%s comes twice", b.ID)
				}
				seen[b.ID] = true
			}
		}
		for id := range standing {
			if !seen[id] {
				t.Fatalf("%s is missing", id)
			}
		}
	}
	close(stop)
	wg.Wait()
}

// TestPagesOfLongPrompts proves that a page of long prompts ends before its limit, and that a walk over
// such pages has all of them.
func TestPagesOfLongPrompts(t *testing.T) {
	l, _ := withRanks(1, nil)
	const many, blocks = 100, 1 << 13
	for i := range many {
		hashes := make([]uint64, blocks)
		for n := range hashes {
			hashes[n] = uint64(i*blocks + n)
		}
		bookOn(t, l, testScope, fmt.Sprint(i), 0, hashes)
	}
	for name, list := range map[string]func(Cursor) ([]Reservation, Cursor, bool){
		"whole": func(at Cursor) ([]Reservation, Cursor, bool) { return l.Reservations(at, 1000) },
		"shared": func(at Cursor) (page []Reservation, next Cursor, more bool) {
			listed, next, more := l.ListedReservations(at, 1000)
			for _, r := range listed {
				page = append(page, r.Reservation)
			}
			return page, next, more
		},
	} {
		seen := make(map[string]int)
		for at, more := (Cursor{}), true; more; {
			var page []Reservation
			page, at, more = list(at)
			total := 0
			for _, r := range page {
				seen[r.ID] += len(r.Hashes)
				total += len(r.Hashes)
			}
			if total > blocksPerPage+blocksPerLock {
				t.Errorf("%s: a page of %d reservations has %d hashes", name, len(page), total)
			}
		}
		for i := range many {
			if n := seen[fmt.Sprint(i)]; n != blocks {
				t.Errorf("%s: %d hashes of reservation %d", name, n, i)
			}
		}
	}
}

// TestCursor proves that a place survives as text, and that one in another
// ledger is the beginning.
func TestCursor(t *testing.T) {
	l, _ := withRanks(1, nil)
	for i := range 5 {
		bookOn(t, l, testScope, fmt.Sprint(i), 0, nil)
	}
	_, at, more := l.Reservations(Cursor{}, 2)
	text, err := at.MarshalText()
	if err != nil || !more {
		t.Fatal(err, more)
	}
	var again Cursor
	if err := again.UnmarshalText(text); err != nil || again != at {
		t.Errorf("%s is read as %v: %v", text, again, err)
	}
	page, at, more := l.Reservations(again, 10)
	if len(page) != 3 || page[0].ID != "2" || more {
		t.Errorf("%d reservations, more: %v", len(page), more)
	}
	if page, _, _ = l.Reservations(at, 0); len(page) != 0 {
		t.Errorf("%d reservations after the last", len(page))
	}
	again.process++
	if page, _, _ = l.Reservations(again, 0); len(page) != 1 || page[0].ID != "0" {
		t.Errorf("another ledger's cursor leads to %v", page)
	}
}

// FuzzCursor proves that every text is refused or written back to the same
// place.
func FuzzCursor(f *testing.F) {
	for _, text := range []string{"", "1-2-3", "ffffffffffffffff-0-0", "1-2", "-1-2-3", "1-2-x", "10000000000000000-0-0"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var c, again Cursor
		if err := c.UnmarshalText([]byte(text)); err != nil {
			if !errors.Is(err, ErrCursor) || c != again {
				t.Fatalf("%q: %v", text, err)
			}
			return
		}
		out, _ := c.MarshalText()
		if err := again.UnmarshalText(out); err != nil || again != c {
			t.Fatalf("%q, %q: %v, %v", text, out, c, err)
		}
	})
}

// TestEntryLog proves that the list keeps its order and finds the place after any
// serial, also of a record that was removed, with memory in proportion to what lives.
func TestEntryLog(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	var o entryLog
	var live []*entry
	serials := make(map[*entry]uint64)
	for range 20_000 {
		if rnd.IntN(100) < 52 || len(live) == 0 {
			r := new(entry)
			o.add(r)
			serials[r] = o.last
			live = append(live, r)
		} else {
			i := rnd.IntN(len(live))
			o.remove(live[i])
			live = append(live[:i], live[i+1:]...)
		}
		if rnd.IntN(50) > 0 {
			continue
		}
		after := rnd.Uint64N(o.last + 1)
		var want, got []uint64
		for _, r := range live {
			if serials[r] > after {
				want = append(want, serials[r])
			}
		}
		for _, x := range o.records[o.after(after):] {
			if x.entry != nil {
				got = append(got, serials[x.entry])
			}
		}
		if !slices.Equal(want, got) {
			t.Fatalf("after %d: %v, want %v", after, got, want)
		}
	}
	for _, r := range live {
		o.remove(r)
	}
	if o.trim(); cap(o.records) > 64 {
		t.Errorf("%d records, room for %d", len(o.records), cap(o.records))
	}
}
