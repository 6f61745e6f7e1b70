package selection_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/admission"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/memory"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// call is a selection on its way.
type call struct {
	cancel context.CancelFunc
	done   chan struct{}
	sel    selection.Selection
	err    error
	text   text
}

// text is what a request came in: the tokens of requests that wait are gone.
type text struct{ released atomic.Int32 }

func (t *text) ReleaseText() { t.released.Add(1) }

// startCall starts a selection with a reservation and waits until it is answered or
// is queued; only in a synctest bubble.
func startCall(w *servicetest.World, id string, tokens []uint32, change ...func(*selection.SelectRequest)) *call {
	req := servicetest.Ask(tokens)
	req.ReservationID = &id
	for _, f := range change {
		f(req)
	}
	ctx, cancel := context.WithCancel(context.Background())
	c := &call{cancel: cancel, done: make(chan struct{})}
	req.Text = &c.text
	go func() {
		defer close(c.done)
		c.sel, c.err = w.Select(ctx, req, true)
		*req = selection.SelectRequest{} // the request was lent: the race detector finds reads of it
		clear(tokens)
	}()
	w.T.Cleanup(cancel)
	synctest.Wait()
	return c
}

func (c *call) waits() bool {
	select {
	case <-c.done:
		return false
	default:
		return true
	}
}

// served waits for the answer, which has to be a worker.
func (c *call) served(t *testing.T) selection.Selection {
	t.Helper()
	synctest.Wait()
	if c.waits() {
		t.Fatal("the request still waits")
	}
	if c.err != nil {
		t.Fatal(c.err)
	}
	return c.sel
}

// busy starts a service with one worker that is busy with reservation "first".
func busy(t *testing.T, change ...func(*node.Config)) *servicetest.World {
	w := servicetest.Start(t, append([]func(*node.Config){servicetest.EventsOff, servicetest.Queueing(0)}, change...)...)
	w.Put(servicetest.Record(1, 1))
	w.Book("first", servicetest.Prompt(1000, 8))
	return w
}

// TestWaitersGoInOrder: higher strict priority first, then by arrival, one for
// each time that the worker is free; a wait has no time limit.
func TestWaitersGoInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := busy(t)
		calls := map[string]*call{}
		for i, id := range []string{"a", "b", "c"} {
			calls[id] = startCall(w, id, servicetest.Prompt(uint32(i), 8))
			time.Sleep(time.Second)
		}
		calls["vip"] = startCall(w, "vip", servicetest.Prompt(9, 8), func(r *selection.SelectRequest) { r.StrictPriority = 1 })
		// /reservations is not queued. It is booked before the first one ends, so
		// that the worker is never free.
		_, err := w.Reserve(&selection.ReserveRequest{Scope: servicetest.Scope, ID: "direct", Rank: catalog.Rank{Worker: 1}, Prompt: servicetest.Ask(servicetest.Prompt(7, 8)).Prompt})
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Free("first"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(4 * time.Minute)
		synctest.Wait()
		w.WantLoad("1/0: 8 2 1, waiting: 4 with 32")
		last := "direct"
		for _, next := range []string{"vip", "a", "b", "c"} {
			if err := w.PrefillComplete(last); err != nil {
				t.Fatal(err)
			}
			calls[next].served(t)
			delete(calls, next)
			for id, c := range calls {
				if !c.waits() {
					t.Fatalf("%s did not wait for %s", id, next)
				}
			}
			last = next
		}
	})
}

// TestTargetBlocksNobody: a request that waits for its affinity target keeps no other one
// from a rank that is free, and one of its target goes when that is.
func TestTargetBlocksNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := busy(t)
		w.Put(servicetest.Record(2, 1))
		w.Book("second", servicetest.Prompt(2000, 8))
		target := func(worker uint64) func(*selection.SelectRequest) {
			return func(r *selection.SelectRequest) { r.Target = &selection.AffinityTarget{Worker: worker} }
		}
		on1 := startCall(w, "on1", servicetest.Prompt(1, 8), target(1))
		free, on2 := startCall(w, "free", servicetest.Prompt(2, 8)), startCall(w, "on2", servicetest.Prompt(3, 8), target(2))
		for _, step := range []struct {
			free string
			next *call
			rank uint64
		}{{"second", free, 2}, {"free", on2, 2}, {"first", on1, 1}} {
			if err := w.Free(step.free); err != nil {
				t.Fatal(err)
			}
			if got := step.next.served(t).Rank.Worker; got != step.rank {
				t.Errorf("after %s: on worker %d, want %d", step.free, got, step.rank)
			}
		}
	})
}

