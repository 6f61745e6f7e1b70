package reservations

import (
	"strings"
	"testing"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
)

// TestRegistration: a rank's number stays as long as the rank does, in its slot, and is never
// given again in the ledger, whatever comes into the slot and scope.
func TestRegistration(t *testing.T) {
	l := New(1, newFakeClock().now, nil)
	of := func(sc catalog.Scope, slot uint32) (n uint64) {
		l.Look(sc, nil, func(v *View) { n = v.Registration(slot) })
		return n
	}
	other := catalog.Scope{Model: "other"}
	r, s := catalog.Rank{Worker: 1}, catalog.Rank{Worker: 2}
	seen := map[uint64]bool{0: true}
	fresh := func(sc catalog.Scope, slot uint32) uint64 {
		t.Helper()
		n := of(sc, slot)
		if seen[n] {
			t.Errorf("slot %d of %v has number %d again", slot, sc, n)
		}
		seen[n] = true
		return n
	}
	if n := of(testScope, 0); n != 0 {
		t.Errorf("a scope without ranks has number %d", n)
	}
	l.PutRank(testScope, 2, r)
	first := fresh(testScope, 2)
	l.PutRank(testScope, 2, r)
	l.PutRank(other, 2, r)
	fresh(other, 2)
	if n := of(testScope, 2); n != first {
		t.Errorf("the number of a rank that stays went from %d to %d", first, n)
	}
	if n := of(testScope, 0) + of(testScope, 99); n != 0 {
		t.Errorf("slots without a rank have number %d", n)
	}
	l.PutRank(testScope, 2, s) // r leaves
	fresh(testScope, 2)
	l.PutRank(testScope, 1, s) // to another slot
	fresh(testScope, 1)
	if n := of(testScope, 2); n != 0 {
		t.Errorf("an empty slot has number %d", n)
	}
	l.RemoveRank(testScope, 1) // the scope with it
	l.PutRank(testScope, 1, s)
	fresh(testScope, 1)
}

// TestDecodingOfUnknownWork: a reservation of whose work nothing is known, own or of another
// process, is no decoding one, and does not hide others when it ends.
func TestDecodingOfUnknownWork(t *testing.T) {
	l := New(1, newFakeClock().now, nil)
	l.SetPrefills(func(catalog.Scope) PrefillObserver { return new(prefillsTold) })
	l.PutRank(testScope, 0, catalog.Rank{})
	want := func(prefills, decoding uint32) {
		t.Helper()
		l.Look(testScope, nil, func(v *View) {
			if q := v.Queue(0); q.Prefills != prefills || q.Decoding != decoding {
				t.Errorf("%d prefills, %d decoding; want %d, %d", q.Prefills, q.Decoding, prefills, decoding)
			}
		})
	}
	book := func(id string, hashes []uint64, tokens uint64, track bool) {
		t.Helper()
		_, err := l.Book(testScope, Request{ID: id, Hashes: hashes, TrackPrefill: track}, func(*View) (Placement, error) {
			return Placement{PrefillTokens: tokens}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	book("light", nil, 0, false)
	want(0, 0)
	book("decode leg", []uint64{1}, 0, false)
	book("short decode leg", nil, 3, false)
	want(0, 2)
	book("second light", nil, 0, false)
	book("chat", []uint64{1}, 4, true)
	want(1, 2)
	for _, id := range []string{"light", "short decode leg", "second light"} {
		if err := l.Free(id); err != nil {
			t.Fatal(err)
		}
	}
	want(1, 1)
	if err := l.PrefillComplete("chat"); err != nil {
		t.Fatal(err)
	}
	want(0, 2)
}

// TestRenewPrefills: queues that begin while there are reservations have their unfinished prefills, the
// oldest first, of which nothing is observed but how many blocks of output were told; what is booked then is; and queues can end.
func TestRenewPrefills(t *testing.T) {
	clock := newFakeClock()
	l := New(1, clock.now, nil)
	var told *prefillsTold
	l.SetPrefills(func(catalog.Scope) PrefillObserver {
		if told == nil {
			return nil
		}
		return told
	})
	l.PutRank(testScope, 0, catalog.Rank{})
	book := func(id string, tokens uint64) {
		t.Helper()
		_, err := l.Book(testScope, Request{ID: id, TrackPrefill: true}, func(*View) (Placement, error) {
			return Placement{PrefillTokens: tokens}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	want := func(what string, want Queue) {
		t.Helper()
		l.Look(testScope, nil, func(v *View) {
			if got := v.Queue(0); got != want {
				t.Errorf("%s: %+v, want %+v", what, got, want)
			}
		})
	}
	book("ends", 1)
	clock.advance(time.Second)
	book("old", 10)
	book("decodes", 20)
	do(l.PrefillComplete("decodes"))
	clock.advance(time.Second)
	book("young", 30)
	do(l.Free("ends")) // the youngest takes its place
	want("without queues", Queue{})
	told = new(prefillsTold)
	l.RenewPrefills()
	clock.advance(time.Second)
	want("with queues", Queue{
		Prefills: 2, Tokens: 40, Context: 10*10/2 + 30*30/2, HeadTokens: 10, HeadPrompt: 10, Elapsed: time.Second, Decoding: 1, Prompts: 60, // since the queues began
	})
	do(l.PrefillComplete("old"))
	do(l.Free("old"))
	do(l.Free("decodes"))
	for _, of := range *told {
		if !strings.HasPrefix(of, "generated") {
			t.Errorf("of reservations from before the queues is told %q", of)
		}
	}
	*told = nil
	book("new", 5)
	do(l.PrefillComplete("new"))
	if len(*told) != 2 {
		t.Errorf("of a reservation is told %q", *told)
	}
	want("one left", Queue{Prefills: 1, Tokens: 30, Context: 30 * 30 / 2, HeadTokens: 30, HeadPrompt: 30, Decoding: 1, Prompts: 35})
	told = nil
	l.RenewPrefills()
	want("without queues again", Queue{})
	do(l.Free("young"))
	do(l.Free("new"))
}
