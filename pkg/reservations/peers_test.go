package reservations

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/memory"
	"github.com/select-service/select-service/test/helpers/length"
)

// peersModel says what a ledger must hold of each source, and of its own callers ("").
type peersModel struct {
	limits Limits
	held   map[string]map[string]int64 // source → id → charge in units
}

// sourceOf names the share that a reservation of a snapshot belongs to.
func sourceOf(b *Reservation) string {
	if b.OfOthers {
		return b.Peer + " of others"
	}
	return b.Peer
}

func (m *peersModel) size(peer string, budget bool) (n int64) {
	for _, charge := range m.held[peer] {
		if budget {
			n += charge
		} else {
			n++
		}
	}
	return n
}

func (m *peersModel) total(budget, own bool) (n int64) {
	for peer := range m.held {
		if own || peer != "" {
			n += m.size(peer, budget)
		}
	}
	return n
}

// full reports whether there is no free room for one more of that charge, and which
// limit says so.
func (m *peersModel) full(charge int64) (full, budget bool) {
	if a := m.limits.Memory; a != nil {
		used := m.total(true, true) * chargeUnit
		if used > a.Limit()-a.Limit()/4 || used+charge*chargeUnit > a.Limit() {
			return true, true
		}
	}
	most := int64(m.limits.Reservations)
	return most > 0 && m.total(false, true)+1 > most-most/4, false
}

// check judges a source's reservation with the given result, after which those ids were
// not live any more.
func (m *peersModel) check(t *testing.T, peer string, charge int64, v ApplyResult, gone map[string]bool) {
	t.Helper()
	full, budget := m.full(charge)
	if !full {
		if v != Applied || len(gone) > 0 {
			t.Fatalf("there is room for %s: %s, %d displaced", peer, v, len(gone))
		}
		return
	}
	need := int64(1)
	if budget {
		need = charge
	}
	most, holders := int64(0), int64(0)
	for other := range m.held {
		if n := m.size(other, budget); other != "" && n > 0 {
			most = max(most, n)
			if other != peer {
				holders++
			}
		}
	}
	holders++ // the newcomer
	with := m.size(peer, budget) + need
	if with*holders < m.total(budget, false) && v != Applied {
		t.Fatalf("%s is refused (%s) with %d of %d that %d peers hold", peer, v, with, m.total(budget, false), holders)
	}
	if most <= with {
		if v != Full || len(gone) > 0 {
			t.Fatalf("%s holds as much as any other: %s, %d displaced", peer, v, len(gone))
		}
		return
	}
	freed, largest := int64(0), int64(0)
	for id := range gone {
		for other, held := range m.held {
			c, ok := held[id]
			if !ok {
				continue
			}
			if other == "" || m.size(other, budget) != most {
				t.Fatalf("%s displaces %s of %q, which holds %d, not %d", peer, id, other, m.size(other, budget), most)
			}
			if !budget {
				c = 1
			}
			freed, largest = freed+c, max(largest, c)
		}
	}
	if v != Applied || freed < need || freed-largest >= need {
		t.Fatalf("%s: %s; %d freed for %d by %d reservations", peer, v, freed, need, len(gone))
	}
}

