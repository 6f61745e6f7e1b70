package history

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/select-service/select-service/pkg/memory"
	"github.com/select-service/select-service/test/helpers/length"
)

// TestMemoryAgainstUnbounded: whatever peers say, the histories take no more than their
// part of the account, and every byte is counted. No number that has ended counts as
// anything else, and a peer that takes less than an equal part is answered as by a
// memory without bound.
func TestMemoryAgainstUnbounded(t *testing.T) {
	length.Sequential(t)
	const peers, honest = 4, uint64(9) // the honest peer's process
	for seed := range uint64(3) {
		r := rand.New(rand.NewPCG(seed, 15))
		account := memory.NewAccount("ledger", memoryShare*peers*40*pageBytes)
		bounded, free := NewNumbered(1), NewNumbered(1)
		bounded.SetMemory(account)
		both := [...]*Numbered{bounded, free}
		each := func(f func(*Numbered)) {
			for _, n := range both {
				f(n)
			}
		}
		ended := make(map[Origin]bool)
		at := time.Duration(0)
		for process := range uint64(10) {
			peer := fmt.Sprint("peer", process%(peers-1))
			if process == honest {
				peer = "honest"
			}
			each(func(n *Numbered) { n.Bind(2+process, peer, at) })
		}
		for step := range 2000 {
			at += time.Duration(r.IntN(100)) * time.Millisecond
			o := Origin{2 + r.Uint64N(10), 1 + r.Uint64N(Window/4)}
			if o.Process == 2+honest {
				o.Sequence = 1 + r.Uint64N(12<<pageShift) // of twelve pages in three sets, less than 40
			}
			switch op := r.IntN(12); {
			case op < 4:
				each(func(n *Numbered) { n.End(o, Origin{}, at) })
				ended[o] = true
			case op < 6:
				each(func(n *Numbered) { n.Complete(o, Origin{}, at) })
			case op < 8:
				why := []EndReason{Freed, RankRemoved, Displaced}[r.IntN(3)]
				for _, n := range both {
					if s, _ := n.Admit(o, at, false); s == MayLive {
						n.Leave(o, why)
					}
				}
				if s, _ := free.Verdict(o, false); s == HasEnded {
					ended[o] = true
				}
			case op == 8 && o.Process != 2+honest:
				from := r.Uint64N(1 << 20)
				set := EndedSet{Ranges: []Range{{from + 1, from + 1 + r.Uint64N(1<<20)}}}
				if r.IntN(2) == 0 {
					set.Assumed = set.Ranges[0].To
				}
				set.Leases = []Range{{from + 1, from + 1 + r.Uint64N(500)}}
				each(func(n *Numbered) { n.Merge(o.Process, set, at) })
			case op == 9 && o.Process != 2+honest && r.IntN(20) == 0:
				each(func(n *Numbered) { n.Unbind(o.Process) })
				for known := range ended {
					if known.Process == o.Process {
						delete(ended, known)
					}
				}
			case op == 10 && r.IntN(10) == 0:
				each(func(n *Numbered) { n.Forget(at) })
			}
			sum := int64(0)
			for _, x := range bounded.byProcess {
				sum += x.bytes()
			}
			if sum != bounded.memory.used || sum != account.Used() || sum > account.Limit()/memoryShare {
				t.Fatalf("step %d: %d bytes, %d counted, %d in the account of %d", step, sum, bounded.memory.used, account.Used(), account.Limit()/memoryShare)
			}
			probe := Origin{2 + honest, 1 + r.Uint64N(12<<pageShift)}
			got, completed := bounded.Verdict(probe, false)
			if want, done := free.Verdict(probe, false); got != want || completed != done {
				t.Fatalf("step %d: the honest peer's %d %v, completed %v; want %v, %v", step, probe.Sequence, got, completed, want, done)
			}
			if r.IntN(100) == 0 {
				for o := range ended {
					if s, _ := bounded.Verdict(o, false); s != HasEnded {
						t.Fatalf("step %d: %v %v", step, o, s)
					}
				}
			}
		}
		if free.memory.used < 2*bounded.memory.limit {
			t.Errorf("without bound %d bytes, with it %d: nothing was forgotten", free.memory.used, bounded.memory.used)
		}
		for process := range uint64(10) {
			bounded.Unbind(2 + process)
		}
		if account.Used() != 0 {
			t.Errorf("%d bytes are left", account.Used())
		}
	}
}

// TestHostileNumbers: one peer has as many processes as it may, and ends a number of
// every page of each. Without a bound that takes 32 MiB and more.
func TestHostileNumbers(t *testing.T) {
	const processes = 8
	for name, account := range map[string]*memory.Account{"no bound": nil, "512 MiB": memory.NewAccount("ledger", 51<<20)} {
		t.Run(name, func(t *testing.T) {
			n := NewNumbered(1)
			n.SetMemory(account)
			for process := range uint64(processes) {
				n.Bind(2+process, "hostile", 0)
				for number := uint64(1); number < Window; number += 1 << pageShift {
					o := Origin{2 + process, number + 1}
					n.Complete(Origin{2 + process, number}, Origin{}, 0)
					n.Admit(o, 0, false)
					n.Leave(o, RankRemoved)
					o.Sequence++
					n.Admit(o, 0, false)
					n.Leave(o, LeaseExpired)
					n.End(Origin{2 + process, number + 3}, Origin{}, 0)
				}
			}
			t.Logf("%d KiB", n.memory.used>>10)
			if account == nil && n.memory.used < 32<<20 || account != nil && (n.memory.used > account.Limit()/8 || account.Used() != n.memory.used) {
				t.Errorf("%d bytes", n.memory.used)
			}
		})
	}
}

// TestToldBounded: Ended returns a bounded number of ranges, even if a process has ended
// every other number.
func TestToldBounded(t *testing.T) {
	length.Sequential(t)
	n := NewNumbered(1)
	for process := range uint64(4) {
		for number := uint64(1); number < 3*maxEndedRanges; number += 2 {
			n.End(Origin{2 + process, number + 1}, Origin{}, 0)
		}
	}
	told := 0
	for _, set := range n.Ended() {
		told += len(set.Ranges)
	}
	if most := maxEndedRanges + 4<<pageShift; told < maxEndedRanges || told > most {
		t.Errorf("%d ranges are told, at most %d may", told, most)
	}
}
