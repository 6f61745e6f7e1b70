package admission_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/select-service/select-service/internal/selection/admission"
	"github.com/select-service/select-service/pkg/catalog"
)

// scope is an owner of a queue: ranks with their prefill load, and the rule
// that whatever can run runs after every change.
type scope struct {
	t       *testing.T
	queue   *admission.Queue
	prefill map[catalog.Rank]uint64
	batched uint64
	ran     []string
}

func newScope(t *testing.T, config admission.Config, batched uint64, workers int) *scope {
	t.Helper()
	s := &scope{t: t, queue: admission.NewQueue(config.ForModel("m")), prefill: map[catalog.Rank]uint64{}, batched: batched}
	for id := range workers {
		s.prefill[catalog.Rank{Worker: uint64(id + 1)}] = 0
	}
	return s
}

func (s *scope) canRun(w *admission.Waiter) bool {
	for rank, prefill := range s.prefill {
		if (!w.Lane.Pinned || rank == w.Lane.Rank) && !w.Class().Busy(prefill, s.batched) {
			return true
		}
	}
	return false
}

// arrive lets a request in: it runs at once or waits. The error is the queue's.
func (s *scope) arrive(name string, w admission.Waiter) error {
	w.Value = name
	s.queue.Classify(&w)
	if s.canRun(&w) {
		s.ran = append(s.ran, name)
		return nil
	}
	return s.queue.Add(&w, len(s.prefill))
}

// load sets the load of a worker and runs what can run; each request that runs
// puts its uncached tokens on worker 1 if book is set.
func (s *scope) load(worker, prefill uint64, book bool) {
	s.prefill[catalog.Rank{Worker: worker}] = prefill
	for {
		w := s.queue.Next(0, s.canRun)
		if w == nil {
			return
		}
		s.ran = append(s.ran, w.Value.(string))
		if book {
			s.prefill[catalog.Rank{Worker: 1}] += w.Uncached
		}
	}
}

func (s *scope) wantRan(names ...string) {
	s.t.Helper()
	if !slices.Equal(s.ran, names) {
		s.t.Errorf("ran %v, want %v", s.ran, names)
	}
}

func wantLimit(t *testing.T, err error, want admission.LimitError, text string) {
	t.Helper()
	var limit *admission.LimitError
	if !errors.As(err, &limit) {
		t.Fatalf("error %v, want a LimitError", err)
	}
	if *limit != want {
		t.Errorf("LimitError = %+v, want %+v", *limit, want)
	}
	if err.Error() != text {
		t.Errorf("text = %s, want %s", err, text)
	}
}

func withThreshold(v float64) admission.Config { return admission.Config{Threshold: &v} }

// TestThresholdBoundary is the case queue_threshold_boundary.
func TestThresholdBoundary(t *testing.T) {
	s := newScope(t, withThreshold(1), 8, 1)
	s.load(1, 8, false)
	if err := s.arrive("a", admission.Waiter{Tokens: 4, Uncached: 4}); err != nil {
		t.Fatal(err)
	}
	s.load(1, 9, false)
	if err := s.arrive("q", admission.Waiter{Tokens: 4, Uncached: 4}); err != nil {
		t.Fatal(err)
	}
	s.wantRan("a")
	if s.queue.Len() != 1 || s.queue.Tokens() != 4 {
		t.Errorf("waiting: %d, %d tokens", s.queue.Len(), s.queue.Tokens())
	}
	s.load(1, 8, false)
	s.wantRan("a", "q")
	if s.queue.Len() != 0 || s.queue.Tokens() != 0 {
		t.Errorf("still waiting: %d, %d tokens", s.queue.Len(), s.queue.Tokens())
	}
}

// TestOneFreeRankIsEnough is the case queue_one_free_worker_is_enough: a
// request that waits for its pinned rank holds up no one else.
func TestOneFreeRankIsEnough(t *testing.T) {
	s := newScope(t, withThreshold(0), 1024, 2)
	s.load(1, 4, false)
	pinned := admission.Lane{Pinned: true, Rank: catalog.Rank{Worker: 1}}
	if err := s.arrive("p", admission.Waiter{Lane: pinned}); err != nil {
		t.Fatal(err)
	}
	if err := s.arrive("free", admission.Waiter{}); err != nil {
		t.Fatal(err)
	}
	s.wantRan("free")
	s.load(2, 1, false) // now all are busy
	if err := s.arrive("any", admission.Waiter{}); err != nil {
		t.Fatal(err)
	}
	s.load(2, 0, false)
	s.wantRan("free", "any") // p came first, but cannot run
	s.load(1, 0, false)
	s.wantRan("free", "any", "p")
}