// TestPeersAgainstModel: in any history of bookings and ends a peer's reservation is
// taken if there is room, else if another share holds more, which gives way by no more
// than is needed; callers' reservations never do. What a peer tells of itself and what it
// tells of others are two shares. What was displaced can come back.
func TestPeersAgainstModel(t *testing.T) {
	peers := []string{"a", "b", "c", "d"}
	scopes := []catalog.Scope{{Model: "m"}, {Model: "n"}}
	for name, limits := range map[string]func() Limits{
		"number": func() Limits { return Limits{Reservations: 41} },
		"memory": func() Limits { return Limits{Memory: memory.NewAccount("ledger", 60_000)} },
		"both":   func() Limits { return Limits{Reservations: 41, Memory: memory.NewAccount("ledger", 50_000)} },
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(length.Of(4, 4, 1)) {
				r := rand.New(rand.NewPCG(seed, 15))
				l, _ := limited(limits())
				l.numbered.SetMemory(nil) // what has ended is not the model's affair
				for _, sc := range scopes {
					l.PutRank(sc, 0, catalog.Rank{})
				}
				m := &peersModel{limits: l.room.limits, held: map[string]map[string]int64{"": {}}}
				for _, p := range peers {
					for _, others := range []bool{false, true} {
						m.held[sourceOf(&Reservation{Peer: p, OfOthers: others})] = make(map[string]int64)
					}
				}
				said := make(map[string]Reservation)
				last := uint64(0)
				for range 1000 {
					i := r.IntN(len(peers))
					if r.IntN(3) > 0 { // the first ones say more
						i = r.IntN(2)
					}
					peer := peers[i]
					switch op := r.IntN(10); {
					case op < 6:
						last++
						b := Reservation{
							Peer: peer, Origin: Origin{Process: uint64(10 + i), Sequence: last}, ID: fmt.Sprint("r", last), Scope: scopes[r.IntN(2)],
							Hashes: make([]uint64, r.IntN(1+r.IntN(40))),
						}
						for j := range b.Hashes {
							if b.Hashes[j] = r.Uint64(); r.IntN(5) == 0 {
								b.Hashes[j] = b.Hashes[r.IntN(j+1)]
							}
						}
						if r.IntN(3) == 0 {
							b.Authority, b.OfOthers, b.Origin.Process = Relayed, r.IntN(2) == 0, uint64(20+i)
						}
						if old, ok := anyOf(r, said); ok && r.IntN(4) == 0 && m.held[sourceOf(&old)][old.ID] == 0 {
							b = old // again, as a snapshot brings it
						}
						if r.IntN(8) == 0 {
							b.Origin.Sequence = 0
						}
						charge := int64(new(room).chargeOf(&entry{id: b.ID, fresh: uint32(len(distinct(b.Hashes)))}))
						v := l.MergeReservation(b)
						gone := make(map[string]bool)
						live := liveIDs(l)
						for _, held := range m.held {
							for id := range held {
								if !live[id] {
									gone[id] = true
								}
							}
						}
						if v == Ended { // an earlier end without a number
							if len(gone) > 0 {
								t.Fatal("what has ended displaces others")
							}
							continue
						}
						m.check(t, sourceOf(&b), charge, v, gone)
						for _, held := range m.held {
							for id := range gone {
								delete(held, id)
							}
						}
						if v == Applied {
							m.held[sourceOf(&b)][b.ID] = charge
						}
						said[b.ID] = b
					case op < 8:
						if b, ok := anyOf(r, said); ok && m.held[sourceOf(&b)][b.ID] > 0 {
							l.ApplyFreed(Ref{Origin: b.Origin, Scope: b.Scope, ID: b.ID})
							delete(m.held[sourceOf(&b)], b.ID)
							delete(said, b.ID)
						}
					case op == 8:
						last++
						id := fmt.Sprint("own", last)
						if _, err := l.Book(scopes[0], Request{ID: id}, func(*View) (Placement, error) { return Placement{}, nil }); err == nil {
							m.held[""][id] = int64(new(room).chargeOf(&entry{id: id}))
						}
					case r.IntN(2) == 0:
						for id := range m.held[""] {
							_ = l.Free(id)
							delete(m.held[""], id)
							break
						}
					}
					if live, used := l.room.live.Load(), l.room.limits.Memory.Used(); live != m.total(false, true) ||
						l.room.limits.Memory != nil && used != m.total(true, true)*chargeUnit {
						t.Fatalf("%d live with %d bytes, model: %d with %d units", live, used, m.total(false, true), m.total(true, true))
					}
				}
				st := l.Stats()
				if st.Displaced == 0 || st.Live != uint64(m.total(false, true)) {
					t.Errorf("%d displaced, %d live, model: %d", st.Displaced, st.Live, m.total(false, true))
				}
				for _, sc := range scopes {
					l.RemoveRank(sc, 0)
				}
				if live, used := l.room.live.Load(), l.room.limits.Memory.Used(); live != 0 || used != 0 || len(l.room.peers.bySource) != 0 {
					t.Errorf("%d reservations, %d bytes and %d shares are left", live, used, len(l.room.peers.bySource))
				}
				for i := range peers {
					if n := l.numbered.Live(uint64(10 + i)); n != 0 {
						t.Errorf("%d count as live", n)
					}
				}
			}
		})
	}
}

func anyOf(r *rand.Rand, said map[string]Reservation) (b Reservation, ok bool) {
	ids := make([]string, 0, len(said))
	for id := range said {
		ids = append(ids, id)
	}
	if len(ids) == 0 {
		return b, false
	}
	slices.Sort(ids)
	return said[ids[r.IntN(len(ids))]], true
}

func liveIDs(l *Ledger) map[string]bool {
	page, _, _ := l.Reservations(Cursor{}, 10_000)
	ids := make(map[string]bool)
	for _, b := range page {
		ids[b.ID] = true
	}
	return ids
}

