package selection_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/select-service/select-service/internal/engines/reports"
	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/counts"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/selector/ttft"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

func role(r string) func(*catalog.Record) { return func(x *catalog.Record) { x.Role = &r } }

// askPair is a request for a pair under an id.
func askPair(id string, tokens []uint32, change ...func(*selection.PairRequest)) *selection.PairRequest {
	r := &selection.PairRequest{SelectRequest: *servicetest.Ask(tokens)}
	if id != "" {
		r.ReservationID = &id
	}
	for _, f := range change {
		f(r)
	}
	return r
}

// disaggregated starts a service with prefill workers 1 and 2, and decode workers 3 and 4.
func disaggregated(t *testing.T, change ...func(*node.Config)) *servicetest.World {
	w := servicetest.Start(t, append([]func(*node.Config){servicetest.EventsOff}, change...)...)
	for id, of := range []string{1: catalog.RolePrefill, 2: catalog.RolePrefill, 3: catalog.RoleDecode, 4: catalog.RoleDecode} {
		if of != "" {
			w.Put(servicetest.Record(uint64(id), 1, role(of)))
		}
	}
	return w
}

// TestPair: both sides are booked in one step, calls on the pair's id mean both, the first byte ends
// the side that prefills, and the end ends all.
func TestPair(t *testing.T) {
	w := disaggregated(t)
	got, err := w.SelectPair(t.Context(), askPair("p", servicetest.Prompt(1, 8), func(r *selection.PairRequest) {
		r.Prefill.HasAllowedWorkers, r.Prefill.AllowedWorkers = true, []uint64{2}
		r.HasAllowedWorkers, r.AllowedWorkers = true, []uint64{3}
	}))
	if err != nil {
		t.Fatal(err)
	}
	if got.ID != "p" || got.Reason != counts.Paired || got.Prefill == nil || got.Prefill.Rank.Worker != 2 || got.Decode.Rank.Worker != 3 ||
		*got.Prefill.ReservationID != "p.prefill" || *got.Decode.ReservationID != "p.decode" || got.Prefill.EffectivePrefillTokens != 8 || got.Decode.EffectivePrefillTokens != 0 {
		t.Fatalf("got %+v, prefill %+v", got, got.Prefill)
	}
	w.WantLoad("1/0: 0 0 0, 2/0: 8 2 1, 3/0: 0 2 1, 4/0: 0 0 0")
	for range 2 { // it may be repeated
		if err := w.PrefillComplete("p"); err != nil {
			t.Fatal(err)
		}
		w.WantLoad("1/0: 0 0 0, 2/0: 0 0 0, 3/0: 0 2 1, 4/0: 0 0 0")
	}
	if err := w.OutputBlock("p", nil); err != nil {
		t.Fatal(err)
	}
	w.WantLoad("1/0: 0 0 0, 2/0: 0 0 0, 3/0: 0 3 1, 4/0: 0 0 0")
	if err := w.Free("p"); err != nil {
		t.Fatal(err)
	}
	w.WantLoad("1/0: 0 0 0, 2/0: 0 0 0, 3/0: 0 0 0, 4/0: 0 0 0")
	servicetest.WantError(t, w.Free("p"), contract.NotFound, "reservation p not found")
}

// TestPairReasons: when the rank that decodes prefills too. The rules of conditional are those of
// Dynamo's isl_bounding: fewer uncached tokens than the bound, and a smaller share.
func TestPairReasons(t *testing.T) {
	w := servicetest.Start(t)
	for id, of := range map[uint64]string{1: catalog.RolePrefill, 3: catalog.RoleDecode} {
		w.Put(servicetest.Record(id, 1, role(of)))
	}
	prompt := servicetest.Prompt(1, 8)
	e := w.Engine(3, 0)
	e.Publish(0, e.Stored(prompt[:4], 4, nil))
	w.Settle()
	conditional := func(tokens *uint64, share *float64) func(*selection.PairRequest) {
		return func(r *selection.PairRequest) {
			r.Conditional = &selection.Conditional{MaxUncachedTokens: tokens, MaxUncachedShare: share}
		}
	}
	for _, tt := range []struct {
		name   string
		change func(*selection.PairRequest)
		want   counts.PairReason
	}{
		{"plain", func(*selection.PairRequest) {}, counts.Paired},
		{"as many as the bound", conditional(new(uint64(4)), nil), counts.Paired},
		{"fewer", conditional(new(uint64(5)), nil), counts.PrefillCached},
		{"short", conditional(new(uint64(9)), nil), counts.PromptShort},
		{"few, but a large share", conditional(new(uint64(9)), new(0.5)), counts.Paired},
		{"few, and a small share", conditional(new(uint64(9)), new(0.6)), counts.PrefillCached},
		{"a share alone", conditional(nil, new(0.6)), counts.PrefillCached},
		{"no such worker", func(r *selection.PairRequest) { r.Prefill.HasAllowedWorkers = true }, counts.NoPrefillWorker},
		{"taint missing", func(r *selection.PairRequest) { r.Prefill.RequiredTaints = []string{"x"} }, counts.NoPrefillWorker},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := w.SelectPair(t.Context(), askPair("r", prompt, tt.change))
			if err != nil || got.Reason != tt.want || (got.Prefill != nil) != (tt.want == counts.Paired) {
				t.Fatalf("got %+v, %v", got, err)
			}
			if tt.want != counts.Paired { // the decode rank computes what it has not
				w.WantLoad("1/0: 0 0 0, 3/0: 4 2 1")
			}
			if err := w.Free("r"); err != nil {
				t.Fatal(err)
			}
			w.WantLoad("1/0: 0 0 0, 3/0: 0 0 0")
		})
	}
	for reason, want := range map[counts.PairReason]float64{counts.Paired: 3, counts.PrefillCached: 3, counts.PromptShort: 1, counts.NoPrefillWorker: 2} {
		if n := servicetest.Sum(w.Metrics()["pairs_total"], reason.String()); n != want {
			t.Errorf("%s: counted %v times, want %v", reason, n, want)
		}
	}
}

