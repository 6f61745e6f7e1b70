package affinity_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/selection/affinity"
	"github.com/select-service/select-service/internal/selection/pauses"
	"github.com/select-service/select-service/pkg/catalog"
)

// learning is a table of hard and of soft sessions, and what learns their pauses.
func learning(t *testing.T, test func(*affinity.Table, *pauses.Learner)) {
	synctest.Test(t, func(t *testing.T) {
		table := affinity.New(time.Hour, affinity.MaxSessions, time.Now)
		table.KeepHomes(time.Hour)
		l := pauses.New(time.Now(), time.Hour)
		table.Learn(l)
		test(table, l)
	})
}

// TestTurnsAreLearned: the pause between the end of a reservation and the next booking is learned of hard sessions as of soft
// ones; time in the engine, requests that were given up, and the end of a binding are no pauses.
func TestTurnsAreLearned(t *testing.T) {
	const pause = 5 * time.Second
	turn := affinity.Turn{Tokens: 100, Class: pauses.Agent}
	for name, begin := range map[string]func(*affinity.Table) (end func()){
		"hard": func(table *affinity.Table) func() {
			given, _ := table.Claim(key("s"))
			given.Release() // it has booked nothing
			c, _ := table.Claim(key("s"))
			c.Turn = turn
			c.Bind(rank(1))
			return func() { c.Release() }
		},
		"soft": func(table *affinity.Table) func() {
			_, running := table.Settle(key("s"), rank(1), turn)
			return running.End
		},
	} {
		t.Run(name, func(t *testing.T) {
			learning(t, func(table *affinity.Table, l *pauses.Learner) {
				for range 40 {
					end := begin(table)
					side := begin(table) // at the same time: no pause is between them
					time.Sleep(time.Minute)
					side()
					end()
					time.Sleep(pause)
				}
				got := l.Pauses(key("s").Scope, pauses.Agent, time.Now())
				if median := pauses.Prior(pauses.Agent, time.Hour); got.Mu > 1.7 || got.Mu < 1.55 || got.Share < 0.9 { // ln 5 = 1.61
					t.Errorf("%+v, from %+v", got, median)
				}
				list, total := table.List(affinity.Cursor{}, 10, func(*affinity.Session) bool { return true })
				if total != 1 || len(list) != 1 {
					t.Fatalf("%d sessions, %v", total, list)
				}
				if s := list[0]; s.Turns != 80 || s.Tokens != 8000 || s.Running != 0 || s.Bound != (name == "hard") || time.Since(s.Seen) != pause {
					t.Errorf("%+v", s)
				}
				time.Sleep(3 * time.Hour) // it does not come back
				table.Sweep()
				if _, total := table.List(affinity.Cursor{}, 10, func(*affinity.Session) bool { return true }); total != 0 {
					t.Errorf("%d sessions are left", total)
				}
			})
		})
	}
}

// TestFinishedSessions: sessions that say that they are done come back no more, and those do that another replica serves.
func TestFinishedSessions(t *testing.T) {
	learning(t, func(table *affinity.Table, l *pauses.Learner) {
		for i := range 100 {
			k := key(fmt.Sprint(i))
			_, running := table.Settle(k, rank(1), affinity.Turn{Class: pauses.SubAgent})
			running.End()
			table.End(k)
			k = key(fmt.Sprint("hard ", i))
			last, _ := table.Claim(k)
			last.Turn = affinity.Turn{Class: pauses.Chat}
			last.Bind(rank(1))
			other, _ := table.Claim(k) // ends after the last one
			other.Turn = last.Turn
			other.Bind(rank(1))
			last.Release()
			table.End(k)
			other.Release()
			k = key(fmt.Sprint("elsewhere ", i))
			c, _ := table.Claim(k)
			c.Turn = affinity.Turn{Class: pauses.Agent}
			c.Bind(rank(1))
			c.Release()
			time.Sleep(time.Second)
			table.Apply("peer", affinity.Binding{Key: k, Rank: rank(1), Version: affinity.Version{Sequence: 1<<62 + uint64(i)<<32, Writer: 2}})
		}
		time.Sleep(2 * time.Minute)
		scope := key("").Scope
		for _, class := range []pauses.Class{pauses.SubAgent, pauses.Chat} {
			if p := l.Pauses(scope, class, time.Now()); p.Share > 0.02 {
				t.Errorf("finished sessions, %v: %+v", class, p)
			}
		}
		if p := l.Pauses(scope, pauses.Agent, time.Now()); p.Share < 0.98 || p.Mu > 0.5 {
			t.Errorf("sessions that another replica has served: %+v", p)
		}
	})
}

