package affinity_test

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/select-service/select-service/internal/selection/affinity"
)

// told keeps what a table publishes.
type told struct{ list []string }

func (to *told) SessionBound(b affinity.Binding) { to.add("bound", b) }

func (to *told) SessionUnbound(b affinity.Binding) { to.add("unbound", b) }

func (to *told) add(what string, b affinity.Binding) {
	to.list = append(to.list, fmt.Sprintf("%s %s %d v%d by %d", what, b.Session, b.Rank.Worker, b.Sequence, b.Writer))
}

func (to *told) want(t *testing.T, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, to.list); diff != "" {
		t.Errorf("published (-want +got):\n%s", diff)
	}
	to.list = nil
}

// sharing runs a test with a table that publishes as writer 1, whose versions begin at
// that of the result.
func sharing(t *testing.T, most int, test func(r *rig, p *told, first uint64)) {
	play(t, most, func(r *rig) {
		p := &told{}
		r.Share(1, p)
		test(r, p, uint64(time.Now().UnixNano()))
	})
}

func binding(session string, worker, sequence, writer uint64) affinity.Binding {
	return affinity.Binding{Key: key(session), Rank: rank(worker), Version: affinity.Version{Sequence: sequence, Writer: writer}}
}

// TestPublished: each booking and each end of one tells of the binding, a rank that is
// given up of its end, and nothing else is told.
func TestPublished(t *testing.T) {
	sharing(t, 10, func(r *rig, p *told, first uint64) {
		bound := func(session string, worker, version uint64) string {
			return fmt.Sprintf("bound %s %d v%d by 1", session, worker, version)
		}
		a := r.acquire("a")
		w := r.wait("a")
		p.want(t)
		a.Bind(rank(1))
		p.want(t, bound("a", 1, first))
		b := r.come(w) // reuse: the version stays
		b.Bind(rank(1))
		p.want(t, bound("a", 1, first))
		r.acquire("a").Release() // nothing was booked
		p.want(t)
		a.Release()
		a.Release()
		p.want(t, bound("a", 1, first))
		c := r.acquire("c")
		p.want(t)
		c.Bind(rank(2))
		p.want(t, bound("c", 2, first+1))
		b.Drop()
		p.want(t, "unbound"+bound("a", 1, first)[len("bound"):])
		b.Bind(rank(3))
		p.want(t, bound("a", 3, first+2))
		r.Apply("p", binding("a", 4, first+9, 2)) // another replica has decided
		b.Release()
		p.want(t)
		r.acquire("d").Bind(rank(1)) // above all that was seen
		p.want(t, bound("d", 1, first+10))
		r.acquire("e").Release()
		p.want(t)
	})
}

// TestRefusedMoveKeepsVersion: a session whose move is not booked has its old binding, so that what another replica has decided
// meanwhile goes before it.
func TestRefusedMoveKeepsVersion(t *testing.T) {
	sharing(t, 10, func(r *rig, p *told, first uint64) {
		r.acquire("a").Bind(rank(1))
		p.want(t, fmt.Sprintf("bound a 1 v%d by 1", first))
		c := r.acquire("a")
		c.Move()
		moved := binding("a", 4, first+9, 2)
		if got := r.Apply("p", moved); got != affinity.Ignored {
			t.Errorf("while it is decided: %v", got)
		}
		c.Release()
		r.want("a", 1)
		p.want(t)
		if got := r.Apply("p", moved); got != affinity.Applied { // the other replica's request has ended
			t.Errorf("after: %v", got)
		}
		r.want("a", 4)
		c = r.acquire("a")
		c.Move()
		r.ApplyUnbound(moved) // the session has ended there
		c.Release()
		r.want("a", 0)
	})
}

