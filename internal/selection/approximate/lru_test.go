package approximate

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/memory"
	"github.com/select-service/select-service/test/helpers/length"
)

// sized is an entry whose worker says how many blocks a rank has room for.
func sized(slot uint32, worker, total uint64) catalog.Entry {
	e := entry(slot, worker)
	e.Worker = &catalog.Worker{}
	if total > 0 {
		e.Worker.TotalKVBlocks = &total
	}
	return e
}

// TestLeases: what runs stays, what does not goes for what comes, the end of the
// prompt that was released first before all.
func TestLeases(t *testing.T) {
	f := newFixture(t, 100)
	e := sized(0, 1, 6)
	f.enter(e)
	book := func(private int, local ...uint64) *Lease {
		l := f.NewLease()
		f.scope.BookLeased(e, local, private, l)
		return l
	}
	a := book(1, 1, 2, 3)
	b := book(0, 1, 2)
	f.want(3, 0, 1, 2, 3)
	a.End()
	c := book(0, 7, 8)
	f.want(3, 0, 1, 2, 3) // six, with those of c, but for the incomplete one
	c.AddOutput()
	f.want(3, 0, 1, 2, 3)
	c.AddOutput()
	f.want(2, 0, 1, 2, 3)
	b.End()
	book(2, 9)
	f.want(0, 0, 1, 2, 3)
	f.want(2, 0, 7, 8)
	book(0, 4, 5, 6) // more than there is room for
	f.want(3, 0, 4, 5, 6)
	c.End()
	f.Sweep()
	f.want(0, 0, 7, 8)
	f.want(1, 0, 9)
	f.clock = f.clock.Add(time.Hour)
	f.Sweep()
	f.want(3, 0, 4, 5, 6)
	if err := f.check(); err != nil {
		t.Error(err)
	}
}

// TestLeaseEndsFirst: a reservation that ends before its blocks are entered leaves
// them, as the request was sent.
func TestLeaseEndsFirst(t *testing.T) {
	f := newFixture(t, 100)
	e := sized(0, 1, 2)
	f.enter(e)
	for i := range uint64(3) {
		l := f.NewLease()
		l.End()
		if f.scope.BookLeased(e, []uint64{i, 9}, 0, l); i == 1 {
			f.Sweep()
		}
		f.want(2, 0, i, 9)
	}
	var none *Lease
	none.End()
	none.AddOutput()
	if err := f.check(); err != nil || f.inUse != 0 || f.n != 2 {
		t.Error(err, f.inUse, f.n)
	}
}

// TestLeaseWithoutRoom: what the index has no room for is not entered, and the rest of
// the lease ends as others do.
func TestLeaseWithoutRoom(t *testing.T) {
	f := newFixture(t, 3)
	account := memory.NewAccount("test", 1<<20)
	f.space.SetAccount(indexer.NewAccount(account))
	e := sized(0, 1, 100)
	f.enter(e)
	a, b, c := f.NewLease(), f.NewLease(), f.NewLease()
	f.scope.BookLeased(e, []uint64{1}, 0, a)
	account.Add(1 << 20)
	f.scope.BookLeased(e, []uint64{1, 2, 3}, 0, b)
	f.want(1, 0, 1, 2, 3)
	account.Add(-1 << 20)
	f.scope.BookLeased(e, []uint64{1, 2, 3, 4}, 0, c)
	f.want(3, 0, 1, 2, 3, 4)
	for _, l := range []*Lease{a, b, c} {
		l.End()
	}
	f.Sweep()
	if err := f.check(); err != nil || f.inUse != 0 {
		t.Error(err, f.inUse)
	}
	f.scope.ReleaseSlot(0)
	f.Sweep()
	if f.n != 0 || f.lists != 0 || f.used != 1 {
		t.Error(f.n, f.lists, f.used)
	}
}

// naivePool is a rank as the naive model has it: a map of prefixes, searched for what
// is to be evicted.
type naivePool struct {
	capacity int
	private  int
	blocks   map[string]*naiveBlock // by prefix
}

type naiveBlock struct{ leases, released, depth int }