// TestNewcomer: peers that fill all that is for replicas, together and with leases that
// they renew, leave an honest one that comes later its equal part at once, by an event
// and by a snapshot, and cannot take it back.
func TestNewcomer(t *testing.T) {
	const hostile, most = 7, 800
	l, now := limited(Limits{Reservations: most})
	book := func(peer, n uint64) ApplyResult {
		b := Reservation{
			Peer: fmt.Sprint(peer), Origin: Origin{Process: 10 + peer, Sequence: n}, ID: fmt.Sprint(peer, "-", n), Lease: time.Hour,
		}
		if n%2 == 0 {
			return l.MergeReservation(b)
		}
		return l.ApplyBooked(b)
	}
	for n := range uint64(most) {
		for peer := range uint64(hostile) {
			book(1+peer, 1+n)
		}
	}
	const part = most * 3 / 4 / (hostile + 1)
	for n := range uint64(part) {
		*now = now.Add(time.Millisecond)
		if v := book(0, 1+n); v != Applied {
			t.Fatalf("the honest peer's reservation %d: %s", n, v)
		}
		for peer := range uint64(hostile) {
			book(1+peer, most+1+n)
		}
	}
	if v := book(0, part+1); v != Full {
		t.Errorf("more than an equal part: %s", v)
	}
	live := liveIDs(l)
	for n := range uint64(part) {
		if id := fmt.Sprint(0, "-", 1+n); !live[id] {
			t.Errorf("%s is not live", id)
		}
	}
	if len(live) != most*3/4 || l.numbered.Live(10) != part {
		t.Errorf("%d are live, %d of the honest peer", len(live), l.numbered.Live(10))
	}
}

// TestToldAgain: a reservation counts for the peer that speaks for its process once
// that has told of it, also when that is in doubt again.
func TestToldAgain(t *testing.T) {
	l, _ := limited(Limits{Reservations: 8})
	b := Reservation{Peer: "other", OfOthers: true, Authority: Relayed, Origin: Origin{Process: 2, Sequence: 1}, ID: "x"}
	only := func(in source) {
		t.Helper()
		by := l.room.peers.bySource
		if share := by[in]; len(by) != 1 || share == nil || len(share.held) != 1 || share.units == 0 {
			t.Errorf("shares %v, want one of %v", by, in)
		}
	}
	l.MergeReservation(b)
	only(source{peer: "other", others: true})
	b.Peer, b.OfOthers, b.Authority = "own", false, ByOwner
	l.ApplyBooked(b)
	only(source{peer: "own"})
	l.Unbind(2)
	only(source{peer: "own"})
	l.ApplyBooked(b)
	only(source{peer: "own"})
	l.ApplyFreed(Ref{Origin: b.Origin, ID: "x", Authority: ByOwner, Sender: 2})
	if n := len(l.room.peers.bySource); n != 0 || l.room.live.Load() != 0 {
		t.Errorf("%d shares, %d live", n, l.room.live.Load())
	}
}

// TestDisputedKeepsRoom: what others have told a peer, and it relays, takes no room of the
// peer's own process, which it is disputed to be.
func TestDisputedKeepsRoom(t *testing.T) {
	l, _ := limited(Limits{Reservations: 16}) // 12 for peers
	tell := func(process, n uint64, authority Authority, others bool) ApplyResult {
		return l.MergeReservation(Reservation{
			Peer: "a", OfOthers: others, Authority: authority, Origin: Origin{Process: process, Sequence: n}, ID: fmt.Sprint(process, "-", n),
		})
	}
	for n := range uint64(4) {
		tell(2, 1+n, ByOwner, false)
	}
	l.Unbind(2)
	for n := range uint64(20) {
		tell(3, 1+n, Relayed, true)
	}
	if v := tell(2, 5, Relayed, false); v != Applied {
		t.Errorf("one more: %v", v)
	}
	own, others := l.room.peers.bySource[source{peer: "a"}], l.room.peers.bySource[source{peer: "a", others: true}]
	if own.number() != 5 || others.number() != 7 {
		t.Errorf("%d own ones, %d of others", own.number(), others.number())
	}
}

// hashList returns n hashes that need not be a chain's.
func hashList(n int, at func(i int) uint64) []uint64 {
	out := make([]uint64, n)
	for i := range out {
		out[i] = at(i)
	}
	return out
}

