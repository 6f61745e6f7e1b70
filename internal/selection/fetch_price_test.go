package selection_test

import (
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/counts"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/selector"
	"github.com/select-service/select-service/pkg/selector/ttft"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// fetchWorld is a service that prices fetches, with engines that compute by theta, and fetch by link.
type fetchWorld struct {
	*servicetest.World
	t     *testing.T
	theta ttft.Parameters
	// Of a fetch by worker 2, 3, …, in seconds.
	setup, perToken map[uint64]float64
	n               int
	source          *servicetest.Engine
}

// fetchMode sets --kv-fetch.
func fetchMode(m selector.FetchMode) func(*node.Config) {
	return func(c *node.Config) { c.Selection.Fetch = m }
}

// startFetch starts a service. Worker 1 is the source; worker 2 fetches fast, and worker 3 slowly.
func startFetch(t *testing.T, mode selector.FetchMode, change ...func(*node.Config)) *fetchWorld {
	w := &fetchWorld{
		World: servicetest.Start(t, append([]func(*node.Config){servicetest.Policy(t, "predicted-ttft", ""), fetchMode(mode)}, change...)...), t: t,
		theta: ttft.Parameters{Base: 0.01, PerToken: 1e-3},
		setup: map[uint64]float64{2: 0.02, 3: 0.1}, perToken: map[uint64]float64{2: 1e-4, 3: 4e-3},
	}
	for id, zone := range []string{1: "a", 2: "a", 3: "b"} {
		if zone != "" {
			w.Put(servicetest.Record(uint64(id), 1, hinted("decode"), func(r *catalog.Record) {
				r.KVTransferDomain, r.Revision = &zone, new("v1")
				if id == 1 { // both can fetch from it
					r.KVTransferDomain = nil
				}
			}))
		}
	}
	for i := range 150 { // what computing takes
		w.run(new(1+uint64(i%3)), w.fresh(16+16*(i%64)), 0)
	}
	return w
}

// fresh returns a prompt that nobody has.
func (w *fetchWorld) fresh(tokens int) []uint32 {
	w.n++
	return servicetest.Prompt(uint32(w.n)<<16, tokens)
}

// on1 makes worker 1 hold the prompt.
func (w *fetchWorld) on1(prompt []uint32) []uint32 {
	if w.source == nil {
		w.source = w.Engine(1, 0)
	}
	w.source.Publish(0, w.source.Stored(prompt, servicetest.BlockSize, nil))
	w.Settle()
	return prompt
}

// book books a prompt, on a worker if it is pinned.
func (w *fetchWorld) book(pinned *uint64, prompt []uint32, change ...func(*selection.SelectRequest)) selection.Selection {
	w.t.Helper()
	w.n++
	req := servicetest.Ask(prompt)
	req.Hint, req.ReservationID, req.Explain = selection.HintInAnswer, new(fmt.Sprint("r", w.n)), true
	if pinned != nil {
		req.Pinned = &catalog.Rank{Worker: *pinned}
	}
	for _, f := range change {
		f(req)
	}
	got, err := w.Select(w.t.Context(), req, true)
	if err != nil {
		w.t.Fatal(err)
	}
	return got
}

// run serves a prompt of which the engine has some tokens, and returns its answer and the time to its first token.
func (w *fetchWorld) run(pinned *uint64, prompt []uint32, own int) (selection.Selection, float64) {
	w.t.Helper()
	got := w.book(pinned, prompt)
	id := got.Rank.Worker
	took, left := 0.0, len(prompt)-own
	if f := got.Fetch; f != nil {
		n := len(f.Hashes)*servicetest.BlockSize - own
		took, left = w.setup[id]+w.perToken[id]*float64(n), left-n
	}
	took += w.theta.Prefill(float64(left), float64(len(prompt)))
	w.finish(*got.ReservationID, took)
	return got, took
}

func (w *fetchWorld) finish(id string, took float64) {
	w.t.Helper()
	time.Sleep(time.Duration(took * float64(time.Second)))
	if err := w.PrefillComplete(id); err != nil {
		w.t.Fatal(err)
	}
	time.Sleep(time.Second)
	if err := w.Free(id); err != nil {
		w.t.Fatal(err)
	}
}

// learn makes the service try the links of workers 2 and 3.
func (w *fetchWorld) learn() {
	w.t.Helper()
	for i := range 20 {
		w.run(new(2+uint64(i%2)), w.on1(w.fresh(64+32*i)), 0)
	}
}

// result returns what came of the hint for the chosen rank.
func result(t *testing.T, s *selection.Selection) selection.PricedFetch {
	t.Helper()
	for _, c := range s.Explanation.Candidates {
		if c.Rank == s.Rank {
			return c.Fetch
		}
	}
	t.Fatal("the chosen rank is not explained")
	return selection.PricedFetch{}
}

// TestPricedFetch: the same prefix is fetched over a fast link and computed rather than fetched over a slow one. Both are learned
// from first tokens: the fast one takes 0.02 s and 0.1 ms for a token, the slow one 0.1 s and 4 ms, computing 1 ms.
func TestPricedFetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startFetch(t, selector.FetchPriced)
		w.learn()
		const size = 512
		got, took := w.run(new(uint64(2)), w.on1(w.fresh(size)), 0)
		f := result(t, &got)
		// The last block is fetched too, of which the engine computes a token.
		if got.Fetch == nil || got.Fetch.Source.Worker != 1 || f.Result != counts.HintGiven || f.Tokens != size-1 {
			t.Errorf("fast: got %+v, %+v", got.Fetch, f)
		}
		if want := 0.02 + size*1e-4; math.Abs(f.Time-want) > 0.2*want || math.Abs(f.Saves-(size*1e-3-want)) > 0.1 {
			t.Errorf("fast: %.3f s are predicted that save %.3f s; it took %.3f s", f.Time, f.Saves, took)
		}
		got, _ = w.run(new(uint64(3)), w.on1(w.fresh(size)), 0)
		if f := result(t, &got); got.Fetch != nil || f.Result != counts.HintDearer || f.Saves >= 0 {
			t.Errorf("slow: got %+v, %+v", got.Fetch, f)
		}
		// The setup: a few tokens are computed, whatever the link.
		got, _ = w.run(new(uint64(2)), w.on1(w.fresh(16)), 0)
		if f := result(t, &got); got.Fetch != nil || f.Result != counts.HintDearer {
			t.Errorf("short: got %+v, %+v", got.Fetch, f)
		}
		// The speed of engines is not learned from fetches.
		for _, p := range w.Policies(catalog.ScopeFilter{}) {
			if l := p.Learned; l == nil || math.Abs(l.PerToken-1e-3) > 1e-4 {
				t.Errorf("learned %+v", l)
			}
		}
		m := w.Metrics()
		if given := servicetest.Sum(m["kv_hints_total"], "given"); given < 16 || servicetest.Sum(m["kv_hint_tokens_total"]) < 64*given {
			t.Errorf("%v hints are counted", given)
		}
	})
}