// TestPairLinks: the sides have one revision, or none, and one transfer domain if both have one.
func TestPairLinks(t *testing.T) {
	const a, b = "a", "b"
	set := func(p **string, v string) {
		if v != "" {
			*p = &v
		}
	}
	type side struct{ revision, domain, place, enforcement string }
	for _, tt := range []struct {
		prefill, decode side
		linked          bool
	}{
		{side{}, side{}, true},
		{side{revision: a}, side{revision: a}, true},
		{side{revision: a}, side{revision: b}, false},
		{side{revision: a}, side{}, false},
		{side{domain: a}, side{}, true},
		{side{domain: a}, side{domain: a}, true},
		{side{domain: a}, side{domain: b}, false},
		{side{domain: a, place: a}, side{domain: a, place: b}, false},
		{side{domain: a, place: a}, side{domain: a, place: a}, true},
		{side{domain: a, place: a}, side{domain: a}, true},
		{side{domain: a, place: a, enforcement: "preferred"}, side{domain: a, place: b}, true},
		{side{domain: a, place: a, enforcement: "required"}, side{domain: a, place: b, enforcement: "preferred"}, true},
		{side{domain: a, place: a, enforcement: "required"}, side{domain: a, place: b, enforcement: "required"}, false},
	} {
		t.Run(fmt.Sprint(tt.prefill, tt.decode), func(t *testing.T) {
			w := servicetest.Start(t, servicetest.EventsOff)
			put := func(id uint64, of string, s side) {
				w.Put(servicetest.Record(id, 1, role(of), func(r *catalog.Record) {
					set(&r.Revision, s.revision)
					set(&r.KVTransferDomain, s.domain)
					set(&r.KVTransferEnforcement, s.enforcement)
					if s.place != "" {
						r.TopologyDomains = map[string]string{s.domain: s.place}
					}
				}))
			}
			put(1, catalog.RolePrefill, tt.prefill)
			put(3, catalog.RoleDecode, tt.decode)
			got, err := w.SelectPair(t.Context(), askPair("", servicetest.Prompt(1, 8)))
			if err != nil || (got.Reason == counts.Paired) != tt.linked || !tt.linked && got.Reason != counts.NoPrefillWorker {
				t.Fatalf("got %+v, %v", got, err)
			}
		})
	}
}

// TestPairRefused: a request that is refused leaves nothing booked.
func TestPairRefused(t *testing.T) {
	prompt := servicetest.Prompt(1, 8)
	for _, tt := range []struct {
		name   string
		before func(*servicetest.World)
		change func(*selection.PairRequest)
		kind   contract.Kind
	}{
		{"the id is a reservation", func(w *servicetest.World) { w.Book("p", prompt) }, nil, contract.Conflict},
		{"the id is a pair", func(w *servicetest.World) { _, _ = w.SelectPair(context.Background(), askPair("p", prompt)) }, nil, contract.Conflict},
		{"a side's id is a reservation", func(w *servicetest.World) { w.Book("p.prefill", prompt) }, nil, contract.Conflict},
		{"no decode worker", nil, func(r *selection.PairRequest) { r.HasAllowedWorkers = true }, contract.Unavailable},
		{"id of a side", nil, func(r *selection.PairRequest) { r.ReservationID = new("p.decode") }, contract.BadRequest},
		{"empty condition", nil, func(r *selection.PairRequest) { r.Conditional = new(selection.Conditional) }, contract.BadRequest},
		{"pinned, not allowed", nil, func(r *selection.PairRequest) {
			r.Prefill.Pinned, r.Prefill.HasAllowedWorkers = &catalog.Rank{Worker: 1}, true
		}, contract.BadRequest},
	} {
		for _, d := range []contract.Version{contract.V13, contract.V16} {
			t.Run(fmt.Sprint(tt.name, " ", d), func(t *testing.T) {
				w := disaggregated(t)
				if tt.before != nil {
					tt.before(w)
				}
				load := w.LoadText()
				_, err := w.SelectPair(t.Context(), askPair("p", prompt, func(r *selection.PairRequest) {
					r.Dialect = d
					if tt.change != nil {
						tt.change(r)
					}
				}))
				if err == nil || contract.KindOf(err) != tt.kind {
					t.Fatalf("error %v", err)
				}
				w.WantLoad(load)
			})
		}
	}
}

