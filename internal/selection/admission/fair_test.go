package admission_test

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/select-service/select-service/internal/selection/admission"
	"github.com/select-service/select-service/internal/selection/fairness"
	"github.com/select-service/select-service/pkg/catalog"
)

// fair is a policy of one class with these members of fairness.
func fair(t testing.TB, members string) *admission.Policy {
	t.Helper()
	return admission.Config{File: parse(t, profileOf("{min_tokens: 0, bucket: s}",
		"{name: c, policy_family: f, cache_bucket: s, quantum: 1, fairness: {"+members+"}}"))}.ForModel("m")
}

// naiveFair is the order of a fair class in its dumbest form: everything is computed from the list of turns.
type naiveFair struct {
	byProgram bool
	weights   map[string]float64
	waiting   []*admission.Waiter        // by arrival
	turns     []turnTaken                // of all accounts
	since     map[string]map[any]float64 // by account and lane: when its turn began to be due
}

type turnTaken struct {
	account string
	at      float64
	seconds float64
}

func (n *naiveFair) accounts(w *admission.Waiter) []string {
	if n.byProgram {
		return []string{w.Tenant, w.Tenant + "/" + w.Program}
	}
	return []string{w.Tenant}
}

// key is 0.8 of what was served lately by weight, less 0.2 of the wait beyond a minute: the defaults of the policy file.
func (n *naiveFair) key(account string, lane any, now float64) float64 {
	served := 0.0
	for _, x := range n.turns {
		if x.account == account {
			served += x.seconds * math.Exp2((x.at-now)/60)
		}
	}
	return 0.8*served/cmp.Or(n.weights[account], 1) - 0.2*max(0, now-n.since[account][lane]-60)
}

func (n *naiveFair) add(w *admission.Waiter, now float64) {
	for _, a := range n.accounts(w) {
		others := slices.ContainsFunc(n.waiting, func(o *admission.Waiter) bool {
			return o.Lane == w.Lane && slices.Contains(n.accounts(o), a)
		})
		if !others {
			if n.since[a] == nil {
				n.since[a] = map[any]float64{}
			}
			n.since[a][w.Lane] = now
		}
	}
	n.waiting = append(n.waiting, w)
}

func (n *naiveFair) remove(w *admission.Waiter) {
	n.waiting = slices.DeleteFunc(n.waiting, func(o *admission.Waiter) bool { return o == w })
}

// first returns the waiter that can run whose turn is next.
func (n *naiveFair) first(now float64, canRun func(*admission.Waiter) bool) *admission.Waiter {
	var best *admission.Waiter
	var bestKeys []float64
	for _, w := range n.waiting {
		if !canRun(w) {
			continue
		}
		keys := []float64{-float64(w.StrictPriority)}
		for _, a := range n.accounts(w) {
			keys = append(keys, n.key(a, w.Lane, now))
		}
		keys = append(keys, place(w, now))
		if best == nil || slices.CompareFunc(keys, bestKeys, func(a, b float64) int {
			if math.Abs(a-b) < 1e-9 {
				return 0
			}
			return cmp.Compare(a, b)
		}) < 0 {
			best, bestKeys = w, keys
		}
	}
	return best
}

func (n *naiveFair) served(w *admission.Waiter, seconds, now float64) {
	for _, a := range n.accounts(w) {
		n.turns = append(n.turns, turnTaken{a, now, seconds})
		if _, waits := n.since[a][w.Lane]; waits {
			n.since[a][w.Lane] = now
		}
	}
}