// TestWSPTOrder is the case queue_wspt_order, with reservations: the short request
// goes first and makes the rank busy again.
func TestWSPTOrder(t *testing.T) {
	file := parse(t, profileOf("{min_tokens: 0, bucket: s}", "{name: c, policy_family: f, cache_bucket: s, quantum: 1, queue_policy: wspt, prefill_busy_threshold: 0}"))
	s := newScope(t, admission.Config{File: file}, 1024, 1)
	s.load(1, 4, true)
	err1 := s.arrive("long", admission.Waiter{Tokens: 40, Uncached: 40, Arrived: 1})
	err2 := s.arrive("short", admission.Waiter{Tokens: 8, Uncached: 8, Arrived: 2})
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	s.load(1, 0, true)
	s.wantRan("short")
	s.load(1, 0, true)
	s.wantRan("short", "long")
}

// TestPolicyClasses is the case queue_policy_classes: a class that may queue
// nothing refuses, the other one still runs.
func TestPolicyClasses(t *testing.T) {
	file := parse(t, `
default_policy_family: latency
uncached_isl_buckets: [{min_tokens: 0, bucket: all}]
policy_classes:
  - {name: latency, policy_family: latency, cache_bucket: all, quantum: 1, prefill_busy_threshold: 0, request_queue_limit_per_worker: 0}
  - {name: batch, policy_family: batch, cache_bucket: all, queue_policy: wspt, quantum: 4, prefill_busy_threshold: 1024}
`)
	s := newScope(t, admission.Config{File: file}, 1024, 1)
	s.load(1, 4, false)
	if err := s.arrive("batch", admission.Waiter{ClassHeader: "batch"}); err != nil {
		t.Errorf("batch: %v", err)
	}
	s.wantRan("batch")
	for _, header := range []string{"latency", "", "unknown"} {
		err := s.arrive("refused", admission.Waiter{ClassHeader: header})
		wantLimit(t, err, admission.LimitError{PolicyClass: "latency", LimitKind: admission.LimitRequests},
			`router policy class "latency" queue requests limit reached (current=0, limit=0)`)
	}
	s.load(1, 0, false) // not busy: the limit has no say
	if err := s.arrive("free", admission.Waiter{}); err != nil {
		t.Errorf("idle: %v", err)
	}
}

// TestLimitsByTokens is the case queue_limits_by_tokens: the request that
// crosses the limit is still taken.
func TestLimitsByTokens(t *testing.T) {
	file := parse(t, profileOf("{min_tokens: 0, bucket: s}", "{name: c, policy_family: f, cache_bucket: s, quantum: 1, prefill_busy_threshold: 0, raw_isl_token_queue_limit_per_worker: 10}"))
	s := newScope(t, admission.Config{File: file}, 1024, 1)
	s.load(1, 4, false)
	for _, name := range []string{"q1", "q2"} {
		if err := s.arrive(name, admission.Waiter{Tokens: 6, Uncached: 6}); err != nil {
			t.Fatal(err)
		}
	}
	err := s.arrive("q3", admission.Waiter{Tokens: 4, Uncached: 4})
	wantLimit(t, err, admission.LimitError{PolicyClass: "c", LimitKind: admission.LimitRaw, Current: 12, Limit: 10},
		`router policy class "c" queue raw_isl_tokens limit reached (current=12, limit=10)`)
	s.load(1, 0, false)
	s.wantRan("q1", "q2")
}