// TestFetchInChoice: the choice counts what a rank can fetch. While the source is busy the request goes to the rank that fetches
// fast, not to the one that would have to compute, nor does it wait.
func TestFetchInChoice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startFetch(t, selector.FetchPriced)
		w.learn()
		prompt := w.on1(w.fresh(1024))
		busy := w.book(new(uint64(1)), w.fresh(600)) // 0.6 s; the fetch saves 0.9
		for range 10 {
			got := w.book(nil, prompt)
			if got.Rank.Worker != 2 || got.Fetch == nil || got.Fetch.Source.Worker != 1 {
				t.Fatalf("got rank %v, fetch %+v, %+v", got.Rank, got.Fetch, got.Explanation.Candidates)
			}
			w.finish(*got.ReservationID, 0.15)
			if err := w.PrefillComplete(*busy.ReservationID); err != nil {
				t.Fatal(err)
			}
			busy = w.book(new(uint64(1)), w.fresh(600))
		}
	})
}

// TestFetchRefusals: sources that are not asked.
func TestFetchRefusals(t *testing.T) {
	for _, tt := range []struct {
		name string
		when func(w *fetchWorld)
		want counts.Hint
	}{
		{"busier than the time it saves", func(w *fetchWorld) { w.book(new(uint64(1)), w.fresh(1000)) }, counts.HintSourceBusy},
		{"less busy", func(w *fetchWorld) { w.book(new(uint64(1)), w.fresh(300)) }, counts.HintGiven},
		{"draining", func(w *fetchWorld) {
			leaves := servicetest.Record(1, 1, hinted("decode"), func(r *catalog.Record) { r.Revision, r.Draining = new("v1"), "leaves" })
			if _, err := w.PutWorker(leaves); err != nil {
				w.t.Fatal(err)
			}
			w.Settle()
		}, counts.NoHintSource},
		{"stalled", func(w *fetchWorld) {
			for range 200 { // enough to tell
				w.run(new(uint64(2)), w.fresh(64), 0)
			}
			w.book(new(uint64(1)), w.fresh(64))
			time.Sleep(time.Second)
		}, counts.HintSourceStalled},
		{"charged with another fetch", func(w *fetchWorld) {
			for range 6 { // each takes 0.12 s and more
				w.book(new(uint64(2)), w.on1(w.fresh(1000)))
			}
		}, counts.HintSourceBusy},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := startFetch(t, selector.FetchPriced)
				w.learn()
				prompt := w.on1(w.fresh(512)) // 0.44 s are saved
				tt.when(w)
				got := w.book(new(uint64(2)), prompt)
				f := result(t, &got)
				if f.Result != tt.want || (got.Fetch != nil) != (tt.want == counts.HintGiven) {
					t.Errorf("got %+v, %+v", got.Fetch, f)
				}
				if named := f.Source.Worker == 1; named != (f.Tokens > 0) || named != (tt.want != counts.NoHintSource) {
					t.Errorf("%d tokens of %v", f.Tokens, f.Source)
				}
			})
		})
	}
}