// TestPairIDs: while a pair lives nobody else books its id or that of a side, and its id is free
// again afterwards.
func TestPairIDs(t *testing.T) {
	w := disaggregated(t)
	prompt := servicetest.Prompt(1, 8)
	for range 2 {
		if _, err := w.SelectPair(t.Context(), askPair("p", prompt)); err != nil {
			t.Fatal(err)
		}
		for _, id := range []string{"p", "p.decode", "p.prefill"} {
			req := servicetest.Ask(prompt)
			req.ReservationID, req.IfExists = &id, selection.ReturnFirst
			if _, err := w.Select(t.Context(), req, true); contract.KindOf(err) != contract.Conflict {
				t.Errorf("%s: %v", id, err)
			}
		}
		if err := w.Free("p"); err != nil {
			t.Fatal(err)
		}
		w.WantLoad("1/0: 0 0 0, 2/0: 0 0 0, 3/0: 0 0 0, 4/0: 0 0 0")
	}
	// A plain reservation whose id looks like a side's is no side.
	w.Book("q.decode", prompt)
	servicetest.WantError(t, w.Free("q"), contract.NotFound, "reservation q not found")
}

// TestPairRepeated: a retry gets the first answer, and books nothing more.
func TestPairRepeated(t *testing.T) {
	w := disaggregated(t)
	again := func(r *selection.PairRequest) { r.IfExists, r.Lease = selection.ReturnFirst, time.Minute }
	first, err := w.SelectPair(t.Context(), askPair("p", servicetest.Prompt(1, 8), again))
	if err != nil {
		t.Fatal(err)
	}
	load := w.LoadText()
	second, err := w.SelectPair(t.Context(), askPair("p", servicetest.Prompt(1, 8), again))
	if err != nil || !second.Decode.Repeated || second.Decode.Rank != first.Decode.Rank || second.Prefill == nil || second.Prefill.Rank != first.Prefill.Rank ||
		second.Reason != first.Reason || second.ID != "p" || !slices.Equal(second.Prefill.SequenceHashes, first.Prefill.SequenceHashes) {
		t.Fatalf("got %+v, %v", second, err)
	}
	if _, err := w.SelectPair(t.Context(), askPair("p", servicetest.Prompt(2, 8), again)); contract.KindOf(err) != contract.Conflict {
		t.Fatal("another prompt:", err)
	}
	w.WantLoad(load)
	if err := w.Renew("p"); err != nil {
		t.Fatal(err)
	}
}