// TestDisconnectWhileWaiting: a caller that goes away leaves the queue at once and
// nothing is booked for it.
func TestDisconnectWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := busy(t)
		a, b := startCall(w, "a", servicetest.Prompt(1, 8)), startCall(w, "b", servicetest.Prompt(2, 12))
		w.WantLoad("1/0: 8 2 1, waiting: 2 with 20")
		a.cancel()
		synctest.Wait()
		if a.waits() {
			t.Fatal("a still waits")
		}
		servicetest.WantError(t, a.err, contract.Cancelled, "the client went away")
		if !errors.Is(a.err, context.Canceled) {
			t.Errorf("the cause of %v is lost", a.err)
		}
		w.WantLoad("1/0: 8 2 1, waiting: 1 with 12")
		if err := w.Free("first"); err != nil {
			t.Fatal(err)
		}
		b.served(t)
		w.WantLoad("1/0: 12 3 1")
	})
}

// TestDisconnectAtAdmission: a caller who goes away just before its turn keeps
// no reservation; one who goes away just after it either has been answered or keeps
// none. The next one is not held up.
func TestDisconnectAtAdmission(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := busy(t)
		first := "first"
		for i := range 200 {
			before := i%2 == 0
			gone, next := fmt.Sprint("gone", i), fmt.Sprint("next", i)
			a, b := startCall(w, gone, servicetest.Prompt(1, 8)), startCall(w, next, servicetest.Prompt(2, 8))
			if before {
				a.cancel()
				_ = w.Free(first)
			} else {
				_ = w.Free(first)
				a.cancel()
			}
			<-a.done
			if a.err == nil {
				if before {
					t.Fatal("a caller who had left was answered")
				}
				if err := w.Free(gone); err != nil {
					t.Fatal(err)
				}
			}
			b.served(t)
			w.WantLoad("1/0: 8 2 1")
			first = next
		}
	})
}

// TestGoneBeforeItBegan: nothing is booked for a caller who has left already.
func TestGoneBeforeItBegan(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff)
	w.Put(servicetest.Record(1, 1))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := w.Select(ctx, servicetest.Ask(servicetest.Prompt(1, 8)), true)
	servicetest.WantError(t, err, contract.Cancelled, "the client went away")
	w.WantLoad("1/0: 0 0 0")
	w.WantSeries(`selections_total{model_name="m",outcome="cancelled"} 1`, `dynamo_tasks_issued_total{endpoint="select_and_reserve",model="m"} 1`)
}

// TestWorkerChangesAdmit: a worker that is added, or whose limit is raised,
// takes who waits; no one needs to free anything.
func TestWorkerChangesAdmit(t *testing.T) {
	changes := map[string]func(*servicetest.World){
		"added": func(w *servicetest.World) { w.Put(servicetest.Record(2, 1)) },
		"patched": func(w *servicetest.World) {
			w.Patch(1, catalog.Patch{MaxNumBatchedTokens: new(uint64(1 << 40))})
		},
		"more ranks": func(w *servicetest.World) { w.Patch(1, catalog.Patch{Size: new(uint32(2))}) },
	}
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := servicetest.Start(t, servicetest.EventsOff, servicetest.Queueing(0.001))
				w.Put(servicetest.Record(1, 1))
				w.Book("first", servicetest.Prompt(1000, 8))
				c := startCall(w, "a", servicetest.Prompt(1, 8))
				if !c.waits() {
					t.Fatal("did not wait")
				}
				w.Patch(1, catalog.Patch{Taints: []string{"x"}})
				synctest.Wait()
				if !c.waits() {
					t.Fatal("a taint does not make a worker free")
				}
				change(w)
				c.served(t)
			})
		})
	}
}