// TestFetchChargeEnds: a source is charged until the first token, however the request ends.
func TestFetchChargeEnds(t *testing.T) {
	for name, end := range map[string]func(w *fetchWorld, id string) error{
		"first token": func(w *fetchWorld, id string) error { return w.PrefillComplete(id) },
		"inferred":    func(w *fetchWorld, id string) error { return w.PrefillInferred(id) },
		"freed":       func(w *fetchWorld, id string) error { return w.Free(id) },
		"its worker leaves": func(w *fetchWorld, _ string) error {
			w.Remove(2)
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := startFetch(t, selector.FetchPriced)
				w.learn()
				source := catalog.Rank{Worker: 1}
				if got := w.FetchCharge(servicetest.Scope, source); got != 0 {
					t.Fatalf("charged %v before", got)
				}
				first, second := w.book(new(uint64(2)), w.on1(w.fresh(1000))), w.book(new(uint64(2)), w.on1(w.fresh(1000)))
				want := result(t, &first).Time + result(t, &second).Time
				if got := w.FetchCharge(servicetest.Scope, source); first.Fetch == nil || second.Fetch == nil || math.Abs(got-want) > 1e-9 {
					t.Fatalf("charged %v, want %v", got, want)
				}
				for _, s := range []selection.Selection{first, second} {
					if err := end(w, *s.ReservationID); err != nil {
						t.Fatal(err)
					}
					if name == "its worker leaves" {
						break
					}
				}
				w.Settle()
				if got := w.FetchCharge(servicetest.Scope, source); got != 0 {
					t.Errorf("charged %v after", got)
				}
			})
		})
	}
}