// TestPairsSpread: 200 pairs at a time are spread evenly on both sides. Each rank's share differs
// from the mean by at most one.
func TestPairsSpread(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff)
	const side, pairs = 4, 200
	for i := range uint64(side) {
		w.Put(servicetest.Record(1+i, 1, role(catalog.RolePrefill)))
		w.Put(servicetest.Record(11+i, 1, role(catalog.RoleDecode)))
	}
	var all sync.WaitGroup
	for i := range pairs {
		all.Go(func() {
			if _, err := w.SelectPair(context.Background(), askPair(fmt.Sprint(i), servicetest.Prompt(uint32(1000*i), 64))); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	want := []string{}
	for i := range side {
		want = append(want, fmt.Sprintf("%d/0: 3200 800 50", 1+i))
	}
	for i := range side {
		want = append(want, fmt.Sprintf("%d/0: 0 800 50", 11+i))
	}
	w.WantLoad(strings.Join(want, ", "))
	for i := range pairs {
		if err := errors.Join(w.PrefillComplete(fmt.Sprint(i)), w.Free(fmt.Sprint(i))); err != nil {
			t.Error(err)
		}
	}
}

// requests sums the requests of all ranks in a text of loads.
func requests(loads string) (sum int) {
	for _, rank := range strings.Split(loads, ", ") {
		var n int
		_, _ = fmt.Sscan(rank[strings.LastIndex(rank, " "):], &n)
		sum += n
	}
	return sum
}

// TestPairFaults: whatever happens to a request for a pair, both of its sides are booked or none, and
// in the end no load is left at any replica. Faults are callers that go away, also while they wait in
// the queue, full queues, overloaded and missing workers, ids in use, the end of leases, lost calls, lost
// messages between replicas, and a replica that crashes. Calls for pairs, also those that take one over, are made at any
// replica.
func TestPairFaults(t *testing.T) {
	for seed := range uint64(8) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 7))
			m := servicetest.NewMesh()
			limits := []func(*node.Config){servicetest.EventsOff, func(*node.Config) {}}
			if seed%2 == 0 {
				limits[1] = servicetest.Queueing(0.5)
			}
			loses := rand.New(rand.NewPCG(seed, 8))
			m.Loses = func() bool { return loses.IntN(10) == 0 }
			worlds := []*servicetest.World{m.Start(t, "a", limits...), m.Start(t, "b", limits...), m.Start(t, "c", limits...)}
			m.Connect(t, "a", "b")
			m.Connect(t, "a", "c")
			m.Connect(t, "b", "c")
			put := func(w *servicetest.World, id uint64) {
				of := catalog.RolePrefill
				if id > 2 {
					of = catalog.RoleDecode
				}
				w.Put(servicetest.Record(id, 1, role(of), func(r *catalog.Record) { r.MaxNumBatchedTokens, r.TotalKVBlocks = new(uint64(64)), new(uint64(40)) }))
			}
			for _, w := range worlds {
				for id := range uint64(4) {
					put(w, id+1)
				}
			}
			waiting, leave := context.WithCancel(t.Context())
			var calls sync.WaitGroup
			ids := make([]string, 10)
			for i := range ids {
				ids[i] = fmt.Sprint(i)
			}
			alive := worlds
			for step := range 150 {
				if step == 100 {
					m.Crash("c") // and its callers with it
					alive = worlds[:2]
				}
				w, id := alive[rnd.IntN(len(alive))], ids[rnd.IntN(len(ids))]
				switch rnd.IntN(11) {
				default:
					req := askPair(id, servicetest.Prompt(uint32(100*rnd.IntN(4)), 1+rnd.IntN(60)), func(r *selection.PairRequest) {
						r.Lease, r.Dialect = time.Duration(1+rnd.IntN(9))*time.Second, contract.Version(rnd.IntN(2))
						if rnd.IntN(3) == 0 {
							r.IfExists = selection.ReturnFirst
						}
						if rnd.IntN(4) == 0 {
							r.Conditional = &selection.Conditional{MaxUncachedTokens: new(uint64(rnd.IntN(40)))}
						}
					})
					synctest.Wait() // for what the other replica has said
					before := w.LoadText()
					ctx, cancel := context.WithCancel(t.Context())
					done := make(chan error, 1)
					var pair selection.Pair
					calls.Go(func() {
						var err error
						pair, err = w.SelectPair(ctx, req)
						done <- err
					})
					synctest.Wait()
					if rnd.IntN(3) == 0 { // the caller goes away, perhaps while it waits
						cancel()
					}
					synctest.Wait()
					select {
					case err := <-done:
						// Where none wait, a refusal ends what was overdue and books nothing.
						if after := w.LoadText(); err != nil && seed%2 == 1 && requests(after) > requests(before) {
							t.Errorf("seed %d: refused with %v, but the loads were %s and are %s", seed, err, before, after)
						}
						if err == nil && (pair.Prefill == nil) == (pair.Reason == counts.Paired) {
							t.Errorf("seed %d: half a pair: %+v", seed, pair)
						}
					default: // it waits: its answer comes to nobody
					}
					context.AfterFunc(waiting, cancel)
				case 0, 1:
					_ = w.PrefillComplete(id)
				case 2, 3:
					_ = w.Free(id)
				case 4:
					_ = w.OutputBlock(id, nil)
				case 10:
					synctest.Wait() // for what the other replicas have said
					was, before := w.IsReserved(id), w.LoadText()
					if pair, err := w.TakeOver(id, time.Duration(1+rnd.IntN(9))*time.Second); err == nil {
						ids = append(ids, pair.ID)
						// One ends for each that is booked; another one of the id, which a replica has booked that did not hear of this one, stays.
						// Where some wait, one of them may be placed now.
						if after := w.LoadText(); seed%2 == 1 && requests(after) != requests(before) {
							t.Errorf("seed %d: %s is taken over: the loads were %s and are %s", seed, id, before, after)
						}
					} else if was && contract.KindOf(err) != contract.NotFound {
						t.Errorf("seed %d: %v", seed, err)
					}
				case 5:
					time.Sleep(time.Duration(rnd.IntN(3000)) * time.Millisecond)
				case 6:
					worker := 1 + rnd.Uint64N(4)
					w.Remove(worker)
					if rnd.IntN(2) == 0 {
						time.Sleep(time.Second)
					}
					put(w, worker)
				}
			}
			leave()
			calls.Wait()
			time.Sleep(time.Minute)    // beyond all leases, and what replicas wait longer
			for _, w := range worlds { // the crashed one, too, which has heard the others to the end
				w.WantLoad("1/0: 0 0 0, 2/0: 0 0 0, 3/0: 0 0 0, 4/0: 0 0 0")
			}
		})
	}
}

// TestPairTransfer: of two prefill workers that are equal otherwise the one with the shorter transfer is
// chosen, once callers have reported the ends of prefills and the first tokens. Until then the
// transfer costs nothing, so that both are chosen.
func TestPairTransfer(t *testing.T) {
	rack := func(place string) func(*catalog.Record) {
		return func(r *catalog.Record) {
			r.KVTransferDomain, r.KVTransferEnforcement = new("rack"), new("preferred")
			r.TopologyDomains = map[string]string{"rack": place}
		}
	}
	domain := func(r *catalog.Record) { r.KVTransferDomain = new("rack") }
	t.Run("a domain that one does not say", func(t *testing.T) { playTransfers(t, domain, func(*catalog.Record) {}) })
	t.Run("preferred places", func(t *testing.T) { playTransfers(t, rack("a"), rack("b")) })
}