// TestFairAgainstModel: random histories give the same turns as the naive order, with one lane and with several. Deadlines order the
// requests of a tenant or program only.
func TestFairAgainstModel(t *testing.T) {
	histories := 60
	if testing.Short() {
		histories = 10
	}
	for seed := range histories {
		rnd := rand.New(rand.NewPCG(uint64(seed), 46))
		by := []string{"tenant", "program"}[seed%2]
		m := &naiveFair{byProgram: by == "program", weights: map[string]float64{"t0": 2.5}, since: map[string]map[any]float64{}}
		q := admission.NewQueue(fair(t, "by: "+by+", weights: {t0: 2.5}"))
		now := 0.0
		for step := range 300 {
			now += float64(rnd.IntN(3))
			if rnd.IntN(2) == 0 {
				q.Next(now, never)
				w := &admission.Waiter{
					Tenant: fmt.Sprint("t", rnd.IntN(3)), Program: fmt.Sprint("p", rnd.IntN(3)), StrictPriority: rnd.Uint32N(8) / 7,
					Arrived: now, Value: step,
				}
				if lane := rnd.Uint64N(4); lane > 1 {
					w.Lane = admission.Lane{Pinned: true, Rank: catalog.Rank{Worker: lane}}
				}
				if rnd.IntN(2) == 0 {
					w.Due = now + 1 + float64(rnd.IntN(60))
					w.Latest = w.Due - float64(rnd.IntN(3))
				}
				m.add(w, now)
				if err := q.Add(w, 1); err != nil {
					t.Fatal(err)
				}
				continue
			}
			if len(m.waiting) > 0 && rnd.IntN(6) == 0 {
				w := m.waiting[rnd.IntN(len(m.waiting))]
				m.remove(w)
				if !q.Remove(w) {
					t.Fatal("it is not queued")
				}
				continue
			}
			blocked := rnd.Uint64N(6)
			canRun := func(w *admission.Waiter) bool { return w.Lane.Rank.Worker != blocked }
			now++ // so that the queue orders the accounts as of now
			q.Expire(now, func(*admission.Waiter) bool { return false })
			want := m.first(now, canRun)
			got := q.Next(now, canRun)
			if got != want {
				t.Fatalf("seed %d, step %d: Next is %+v, the model says %+v", seed, step, got, want)
			}
			if got != nil {
				seconds := 10 * rnd.Float64()
				m.remove(got)
				m.served(got, seconds, now)
				p := q.Payer(got, now)
				p.Class.Once(p.Account, catalog.Rank{}, fairness.Work{Prefill: seconds}, now)
				q.Served(got, now)
			}
		}
	}
}

// play serves the requests of sessions one after the other, each of which asks again at once, and returns the seconds of
// each tenant.
func play(q *admission.Queue, sessions []*admission.Waiter, cost func(*admission.Waiter) float64, next func(*admission.Waiter) string, turns int) map[string]float64 {
	now, seconds := 0.0, map[string]float64{}
	for _, w := range sessions {
		_ = q.Add(w, 1)
	}
	for range turns {
		w := q.Next(now, always)
		p := q.Payer(w, now)
		c := cost(w)
		p.Class.Once(p.Account, catalog.Rank{}, fairness.Work{Prefill: c}, now)
		q.Served(w, now)
		seconds[w.Tenant] += c
		now += c
		_ = q.Add(&admission.Waiter{Tenant: w.Tenant, Program: next(w), Arrived: now}, 1)
	}
	return seconds
}