// TestWorkerGoesWhileRequestsWait: waiting requests learn of the last worker's end
// at once; a change of its block size is not one.
func TestWorkerGoesWhileRequestsWait(t *testing.T) {
	tests := []struct {
		name   string
		change func(*servicetest.World)
		text   string // "" if the request is served
	}{
		{"deleted", func(w *servicetest.World) { w.Remove(1) }, "no schedulable workers are available"},
		{"deleted, another model lives", func(w *servicetest.World) {
			w.Put(servicetest.Record(2, 1, func(r *catalog.Record) { r.Scope.Model = "other" }))
			w.Remove(1)
		}, "no schedulable workers for model=m tenant=t"},
		{"moved", func(w *servicetest.World) {
			w.Put(servicetest.Record(1, 1, func(r *catalog.Record) { r.Scope.Model = "other" }))
		}, "no schedulable workers for model=m tenant=t"},
		{"incomplete", func(w *servicetest.World) { _, _ = w.PatchWorker(1, catalog.Patch{Endpoint: new("")}) }, "no schedulable workers are available"},
		{"another that is not allowed stays", func(w *servicetest.World) {
			w.Put(servicetest.Record(2, 1))
			w.Remove(1)
		}, "no endpoints available to route work"},
		{"another block size", func(w *servicetest.World) { w.Patch(1, catalog.Patch{BlockSize: new(uint32(8))}) }, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := busy(t)
				c := startCall(w, "a", servicetest.Prompt(1, 16), func(r *selection.SelectRequest) {
					r.AllowedWorkers, r.HasAllowedWorkers = []uint64{1, 5, 1}, true
				})
				if !c.waits() {
					t.Fatal("did not wait")
				}
				tt.change(w)
				if tt.text == "" {
					if sel := c.served(t); sel.BlockSize != 8 {
						t.Errorf("served with %+v", sel)
					}
					w.WantLoad("1/0: 16 2 1")
					return
				}
				synctest.Wait()
				if c.waits() {
					t.Fatal("still waits")
				}
				servicetest.WantError(t, c.err, contract.Unavailable, tt.text)
			})
		})
	}
}

// TestShutdownAnswersWaiters: all at once, with the contract's text.
func TestShutdownAnswersWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := busy(t)
		var calls []*call
		for i := range uint32(20) {
			calls = append(calls, startCall(w, fmt.Sprint(i), servicetest.Prompt(i, 8)))
		}
		w.Close()
		synctest.Wait()
		for _, c := range calls {
			if c.waits() {
				t.Fatal("still waits")
			}
			servicetest.WantError(t, c.err, contract.Unavailable, "selection service is shutting down")
		}
		w.Remove(1) // the end of the scope makes no difference any more
		_, err := w.Select(context.Background(), servicetest.Ask(servicetest.Prompt(1, 8)), false)
		servicetest.WantError(t, err, contract.Unavailable, "selection service is shutting down")
	})
}

// limitedQueue is a wait queue of one class that takes so many requests for each
// worker.
func limitedQueue(t *testing.T, perWorker int) func(*node.Config) {
	t.Helper()
	file, err := admission.ParsePolicy(fmt.Appendf(nil, `
default_policy_family: f
uncached_isl_buckets: [{min_tokens: 0, bucket: b}]
policy_classes:
  - {name: only, policy_family: f, cache_bucket: b, quantum: 1, prefill_busy_threshold: 0, request_queue_limit_per_worker: %d}
`, perWorker))
	if err != nil {
		t.Fatal(err)
	}
	return func(c *node.Config) { c.Scopes.Admission = admission.Config{File: file} }
}