// TestApplyAgainstNaive plays random histories of one session that is used here and told
// of by a peer, against the rules as they are written.
func TestApplyAgainstNaive(t *testing.T) {
	for seed := range uint64(200) {
		sharing(t, 1, func(r *rig, _ *told, first uint64) {
			rnd := rand.New(rand.NewPCG(seed, 5))
			var (
				now, idle time.Duration // idle: since when it is not used
				worker    uint64        // 0: vacant
				version   affinity.Version
				deciding  *affinity.Claim
				claims    []*affinity.Claim // of the binding
				stale     []*affinity.Claim // of earlier ones
				next      = first
			)
			expired := func() bool { return len(claims) == 0 && now-idle >= ttl }
			for step := range 150 {
				if worker != 0 && expired() {
					worker = 0
				}
				switch op := rnd.IntN(8); op {
				case 0:
					d := time.Duration(rnd.IntN(7)) * time.Second
					time.Sleep(d)
					now += d
				case 1:
					if deciding != nil {
						continue // it would wait
					}
					h := r.acquire("s")
					if worker != 0 {
						claims = append(claims, h)
					} else {
						deciding = h
					}
				case 2:
					if deciding == nil {
						continue
					}
					worker, version = 1+rnd.Uint64N(3), affinity.Version{Sequence: next, Writer: 1}
					next++
					deciding.Bind(rank(worker))
					claims, deciding = []*affinity.Claim{deciding}, nil
				case 3:
					if len(stale) > 0 {
						stale[0].Release()
						stale = stale[1:]
					} else if len(claims) > 0 {
						claims[0].Release()
						claims, idle = claims[1:], now
					}
				case 4:
					b := binding("s", 1+rnd.Uint64N(3), first+rnd.Uint64N(20), rnd.Uint64N(3))
					got := r.ApplyUnbound(b)
					next = max(next, b.Sequence+1)
					want := affinity.Ignored
					if worker != 0 && b.Compare(version) >= 0 {
						worker, want = 0, affinity.Applied
						claims, stale = nil, append(stale, claims...)
					}
					if got != want {
						t.Fatalf("seed %d step %d: unbound %v: %d, want %d", seed, step, b, got, want)
					}
				default:
					b := binding("s", 1+rnd.Uint64N(3), next+rnd.Uint64N(6)-min(next-first, 3), rnd.Uint64N(3))
					b.Idle = time.Duration(rnd.IntN(12)) * time.Second
					got := r.Apply("p", b)
					next = max(next, b.Sequence+1)
					want := affinity.Applied
					switch greater := b.Compare(version); {
					case b.Idle >= ttl || deciding != nil:
						want = affinity.Ignored
					case worker == 0:
						worker, version, idle = b.Rank.Worker, b.Version, now-b.Idle
					case worker == b.Rank.Worker && greater >= 0:
						version, idle = b.Version, max(idle, now-b.Idle)
					case worker != b.Rank.Worker && greater > 0:
						worker, version, idle = b.Rank.Worker, b.Version, now-b.Idle
						claims, stale = nil, append(stale, claims...)
					default:
						want = affinity.Ignored
					}
					if got != want {
						t.Fatalf("seed %d step %d: %v: %d, want %d", seed, step, b, got, want)
					}
				}
				want := worker
				if want != 0 && expired() {
					want = 0
				}
				if got, _ := r.Lookup(key("s")); got.Worker != want {
					t.Fatalf("seed %d step %d: bound to %d, want %d", seed, step, got.Worker, want)
				}
			}
			for _, h := range append(append(claims, stale...), deciding) {
				h.Release()
			}
			time.Sleep(ttl)
			r.Sweep()
			r.wantLen(0)
			if n := r.Bytes(); n != 0 {
				t.Errorf("%d bytes are left", n)
			}
		})
	}
}