// TestMovedBinding: a binding to another rank goes on counting.
func TestMovedBinding(t *testing.T) {
	learning(t, func(table *affinity.Table, _ *pauses.Learner) {
		for i := range 3 {
			c, _ := table.Claim(key("s"))
			if i > 0 {
				c.Drop()
			}
			c.Turn = affinity.Turn{Tokens: 10, Parent: "root"}
			c.Bind(rank(uint64(i)))
			defer c.Release()
		}
		before := table.Bytes()
		list, _ := table.List(affinity.Cursor{}, 1, func(*affinity.Session) bool { return true })
		if s := list[0]; s.Turns != 3 || s.Tokens != 30 || s.Running != 1 || s.Rank != rank(2) || s.Parent != "root" {
			t.Errorf("%+v", s)
		}
		table.Settle(key("t"), rank(1), affinity.Turn{Parent: "root"})
		table.End(key("t"))
		if n := table.Bytes(); n != before {
			t.Errorf("%d bytes are counted, %d before", n, before)
		}
	})
}

// TestList: pages of any size have every session once, those that were seen last first.
func TestList(t *testing.T) {
	learning(t, func(table *affinity.Table, _ *pauses.Learner) {
		rnd := rand.New(rand.NewPCG(1, 1))
		const n = 5000
		for i := range n {
			if rnd.IntN(3) == 0 {
				time.Sleep(time.Second)
			}
			table.Settle(key(fmt.Sprint(i)), rank(uint64(i%7)), affinity.Turn{})
		}
		for range n / 2 {
			time.Sleep(time.Second)
			table.Settle(key(fmt.Sprint(rnd.IntN(n))), rank(3), affinity.Turn{})
		}
		third := func(s *affinity.Session) bool { return s.Rank == rank(3) }
		all, total := table.List(affinity.Cursor{}, 2*n, third)
		if total != len(all) || total < n/7 || !slices.IsSortedFunc(all, func(a, b affinity.Session) int { return b.Seen.Compare(a.Seen) }) {
			t.Fatalf("%d of %d sessions, or in another order", len(all), total)
		}
		for _, size := range []int{1, 13, 1000} {
			var paged []affinity.Session
			for at := (affinity.Cursor{}); len(paged) < len(all) && (size > 1 || len(paged) < 20); at = paged[len(paged)-1].Cursor() {
				page, of := table.List(at, size, third)
				if of != total || len(page) == 0 || len(page) > size {
					t.Fatalf("pages of %d: one of %d, %d in all", size, len(page), of)
				}
				paged = append(paged, page...)
			}
			if !slices.Equal(paged, all[:len(paged)]) {
				t.Errorf("pages of %d differ from the whole list", size)
			}
		}
	})
}

// TestParentsAreBounded: names of parents count in the limit of memory, though sessions name them after they have come: one for which
// there is no room is not kept. A binding that moves in a full table stays in it.
func TestParentsAreBounded(t *testing.T) {
	const limit = 4096
	learning(t, func(table *affinity.Table, _ *pauses.Learner) {
		table.LimitBytes(limit)
		var claims []*affinity.Claim
		for i := range 8 {
			c, _ := table.Claim(key(fmt.Sprint(i)))
			if c == nil {
				break
			}
			claims = append(claims, c)
		}
		for i, c := range claims {
			c.Turn.Parent = strings.Repeat("p", 256)
			c.Bind(rank(1))
			if got := table.Bytes(); got > limit {
				t.Errorf("%d parents: %d bytes of %d", i+1, got, limit)
			}
		}
		for _, c := range claims {
			c.Drop()
			c.Bind(rank(2))
			c.Release()
		}
		if got := table.Len(); got != len(claims) || got == 0 {
			t.Errorf("%d sessions, of %d", got, len(claims))
		}
	})
}

// TestElsewhere: a session of which nothing was placed here since the start is listed as used elsewhere, whether another replica or the state on
// disk has told of it, until a request of it comes.
func TestElsewhere(t *testing.T) {
	table := affinity.New(time.Hour, 10, time.Now)
	table.KeepHomes(time.Hour)
	keys := map[string]affinity.Key{"": {Session: "disk"}, "peer": {Session: "replica"}}
	for peer, k := range keys {
		table.Apply(peer, affinity.Binding{Key: k, Home: true, Version: affinity.Version{Sequence: 1}})
	}
	for _, elsewhere := range []bool{true, false} {
		list, _ := table.List(affinity.Cursor{}, 10, func(*affinity.Session) bool { return true })
		for _, s := range list {
			if s.Elsewhere != elsewhere {
				t.Errorf("%s, %d turns: elsewhere %t", s.Session, s.Turns, s.Elsewhere)
			}
		}
		for _, k := range keys {
			table.Settle(k, catalog.Rank{}, affinity.Turn{})
		}
	}
}
