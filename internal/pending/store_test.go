package pending_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/select-service/select-service/internal/pending"
	"github.com/select-service/select-service/pkg/catalog"
)

var scope = catalog.Scope{Model: "m", Tenant: "t"}

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
		Local: make([]uint64, n), Sequence: make([]uint64, n),
		Tokens: uint64(n) * 4,
	}
}

// taken is the worker of the selection that is kept under an id, 0 if there is
// none that can be taken. It is given back.
func taken(s *pending.Store, id string) uint64 {
	c, err := s.Take(scope, id)
	if err != nil {
		return 0
	}
	defer c.Back()
	return c.Selection().Rank.Worker
}

func want(t *testing.T, s *pending.Store, id string, worker uint64) {
	t.Helper()
	if got := taken(s, id); got != worker {
		t.Errorf("%s: worker %d, want %d", id, got, worker)
	}
}

func take(t *testing.T, s *pending.Store, id string) *pending.Claim {
	t.Helper()
	c, err := s.Take(scope, id)
	if err != nil {
		t.Fatalf("%s: %v", id, err)
	}
	return c
}

// TestKeeps: what comes out is what was put in, whatever becomes of the
// caller's memory, and in its scope only.
func TestKeeps(t *testing.T) {
	s, _ := newStore(pending.DefaultLimits())
	local, sequence := []uint64{1, 2}, []uint64{1, 9}
	s.Put("a", pending.Selection{
		Scope: scope, Rank: catalog.Rank{Worker: 1<<64 - 1, DP: 3}, Local: local, Sequence: sequence,
		Tokens: 11, Prefill: 7, TrackPrefill: true, ExpectedOutput: new(uint32(5)), Session: "s",
	})
	clear(local)
	clear(sequence)
	for _, sc := range []catalog.Scope{{Model: "m"}, {Model: "m", Tenant: "x"}, {Model: "x", Tenant: "t"}} {
		if _, err := s.Take(sc, "a"); !errors.Is(err, pending.ErrNone) {
			t.Errorf("%v: %v", sc, err)
		}
	}
	got := take(t, s, "a").Selection()
	if text := fmt.Sprintf("%v %v %v %v %d %d %t %d %s", got.Scope, got.Rank, got.Local, got.Sequence,
		got.Tokens, got.Prefill, got.TrackPrefill, *got.ExpectedOutput, got.Session); text != fmt.Sprintf(
		"%v %v [1 2] [1 9] 11 7 true 5 s", scope, catalog.Rank{Worker: 1<<64 - 1, DP: 3}) {
		t.Error(text)
	}
}

// TestClaims plays what may happen while a selection is being booked.
func TestClaims(t *testing.T) {
	const ttl = 10 * time.Second
	for name, play := range map[string]func(*testing.T, *pending.Store, *clock){
		"booked": func(t *testing.T, s *pending.Store, _ *clock) {
			c := take(t, s, "a")
			want(t, s, "a", 0) // no one else books it meanwhile
			c.Done()
			want(t, s, "a", 0)
			c.Back() // of no account
			want(t, s, "a", 0)
		},
		"failed": func(t *testing.T, s *pending.Store, _ *clock) {
			c := take(t, s, "a")
			c.Back()
			want(t, s, "a", 1)
			c.Done()
			want(t, s, "a", 1)
		},
		"failed, and too old": func(t *testing.T, s *pending.Store, clock *clock) {
			c := take(t, s, "a")
			clock.pass(ttl + 1)
			c.Back()
			if n, bytes := s.Stats(); n != 0 || bytes != 0 {
				t.Errorf("%d entries of %d bytes are left", n, bytes)
			}
		},
		"failing does not prolong": func(t *testing.T, s *pending.Store, clock *clock) {
			c := take(t, s, "a")
			clock.pass(ttl)
			c.Back()
			want(t, s, "a", 1)
			clock.pass(1)
			want(t, s, "a", 0)
		},
		"selected again, then booked": func(t *testing.T, s *pending.Store, _ *clock) {
			c := take(t, s, "a")
			s.Put("a", of(2, 1))
			c.Done()
			want(t, s, "a", 2)
		},
		"selected again, then failed": func(t *testing.T, s *pending.Store, _ *clock) {
			c := take(t, s, "a")
			s.Put("a", of(2, 1))
			c.Back()
			want(t, s, "a", 2)
		},
		"selected again and taken, then failed": func(t *testing.T, s *pending.Store, _ *clock) {
			first := take(t, s, "a")
			s.Put("a", of(2, 1))
			second := take(t, s, "a")
			first.Back()
			want(t, s, "a", 0) // the second has it
			second.Back()
			want(t, s, "a", 2)
		},
		"dropped": func(t *testing.T, s *pending.Store, _ *clock) {
			c := take(t, s, "a")
			s.Drop(scope, "a")
			c.Back()
			want(t, s, "a", 0)
		},
		"dropped in another scope": func(t *testing.T, s *pending.Store, _ *clock) {
			s.Drop(catalog.Scope{Model: "m"}, "a")
			want(t, s, "a", 1)
		},
		"swept": func(t *testing.T, s *pending.Store, clock *clock) {
			c := take(t, s, "a")
			clock.pass(ttl + 1)
			s.Sweep()
			if c.Selection().Rank.Worker != 1 {
				t.Error("the claim has lost its selection")
			}
			c.Done()
			want(t, s, "a", 0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, clock := newStore(pending.Limits{TTL: ttl, Entries: 10, Bytes: 1 << 20})
			s.Put("a", of(1, 1))
			play(t, s, clock)
		})
	}
}

// TestOneBooks: of many that replay one selection at the same time, one books
// it; as in 1.6.1 the others find nothing.
func TestOneBooks(t *testing.T) {
	s, _ := newStore(pending.DefaultLimits())
	for range 100 {
		s.Put("a", of(1, 1))
		var booked, failed int
		var mu sync.Mutex
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				c, err := s.Take(scope, "a")
				if err != nil {
					return
				}
				mu.Lock()
				defer mu.Unlock()
				if failed == 0 {
					failed++
					c.Back()
				} else {
					booked++
					c.Done()
				}
			})
		}
		wg.Wait()
		if booked > 1 {
			t.Fatalf("booked %d times", booked)
		}
		s.Drop(scope, "a")
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