func (p *naivePool) evict() {
	for len(p.blocks)+p.private > p.capacity {
		first, found := "", (*naiveBlock)(nil)
		for prefix, b := range p.blocks {
			if b.leases == 0 && (found == nil || b.released < found.released || b.released == found.released && b.depth > found.depth) {
				first, found = prefix, b
			}
		}
		if found == nil {
			return
		}
		delete(p.blocks, first)
	}
}

type naiveLease struct {
	*Lease
	pool     *naivePool
	prefixes []string
	private  int
}

// TestLeasesAgainstNaive plays reservations that run and end, output, ranks that come
// and go and capacities that change against a map that is searched.
func TestLeasesAgainstNaive(t *testing.T) {
	for seed := range uint64(length.Of(150, 150, 30)) {
		r := rand.New(rand.NewPCG(seed, 13))
		f := newFixture(t, 1<<20)
		const slots = 2
		pools := [slots]*naivePool{}
		worker := [slots]uint64{}
		var live []*naiveLease
		epoch := 0
		prompts := make([][]uint64, 6)
		for i := range prompts {
			prompts[i] = make([]uint64, 1+r.IntN(8))
			for j := range prompts[i] {
				prompts[i][j] = 1 + r.Uint64N(2)
			}
		}
		for step := range 200 {
			slot := r.IntN(slots)
			switch r.IntN(9) {
			case 0:
				if r.IntN(4) == 0 {
					worker[slot]++
					f.enter(entry(uint32(slot), worker[slot]))
					pools[slot] = &naivePool{capacity: 1 + r.IntN(20), blocks: make(map[string]*naiveBlock)}
				}
			case 1:
				if p := pools[slot]; p != nil {
					p.capacity = 1 + r.IntN(20) // in force with the next reservation
				}
			case 2:
				f.clock = f.clock.Add(time.Duration(r.IntN(100)) * time.Second)
				f.Sweep()
			case 3:
				if len(live) > 0 {
					l := live[r.IntN(len(live))]
					l.AddOutput()
					l.private++
					if l.pool.private++; l.rank != nil && f.scope.ranks[l.rank.slot] == l.rank {
						capacity := l.pool.capacity
						l.pool.capacity = int(l.rank.capacity)
						l.pool.evict()
						l.pool.capacity = capacity
					}
				}
			case 4, 5:
				if len(live) == 0 {
					break
				}
				i := r.IntN(len(live))
				l := live[i]
				live = append(live[:i], live[i+1:]...)
				l.End()
				old := l.rank
				f.Sweep()
				epoch++
				l.pool.private -= l.private
				for _, prefix := range l.prefixes {
					b := l.pool.blocks[prefix]
					b.leases--
					b.released = epoch
				}
				capacity := l.pool.capacity
				l.pool.capacity = int(old.capacity)
				l.pool.evict()
				l.pool.capacity = capacity
			default:
				p := pools[slot]
				if p == nil {
					break
				}
				prompt := prompts[r.IntN(len(prompts))]
				prompt = prompt[:1+r.IntN(len(prompt))]
				l := &naiveLease{Lease: f.NewLease(), pool: p, private: r.IntN(3)}
				f.scope.BookLeased(sized(uint32(slot), worker[slot], uint64(p.capacity)), prompt, l.private, l.Lease)
				p.private += l.private
				for i := range prompt {
					prefix := fmt.Sprint(prompt[:i+1])
					if p.blocks[prefix] == nil {
						p.blocks[prefix] = &naiveBlock{depth: i}
					}
					p.blocks[prefix].leases++
					l.prefixes = append(l.prefixes, prefix)
				}
				p.evict()
				live = append(live, l)
			}
			for slot, p := range pools {
				for _, prompt := range prompts {
					n := 0
					for p != nil && n < len(prompt) && p.blocks[fmt.Sprint(prompt[:n+1])] != nil {
						n++
					}
					if got := f.held(uint32(slot), prompt...); got != n {
						t.Fatalf("seed %d step %d: slot %d holds %d blocks of %v, want %d", seed, step, slot, got, prompt, n)
					}
				}
			}
			inUse := 0
			for _, l := range live {
				inUse += len(l.prefixes)
			}
			if err := f.check(); err != nil || inUse != f.inUse {
				t.Fatalf("seed %d step %d: %v; %d blocks in use, want %d", seed, step, err, f.inUse, inUse)
			}
		}
	}
}
