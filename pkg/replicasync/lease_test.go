package replicasync

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/select-service/select-service/pkg/reservations"
)

// renewal is process 2's renewal of a reservation of process 3.
func renewal(number, reservation uint64) *event {
	return &event{
		kind: renewed, sender: 2, sequence: number, origin: reservations.Origin{Process: 3, Sequence: reservation},
		scope: benchScope, blockSize: 16, id: "x", rank: benchRank,
	}
}

func (b *bench) lease(number uint64) reservations.Reservation {
	x := reservations.Reservation{
		Origin: reservations.Origin{Process: 3, Sequence: number}, Scope: benchScope, ID: "x", Rank: benchRank, Lease: 20 * time.Second,
	}
	b.ledger.ApplyBooked(x)
	return x
}

// TestLostRenewals proves that a gap in the numbers of renewals is shown by the
// next one and by an announcement, that it asks for the sender's snapshot, and
// that the snapshot covers it. The numbers of events are a series of their own.
func TestLostRenewals(t *testing.T) {
	b := newBench(fixedScopes{benchScope: 16})
	b.lease(1)
	settle := func(renewals uint64) {
		t.Helper()
		if got := b.asks(2 * time.Second); !slices.Equal(got, []uint64{2}) {
			t.Fatalf("asked %v, want the sender", got)
		}
		b.done(2, fetchResult{sequence: 100, renewals: renewals})
		if got := b.asks(2 * time.Second); len(got) != 0 {
			t.Fatalf("asked %v again", got)
		}
	}
	announce := func(renewals uint64) {
		b.onAnnouncement("tcp://p:2", announcement{process: 2, url: "http://p:1", sequence: 100, renewals: renewals}, b.now)
	}
	announce(4)
	settle(4) // it is new
	b.onEvent("tcp://p:2", renewal(5, 1), b.now)
	if got := b.asks(2 * time.Second); len(got) != 0 {
		t.Errorf("asked %v without a gap", got)
	}
	b.onEvent("tcp://p:2", renewal(7, 1), b.now)
	settle(7)
	announce(9)
	settle(9)
	if n := b.counts.lost.Load(); n != 3 {
		t.Errorf("%d lost, want 6, 8 and 9", n)
	}
}

// TestRenewalTwice proves that a renewal which comes again prolongs nothing.
func TestRenewalTwice(t *testing.T) {
	b := newBench(fixedScopes{benchScope: 16})
	b.lease(1)
	b.onEvent("tcp://p:2", renewal(1, 1), b.now)
	b.now = b.now.Add(25 * time.Second)
	b.onEvent("tcp://p:2", renewal(1, 1), b.now)
	b.now = b.now.Add(6 * time.Second)
	if n, _ := b.ledger.Expire(); n != 1 || b.counts.duplicates.Load() != 1 {
		t.Errorf("%d expired after lease and slack, %d duplicates", n, b.counts.duplicates.Load())
	}
}

// TestRenewalOfMissing proves that a renewal of a reservation that is missing here makes
// the sender's snapshot wanted, unless the reservation has ended or its scope or rank is
// not here.
func TestRenewalOfMissing(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*bench, *event)
		asks   bool
	}{
		"missing":    {func(*bench, *event) {}, true},
		"lapsed":     {func(b *bench, _ *event) { b.lease(1); b.now = b.now.Add(31 * time.Second); b.ledger.Expire() }, true},
		"ended":      {func(b *bench, e *event) { b.lease(1); b.ledger.ApplyFreed(e.ref(reservations.ByOwner)) }, false},
		"no rank":    {func(_ *bench, e *event) { e.rank.Worker = 99 }, false},
		"no scope":   {func(_ *bench, e *event) { e.scope.Model = "other" }, false},
		"own":        {func(_ *bench, e *event) { e.origin.Process = 1 }, false},
		"other size": {func(_ *bench, e *event) { e.blockSize = 32 }, false},
	} {
		b := newBench(fixedScopes{benchScope: 16})
		e := renewal(1, 1)
		tt.change(b, e)
		b.hear(2, 0, 0)
		for _, process := range b.asks(2 * time.Second) { // it is new
			b.done(process, fetchResult{})
		}
		b.onEvent("tcp://p:1", e, b.now)
		if got := len(b.asks(2*time.Second)) > 0; got != tt.asks {
			t.Errorf("%s: asked: %v", name, got)
		}
	}
}

// TestLeaseMessages proves what goes over the wire for leases, byte for byte: the
// further key of a reservation, which one without lease does not have, a renewal and
// an announcement.
func TestLeaseMessages(t *testing.T) {
	step := reservations.Event{Scope: benchScope, ID: "r", Rank: benchRank, Origin: reservations.Origin{Process: 9}}
	plain := localEvent(booked, 9, step, 16)
	step.Lease = 1500 * time.Millisecond
	leased := localEvent(booked, 9, step, 16)
	step.Origin.Sequence = 5
	renew := localEvent(renewed, 9, step, 16)
	plain.sequence, leased.sequence, renew.sequence = 5, 6, 7
	enc := newEncoder()
	var got strings.Builder
	for _, e := range []*event{&plain, &leased, &renew} {
		fmt.Fprintf(&got, "%s %x\n", e.kind.topic(), enc.event(e))
	}
	fmt.Fprintf(&got, "%s %x\n", TopicAnnounce, enc.announcement(announcement{process: 9, url: "http://h:1", sequence: 6, merged: 2, renewals: 7}))
	path := filepath.Join("testdata", "leases.golden")
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(path, []byte(got.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("(-want +got; UPDATE_GOLDEN=1 accepts):\n%s", diff)
	}
}