// overLimit makes a request wait, and returns the next one, which is refused for a limit of one.
func overLimit(t *testing.T, w *servicetest.World) *call {
	t.Helper()
	if c := startCall(w, "a", servicetest.Prompt(1, 8)); !c.waits() {
		t.Fatal("did not wait")
	}
	c := startCall(w, "b", servicetest.Prompt(2, 8))
	if c.waits() {
		t.Fatal("waits beyond the limit")
	}
	servicetest.WantError(t, c.err, contract.QueueRejected, `router policy class "only" queue requests limit reached (current=1, limit=1)`)
	return c
}

// TestQueueRejects: a full class answers with the contract's text and details.
func TestQueueRejects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := busy(t, limitedQueue(t, 1))
		c := overLimit(t, w)
		var e *contract.Error
		errors.As(c.err, &e) // overLimit has seen that it is one
		if got := fmt.Sprintf("%+v", e.Details); got != "{PolicyClass:only LimitKind:requests Current:1 Limit:1}" {
			t.Errorf("details are %s", got)
		}
		if n := servicetest.Sum(w.Metrics()["selections_total"], "queue_full"); n != 1 {
			t.Errorf("%v rejections were counted", n)
		}
	})
}

// TestQueueLimitLeavesOutEncoders: a limit for each worker counts those that take prompts. One that only encodes never shortens the
// queue, so it does not lengthen its limit.
func TestQueueLimitLeavesOutEncoders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := busy(t, limitedQueue(t, 1))
		w.Put(servicetest.Record(2, 1, role(catalog.RoleEncode)))
		overLimit(t, w)
	})
}

// TestQueueMetrics: requests that wait, how long they did, and those that the
// queue did not take.
func TestQueueMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := busy(t, limitedQueue(t, 2))
		w.WantSeries(`queue_wait_seconds_count{model_name="m"} 0`) // "first" did not wait
		waits, leaves := startCall(w, "a", servicetest.Prompt(1, 8)), startCall(w, "b", servicetest.Prompt(2, 8))
		startCall(w, "c", servicetest.Prompt(3, 8))
		w.WantSeries(
			`dynamo_queued_requests{endpoint="select_and_reserve",model="m"} 2`,
			`dynamo_queued_requests{endpoint="select",model="m"} 0`,
			`dynamo_frontend_queued_requests{model="m"} 2`,
			`queued_requests 2`,
			`queued_tokens 16`,
			`rejections_total{cause="queue_limit",model_name="m"} 1`,
			`dynamo_tasks_rejected_total{endpoint="select_and_reserve",model="m"} 0`,
			`dynamo_tasks_issued_total{endpoint="select_and_reserve",model="m"} 4`, // those that wait, too
			`selections_total{model_name="m",outcome="reserved"} 1`,
			`selections_total{model_name="m",outcome="queue_full"} 1`,
		)
		time.Sleep(3 * time.Second)
		leaves.cancel()
		synctest.Wait()
		time.Sleep(2 * time.Second)
		if err := w.Free("first"); err != nil {
			t.Fatal(err)
		}
		waits.served(t)
		w.WantSeries(
			`dynamo_queued_requests{endpoint="select_and_reserve",model="m"} 0`,
			`dynamo_frontend_queued_requests{model="m"} 0`,
			`queued_requests 0`,
			`dynamo_tasks_issued_total{endpoint="select_and_reserve",model="m"} 4`, // each once
			`selections_total{model_name="m",outcome="reserved"} 2`,
			`selections_total{model_name="m",outcome="queue_full"} 1`,
			`selections_total{model_name="m",outcome="cancelled"} 1`,
			`selections_total{model_name="m",outcome="failed"} 0`,
			`queue_wait_seconds_bucket{model_name="m",le="2.048"} 0`,
			`queue_wait_seconds_bucket{model_name="m",le="4.096"} 1`,
			`queue_wait_seconds_bucket{model_name="m",le="8.192"} 2`,
			`queue_wait_seconds_sum{model_name="m"} 8`,
			`queue_wait_seconds_count{model_name="m"} 2`,
		)
	})
}

// waiting sets the account of waiting requests.
func waiting(total int64) func(*node.Config) {
	return func(c *node.Config) { c.Memory = memory.New(total) }
}

