package affinity_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/selection/affinity"
	"github.com/select-service/select-service/pkg/catalog"
)

const homeTTL = 30 * time.Second

// group is the key of a group.
func group(name string) affinity.Key { return key(affinity.GroupPrefix + name) }

// naiveHome is a home, or a binding that no request uses.
type naiveHome struct {
	rank  catalog.Rank
	since time.Time
	bound bool
}

// naiveHomes is a table that looks at all of its sessions each time.
type naiveHomes struct {
	max   int
	homes map[affinity.Key]naiveHome
}

func (n *naiveHomes) expire(now time.Time) {
	for k, h := range n.homes {
		if limit := map[bool]time.Duration{true: ttl, false: homeTTL}[h.bound]; now.Sub(h.since) >= limit {
			delete(n.homes, k)
		}
	}
}

// room makes room for a key; ok is false if there is none. The home that has been idle for longest goes.
func (n *naiveHomes) room(k affinity.Key) (ok bool) {
	var all []affinity.Key
	oldest := affinity.Key{}
	for other, h := range n.homes {
		if other.IsGroup() != k.IsGroup() {
			continue
		}
		all = append(all, other)
		if !h.bound && (oldest.Session == "" || h.since.Before(n.homes[oldest].since)) {
			oldest = other
		}
	}
	switch {
	case len(all) < n.max:
	case oldest.Session == "":
		return false
	default:
		delete(n.homes, oldest)
	}
	return true
}

// TestHomesAgainstNaive plays random histories of homes, groups and bindings: moves, expiry, ends and capacity.
func TestHomesAgainstNaive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for seed := range uint64(200) {
			rnd := rand.New(rand.NewPCG(seed, 11))
			table := affinity.New(ttl, 4, time.Now)
			table.KeepHomes(homeTTL)
			n := naiveHomes{4, make(map[affinity.Key]naiveHome)}
			for step := range 150 {
				time.Sleep(time.Duration(1+rnd.IntN(3000)) * time.Millisecond) // never two at one time
				k, r := key(fmt.Sprint(rnd.IntN(7))), rank(1+rnd.Uint64N(3))
				if rnd.IntN(2) == 0 {
					k = group(k.Session)
				}
				n.expire(time.Now())
				h, has := n.homes[k]
				switch what := rnd.IntN(8); what {
				case 0:
					table.End(k)
					delete(n.homes, k)
				case 1:
					table.Touch(k, affinity.Turn{})
					if has && !h.bound {
						h.since = time.Now()
						n.homes[k] = h
					}
				case 2: // a request of a hard session, which ends at once
					if has && !h.bound {
						delete(n.homes, k)
						has = false
					}
					if !has && !n.room(k) {
						if c, w := table.Claim(k); c != nil || w != nil {
							t.Fatalf("seed %d step %d: bound in a full table", seed, step)
						}
						break
					}
					c, _ := table.Claim(k)
					c.Bind(r)
					c.Release()
					if !has {
						h.rank = r
					}
					n.homes[k] = naiveHome{h.rank, time.Now(), true}
				case 3:
					table.Sweep()
				default:
					first, _ := table.Settle(k, r, affinity.Turn{Tokens: 1})
					want := !has && n.room(k)
					if want || has && !h.bound {
						n.homes[k] = naiveHome{r, time.Now(), false}
					}
					if first != want {
						t.Fatalf("seed %d step %d: first %t, want %t", seed, step, first, want)
					}
				}
				for i := range 7 {
					for _, k := range []affinity.Key{key(fmt.Sprint(i)), group(fmt.Sprint(i))} {
						got, bound, ok := table.Home(k)
						want, has := n.homes[k]
						if ok != has || got != want.rank || bound != want.bound {
							t.Fatalf("seed %d step %d: %q is at %v (bound %t, known %t), want %+v %t", seed, step, k.Session, got, bound, ok, want, has)
						}
					}
				}
			}
			time.Sleep(homeTTL)
			table.Sweep()
			if table.Len() != 0 || table.Groups() != 0 || table.Bytes() != 0 {
				t.Fatalf("seed %d: %d sessions, %d groups and %d bytes are left", seed, table.Len(), table.Groups(), table.Bytes())
			}
		}
	})
}