// playTransfers plays transfers to a worker from one that is near, and from one that is far.
func playTransfers(t *testing.T, near, far func(*catalog.Record)) {
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t, servicetest.Policy(t, "predicted-ttft", ""), servicetest.EventsOff)
		w.Put(servicetest.Record(1, 1, role(catalog.RolePrefill), near))
		w.Put(servicetest.Record(2, 1, role(catalog.RolePrefill), far))
		w.Put(servicetest.Record(3, 1, role(catalog.RoleDecode), near))
		theta, n := ttft.Parameters{Base: 0.01, PerToken: 1e-4}, 0
		play := func(reports bool, change ...func(*selection.PairRequest)) (prefill uint64) {
			t.Helper()
			n++
			id, size := fmt.Sprint(n), 400+400*(n%5)
			pair, err := w.SelectPair(t.Context(), askPair(id, servicetest.Prompt(uint32(n)<<16, size), change...))
			if err != nil || pair.Prefill == nil {
				t.Fatalf("%+v, %v", pair, err)
			}
			prefill = pair.Prefill.Rank.Worker
			time.Sleep(time.Duration(theta.Prefill(float64(size), float64(size)) * float64(time.Second)))
			if reports {
				if err := w.PrefillComplete(id + ".prefill"); err != nil {
					t.Fatal(err)
				}
			}
			w.Serve(id, time.Duration(size)*time.Duration(prefill*prefill)*10*time.Microsecond) // 10 or 40 µs a token
			return prefill
		}
		of := func(id uint64) func(*selection.PairRequest) {
			return func(r *selection.PairRequest) {
				r.Prefill.HasAllowedWorkers, r.Prefill.AllowedWorkers = true, []uint64{id}
			}
		}
		chosen := map[uint64]int{}
		for range 20 {
			chosen[play(false)]++
		}
		if chosen[1] == 0 || chosen[2] == 0 {
			t.Errorf("before: %v", chosen)
		}
		for i := range uint64(120) {
			play(true, of(1+i%2))
		}
		clear(chosen)
		for range 20 {
			chosen[play(true)]++
		}
		if chosen[1] != 20 {
			t.Errorf("once it is known: %v", chosen)
		}
	})
}

// TestTransferIsLearnedOnce: a caller may report the first token of a pair again, whether or not it has reported the end of the
// prefill before. What passes between these reports is no transfer.
func TestTransferIsLearnedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t, servicetest.EventsOff)
		w.Put(servicetest.Record(1, 1, role(catalog.RolePrefill)))
		w.Put(servicetest.Record(2, 1, role(catalog.RoleDecode)))
		for i, tt := range []struct {
			reports []string
			want    int
		}{
			{[]string{"", "", ""}, 0},
			{[]string{".prefill", "", "", ".decode"}, 1},
			{[]string{".decode", ".prefill", ""}, 0},
		} {
			id, before := fmt.Sprint(i), w.Transfers()
			if pair, err := w.SelectPair(t.Context(), askPair(id, servicetest.Prompt(uint32(i)<<16, 400))); err != nil || pair.Prefill == nil {
				t.Fatalf("%+v, %v", pair, err)
			}
			for _, side := range tt.reports {
				time.Sleep(time.Second)
				if err := w.PrefillComplete(id + side); err != nil {
					t.Fatal(err)
				}
			}
			if got := w.Transfers() - before; got != tt.want {
				t.Errorf("%q: %d transfers are learned from, want %d", tt.reports, got, tt.want)
			}
		}
	})
}

