package reservations

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/select-service/select-service/internal/container/offheap"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/memory"
	"github.com/select-service/select-service/test/helpers/length"
)

// limited returns a ledger with one rank and the given limits.
func limited(m Limits) (*Ledger, *time.Time) {
	now := time.Now()
	l := New(1, func() time.Time { return now }, nil)
	l.SetLimits(m)
	l.PutRank(catalog.Scope{}, 0, catalog.Rank{})
	return l, &now
}

func bookPrompt(l *Ledger, id string, blocks int) error {
	hashes := make([]uint64, blocks)
	for i := range hashes {
		hashes[i] = uint64(len(id))<<32 + uint64(i)
	}
	_, err := l.Book(catalog.Scope{}, Request{ID: id, Hashes: hashes}, func(*View) (Placement, error) { return Placement{}, nil })
	return err
}

func limitOf(err error) (limit string, full bool) {
	if e, ok := errors.AsType[*LimitError](err); ok {
		return e.Limit, e.Full
	}
	return fmt.Sprint(err), false
}

// TestLimits: at each limit new reservations are refused and leave nothing behind,
// ends of whatever kind make room again, and the account returns to zero.
func TestLimits(t *testing.T) {
	account := memory.NewAccount("ledger", 48_600)
	l, now := limited(Limits{Reservations: 4, Blocks: 2000, Memory: account})
	if limit, full := limitOf(bookPrompt(l, "long", 2001)); limit != LimitBlocks || full {
		t.Errorf("a prompt that is too long: %s, full %t", limit, full)
	}
	if limit, full := limitOf(bookPrompt(l, "large", 2000)); limit != LimitMemory || !full {
		t.Errorf("a prompt beyond the account: %s, full %t", limit, full)
	}
	if err := bookPrompt(l, strings.Repeat("x", 47_500), 0); err != nil {
		t.Errorf("a long id: %v", err)
	}
	if limit, _ := limitOf(bookPrompt(l, strings.Repeat("y", 1000), 0)); limit != LimitMemory {
		t.Errorf("an id beyond the account: %s", limit)
	}
	_ = l.Free(strings.Repeat("x", 47_500))
	for i := range 4 {
		if err := bookPrompt(l, fmt.Sprint(i), 10); err != nil {
			t.Fatal(err)
		}
	}
	if limit, full := limitOf(bookPrompt(l, "4", 1)); limit != LimitReservations || !full {
		t.Errorf("one too many: %s, full %t", limit, full)
	}
	var exists *ExistsError
	if err := bookPrompt(l, "3", 1); !errors.As(err, &exists) {
		t.Errorf("an id that exists, at the limit: %v", err)
	}
	if _, found := l.Find("4"); found {
		t.Error("a refused reservation is live")
	}
	if load := l.Loads(catalog.Scope{})[0]; load.Requests != 4 || load.Blocks != 10 {
		t.Errorf("load %+v", load)
	}
	if err := l.Free("0"); err != nil {
		t.Error(err)
	}
	if err := bookPrompt(l, "4", 1); err != nil {
		t.Errorf("after a free: %v", err)
	}
	*now = now.Add(lifetime + time.Second)
	l.Expire()
	if err := bookPrompt(l, "5", 1); err != nil {
		t.Errorf("after all have expired: %v", err)
	}
	l.RemoveRank(catalog.Scope{}, 0)
	if used := account.Used(); used != 0 || l.room.live.Load() != 0 {
		t.Errorf("%d bytes and %d reservations are left", used, l.room.live.Load())
	}
}

// TestRemoteLimits: reservations of other processes get three quarters of a limit
// and no more. What is refused leaves no trace, so that it is taken once there is
// room.
func TestRemoteLimits(t *testing.T) {
	remote := func(n uint64) Reservation {
		return Reservation{Origin: Origin{Process: 2, Sequence: n}, ID: fmt.Sprint("r", n), Hashes: []uint64{n}}
	}
	for name, m := range map[string]Limits{
		"count":  {Reservations: 8},
		"memory": {Memory: memory.NewAccount("ledger", 8*(entryBytes+2*chargeUnit))},
	} {
		t.Run(name, func(t *testing.T) {
			l, _ := limited(m)
			l.numbered.SetMemory(nil) // what has ended is on the account too
			taken := uint64(0)
			for l.ApplyBooked(remote(taken+1)) == Applied {
				taken++
			}
			if taken < 6 || taken > 7 {
				t.Errorf("%d reservations of another process were taken", taken)
			}
			if v := l.MergeReservation(remote(taken + 1)); v != Full {
				t.Errorf("one more by a snapshot: %s", v)
			}
			if err := bookPrompt(l, "own", 1); err != nil {
				t.Errorf("a caller's: %v", err)
			}
			for n := range uint64(3) {
				l.ApplyFreed(Ref{Origin: Origin{Process: 2, Sequence: n + 1}, ID: fmt.Sprint("r", n+1)})
			}
			if v := l.MergeReservation(remote(taken + 1)); v != Applied {
				t.Errorf("what was refused, by a snapshot once there is room: %s", v)
			}
			if v := l.ApplyBooked(remote(1)); v != Ended {
				t.Errorf("one that has ended: %s", v)
			}
			l.RemoveRank(catalog.Scope{}, 0)
			if l.room.live.Load() != 0 || m.Memory.Used() != 0 {
				t.Errorf("%d reservations and %d bytes are left", l.room.live.Load(), m.Memory.Used())
			}
		})
	}
}