// TestWaitingMemory: a request that waits gives back what it came in and takes its
// hashes from the account, until it has been served or its caller has gone.
func TestWaitingMemory(t *testing.T) {
	const blocks = 1 << 10
	synctest.Test(t, func(t *testing.T) {
		var account *memory.Account
		w := busy(t, waiting(64<<20), func(c *node.Config) { account = c.Memory.Account(memory.Waiting) }, sessions)
		served := startCall(w, "served", servicetest.Prompt(1, blocks*servicetest.BlockSize), again)
		gone := startCall(w, "gone", servicetest.Prompt(2, blocks*servicetest.BlockSize))
		inSession := startCall(w, "in session", servicetest.Prompt(3, blocks*servicetest.BlockSize), of("s"))
		behind := startCall(w, "behind", servicetest.Prompt(4, blocks*servicetest.BlockSize), of("s"))
		for _, c := range []*call{served, gone, inSession, behind} {
			if !c.waits() || c.text.released.Load() == 0 {
				t.Errorf("waits: %t, text released %d times", c.waits(), c.text.released.Load())
			}
		}
		if n := account.Used(); n < 4*16*blocks || n > 4*(16*blocks+48<<10) {
			t.Errorf("%d bytes are taken", n)
		}
		gone.cancel()
		inSession.cancel()
		behind.cancel()
		if err := w.Free("first"); err != nil {
			t.Fatal(err)
		}
		served.served(t)
		synctest.Wait()
		if n := account.Used(); n != 0 {
			t.Errorf("%d bytes are left", n)
		}
		// Its retry is the same request, another rest of the prompt is not.
		same, other := servicetest.Prompt(1, blocks*servicetest.BlockSize+1), servicetest.Prompt(1, blocks*servicetest.BlockSize)
		other[0]++
		if c := startCall(w, "served", same[:len(same)-1], again); c.err != nil || !c.sel.Repeated {
			t.Errorf("retry: %v", c.err)
		}
		if c := startCall(w, "served", other, again); c.err == nil {
			t.Error("another prompt got the answer")
		}
	})
}

// TestWaitingShares: of a long prompt that begins like a live reservation's, a waiting request and a
// pending selection take memory only for what is new; each is booked as it was, also when that
// reservation has ended meanwhile, and when the workers have changed.
func TestWaitingShares(t *testing.T) {
	const shared, own, keptOverhead = 2000, 50, 44 << 10
	tokens := func(n uint32) []uint32 {
		return append(servicetest.Prompt(1, shared*servicetest.BlockSize), servicetest.Prompt(1<<20+n<<10, own*servicetest.BlockSize)...)
	}
	hashed := func(n uint32) func(*selection.SelectRequest) {
		local := hashing.Layout{BlockSize: servicetest.BlockSize}.AppendLocal(nil, tokens(n), hashing.Seed, nil)
		sequence := hashing.AppendSequence(nil, local)
		return func(r *selection.SelectRequest) {
			r.Prompt = selection.Prompt{
				BlockHashes: local, HasBlockHashes: true, SequenceHashes: sequence, HasSequenceHashes: true,
				ISLTokens: uint64(len(sequence) * servicetest.BlockSize), HasISLTokens: true,
			}
		}
	}
	synctest.Test(t, func(t *testing.T) {
		var account, remembered *memory.Account
		w := servicetest.Start(t, servicetest.EventsOff, servicetest.Queueing(0), keeping, waiting(256<<20), func(c *node.Config) {
			account, remembered = c.Memory.Account(memory.Waiting), c.Memory.Account(memory.Remembered)
		})
		w.Put(servicetest.Record(1, 1))
		w.Book("long", tokens(0))
		complete := func(id string) {
			if err := w.PrefillComplete(id); err != nil {
				t.Fatal(err)
			}
		}
		complete("long")
		w.API.Sweep()
		before := remembered.Used()
		selectPending(w, "pending", tokens(3))
		if w.API.Sweep(); remembered.Used()-before > 2<<10+16*own {
			t.Errorf("a pending selection takes %d bytes", remembered.Used()-before)
		}
		w.Book("first", servicetest.Prompt(1<<30, servicetest.BlockSize))
		calls := []*call{startCall(w, "tokens", tokens(1)), startCall(w, "hashes", nil, hashed(2))}
		if !calls[0].waits() || !calls[1].waits() {
			t.Fatal("they do not wait")
		}
		if n := account.Used(); n > 2*(keptOverhead+2<<10+16*own) {
			t.Errorf("two that wait take %d bytes", n)
		}
		if err := w.Free("long"); err != nil {
			t.Fatal(err)
		}
		w.WantLoad("1/0: 4 1 1, waiting: 2 with 16400")
		w.Put(servicetest.Record(1, 1, func(r *catalog.Record) { r.Taints = []string{"other"} })) // look-ups of those that wait
		complete("first")
		calls[0].served(t)
		w.WantLoad("1/0: 8200 2051 2, waiting: 1 with 8200")
		complete("tokens")
		calls[1].served(t)
		if _, err := reservePending(w, "pending"); err != nil {
			t.Fatal(err)
		}
		w.WantLoad("1/0: 16400 2151 4")
		synctest.Wait()
		if n := account.Used(); n != 0 {
			t.Errorf("%d bytes are left", n)
		}
	})
}