// TestPairSeconds: with costs that are times, a prefill worker with seconds of work is not chosen because the decode worker that it
// can pass caches on to has a few blocks less to hold.
func TestPairSeconds(t *testing.T) {
	w := servicetest.Start(t, servicetest.Policy(t, "predicted-ttft", ""), servicetest.EventsOff)
	for id, of := range map[uint64]string{1: catalog.RolePrefill, 2: catalog.RolePrefill, 3: catalog.RoleDecode, 4: catalog.RoleDecode} {
		w.Put(servicetest.Record(id, 1, role(of), func(r *catalog.Record) {
			r.KVTransferDomain = new("rack")
			r.TopologyDomains = map[string]string{"rack": string(rune('a' + id%2))} // 1 and 3, 2 and 4
		}))
	}
	only := func(worker uint64) selection.Constraints {
		return selection.Constraints{HasAllowedWorkers: true, AllowedWorkers: []uint64{worker}}
	}
	// Worker 3 decodes a prompt of 400 tokens, and worker 2 has two seconds of prefill.
	for worker, size := range map[uint64]int{2: 24_000, 3: 400} {
		ask := servicetest.Ask(servicetest.Prompt(uint32(worker)<<16, size))
		ask.ReservationID, ask.Constraints = new(fmt.Sprint(worker)), only(worker)
		if _, err := w.Select(t.Context(), ask, true); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.PrefillComplete("3"); err != nil {
		t.Fatal(err)
	}
	got, err := w.SelectPair(t.Context(), askPair("p", servicetest.Prompt(1, 400)))
	if err != nil || got.Prefill == nil || got.Prefill.Rank.Worker != 1 || got.Decode.Rank.Worker != 3 {
		t.Errorf("%+v, %v", got, err)
	}
}

// runPairs runs 300 requests for pairs, whose first tokens take what an engine would.
func runPairs(w *servicetest.World, t *testing.T) {
	t.Helper()
	theta := ttft.Parameters{Base: 0.03, PerToken: 1.0 / 4000, PerContext: 1e-8}
	for i := range 300 {
		id, size := fmt.Sprint(i), 100+i*17%4000
		pair, err := w.SelectPair(t.Context(), askPair(id, servicetest.Prompt(uint32(i)<<16, size)))
		if err != nil || pair.Prefill == nil {
			t.Fatalf("%+v, %v", pair, err)
		}
		w.Serve(id, time.Duration(theta.Prefill(float64(size), float64(size))*float64(time.Second)))
	}
}

// TestPairsCalibrate: the time to first token that is predicted for the side that prefills is compared with the time to
// the first token of the pair, as that of a request on one rank is. The engine takes what is predicted, but for what the
// first samples have not told.
func TestPairsCalibrate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := disaggregated(t, servicetest.Policy(t, "predicted-ttft", ""))
		runPairs(w, t)
		time.Sleep(2 * time.Second)
		if c := learned(w, t).Calibration; c.Samples < 280 || math.Abs(c.Q50-1) > 0.1 || math.Abs(c.Q90-1) > 0.1 {
			t.Errorf("calibration %+v", c)
		}
	})
}

// TestPairsCountNoAnswers: answers that slow one another are part of the cost of a rank, but not where it prefills for another one.
func TestPairsCountNoAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := disaggregated(t, servicetest.Policy(t, "predicted-ttft", ""))
		runPairs(w, t)
		time.Sleep(2 * time.Second)
		do := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		for i := range 60 { // answers of 20 blocks, slowed by 5 µs for a token of their prompts
			id, size := fmt.Sprint("answer", i), 100+i*170%4000
			_, err := w.SelectPair(t.Context(), askPair(id, servicetest.Prompt(uint32(1000+i)<<16, size)))
			do(err)
			do(w.PrefillComplete(id))
			for range 20 {
				time.Sleep(servicetest.BlockSize * (time.Millisecond + time.Duration(size)*5*time.Microsecond))
				do(w.OutputBlock(id, nil))
			}
			do(w.Free(id))
		}
		if k := learned(w, t).PerAttended; math.Abs(k-5e-6) > 1e-6 {
			t.Errorf("learned %g s for a token of context", k)
		}
		only := selection.Constraints{HasAllowedWorkers: true, AllowedWorkers: []uint64{1, 2}} // which prefill
		for i := range 60 {
			ask := servicetest.Ask(servicetest.Prompt(uint32(2000+i)<<16, 4000))
			ask.ReservationID, ask.Constraints = new(fmt.Sprint("there", i)), only
			_, err := w.Select(t.Context(), ask, true)
			do(err)
		}
		ask := servicetest.Ask(servicetest.Prompt(1<<30, 4000))
		ask.Constraints = only
		alone, err := w.Explain(t.Context(), ask)
		do(err)
		pair, err := w.SelectPair(t.Context(), askPair("pair", servicetest.Prompt(1<<30, 4000), func(r *selection.PairRequest) { r.Explain = true }))
		do(err)
		for i, c := range alone.Candidates {
			if of := pair.Prefill.Explanation.Candidates[i]; c.Answer == 0 || of.Answer != 0 || of.Rank != c.Rank {
				t.Errorf("alone %+v, for another rank %+v", c.Reasons, of.Reasons)
			}
		}
	})
}

// TestPairTarget: of the ranks that prefill, those that are predicted to hold the request's target come first; if none does,
// nor a rank that decodes, which could prefill too, a request that wants it is refused.
func TestPairTarget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := disaggregated(t, servicetest.Policy(t, "predicted-ttft", ""))
		runPairs(w, t)
		ask := func(id string, within time.Duration) (selection.Pair, error) {
			return w.SelectPair(t.Context(), askPair(id, servicetest.Prompt(1<<30, 400), func(r *selection.PairRequest) {
				r.TTFTTarget, r.RefuseOnMiss, r.Explain = within, true, true
			}))
		}
		pair, err := ask("held", 5*time.Second) // it takes 0.13 s
		if err != nil || pair.Reason != counts.Paired || pair.Prefill.Explanation.Target == nil || pair.Prefill.Explanation.Target.Holding != 2 {
			t.Fatalf("%+v, %v", pair, err)
		}
		if pair.Decode.Explanation.Target != nil {
			t.Errorf("the side that decodes explains a target: %+v", pair.Decode.Explanation.Target)
		}
		if err := w.Free("held"); err != nil {
			t.Fatal(err)
		}
		before, refused := w.LoadText(), 0
		for i := range 127 { // the first ones are let through, see ttft.PrefixProbes
			id := fmt.Sprint("missed", i)
			if _, err = ask(id, 10*time.Millisecond); err == nil {
				w.Serve(id, 130*time.Millisecond)
				continue
			}
			if contract.KindOf(err) != contract.TargetMissed {
				t.Fatal(err)
			}
			w.WantLoad(before)
			refused++
		}
		if refused < 127/4 {
			t.Errorf("%d are refused", refused)
		}
	})
}