// TestFairShares: on an engine that is always busy, tenants get engine seconds by their weights, within 10 %: whatever their
// number of agents, the names that these give themselves, and what their requests cost.
func TestFairShares(t *testing.T) {
	sizes, turns := []int{6, 25, 250}, 4000
	if testing.Short() {
		sizes, turns = []int{6, 60}, 1500
	}
	for _, sessions := range sizes {
		for _, tt := range []struct {
			name, by, weights string
			program           func(i, turn int) string
			costOfA           float64
			want              float64 // of A's seconds over B's
		}{
			{"many agents beside few", "program", "", func(i, _ int) string { return fmt.Sprint(i) }, 1, 1},
			{"by tenant only", "tenant", "", func(i, _ int) string { return fmt.Sprint(i) }, 1, 1},
			{"a new id each time", "program", "", func(i, turn int) string { return fmt.Sprint(i, "/", turn) }, 1, 1},
			{"heavy beside light", "program", "", func(i, _ int) string { return fmt.Sprint(i) }, 4, 1},
			{"weights", "program", ", weights: {A: 3}", func(i, _ int) string { return fmt.Sprint(i) }, 1, 3},
		} {
			q := admission.NewQueue(fair(t, "by: "+tt.by+tt.weights))
			var waiters []*admission.Waiter
			for i := range sessions {
				tenant := "A"
				if i >= sessions-max(2, sessions/6) { // one alone has no second request while its first is served
					tenant = "B"
				}
				waiters = append(waiters, &admission.Waiter{Tenant: tenant, Program: tt.program(i, 0)})
			}
			turn := 0
			seconds := play(q, waiters, func(w *admission.Waiter) float64 {
				if w.Tenant == "A" {
					return tt.costOfA
				}
				return 1
			}, func(w *admission.Waiter) string {
				turn++
				var i int
				_, _ = fmt.Sscan(w.Program, &i)
				return tt.program(i, turn)
			}, turns)
			if got := seconds["A"] / seconds["B"]; got < tt.want*0.9 || got > tt.want*1.1 {
				t.Errorf("%s, %d sessions: %.3f of A's seconds for one of B's, want %g", tt.name, sessions, got, tt.want)
			}
		}
	}
}

// TestFairBound: nobody starves. Of a tenant that has been served s seconds by its weight, and has waited since then, no
// tenant is put in front whose own turn began to be due more than a minute and s·0.8/0.2 seconds later. Here new tenants, which
// were served nothing, come without end.
func TestFairBound(t *testing.T) {
	const served = 30.0
	q := admission.NewQueue(fair(t, "by: program"))
	old := &admission.Waiter{Tenant: "old", Program: "p"}
	if err := q.Add(old, 1); err != nil {
		t.Fatal(err)
	}
	if q.Next(0, always) != old {
		t.Fatal("it waits alone")
	}
	p := q.Payer(old, 0)
	p.Class.Once(p.Account, catalog.Rank{}, fairness.Work{Prefill: served}, 0)
	q.Served(old, 0)
	if err := q.Add(old, 1); err != nil {
		t.Fatal(err)
	}
	for i := 1; ; i++ {
		now := float64(i)
		if now > 60+served*0.8/0.2+1 {
			t.Fatalf("it still waits after %v s", now)
		}
		if err := q.Add(&admission.Waiter{Tenant: fmt.Sprint("new ", i), Arrived: now}, 1); err != nil {
			t.Fatal(err)
		}
		w := q.Next(now, always)
		p := q.Payer(w, now)
		p.Class.Once(p.Account, catalog.Rank{}, fairness.Work{Prefill: 1}, now)
		q.Served(w, now)
		if w == old {
			return
		}
	}
}