// TestSharedBlocksCharged: blocks that several reservations hold are on the account once, until
// the last holder ends, whichever came first.
func TestSharedBlocksCharged(t *testing.T) {
	account := memory.NewAccount("ledger", 1<<30)
	l, _ := limited(Limits{Memory: account})
	prompt := func(shared, own int, tag uint64) (out []uint64) {
		for i := range shared + own {
			out = append(out, uint64(i))
			if i >= shared {
				out[i] |= tag << 32
			}
		}
		return out
	}
	book := func(id string, hashes []uint64) (grown int64) {
		before := account.Used()
		if _, err := l.Book(catalog.Scope{}, Request{ID: id, Hashes: hashes}, func(*View) (Placement, error) { return Placement{}, nil }); err != nil {
			t.Fatal(err)
		}
		return account.Used() - before
	}
	first, second := book("1", prompt(1000, 10, 1)), book("2", prompt(1000, 20, 2))
	if first < 1010*blockBytes || second < 20*blockBytes || second > 20*blockBytes+2*entryBytes {
		t.Errorf("%d and %d bytes", first, second)
	}
	if err := l.Free("1"); err != nil {
		t.Fatal(err)
	}
	if used := account.Used(); used < 1020*blockBytes || used > 1020*blockBytes+2*entryBytes {
		t.Errorf("%d bytes are left after the first holder", used)
	}
	if err := l.Free("2"); err != nil || account.Used() != 0 {
		t.Errorf("%d bytes are left: %v", account.Used(), err)
	}
}

// TestSharedBlocksDisplaced: where a reservation gives way whose blocks another one holds too,
// others give way as well, until the bytes are really free.
func TestSharedBlocksDisplaced(t *testing.T) {
	account := memory.NewAccount("ledger", 200_000)
	l, _ := limited(Limits{Memory: account})
	l.numbered.SetMemory(nil)
	n := uint64(0)
	report := func(peer string, tag uint64, blocks int) ApplyResult {
		n++
		hashes := make([]uint64, blocks)
		for i := range hashes {
			hashes[i] = tag<<32 | uint64(i)
		}
		return l.MergeReservation(Reservation{Peer: peer, Origin: Origin{Process: uint64(peer[0]), Sequence: n}, ID: fmt.Sprint(n), Hashes: hashes})
	}
	for i := range uint64(75) {
		report("a", 1+i, 10)
	}
	if v := report("a", 100, 3000); v != Applied {
		t.Fatal(v)
	}
	if v := report("c", 100, 3000); v != Applied { // the same blocks
		t.Fatal(v)
	}
	for i := uint64(200); report("c", i, 10) == Applied; i++ {
	}
	before, displaced := account.Used(), l.Stats().Displaced
	if v := report("b", 300, 1000); v != Applied {
		t.Fatalf("a smaller share: %s", v)
	}
	if used := account.Used(); used > before {
		t.Errorf("%d bytes are in use, %d before", used, before)
	}
	if more := l.Stats().Displaced - displaced; more < 20 {
		t.Errorf("%d gave way", more)
	}
	l.RemoveRank(catalog.Scope{}, 0)
	if used := account.Used(); used != 0 {
		t.Errorf("%d bytes are left", used)
	}
}

// TestAccountIsReal: over long prompts that share most of their blocks the account is not below
// what the ledger takes of the heap, and at most half above it; a reservation takes at most
// 1.5 KiB and 24 bytes for each new block.
func TestAccountIsReal(t *testing.T) {
	for _, c := range []struct{ live, shared, own int }{{200, 0, 3000}, {2000, 3125, 125}, {4000, 20, 4}}[:length.Of(3, 3, 1)] {
		account := memory.NewAccount("ledger", 1<<40)
		l, _ := limited(Limits{Memory: account})
		for slot := range uint32(8) {
			l.PutRank(catalog.Scope{}, slot, catalog.Rank{Worker: uint64(slot)})
		}
		before := heapInUse()
		for n := range c.live {
			slot := uint32(n % 8)
			hashes := chain(c.shared+c.own, func(i int) uint64 {
				if i < c.shared {
					return uint64(i)
				}
				return uint64(n+1)<<32 | uint64(i)
			})
			req := Request{ID: fmt.Sprintf("reservation-%d", n), Hashes: hashes, TrackPrefill: true}
			if _, err := l.Book(catalog.Scope{}, req, func(*View) (Placement, error) {
				return Placement{Slot: slot, Rank: catalog.Rank{Worker: uint64(slot)}}, nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		grown := heapInUse() - before + l.scope(catalog.Scope{}).blocks.chunks.mem.Outside()
		used := account.Used()
		t.Logf("%d live, %d + %d blocks: %d bytes on the account, %d in use", c.live, c.shared, c.own, used, grown)
		if most := int64(c.live*(1536+blockBytes*c.own) + blockBytes*c.shared + 4096); used > most {
			t.Errorf("%d bytes on the account, at most %d were expected", used, most)
		}
		if used < grown || 2*used > 3*grown {
			t.Errorf("%d live, %d + %d blocks: %d bytes on the account, %d in use", c.live, c.shared, c.own, used, grown)
		}
		runtime.KeepAlive(l)
	}
}

// TestDroppedLedger proves that a ledger which is dropped with live reservations leaves no memory
// outside the collector's heap behind.
func TestDroppedLedger(t *testing.T) {
	mem := func() *offheap.Memory {
		l := New(1, time.Now, nil)
		l.PutRank(catalog.Scope{}, 0, catalog.Rank{})
		req := Request{ID: "a", Hashes: chain(1<<16, func(i int) uint64 { return uint64(i) })}
		if _, err := l.Book(catalog.Scope{}, req, func(*View) (Placement, error) { return Placement{}, nil }); err != nil {
			t.Fatal(err)
		}
		return l.scope(catalog.Scope{}).blocks.chunks.mem
	}()
	for mem.Outside() > 0 { // or the test's time is over
		runtime.GC()
		runtime.Gosched()
	}
}
