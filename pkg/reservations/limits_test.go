package reservations

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/select-service/select-service/internal/budget"
	"github.com/select-service/select-service/pkg/catalog"
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
	account := budget.NewAccount("ledger", 100_000)
	l, now := limited(Limits{Reservations: 4, Blocks: 2000, Memory: account})
	if limit, full := limitOf(bookPrompt(l, "long", 2001)); limit != LimitBlocks || full {
		t.Errorf("a prompt that is too long: %s, full %t", limit, full)
	}
	if limit, full := limitOf(bookPrompt(l, "large", 2000)); limit != LimitMemory || !full {
		t.Errorf("a prompt beyond the account: %s, full %t", limit, full)
	}
	if err := bookPrompt(l, strings.Repeat("x", 99_000), 0); err != nil {
		t.Errorf("a long id: %v", err)
	}
	if limit, _ := limitOf(bookPrompt(l, strings.Repeat("y", 1000), 0)); limit != LimitMemory {
		t.Errorf("an id beyond the account: %s", limit)
	}
	_ = l.Free(strings.Repeat("x", 99_000))
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
		"memory": {Memory: budget.NewAccount("ledger", 8*(entryBytes+2*chargeUnit))},
	} {
		t.Run(name, func(t *testing.T) {
			l, _ := limited(m)
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