// TestFairStarvesNobody: on an engine that never gets a pause, random tenants and programs with weights, costs and deadlines
// compete with a crowd that gives itself a new name for each request, as tenants and as programs. Clocks jump ahead now and then.
//
// A program that waits gets a turn within a bound: a minute and 0.8/0.2 seconds for each second that it was served, until no other one
// of its tenant goes first that was not due before; the same for its tenant by its weight; and one turn for each that was due before.
// A request leaves within an hour, in which others may overtake it in its line, and one such turn for each that is before it then.
func TestFairStarvesNobody(t *testing.T) {
	const crowd, most = 20, 2.0 // requests that wait at a time, and seconds of one
	// An engine serves a second in a second, half of which is forgotten in a minute: nobody has more than that.
	const served = 60 / math.Ln2
	const leastWeight = 0.5
	const turn = 60 + served*0.8/0.2 + 60 + served/leastWeight*0.8/0.2 + 2*crowd*most
	const leaves = 3600 + crowd*turn
	for seed := range uint64(4) {
		rnd := rand.New(rand.NewPCG(seed, 7))
		q := admission.NewQueue(fair(t, "by: program, weights: {t0: 4, t1: 0.5}"))
		now, jumped, names, longest := 0.0, 0.0, 0, 0.0
		line := map[string]int{}      // requests that wait, by program
		since := map[string]float64{} // when its turn began to be due
		arrive := func() {
			w := &admission.Waiter{Arrived: now}
			switch names++; names % 4 {
			case 0:
				w.Tenant = fmt.Sprint("new ", names)
			case 1:
				w.Tenant, w.Program = "t0", fmt.Sprint("new ", names)
			default:
				w.Tenant, w.Program = fmt.Sprint("t", rnd.IntN(3)), fmt.Sprint("p", rnd.IntN(3))
			}
			if rnd.IntN(2) == 0 {
				w.Due = now + 1 + 100*rnd.Float64()
				w.Latest = w.Due - 1
			}
			if err := q.Add(w, 1); err != nil {
				t.Fatal(err)
			}
			of := w.Tenant + "/" + w.Program
			if line[of]++; line[of] == 1 {
				since[of] = now
			}
		}
		for range crowd {
			arrive()
		}
		for range 20_000 {
			if rnd.IntN(1000) == 0 {
				now += 100
				jumped = now
			}
			q.Expire(now, func(*admission.Waiter) bool { return false })
			w := q.Next(now, always)
			if now-w.Arrived > leaves {
				t.Fatalf("seed %d: one left after %.0f s, the bound is %.0f", seed, now-w.Arrived, leaves)
			}
			p := q.Payer(w, now)
			c := most * rnd.Float64()
			p.Class.Once(p.Account, catalog.Rank{}, fairness.Work{Prefill: c}, now)
			q.Served(w, now)
			of := w.Tenant + "/" + w.Program
			since[of] = now
			if line[of]--; line[of] == 0 {
				delete(line, of)
				delete(since, of)
			}
			now += c
			arrive()
			for of, from := range since {
				if from = max(from, jumped); now-from > turn {
					t.Fatalf("seed %d: %s waits for a turn since %.0f s, the bound is %.0f", seed, of, now-from, turn)
				}
				longest = max(longest, now-max(from, jumped))
			}
		}
		t.Logf("seed %d: turns within %.0f s, the bound is %.0f", seed, longest, turn)
	}
}

// TestFairOff: without fairness nobody pays.
func TestFairOff(t *testing.T) {
	q := admission.NewQueue(fair(t, "by: none"))
	w := &admission.Waiter{Tenant: "a"}
	if class := q.Classify(w); q.Payer(w, 0) != (admission.Payer{PolicyClass: class.Name}) {
		t.Error("somebody pays")
	}
}

// TestFairnessFaults: what is wrong with a class's fairness, by line and key.
func TestFairnessFaults(t *testing.T) {
	for members, want := range map[string]string{
		"by: sessions":                         "fairness.by: must be none, tenant or program",
		"half_life_seconds: 0":                 "fairness.half_life_seconds: must be between 1 and 86400",
		"half_life_seconds: .nan":              "fairness.half_life_seconds: must be a finite number, at least 0",
		"head_wait_weight: 0":                  "fairness.head_wait_weight: must be between 0.01 and 0.99",
		"head_wait_weight: 1":                  "fairness.head_wait_weight: must be between 0.01 and 0.99",
		"weights: {a: 0}":                      "fairness.weights.a: must be between 0.001 and 1000",
		"weights: {a: much}":                   "fairness.weights.a: must be a finite number, at least 0",
		"by: tenant, half_life: 3":             "half_life",
		"by: program, weights: {a: 1, a: 100}": "a",
	} {
		_, err := admission.ParsePolicy([]byte(profileOf("{min_tokens: 0, bucket: s}",
			"{name: c, policy_family: f, cache_bucket: s, quantum: 1, fairness: {"+members+"}}")))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", members, err, want)
		}
	}
}