// TestHomesOfPeers: a later home of a peer replaces one of here, a binding replaces a home and never the reverse,
// and what replicas have told each other in any order is the same at all.
func TestHomesOfPeers(t *testing.T) {
	for seed := range uint64(100) {
		rnd := rand.New(rand.NewPCG(seed, 5))
		tables := make([]*affinity.Table, 3)
		var sent []affinity.Binding
		for i := range tables {
			tables[i] = affinity.New(ttl, 100, time.Now)
			tables[i].KeepHomes(homeTTL)
			tables[i].Share(uint64(i), gather{&sent})
		}
		for range 30 {
			table, k := tables[rnd.IntN(3)], group(fmt.Sprint(rnd.IntN(4)))
			if rnd.IntN(6) == 0 {
				c, _ := table.Claim(k)
				c.Bind(rank(1 + rnd.Uint64N(5)))
				c.Release()
			} else {
				table.Settle(k, rank(1+rnd.Uint64N(5)), affinity.Turn{Tokens: 1})
			}
		}
		for _, table := range tables {
			for _, i := range rnd.Perm(len(sent)) {
				table.Apply("p", sent[i])
			}
			for _, b := range sent { // what was put off by the order comes again, as in a snapshot
				table.Apply("p", b)
			}
		}
		for i := range 4 {
			want, bound, _ := tables[0].Home(group(fmt.Sprint(i)))
			for _, table := range tables {
				if got, is, _ := table.Home(group(fmt.Sprint(i))); got != want || is != bound {
					t.Fatalf("seed %d: group %d is at %v (%t) and %v (%t)", seed, i, want, bound, got, is)
				}
			}
		}
	}
}

// TestHomesAreToldSeldom: a home is published when it moves, and else once a minute.
func TestHomesAreToldSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent []affinity.Binding
		table := affinity.New(0, 10, time.Now)
		table.KeepHomes(time.Hour)
		table.Share(1, gather{&sent})
		for i := range 10 {
			table.Settle(key("s"), rank(uint64(i/5)), affinity.Turn{Tokens: 1})
			time.Sleep(20 * time.Second)
		}
		// It comes, is used for 100 s, moves, and is used for 100 s.
		want := []uint64{0, 0, 1, 1}
		var got []uint64
		for _, b := range sent {
			if !b.Home {
				t.Errorf("told as a binding: %+v", b)
			}
			got = append(got, b.Rank.Worker)
		}
		if !slices.Equal(got, want) {
			t.Errorf("told %v, want %v", got, want)
		}
	})
}

// TestMemoryIsAsCounted: a session takes at most 700 bytes and its name, and about what is counted.
func TestMemoryIsAsCounted(t *testing.T) {
	const n = 20000
	table := affinity.New(time.Hour, affinity.MaxSessions, time.Now)
	table.KeepHomes(time.Hour)
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("%036d", i)
	}
	heap := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	for i, name := range names {
		table.Settle(key(name), rank(uint64(i)), affinity.Turn{Tokens: 1})
		if i%4 == 0 {
			table.Settle(group(strings.Repeat("0", 28)+name), rank(uint64(i)), affinity.Turn{Tokens: 1})
		}
	}
	took := heap() - before
	counted := table.Bytes()
	runtime.KeepAlive(names)
	t.Logf("%d sessions and groups take %d bytes each, counted %d", n*5/4, took/(n*5/4), counted/(n*5/4))
	if took > counted || took < counted/2 || took > n*5/4*(700+68) {
		t.Errorf("they take %d bytes, counted %d", took, counted)
	}
}