// TestLimits: limits grow with the workers, count what waits before adding,
// are asked in the order requests, raw, cached, and forget who left.
func TestLimits(t *testing.T) {
	const base = "{name: c, policy_family: f, cache_bucket: s, quantum: 1, "
	add := func(q *admission.Queue, tokens, uncached uint64, workers int) error {
		return q.Add(&admission.Waiter{Tokens: tokens, Uncached: uncached}, workers)
	}
	queue := func(limits string) *admission.Queue {
		file := parse(t, profileOf("{min_tokens: 0, bucket: s}", base+limits+"}"))
		return admission.NewQueue(admission.Config{File: file}.ForModel("m"))
	}
	all := queue("request_queue_limit_per_worker: 1, raw_isl_token_queue_limit_per_worker: 5, cached_token_queue_limit_per_worker: 3")
	for _, tokens := range []uint64{8, 100} {
		if err := add(all, tokens, tokens/2, 2); err != nil {
			t.Fatalf("%d tokens: %v", tokens, err)
		}
	}
	wantLimit(t, add(all, 1, 1, 2), admission.LimitError{PolicyClass: "c", LimitKind: admission.LimitRequests, Current: 2, Limit: 2},
		`router policy class "c" queue requests limit reached (current=2, limit=2)`)
	wantLimit(t, add(all, 1, 1, 3), admission.LimitError{PolicyClass: "c", LimitKind: admission.LimitRaw, Current: 108, Limit: 15},
		`router policy class "c" queue raw_isl_tokens limit reached (current=108, limit=15)`)

	cached := queue("cached_token_queue_limit_per_worker: 3")
	w := &admission.Waiter{Tokens: 10, Uncached: 7}
	if err := errors.Join(add(cached, 9, 9, 1), cached.Add(w, 1)); err != nil {
		t.Fatal(err)
	}
	wantLimit(t, add(cached, 1, 1, 1), admission.LimitError{PolicyClass: "c", LimitKind: admission.LimitCached, Current: 3, Limit: 3},
		`router policy class "c" queue cached_tokens limit reached (current=3, limit=3)`)
	if err := add(cached, 1, 1, 2); err != nil {
		t.Errorf("second worker: %v", err)
	}
	cached.Remove(w)
	if err := add(cached, 1, 1, 1); err != nil {
		t.Errorf("after a removal: %v", err)
	}

	saturating := queue("raw_isl_token_queue_limit_per_worker: 18446744073709551615")
	if err := add(saturating, math.MaxUint64, 0, 4); err != nil {
		t.Fatal(err)
	}
	wantLimit(t, add(saturating, 1, 0, 4), admission.LimitError{PolicyClass: "c", LimitKind: admission.LimitRaw, Current: math.MaxUint64, Limit: math.MaxUint64},
		fmt.Sprintf(`router policy class "c" queue raw_isl_tokens limit reached (current=%d, limit=%[1]d)`, uint64(math.MaxUint64)))
	wantLimit(t, add(queue("request_queue_limit_per_worker: 9"), 1, 1, 0), admission.LimitError{PolicyClass: "c", LimitKind: admission.LimitRequests},
		`router policy class "c" queue requests limit reached (current=0, limit=0)`)
}

// TestTokensStayExact: totals beyond 64 bits saturate when read, and are right
// again once the large ones left.
func TestTokensStayExact(t *testing.T) {
	q := admission.NewQueue(withThreshold(0).ForModel("m"))
	large := []*admission.Waiter{{Tokens: math.MaxUint64}, {Tokens: math.MaxUint64}}
	for _, w := range append(large, &admission.Waiter{Tokens: 5}) {
		if err := q.Add(w, 1); err != nil {
			t.Fatal(err)
		}
	}
	if got := q.Tokens(); got != math.MaxUint64 {
		t.Errorf("Tokens = %d, want it saturated", got)
	}
	for _, w := range large {
		q.Remove(w)
	}
	if got := q.Tokens(); got != 5 {
		t.Errorf("Tokens = %d, want 5", got)
	}
}

// TestMaxWaiting: without limits the queue is still bounded (decision D15).
func TestMaxWaiting(t *testing.T) {
	q := admission.NewQueue(withThreshold(0).ForModel("m"))
	waiters := make([]admission.Waiter, admission.MaxWaiting)
	for i := range waiters {
		if err := q.Add(&waiters[i], 1); err != nil {
			t.Fatal(err)
		}
	}
	one := &admission.Waiter{}
	wantLimit(t, q.Add(one, 1), admission.LimitError{PolicyClass: "default", LimitKind: admission.LimitRequests, Current: 100000, Limit: 100000},
		`router policy class "default" queue requests limit reached (current=100000, limit=100000)`)
	q.Remove(&waiters[500])
	if err := q.Add(one, 1); err != nil {
		t.Errorf("after a removal: %v", err)
	}
}