// TestFetchChosenTwice: a source is charged once where the ledger chooses a second time, because the lease of the reservation that
// had the id, in another scope, has run out.
func TestFetchChosenTwice(t *testing.T) {
	const id, lease = "taken", 101 * time.Millisecond
	other := catalog.Scope{Model: "other", Tenant: servicetest.Scope.Tenant}
	for name, book := range map[string]func(*fetchWorld, *selection.SelectRequest) (selection.Selection, error){
		"one rank": func(w *fetchWorld, r *selection.SelectRequest) (selection.Selection, error) {
			return w.Select(w.t.Context(), r, true)
		},
		"a pair": func(w *fetchWorld, r *selection.SelectRequest) (selection.Selection, error) {
			pair, err := w.SelectPair(w.t.Context(), &selection.PairRequest{SelectRequest: *r})
			return pair.Decode, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := startFetch(t, selector.FetchPriced)
				w.learn()
				req := servicetest.Ask(w.on1(w.fresh(1000)))
				req.Hint, req.ReservationID, req.Explain, req.Pinned = selection.HintInAnswer, new(id), true, &catalog.Rank{Worker: 2}
				w.Put(servicetest.Record(9, 1, func(r *catalog.Record) { r.Scope = other }))
				if _, err := w.Reserve(&selection.ReserveRequest{
					Scope: other, ID: id, Rank: catalog.Rank{Worker: 9}, Prompt: servicetest.Ask(servicetest.Prompt(1, 16)).Prompt, Lease: lease,
				}); err != nil {
					t.Fatal(err)
				}
				time.Sleep(lease + time.Millisecond)
				got, err := book(w, req)
				if err != nil || got.Fetch == nil {
					t.Fatalf("got %+v, %v", got.Fetch, err)
				}
				source := catalog.Rank{Worker: 1}
				if want, is := result(t, &got).Time, w.FetchCharge(servicetest.Scope, source); math.Abs(is-want) > 1e-9 {
					t.Errorf("charged %v, want %v", is, want)
				}
				if err := w.Free(id); err != nil {
					t.Fatal(err)
				}
				if is := w.FetchCharge(servicetest.Scope, source); is != 0 {
					t.Errorf("charged %v after", is)
				}
			})
		})
	}
}

// TestUntoldFetchIsNoTry: a link of which nothing is known is not tried by a request that would tell nothing of it, because its rank
// fetches already, perhaps the same.
func TestUntoldFetchIsNoTry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startFetch(t, selector.FetchPriced)
		w.learn()
		w.Put(servicetest.Record(4, 1, hinted("decode"), func(r *catalog.Record) { r.KVTransferDomain, r.Revision = new("a"), new("v1") }))
		prompt := w.fresh(512)
		e := w.Engine(4, 0)
		e.Publish(0, e.Stored(prompt, servicetest.BlockSize, nil))
		w.Settle()
		first := w.book(new(uint64(2)), w.on1(w.fresh(512)))
		got := w.book(new(uint64(2)), prompt)
		if f := result(t, &got); first.Fetch == nil || got.Fetch != nil || f.Result != counts.HintLearning {
			t.Errorf("while another one fetches: %+v, %+v, %+v", first.Fetch, got.Fetch, f)
		}
		w.finish(*first.ReservationID, 0.1)
		w.finish(*got.ReservationID, 0.6)
		if got := w.book(new(uint64(2)), prompt); got.Fetch == nil || got.Fetch.Source.Worker != 4 {
			t.Errorf("after: %+v", result(t, &got))
		}
	})
}

// TestLinkIsTried: what is not known is tried by one request at a time. A link that was slow is tried again after ten minutes.
func TestLinkIsTried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startFetch(t, selector.FetchPriced)
		first, second := w.book(new(uint64(3)), w.on1(w.fresh(512))), w.book(new(uint64(3)), w.on1(w.fresh(512)))
		if a, b := result(t, &first), result(t, &second); first.Fetch == nil || second.Fetch != nil || a.Time != 0 || b.Result != counts.HintLearning {
			t.Fatalf("got %+v, %+v", a, b)
		}
		w.finish(*first.ReservationID, 2)
		w.finish(*second.ReservationID, 0.5)
		w.learn()
		if got, _ := w.run(new(uint64(3)), w.on1(w.fresh(512)), 0); got.Fetch != nil {
			t.Fatal("fetched over a slow link")
		}
		time.Sleep(11 * time.Minute)
		w.setup[3], w.perToken[3] = 0, 1e-5 // it is fast now
		fetched := 0
		for range 200 {
			if got, _ := w.run(new(uint64(3)), w.on1(w.fresh(512)), 0); got.Fetch != nil {
				fetched++
			}
			time.Sleep(time.Minute)
		}
		if fetched < 50 {
			t.Errorf("%d of 200 requests fetched over a link that has become fast", fetched)
		}
	})
}

