package reservations

import (
	"slices"
	"testing"

	"github.com/select-service/select-service/pkg/catalog"
)

// lastBooked is an observer that keeps the last booking.
type lastBooked struct {
	noObserver
	Event
}

func (l *lastBooked) Booked(e Event) uint64 { l.Event = e; return 0 }

// chainOf returns n hashes, the first common ones of which all chains have.
func chainOf(chain uint64, common, n int) []uint64 {
	out := make([]uint64, n)
	for i := range out {
		out[i] = uint64(i + 1)
		if i >= common {
			out[i] |= chain << 32
		}
	}
	return out
}

// TestPrefixOfABooking proves that the observer is told of a live reservation of this process that
// begins like a booked one, on its rank if there is one, on another else, and of none where there
// is none or few blocks are the same; and that another ledger books the same by it.
func TestPrefixOfABooking(t *testing.T) {
	seen := &lastBooked{}
	clock := newFakeClock()
	l, other := New(1, clock.now, seen), New(2, clock.now, nil)
	for _, led := range []*Ledger{l, other} {
		for slot := range uint32(3) {
			led.PutRank(testScope, slot, catalog.Rank{Worker: uint64(slot)})
		}
	}
	foreign := Reservation{
		Origin: Origin{Process: 2, Sequence: 1}, Scope: testScope, ID: "foreign", Rank: catalog.Rank{Worker: 2}, Hashes: chainOf(9, 0, 40),
	}
	for _, led := range []*Ledger{l, other} {
		led.ApplyBooked(foreign)
	}
	for _, tt := range []struct {
		id     string
		slot   uint32
		hashes []uint64
		like   string
		blocks int
	}{
		{"a", 0, chainOf(1, 50, 60), "", 0},
		{"b", 0, chainOf(2, 50, 60), "a", 50},
		{"c", 1, chainOf(3, 50, 60), "b", 50}, // of another rank
		{"d", 1, chainOf(4, 50, 60), "c", 50}, // of its own
		{"e", 0, chainOf(1, 50, 55), "a", 55},
		{"few", 0, chainOf(5, minPrefix-1, 60), "", 0},
		{"of another process", 2, chainOf(9, 0, 45), "", 0},
		{"repeats", 0, append(chainOf(1, 50, 60), 1, 2), "a", 60},
	} {
		bookOn(t, l, testScope, tt.id, tt.slot, tt.hashes)
		p := seen.Prefix
		if p.ID != tt.like || p.Blocks != tt.blocks || !slices.Equal(seen.Hashes, tt.hashes) {
			t.Errorf("%s: prefix %+v, want %d blocks of %q", tt.id, p, tt.blocks, tt.like)
		}
		h, _ := l.Find(tt.id)
		p.Digest = DigestOf(tt.hashes[:p.Blocks])
		b := Reservation{Origin: h.Origin, Scope: testScope, ID: tt.id, Rank: h.Rank, Prefix: p, Hashes: tt.hashes[p.Blocks:]}
		if v := other.ApplyBooked(b); v != Applied {
			t.Errorf("%s: %v elsewhere", tt.id, v)
		}
		if o, _ := other.Find(tt.id); !slices.Equal(o.Hashes, h.Hashes) {
			t.Errorf("%s is %v elsewhere, want %v", tt.id, o.Hashes, h.Hashes)
		}
	}
}

// TestUnknownPrefix proves which prefixes are refused, without a trace, and that what needs no
// prefix does not ask for one.
func TestUnknownPrefix(t *testing.T) {
	l, _ := withRanks(2, nil)
	chain := chainOf(1, 0, 40)
	first := Reservation{Origin: Origin{Process: 7, Sequence: 1}, Scope: testScope, ID: "first", Rank: catalog.Rank{Worker: 0}, Hashes: chain}
	relayed := first
	relayed.Authority, relayed.Origin, relayed.ID = Relayed, Origin{Process: 8, Sequence: 1}, "relayed"
	for _, b := range []Reservation{first, relayed} {
		if v := l.ApplyBooked(b); v != Applied {
			t.Fatal(v)
		}
	}
	good := Prefix{Origin: first.Origin, ID: "first", Blocks: 20, Digest: DigestOf(chain[:20])}
	for _, tt := range []struct {
		name   string
		change func(*Reservation)
		want   ApplyResult
	}{
		{"of nobody", func(b *Reservation) { b.Prefix.Origin.Sequence = 9 }, UnknownPrefix},
		{"of another id", func(b *Reservation) { b.Prefix.ID = "x" }, UnknownPrefix},
		{"too long", func(b *Reservation) { b.Prefix.Blocks = 41 }, UnknownPrefix},
		{"empty", func(b *Reservation) { b.Prefix.Blocks = 0 }, UnknownPrefix},
		{"other blocks", func(b *Reservation) { b.Authority, b.Prefix.Digest = Relayed, b.Prefix.Digest+1 }, UnknownPrefix},
		{"other blocks of another process", func(b *Reservation) { b.Origin.Process, b.Prefix.Digest = 9, 1 }, UnknownPrefix},
		{"told by others", func(b *Reservation) { b.Prefix.Origin, b.Prefix.ID = relayed.Origin, relayed.ID }, UnknownPrefix},
		{"told by others as this is", func(b *Reservation) {
			b.Prefix.Origin, b.Prefix.ID, b.Authority, b.Origin.Sequence = relayed.Origin, relayed.ID, Relayed, 101
		}, Applied},
		{"live", func(b *Reservation) { b.Origin, b.ID, b.Prefix.Blocks = first.Origin, first.ID, 41 }, Known},
		{"unknown rank", func(b *Reservation) { b.Rank.Worker, b.Prefix.Blocks = 99, 41 }, UnknownRank},
		{"ended", func(b *Reservation) { b.Origin.Sequence, b.Prefix.Blocks = 5, 41 }, Ended},
		{"good", func(*Reservation) {}, Applied},
	} {
		b := Reservation{
			Origin: Origin{Process: 7, Sequence: 100}, Scope: testScope, ID: "second", Rank: catalog.Rank{Worker: 1},
			Prefix: good, Hashes: []uint64{1000, 1001},
		}
		tt.change(&b)
		l.ApplyFreed(Ref{Origin: Origin{Process: 7, Sequence: 5}, Scope: testScope, ID: "gone", Rank: b.Rank, Sender: 7})
		before := l.Stats().Live
		v := l.ApplyBooked(b)
		if v != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, v, tt.want)
		}
		if v == Applied {
			l.ApplyFreed(Ref{Origin: b.Origin, Scope: testScope, ID: b.ID, Rank: b.Rank, Sender: 7, Authority: b.Authority})
			if b.Authority == ByOwner {
				continue
			}
		}
		if n := l.Stats().Live; n != before {
			t.Errorf("%s: %d live, want %d", tt.name, n, before)
		}
	}
}
