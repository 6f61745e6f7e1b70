package pending_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/select-service/select-service/internal/selection/pending"
	"github.com/select-service/select-service/test/helpers/length"
)

// naive is a store as a list of what was put, the oldest first.
type naive struct {
	limits pending.Limits
	kept   []*naiveEntry
}

type naiveEntry struct {
	id     string
	worker uint64
	age    time.Duration
	spent  bool
}

func (n *naive) drop(id string) {
	n.kept = slices.DeleteFunc(n.kept, func(e *naiveEntry) bool { return e.id == id })
}

func (n *naive) find(id string) *naiveEntry {
	for _, e := range n.kept {
		if e.id == id && e.age <= n.limits.TTL {
			return e
		}
	}
	return nil
}

func (n *naive) tick(d time.Duration) {
	for _, e := range n.kept {
		e.age += d
	}
}

// live is what is not too old.
func (n *naive) live() (live []*naiveEntry) {
	for _, e := range n.kept {
		if e.age <= n.limits.TTL {
			live = append(live, e)
		}
	}
	return live
}

// TestAgainstNaive plays random histories against a list: what is kept, what is
// spent, and what the limits leave, is the same after every step. The limit in
// bytes is checked by itself: the store never says more, and evicts the oldest
// only when it has to.
func TestAgainstNaive(t *testing.T) {
	for seed := range uint64(length.Of(300, 300, 60)) {
		r := rand.New(rand.NewPCG(seed, 7))
		limits := pending.Limits{TTL: time.Duration(1+r.IntN(20)) * time.Second, Entries: 1 + r.IntN(6), Bytes: 1 << 20}
		s, clock := newStore(limits)
		model := &naive{limits: limits}
		type got struct {
			*pending.Kept
			of *naiveEntry
		}
		var all []got
		id := func() string { return fmt.Sprint("id", r.IntN(8)) }
		for step := range 200 {
			switch r.IntN(8) {
			case 0, 1:
				e := &naiveEntry{id: id(), worker: uint64(step) + 1}
				s.Put(e.id, of(e.worker, r.IntN(5)))
				model.drop(e.id)
				model.kept = append(model.live(), e)
				if over := len(model.kept) - limits.Entries; over > 0 {
					model.kept = model.kept[over:]
				}
			case 2, 3:
				id := id()
				k, e := s.Get(scope, id), model.find(id)
				if (k != nil) != (e != nil) {
					t.Fatalf("seed %d step %d: Get(%s): %v, the model has %v", seed, step, id, k, e)
				}
				if e != nil {
					all = append(all, got{k, e})
				}
			case 4, 5:
				if len(all) == 0 {
					continue
				}
				g := all[r.IntN(len(all))]
				if g.Rank.Worker != g.of.worker || s.Spent(g.Kept) != g.of.spent {
					t.Fatalf("seed %d step %d: worker %d, spent: %t, want %+v", seed, step, g.Rank.Worker, s.Spent(g.Kept), g.of)
				}
				s.Spend(g.Kept)
				g.of.spent = true
				model.kept = slices.DeleteFunc(model.kept, func(e *naiveEntry) bool { return e == g.of })
			case 6:
				d := time.Duration(r.IntN(8)) * time.Second
				clock.pass(d)
				model.tick(d)
			case 7:
				if r.IntN(2) == 0 {
					s.Sweep()
					if n, _ := s.Stats(); n != len(model.live()) {
						t.Fatalf("seed %d step %d: %d entries behind a sweep, want %d", seed, step, n, len(model.live()))
					}
					continue
				}
				id := id()
				s.Drop(scope, id)
				model.drop(id)
			}
			for i := range 8 {
				id := fmt.Sprint("id", i)
				var want uint64
				if e := model.find(id); e != nil {
					want = e.worker
				}
				if got := worker(s, id); got != want {
					t.Fatalf("seed %d step %d: %s has worker %d, want %d", seed, step, id, got, want)
				}
			}
			if n, _ := s.Stats(); n > limits.Entries {
				t.Fatalf("seed %d step %d: %d entries", seed, step, n)
			}
		}
		clock.pass(limits.TTL + 1)
		s.Sweep()
		if n, bytes := s.Stats(); n != 0 || bytes != 0 {
			t.Fatalf("seed %d: %d entries of %d bytes are left", seed, n, bytes)
		}
	}
}

// TestBytes: with prompts of random length, exactly the latest whose sum fits are
// kept.
func TestBytes(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 8))
		limits := pending.Limits{TTL: time.Hour, Entries: 1000, Bytes: 40_000}
		s, _ := newStore(limits)
		var sizes []int // of all, by number
		for i := range 60 {
			before, was := s.Stats()
			id := fmt.Sprint("i", 100+i)
			s.Put(id, of(uint64(i)+1, r.IntN(600)))
			n, now := s.Stats()
			if now > limits.Bytes {
				t.Fatalf("seed %d: %d bytes", seed, now)
			}
			// A store for this one alone tells its size.
			alone, _ := newStore(limits)
			k := s.Get(scope, id)
			alone.Put(id, k.Selection)
			_, size := alone.Stats()
			if size != k.Bytes() {
				t.Fatalf("seed %d: %d bytes, and %d in a store", seed, k.Bytes(), size)
			}
			sizes = append(sizes, size)
			gone := before + 1 - n
			for _, sz := range sizes[len(sizes)-1-before : len(sizes)-1-before+gone] {
				was -= sz
			}
			if was+size != now {
				t.Fatalf("seed %d: %d bytes, want %d", seed, now, was+size)
			}
			if gone > 0 && now+sizes[len(sizes)-1-n] <= limits.Bytes {
				t.Fatalf("seed %d: %d left, of which the last need not have", seed, gone)
			}
			want(t, s, fmt.Sprint("i", 100+i-n+1), uint64(i-n)+2)
			want(t, s, fmt.Sprint("i", 100+i-n), 0)
		}
	}
}