// TestSourceLost: a source that loses the prompt while a request is decided is not named. What the rank is booked to compute is then
// all of the prompt, for the requests behind it: it computes 1 ms a token.
func TestSourceLost(t *testing.T) {
	for name, book := range map[string]func(*fetchWorld, *selection.SelectRequest) (*selection.Fetch, error){
		"one rank": func(w *fetchWorld, r *selection.SelectRequest) (*selection.Fetch, error) {
			got, err := w.Select(w.t.Context(), r, true)
			return got.Fetch, err
		},
		"a pair": func(w *fetchWorld, r *selection.SelectRequest) (*selection.Fetch, error) {
			pair, err := w.SelectPair(w.t.Context(), &selection.PairRequest{SelectRequest: *r})
			return pair.Decode.Fetch, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := startFetch(t, selector.FetchPriced)
				w.learn()
				const size = 1024
				for _, lost := range []bool{false, true} {
					prompt := w.on1(w.fresh(size))
					req := servicetest.Ask(prompt)
					req.Hint, req.ReservationID, req.Pinned = selection.HintInAnswer, new(fmt.Sprint("lost ", lost)), &catalog.Rank{Worker: 2}
					req.SharesFrontend = func(catalog.Entry) bool { // it is asked after the caches were looked up
						if lost {
							lost = false
							w.source.Publish(0, w.source.Removed(prompt, servicetest.BlockSize, 0, "GPU"))
							w.Settle()
						}
						return false
					}
					want := 0.01 + 1e-3*size
					if !lost {
						want = 0.01 + 1e-3 // the last token
					}
					got, err := book(w, req)
					if err != nil || (got == nil) != (want > 1) {
						t.Fatalf("got %+v, %v", got, err)
					}
					behind := w.book(new(uint64(2)), w.fresh(16))
					for _, c := range behind.Explanation.Candidates {
						if is := c.Predicted.Wait; math.Abs(is-want) > 0.1*want+0.02 {
							t.Errorf("%s: the next request is predicted to wait %.3f s, want %.3f s", *req.ReservationID, is, want)
						}
					}
					for _, id := range []string{*req.ReservationID, *behind.ReservationID} {
						if err := w.Free(id); err != nil {
							t.Fatal(err)
						}
					}
				}
				if n := servicetest.Sum(w.Metrics()["kv_hints_total"], "source_lost"); n != 1 {
					t.Errorf("%v sources were lost", n)
				}
				if got := w.FetchCharge(servicetest.Scope, catalog.Rank{Worker: 1}); got != 0 {
					t.Errorf("the source is charged %v", got)
				}
			})
		})
	}
}

// TestSourceLeaves: a source that leaves, comes again as another or falls silent after the hint was given cannot be fetched from any more.
// The rank that was to fetch computes all of the prompt, as the requests behind it are predicted to wait, and the source is charged with
// nothing. A source that drains serves on.
func TestSourceLeaves(t *testing.T) {
	const size = 1024
	computing, fetching := 0.01+1e-3*size, 0.01+1e-3 // the last token
	for name, row := range map[string]struct {
		happens func(*fetchWorld)
		want    float64
	}{
		"nothing happens": {func(*fetchWorld) {}, fetching},
		"it leaves":       {func(w *fetchWorld) { w.Remove(1) }, computing},
		"it comes again": {func(w *fetchWorld) {
			w.Remove(1)
			w.Put(servicetest.Record(1, 1, hinted("decode")))
		}, computing},
		"it cannot be reached": {func(w *fetchWorld) { w.Unreachable(servicetest.Scope, catalog.Rank{Worker: 1}) }, computing},
		"it drains": {func(w *fetchWorld) {
			if _, err := w.Catalog().Drain(catalog.ScopeFilter{}, 1, catalog.Drain{}); err != nil {
				w.t.Fatal(err)
			}
		}, fetching},
	} {
		for _, pair := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, pair %t", name, pair), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := startFetch(t, selector.FetchPriced)
					w.learn()
					req := servicetest.Ask(w.on1(w.fresh(size)))
					req.Hint, req.ReservationID, req.Pinned = selection.HintInAnswer, new("fetches"), &catalog.Rank{Worker: 2}
					var fetch *selection.Fetch
					if pair {
						got, err := w.SelectPair(t.Context(), &selection.PairRequest{SelectRequest: *req})
						if err != nil {
							t.Fatal(err)
						}
						fetch = got.Decode.Fetch
					} else {
						got, err := w.Select(t.Context(), req, true)
						if err != nil {
							t.Fatal(err)
						}
						fetch = got.Fetch
					}
					if fetch == nil || fetch.Source.Worker != 1 {
						t.Fatalf("got %+v", fetch)
					}
					row.happens(w)
					const passed = 150 * time.Millisecond // choices know by then which engines are silent
					time.Sleep(passed)
					synctest.Wait()
					w.API.Sweep()
					if got := w.FetchCharge(servicetest.Scope, catalog.Rank{Worker: 1}); (got > 0) != (row.want == fetching) {
						t.Errorf("the source is charged %v", got)
					}
					behind := w.book(new(uint64(2)), w.fresh(16))
					want := max(0, row.want-passed.Seconds())
					if is := behind.Explanation.Candidates[0].Predicted.Wait; math.Abs(is-want) > 0.1*want+0.02 {
						t.Errorf("the next request is predicted to wait %.3f s, want %.3f s", is, want)
					}
				})
			})
		}
	}
}