// TestPeersMakeRoom: what peers tell never takes the room of what is used here, and a
// peer that tells of many sessions makes room for one that tells of few.
func TestPeersMakeRoom(t *testing.T) {
	sharing(t, 6, func(r *rig, _ *told, _ uint64) {
		for i := range 9 {
			want := affinity.Applied
			if i >= 6 {
				want = affinity.Full
			}
			if got := r.Apply("loud", binding(fmt.Sprint("loud", i), 1, 5, 9)); got != want {
				t.Errorf("session %d: %d, want %d", i, got, want)
			}
		}
		for i := range 4 {
			want := affinity.Applied
			if i >= 3 { // three each
				want = affinity.Full
			}
			if got := r.Apply("calm", binding(fmt.Sprint("calm", i), 2, 5, 8)); got != want {
				t.Errorf("session %d: %d, want %d", i, got, want)
			}
		}
		r.want("loud0", 0)
		r.want("loud5", 1)
		r.want("calm0", 2)
		used := r.acquire("calm0") // it is of this replica now
		for i := range 5 {
			r.acquire(fmt.Sprint("own", i)).Bind(rank(3))
		}
		r.wantLen(6)
		r.want("calm0", 2)
		if h, err := r.Acquire(t.Context(), key("own5")); h != nil || err != nil {
			t.Errorf("a full table: %v, %v", h, err)
		}
		if got := r.Apply("calm", binding("new", 1, 5, 9)); got != affinity.Full {
			t.Errorf("a full table: %d", got)
		}
		used.Release()
		r.wantLen(6)
	})
	play(t, 100, func(r *rig) {
		r.LimitBytes(1 << 10)
		r.acquire("one").Bind(rank(1))
		if h, err := r.Acquire(t.Context(), key("two")); h != nil || err != nil {
			t.Errorf("beyond the bytes: %v, %v", h, err)
		}
		if n := r.Bytes(); n > 1<<10 || n == 0 {
			t.Errorf("%d bytes", n)
		}
	})
}

// TestBindings: the pages have every session once, with the time since its last use, and
// thousands that have gone leave nothing.
func TestBindings(t *testing.T) {
	sharing(t, 100, func(r *rig, _ *told, first uint64) {
		want := make(map[string]affinity.Binding)
		for i := range 25 {
			for j := range 100 {
				r.acquire(fmt.Sprint("gone ", j)).Release()
			}
			name := fmt.Sprint(i)
			h := r.acquire(name)
			h.Bind(rank(uint64(i)))
			want[name] = binding(name, uint64(i), first+uint64(i), 1)
			if i%2 == 0 {
				h.Release()
			}
		}
		r.acquire("undecided")
		if n := r.Arrivals(); n > 2*(25+1)+1 {
			t.Errorf("%d entries for %d sessions", n, 25+1)
		}
		time.Sleep(3 * time.Second)
		got := make(map[string]affinity.Binding)
		for after, more := uint64(0), true; more; {
			var page []affinity.Binding
			page, after, more = r.Bindings(after, 10)
			if len(page) > 10 {
				t.Errorf("a page of %d", len(page))
			}
			for _, b := range page {
				if b.Idle == 3*time.Second {
					b.Idle = 0
				} else if b.Rank.Worker%2 == 0 {
					t.Errorf("%s is idle for %s", b.Session, b.Idle)
				}
				got[b.Session] = b
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if keys := slices.Sorted(maps.Keys(got)); len(keys) != 25 {
			t.Errorf("sessions %v", keys)
		}
		if page, _, more := r.Bindings(math.MaxUint64, 10); len(page) != 0 || more {
			t.Errorf("after the last one come %v", page)
		}
	})
}

// TestReplicasAgree: replicas that use sessions at the same time, and hear each other in
// any order, end with one rank for each.
func TestReplicasAgree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for seed := range uint64(100) {
			rnd := rand.New(rand.NewPCG(seed, 7))
			tables := make([]*affinity.Table, 3)
			var sent []affinity.Binding
			for i := range tables {
				tables[i] = affinity.New(ttl, 10, time.Now)
				tables[i].Share(uint64(i), gather{&sent})
			}
			for range 20 {
				h, err := tables[rnd.IntN(3)].Acquire(t.Context(), key(fmt.Sprint(rnd.IntN(3))))
				if err != nil {
					t.Fatal(err)
				}
				h.Bind(rank(1 + rnd.Uint64N(5)))
				h.Release()
			}
			for _, table := range tables {
				for _, i := range rnd.Perm(len(sent)) {
					table.Apply("p", sent[i])
				}
			}
			for i := range 3 {
				want, _ := tables[0].Lookup(key(fmt.Sprint(i)))
				for _, table := range tables {
					if got, _ := table.Lookup(key(fmt.Sprint(i))); got != want {
						t.Fatalf("seed %d: session %d on %s and %s", seed, i, got, want)
					}
				}
			}
		}
	})
}

// gather collects what is published.
type gather struct{ to *[]affinity.Binding }

func (g gather) SessionBound(b affinity.Binding) { *g.to = append(*g.to, b) }

func (g gather) SessionUnbound(affinity.Binding) {}
