package pending_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/select-service/select-service/internal/selection/pending"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/memory"
	"github.com/select-service/select-service/pkg/reservations"
)

var (
	scope  = catalog.Scope{Model: "m", Tenant: "t"}
	ledger = reservations.New(1, time.Now, nil) // without active prompts
)

// clock is what a store under test takes the time from.
type clock struct{ time time.Time }

func (c *clock) now() time.Time { return c.time }

func (c *clock) pass(d time.Duration) { c.time = c.time.Add(d) }

func newStore(limits pending.Limits) (*pending.Store, *clock) {
	c := &clock{time: time.Unix(1e9, 0)}
	return pending.New(limits, c.now), c
}

// of is a selection of a worker with a prompt of n blocks.
func of(worker uint64, n int) pending.Selection {
	return pending.Selection{
		Scope: scope, Rank: catalog.Rank{Worker: worker, DP: 1},
		Prompt: ledger.Pin(scope, make([]uint64, n), make([]uint64, n)),
		Tokens: uint64(n) * 4,
	}
}

// TestUnpins proves that a selection keeps its prompt until the store and everybody who has got it
// need it no more, however it leaves the store, and no longer.
func TestUnpins(t *testing.T) {
	chain := make([]uint64, 100)
	for i := range chain {
		chain[i] = uint64(i) + 1
	}
	for name, leave := range map[string]func(*pending.Store, *pending.Kept, *clock){
		"spent":    func(s *pending.Store, k *pending.Kept, _ *clock) { s.Spend(k) },
		"dropped":  func(s *pending.Store, _ *pending.Kept, _ *clock) { s.Drop(scope, "a") },
		"replaced": func(s *pending.Store, _ *pending.Kept, _ *clock) { s.Put("a", of(2, 1)) },
		"evicted":  func(s *pending.Store, _ *pending.Kept, _ *clock) { s.Put("b", of(2, 1)) },
		"swept":    func(s *pending.Store, _ *pending.Kept, c *clock) { c.pass(time.Hour); s.Sweep() },
	} {
		account := memory.NewAccount("ledger", 1<<20)
		l := reservations.New(1, time.Now, nil)
		l.SetLimits(reservations.Limits{Memory: account})
		rank := catalog.Rank{Worker: 1}
		l.PutRank(scope, 0, rank)
		if _, err := l.Book(scope, reservations.Request{ID: "r", Hashes: chain}, func(*reservations.View) (reservations.Placement, error) {
			return reservations.Placement{Rank: rank}, nil
		}); err != nil {
			t.Fatal(err)
		}
		s, clock := newStore(pending.Limits{TTL: time.Minute, Entries: 1, Bytes: 1 << 20})
		s.Put("a", pending.Selection{Scope: scope, Prompt: l.Pin(scope, nil, chain)})
		_ = l.Free("r")
		k := s.Get(scope, "a")
		leave(s, k, clock)
		if _, got := k.Prompt.AppendTo(nil, nil); !slices.Equal(got, chain) {
			t.Errorf("%s: the prompt is gone while it is used", name)
		}
		s.Release(k)
		if used := account.Used(); used != 0 {
			t.Errorf("%s: %d bytes are left in the ledger", name, used)
		}
	}
}

// worker is that of the selection that is kept under an id, 0 if there is none.
func worker(s *pending.Store, id string) uint64 {
	k := s.Get(scope, id)
	defer s.Release(k)
	if k == nil {
		return 0
	}
	return k.Rank.Worker
}

func want(t *testing.T, s *pending.Store, id string, of uint64) {
	t.Helper()
	if got := worker(s, id); got != of {
		t.Errorf("%s: worker %d, want %d", id, got, of)
	}
}

// TestKeeps: what comes out is what was put in, whatever becomes of the
// caller's memory, and in its scope only.
func TestKeeps(t *testing.T) {
	s, _ := newStore(pending.Limits{TTL: time.Minute, Entries: 1, Bytes: 1 << 20})
	local, sequence := []uint64{1, 2}, []uint64{1, 9}
	s.Put("a", pending.Selection{
		Scope: scope, Rank: catalog.Rank{Worker: 1<<64 - 1, DP: 3}, Prompt: ledger.Pin(scope, local, sequence),
		Tokens: 11, Prefill: 7, TrackPrefill: true, ExpectedOutput: new(uint32(5)), Session: "s",
	})
	clear(local)
	clear(sequence)
	for _, sc := range []catalog.Scope{{Model: "m"}, {Model: "m", Tenant: "x"}, {Model: "x", Tenant: "t"}} {
		if k := s.Get(sc, "a"); k != nil {
			t.Errorf("%v: %+v", sc, k)
		}
	}
	got := s.Get(scope, "a")
	local, sequence = got.Prompt.AppendTo(nil, nil)
	if text := fmt.Sprintf("%v %v %v %v %d %d %t %d %s", got.Scope, got.Rank, local, sequence,
		got.Tokens, got.Prefill, got.TrackPrefill, *got.ExpectedOutput, got.Session); text != fmt.Sprintf(
		"%v %v [1 2] [1 9] 11 7 true 5 s", scope, catalog.Rank{Worker: 1<<64 - 1, DP: 3}) {
		t.Error(text)
	}
}