// TestOrder: strict priority, then score, then arrival.
func TestOrder(t *testing.T) {
	wspt := parse(t, profileOf("{min_tokens: 0, bucket: s}", "{name: c, policy_family: f, cache_bucket: s, quantum: 1, queue_policy: wspt}"))
	lcfs, short := withThreshold(0), withThreshold(0)
	lcfs.Order, short.Order = admission.LCFS, admission.WSPT
	tests := map[string]struct {
		config  admission.Config
		waiters []admission.Waiter
		want    []int
	}{
		"first come first served": {withThreshold(0), []admission.Waiter{{Arrived: 1}, {Arrived: 2}, {Arrived: 3}}, []int{0, 1, 2}},
		"same instant":            {withThreshold(0), []admission.Waiter{{Arrived: 1}, {Arrived: 1}, {Arrived: 1}}, []int{0, 1, 2}},
		"priority jump in seconds": {
			withThreshold(0),
			[]admission.Waiter{{Arrived: 0}, {Arrived: 5, PriorityJump: 50}, {Arrived: 6, PriorityJump: 5}},
			[]int{1, 0, 2},
		},
		"a negative jump is 0": {
			withThreshold(0),
			[]admission.Waiter{{Arrived: 1, PriorityJump: -100}, {Arrived: 2, PriorityJump: math.NaN()}, {Arrived: 3}},
			[]int{0, 1, 2},
		},
		"strict priority before all": {
			withThreshold(0),
			[]admission.Waiter{{Arrived: 0, PriorityJump: 1e9}, {Arrived: 9, StrictPriority: 1}, {Arrived: 8, StrictPriority: 2}},
			[]int{2, 1, 0},
		},
		"last come first served": {
			lcfs, []admission.Waiter{{Arrived: 1}, {Arrived: 3}, {Arrived: 2, PriorityJump: 5}, {Arrived: 0, StrictPriority: 1}}, []int{3, 2, 1, 0},
		},
		"wspt for the threshold's class": {short, []admission.Waiter{{Uncached: 3}, {Uncached: 1}, {Uncached: 2}}, []int{1, 2, 0}},
		"wspt: short first": {
			admission.Config{File: wspt},
			[]admission.Waiter{{Uncached: 1000}, {Uncached: 100}, {Uncached: 0}, {Uncached: 1}},
			[]int{2, 3, 1, 0},
		},
		"wspt: weight": {
			admission.Config{File: wspt},
			[]admission.Waiter{{Uncached: 512}, {Uncached: 512, PriorityJump: 5}, {Uncached: 512, PriorityJump: -5}},
			[]int{1, 0, 2},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			q := admission.NewQueue(tc.config.ForModel("m"))
			for i := range tc.waiters {
				tc.waiters[i].Value = i
				if err := q.Add(&tc.waiters[i], 1); err != nil {
					t.Fatal(err)
				}
			}
			var got []int
			for w := q.Next(0, always); w != nil; w = q.Next(0, always) {
				got = append(got, w.Value.(int))
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("order %v, want %v", got, tc.want)
			}
		})
	}
}

func always(*admission.Waiter) bool { return true }
func never(*admission.Waiter) bool  { return false }

func TestRemove(t *testing.T) {
	q := admission.NewQueue(withThreshold(0).ForModel("m"))
	a, b := &admission.Waiter{Tokens: 3}, &admission.Waiter{Tokens: 4}
	if q.Remove(a) {
		t.Error("removed a waiter that was never queued")
	}
	if err := errors.Join(q.Add(a, 1), q.Add(b, 1)); err != nil {
		t.Fatal(err)
	}
	if !q.Remove(a) || q.Remove(a) {
		t.Error("a waiter leaves exactly once")
	}
	if got := slices.Collect(q.All()); len(got) != 1 || got[0] != b {
		t.Errorf("All = %v", got)
	}
	if got := q.Next(0, always); got != b || q.Remove(b) || q.Len() != 0 {
		t.Error("a waiter that Next returned is still queued")
	}
	if err := q.Add(a, 1); err != nil || q.Next(0, always) != a {
		t.Errorf("a removed waiter cannot come back: %v", err)
	}
	if q.Next(0, always) != nil {
		t.Error("an empty queue has a next waiter")
	}
}

// TestNextAsksOncePerLane: thousands of waiters for a busy rank cost one
// question, and the walk ends at the first lane that can run.
func TestNextAsksOncePerLane(t *testing.T) {
	q := admission.NewQueue(withThreshold(0).ForModel("m"))
	const lanes = 10
	for i := range 1000 * lanes {
		lane := admission.Lane{Pinned: true, Rank: catalog.Rank{Worker: uint64(i % lanes)}}
		if err := q.Add(&admission.Waiter{Arrived: float64(i), Lane: lane}, 1); err != nil {
			t.Fatal(err)
		}
	}
	for free := range uint64(lanes) {
		asked := 0
		w := q.Next(0, func(w *admission.Waiter) bool {
			asked++
			return w.Lane.Rank.Worker == free
		})
		if w == nil || w.Lane.Rank.Worker != free || w.Arrived != float64(free) || asked != int(free)+1 {
			t.Errorf("rank %d free: got %+v after %d questions", free, w, asked)
		}
		if err := q.Add(w, 1); err != nil {
			t.Fatal(err)
		}
	}
	asked := 0
	if w := q.Next(0, func(*admission.Waiter) bool { asked++; return false }); w != nil || asked != lanes {
		t.Errorf("all busy: %v after %d questions, want %d", w, asked, lanes)
	}
}

// TestParseOrder: the names, and that no other text is one.
func TestParseOrder(t *testing.T) {
	for name, want := range map[string]admission.Order{"fcfs": admission.FCFS, "lcfs": admission.LCFS, "wspt": admission.WSPT} {
		if got, ok := admission.ParseOrder(name); !ok || got != want {
			t.Errorf("%s is %d, %t", name, got, ok)
		}
	}
	for _, name := range []string{"", "FCFS", " fcfs", "fifo"} {
		if _, ok := admission.ParseOrder(name); ok {
			t.Errorf("%q is an order", name)
		}
	}
}