// TestPairsComeBack: ranks that prefill were slow while their predictions were learned, and recover while no request comes to them
// because of these: the ranks that decode hold the target, or every request is refused. Some pairs are probes, so that
// all requests get pairs again, within twice as many as ttft.MostRefused says of one kind of probes.
func TestPairsComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := disaggregated(t, servicetest.Policy(t, "predicted-ttft", ""))
		const asked = 400
		last, alone := 0, 0
		ask := func(id string, n int, takes ttft.Parameters, target time.Duration) bool {
			pair, err := w.SelectPair(t.Context(), askPair(id, servicetest.Prompt(uint32(n+1)<<13, 2000), func(r *selection.PairRequest) {
				r.TTFTTarget, r.RefuseOnMiss = target, target > 0
			}))
			if contract.KindOf(err) == contract.TargetMissed {
				return false
			}
			if err != nil {
				t.Fatal(err)
			}
			took := time.Duration(takes.Prefill(2000, 2000) * float64(time.Second))
			if pair.Prefill != nil {
				time.Sleep(took)
				if err := w.PrefillComplete(id + ".prefill"); err != nil {
					t.Fatal(err)
				}
				took = 10 * time.Millisecond // the transfer
			}
			w.Serve(id, took)
			return pair.Prefill != nil
		}
		slow := ttft.Parameters{Base: 0.12, PerToken: 4 * targetEngine.PerToken, PerContext: 4e-8}
		for i := range 300 {
			ask(fmt.Sprint("slow", i), i, slow, 0)
		}
		time.Sleep(2 * time.Second)
		for i := range asked {
			if !ask(fmt.Sprint("n", i), 1000+i, targetEngine, time.Second) {
				alone, last = alone+1, i
			}
		}
		if alone == 0 || alone > 2*ttft.MostRefused || last > asked/2 {
			t.Errorf("%d of %d requests got no pair, the last one was number %d", alone, asked, last)
		}
	})
}

// TestPairExplained: a request that has its prompt neither short nor cached explains the choice of two ranks, not the choice
// of a single one by which that was found out: the rank that decodes computes nothing.
func TestPairExplained(t *testing.T) {
	w := servicetest.Start(t, homes)
	for id, of := range []string{1: catalog.RolePrefill, 2: catalog.RoleDecode, 3: catalog.RoleDecode} {
		if of != "" {
			w.Put(servicetest.Record(uint64(id), 1, role(of)))
		}
	}
	prompt := servicetest.Prompt(1, 40*servicetest.BlockSize)
	e := w.Engine(3, 0)
	e.Publish(0, e.Stored(prompt[:30*servicetest.BlockSize], servicetest.BlockSize, nil))
	w.Settle()
	ask := func(id string, conditional *selection.Conditional) selection.Pair {
		pair, err := w.SelectPair(t.Context(), askPair(id, prompt, func(r *selection.PairRequest) {
			r.Conditional, r.Explain, r.Session, r.SessionMode, r.TTFTTarget = conditional, true, "s", selection.SoftSessions, time.Second
		}))
		if err != nil || pair.Reason != counts.Paired {
			t.Fatal(pair.Reason, err)
		}
		return pair
	}
	ask("first", nil) // its home is where it decodes
	plain := ask("plain", nil)
	if err := w.Free("plain"); err != nil {
		t.Fatal(err)
	}
	conditional := ask("conditional", &selection.Conditional{MaxUncachedTokens: new(uint64(8))})
	if x := plain.Decode.Explanation; x.Target != nil || x.MovedBecause != "" {
		t.Errorf("%+v", x)
	}
	if diff := cmp.Diff(plain.Decode.Explanation, conditional.Decode.Explanation); diff != "" {
		t.Error(diff)
	}
}

// TestPairByLoad: a request of which nothing is known gets the ranks with the fewest requests, of equal ones those with the
// fewest tokens, and counts as one request on each; a ledger without room books nothing.
func TestPairByLoad(t *testing.T) {
	playByLoad(t)
	playByLoad(t, servicetest.Policy(t, "predicted-ttft", "")) // it has no say
}