// TestWaitingMemoryFull: a request that does not fit into the account is refused as
// by a full queue, and takes nothing.
func TestWaitingMemoryFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var account *memory.Account
		w := busy(t, waiting(2<<20), func(c *node.Config) { account = c.Memory.Account(memory.Waiting) }, sessions)
		first := startCall(w, "a", servicetest.Prompt(1, 8), of("s"))
		if !first.waits() {
			t.Fatal(first.err)
		}
		used := account.Used()
		for name, c := range map[string]*call{
			"queue":   startCall(w, "b", servicetest.Prompt(2, 2048*servicetest.BlockSize)),
			"session": startCall(w, "c", servicetest.Prompt(3, 2048*servicetest.BlockSize), of("s")),
		} {
			full, ok := errors.AsType[*admission.LimitError](c.err)
			if !ok || full.LimitKind != admission.LimitBytes || full.Current != uint64(used) || full.Limit != uint64(account.Limit()) {
				t.Errorf("%s: %v", name, c.err)
			}
		}
		if account.Used() != used || account.Refused() != 2 {
			t.Errorf("%d bytes are taken, %d requests refused", account.Used(), account.Refused())
		}
		w.WantLoad("1/0: 8 2 1, waiting: 1 with 8")
	})
}

// TestRememberedMemory: first answers are kept within their share of memory, the
// oldest are forgotten first, and nothing is left of reservations that have ended.
func TestRememberedMemory(t *testing.T) {
	var account *memory.Account
	w := servicetest.Start(t, servicetest.EventsOff, waiting(64<<20), func(c *node.Config) { account = c.Memory.Account(memory.Remembered) })
	w.Put(servicetest.Record(1, 1))
	const n = 500
	id := func(i int) string { return fmt.Sprintf("%08000d", i) }
	for i := range n {
		w.Book(id(i), servicetest.Prompt(uint32(i), 8))
	}
	w.API.Sweep()
	if used := account.Used(); used > account.Limit()/3 || used < account.Limit()/3-10_000 {
		t.Errorf("%d bytes of %d are taken", used, account.Limit())
	}
	for i, kept := range map[int]bool{0: false, n - 1: true} {
		req := servicetest.Ask(servicetest.Prompt(uint32(i), 8))
		req.ReservationID, req.IfExists = new(id(i)), selection.ReturnFirst
		if sel, err := w.Select(t.Context(), req, true); (err == nil && sel.Repeated) != kept {
			t.Errorf("answer %d is kept: %t, want %t", i, err == nil, kept)
		}
	}
	for i := range n {
		if err := w.Free(id(i)); err != nil {
			t.Fatal(err)
		}
	}
	if w.API.Sweep(); account.Used() != 0 {
		t.Errorf("%d bytes are left", account.Used())
	}
}