// TestWaitersFetch: a request that waits for a busy rank is not refused for the time that computing its prompt takes, if the rank can
// fetch it, and one that cannot be in time even so is refused.
func TestWaitersFetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startFetch(t, selector.FetchPriced, servicetest.Queueing(0))
		w.learn()
		for range 100 { // so that predictions are good enough to refuse by
			w.run(new(uint64(2)), w.fresh(64), 0)
		}
		ask := func(id string, target time.Duration) *call {
			prompt := w.on1(w.fresh(1000)) // 1 s to compute, 0.12 s to fetch
			return startCall(w.World, id, prompt, func(r *selection.SelectRequest) {
				r.Hint, r.Pinned, r.TTFTTarget, r.RefuseOnMiss = selection.HintInAnswer, &catalog.Rank{Worker: 2}, target, true
			})
		}
		busy := w.book(new(uint64(2)), w.fresh(400))
		tooSoon, inTime := ask("too soon", 100*time.Millisecond), ask("in time", 800*time.Millisecond)
		if tooSoon.waits() || contract.KindOf(tooSoon.err) != contract.TargetMissed {
			t.Errorf("a fetch that is too late waits, %v", tooSoon.err)
		}
		if !inTime.waits() {
			t.Fatalf("refused with %v", inTime.err)
		}
		w.finish(*busy.ReservationID, 0.41)
		if got := inTime.served(t); got.Fetch == nil {
			t.Errorf("its turn came, and it has no hint")
		}
	})
}

// TestHeldFetch: of two requests that are held for a rank that has a second left, the one that fetches goes first: it takes the rank
// less time, although its prompt is longer.
func TestHeldFetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startFetch(t, selector.FetchPriced, servicetest.Policy(t, "predicted-ttft", "hold_seconds: 0.05"))
		w.learn()
		ask := func(id string, prompt []uint32) *call {
			return startCall(w.World, id, prompt, func(r *selection.SelectRequest) {
				r.Hint, r.Pinned = selection.HintInAnswer, &catalog.Rank{Worker: 2}
			})
		}
		busy := w.book(new(uint64(2)), w.fresh(1000))
		computes, fetches := ask("computes", w.fresh(300)), ask("fetches", w.on1(w.fresh(1000)))
		if !computes.waits() || !fetches.waits() {
			t.Fatal("not held, although a second is left")
		}
		if err := w.PrefillComplete(*busy.ReservationID); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := fetches.served(t); got.Fetch == nil {
			t.Error("it has no hint")
		}
	})
}

// TestFetchOff: nobody is told of a source.
func TestFetchOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startFetch(t, selector.FetchOff)
		for _, hint := range []selection.Hint{selection.HintInAnswer, selection.HintInRequest} {
			got := w.book(new(uint64(2)), w.on1(w.fresh(512)), func(r *selection.SelectRequest) { r.Hint = hint })
			if got.Fetch != nil || result(t, &got).Takes {
				t.Errorf("got %+v", got.Fetch)
			}
		}
		w.WantNoSeries("kv_hint")
	})
}