func playByLoad(t *testing.T, change ...func(*node.Config)) {
	t.Helper()
	w := disaggregated(t, change...)
	w.Burden("p", 1, 0, 1, 16)
	w.Burden("q", 2, 0, 1, 8)
	w.Burden("d", 3, 0, 4, 0)
	pair, err := w.SelectPair(t.Context(), askPair("x", nil, func(r *selection.PairRequest) { r.ByLoad = true }))
	if err != nil || pair.Prefill == nil || pair.Prefill.Rank.Worker != 2 || pair.Decode.Rank.Worker != 4 {
		t.Fatalf("%+v, %v", pair, err)
	}
	w.WantLoad("1/0: 16 1 1, 2/0: 8 1 2, 3/0: 0 4 1, 4/0: 0 0 1")
	full := disaggregated(t, append(change, func(c *node.Config) { c.Reservations.Reservations = 1 })...)
	pair, err = full.SelectPair(t.Context(), askPair("", nil, func(r *selection.PairRequest) { r.ByLoad = true }))
	if err != nil || pair.Prefill == nil || pair.Decode.ReservationID != nil || pair.Prefill.ReservationID != nil {
		t.Errorf("%+v, %v", pair, err)
	}
	full.WantLoad("1/0: 0 0 0, 2/0: 0 0 0, 3/0: 0 0 0, 4/0: 0 0 0")
}

// TestPairFrontends: where a frontend picks the rank that prefills itself, the least loaded of its ranks is booked, with the
// overlap of the worst; where the sidecar tells it the rank, the best one. Each pair is judged by the sidecar that it meets.
func TestPairFrontends(t *testing.T) {
	w := servicetest.Start(t)
	w.Put(servicetest.Record(1, 2, role(catalog.RolePrefill)))
	w.Put(servicetest.Record(3, 1, role(catalog.RoleDecode), func(r *catalog.Record) { r.PrefillRankHeader = new(true) }))
	w.Put(servicetest.Record(4, 1, role(catalog.RoleDecode)))
	prompt := servicetest.Prompt(1, 16)
	e := w.Engine(1, 1)
	e.Publish(1, e.Stored(prompt[:8], servicetest.BlockSize, nil))
	w.Settle()
	for decode, want := range map[uint64]string{
		3: "1/0: 0 0 0, 1/1: 8 4 1, 3/0: 0 4 1, 4/0: 0 0 0",
		4: "1/0: 16 4 1, 1/1: 0 1 1, 3/0: 0 0 0, 4/0: 0 4 1",
		0: "1/0: 0 0 0, 1/1: 8 4 1, 3/0: 0 4 1, 4/0: 0 0 0", // of both the one with more cached
	} {
		if decode == 4 {
			w.Burden("load", 1, 1, 1, 0)
		}
		_, err := w.SelectPair(t.Context(), askPair("x", prompt, func(r *selection.PairRequest) {
			r.HasAllowedWorkers, r.AllowedWorkers = decode != 0, []uint64{decode}
			r.PrefillShares = func(_ catalog.Entry, told bool) bool { return !told }
		}))
		if err != nil {
			t.Fatal(err)
		}
		w.WantLoad(want)
		if err := w.Free("x"); err != nil {
			t.Fatal(err)
		}
		if decode == 4 {
			if err := w.Free("load"); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestPairTakesBothTrials: if the trial of the rank that prefills is lost after that of the rank that decodes was taken, the latter
// is not spent: the pair has the rank that decodes with another one that prefills.
func TestPairTakesBothTrials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := disaggregated(t)
		const prefills, decodes = 1, 3 // of which an answer is awaited; the others have more to do
		for _, worker := range []uint64{prefills, decodes} {
			w.Await(servicetest.Scope, catalog.Rank{Worker: worker})
			w.Burden(fmt.Sprint("of", worker+1), worker+1, 0, 20, 80)
		}
		time.Sleep(20*time.Second + time.Millisecond) // stalled, and due for a trial; between two looks
		synctest.Wait()
		ask := func(id string, shares func(catalog.Entry, bool) bool) selection.Pair {
			t.Helper()
			pair, err := w.SelectPair(t.Context(), askPair(id, servicetest.Prompt(1, 8), func(r *selection.PairRequest) { r.PrefillShares = shares }))
			if err != nil {
				t.Fatal(err)
			}
			return pair
		}
		engines := w.Reports().(*reports.Reports)
		pair := ask("lost", func(catalog.Entry, bool) bool { // is called between the look at the trials and the choice
			engines.Excluded(servicetest.Scope)[catalog.Rank{Worker: prefills}].Try(time.Now())
			return false
		})
		if pair.Prefill == nil || pair.Prefill.Rank.Worker != prefills+1 || pair.Decode.Rank.Worker != decodes {
			t.Errorf("the pair is %v and %v", pair.Prefill, pair.Decode.Rank)
		}
		if pair = ask("next", nil); pair.Decode.Rank.Worker == decodes {
			t.Error("two requests had the trial of the rank that decodes")
		}
		for _, worker := range []uint64{prefills, decodes} {
			w.Awaited(servicetest.Scope, catalog.Rank{Worker: worker}, false)
		}
	})
}