// TestSpend plays what may happen while a selection is being booked: who has got it keeps it, and
// ends no other one.
func TestSpend(t *testing.T) {
	const ttl = 10 * time.Second
	for name, play := range map[string]func(*testing.T, *pending.Store, *pending.Kept, *clock){
		"booked": func(t *testing.T, s *pending.Store, k *pending.Kept, _ *clock) {
			want(t, s, "a", 1) // getting it is no claim
			if s.Spent(k) {
				t.Error("spent too early")
			}
			s.Spend(k)
			want(t, s, "a", 0)
		},
		"selected again, then booked": func(t *testing.T, s *pending.Store, k *pending.Kept, _ *clock) {
			s.Put("a", of(2, 1))
			s.Spend(k)
			want(t, s, "a", 2)
			if s.Spent(s.Get(scope, "a")) {
				t.Error("the new one is spent")
			}
		},
		"dropped, then booked": func(_ *testing.T, s *pending.Store, k *pending.Kept, _ *clock) {
			s.Drop(scope, "a")
			s.Spend(k)
		},
		"swept, then booked": func(_ *testing.T, s *pending.Store, k *pending.Kept, clock *clock) {
			clock.pass(ttl + 1)
			s.Sweep()
			s.Spend(k)
		},
		"booked twice": func(t *testing.T, s *pending.Store, k *pending.Kept, _ *clock) {
			s.Spend(k)
			s.Put("a", of(2, 1))
			s.Spend(k)
			want(t, s, "a", 2)
		},
		"dropped in another scope": func(t *testing.T, s *pending.Store, k *pending.Kept, _ *clock) {
			s.Drop(catalog.Scope{Model: "m"}, "a")
			want(t, s, "a", 1)
			s.Spend(k)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, clock := newStore(pending.Limits{TTL: ttl, Entries: 10, Bytes: 1 << 20})
			s.Put("a", of(1, 1))
			k := s.Get(scope, "a")
			play(t, s, k, clock)
			if k.Rank.Worker != 1 || !s.Spent(k) {
				t.Errorf("it is of worker %d, spent: %t", k.Rank.Worker, s.Spent(k))
			}
			s.Drop(scope, "a")
			if n, bytes := s.Stats(); n != 0 || bytes != 0 {
				t.Errorf("%d entries of %d bytes are left", n, bytes)
			}
		})
	}
}

// TestLimits: what is kept never exceeds a limit, and a store without one of
// them keeps nothing.
func TestLimits(t *testing.T) {
	s, _ := newStore(pending.Limits{TTL: time.Second, Entries: 2, Bytes: 1 << 20})
	for i, id := range []string{"a", "b", "c"} {
		s.Put(id, of(uint64(i)+1, 0))
	}
	want(t, s, "a", 0)
	want(t, s, "b", 2)
	s.Put("b", of(4, 0)) // is the latest now
	s.Put("d", of(5, 0))
	want(t, s, "c", 0)
	want(t, s, "b", 4)

	s, _ = newStore(pending.Limits{TTL: time.Second, Entries: 100, Bytes: 1 << 16})
	s.Put("a", of(1, 100))
	s.Put("b", of(2, 1<<12)) // 64 KiB of hashes, and then some
	want(t, s, "a", 1)
	want(t, s, "b", 0)
	s.Put("a", of(3, 1<<12)) // does not fit, but the latest is what counts
	want(t, s, "a", 0)
	s.Put(strings.Repeat("x", 1<<16), of(4, 0))
	if n, bytes := s.Stats(); n != 0 || bytes != 0 {
		t.Errorf("%d entries of %d bytes", n, bytes)
	}

	for _, none := range []pending.Limits{
		{Entries: 1, Bytes: 1 << 20}, {TTL: time.Second, Bytes: 1 << 20}, {TTL: time.Second, Entries: 1}, {TTL: -1, Entries: -1, Bytes: -1},
	} {
		s, _ := newStore(none)
		s.Put("a", of(1, 0))
		want(t, s, "a", 0)
	}
}