// TestRepeatsCharged: a list of blocks with many repeats, of each other or of blocks that are active
// already, is charged as what is new in it: it finds room, and when it gives way, that frees no more
// than it took.
func TestRepeatsCharged(t *testing.T) {
	const repeats = 40_000
	for name, rest := range map[string]func(i int) uint64{
		"one block":           func(int) uint64 { return 100 },
		"the prefix":          func(i int) uint64 { return uint64(i%20 + 1) },
		"the prefix, turned":  func(i int) uint64 { return uint64(20 - i%20) },
		"another one's chain": func(i int) uint64 { return uint64(i%40 + 1) },
	} {
		t.Run(name, func(t *testing.T) {
			account := memory.NewAccount("ledger", 4<<20)
			l, _ := limited(Limits{Reservations: 8, Memory: account})
			l.numbered.SetMemory(nil)
			n := uint64(0)
			report := func(peer string, hashes []uint64) {
				t.Helper()
				n++
				if v := l.ApplyBooked(Reservation{Peer: peer, Origin: Origin{Process: uint64(peer[0]), Sequence: n}, ID: fmt.Sprint(n), Hashes: hashes}); v != Applied {
					t.Fatalf("reservation %d: %s", n, v)
				}
			}
			active := hashList(40, func(i int) uint64 { return uint64(i + 1) })
			for range 5 {
				report("a", active)
			}
			report("a", append(active[:20:20], hashList(repeats, rest)...))
			share := l.room.peers.bySource[source{peer: "a"}]
			if used, shared := account.Used(), share.units*chargeUnit; used > 6*(entryBytes+chargeUnit)+60*blockBytes+2*pairBytes || shared > used+6*chargeUnit {
				t.Errorf("%d bytes on the account, %d in the share", used, shared)
			}
			report("b", nil) // the last one gives way
			if live := liveIDs(l); live["6"] || len(live) != 6 {
				t.Errorf("live: %v", live)
			}
			l.RemoveRank(catalog.Scope{}, 0)
			if used := account.Used(); used != 0 {
				t.Errorf("%d bytes are left", used)
			}
		})
	}
}

// TestDisplacedMeanwhile: the account, which has nearly nothing beside a large reservation, is not
// below zero at any moment while that ends because its room was given away: other scopes release
// what is theirs meanwhile.
func TestDisplacedMeanwhile(t *testing.T) {
	account := memory.NewAccount("ledger", 1<<20)
	l, _ := limited(Limits{Reservations: 8, Memory: account})
	l.numbered.SetMemory(nil)
	done := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			if used := account.Used(); used < 0 {
				t.Errorf("%d bytes", used)
				return
			}
		}
	})
	l.PutRank(catalog.Scope{}, 1, catalog.Rank{Worker: 1})
	n := uint64(0)
	report := func(peer string, hashes []uint64) {
		n++
		l.ApplyBooked(Reservation{Peer: peer, Origin: Origin{Process: uint64(peer[0]), Sequence: n}, ID: fmt.Sprint(n), Hashes: hashes})
	}
	for range length.Of(5000, 300, 20) {
		for range 4 {
			report("a", nil)
		}
		report("a", hashList(1000, func(i int) uint64 { return uint64(i + 1) }))
		report("b", nil)
		report("b", nil) // that gives way
		l.RemoveRank(catalog.Scope{}, 0)
		l.PutRank(catalog.Scope{}, 0, catalog.Rank{})
	}
	if displaced := l.Stats().Displaced; displaced == 0 {
		t.Error("nothing gave way")
	}
	close(done)
	all.Wait()
}

// TestPeersAtOnce: peers that push each other out of several scopes at the same time
// leave exact counts.
func TestPeersAtOnce(t *testing.T) {
	account := memory.NewAccount("ledger", 200*1024)
	l, _ := limited(Limits{Reservations: 200, Memory: account})
	l.numbered.SetMemory(nil)
	scopes := []catalog.Scope{{}, {Model: "n"}}
	l.PutRank(scopes[1], 0, catalog.Rank{})
	var all sync.WaitGroup
	for peer := range uint64(6) {
		all.Go(func() {
			for n := range uint64(400) {
				b := Reservation{
					Peer: fmt.Sprint(peer), Origin: Origin{Process: 10 + peer, Sequence: n + 1}, ID: fmt.Sprint(peer, "-", n),
					Scope: scopes[(peer+n)%2], Hashes: []uint64{peer<<32 + n},
				}
				l.ApplyBooked(b)
				if n%(2+peer) == 0 {
					l.ApplyFreed(Ref{Origin: b.Origin, Scope: b.Scope, ID: b.ID})
				}
			}
		})
	}
	all.Wait()
	st := l.Stats()
	if live := l.room.live.Load(); uint64(live) != st.Live || len(liveIDs(l)) != int(live) || live > 150 || st.Displaced == 0 {
		t.Errorf("%d take room, %d are live, %d displaced", live, st.Live, st.Displaced)
	}
	for _, sc := range scopes {
		l.RemoveRank(sc, 0)
	}
	if live, used := l.room.live.Load(), account.Used(); live != 0 || used != 0 || len(l.room.peers.bySource) != 0 {
		t.Errorf("%d reservations and %d bytes are left", live, used)
	}
}
