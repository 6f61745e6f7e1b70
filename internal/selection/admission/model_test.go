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
	"github.com/select-service/select-service/pkg/catalog"
)

// model is the queue in its dumbest form: unsorted slices, and a scheduler that
// really goes round and round.
type model struct {
	classes []*modelClass
	turn    int
	earned  bool
}

type modelClass struct {
	quantum, deficit uint64
	wspt             bool
	now              float64
	waiting          []*admission.Waiter // by arrival
}

func (c *modelClass) score(w *admission.Waiter) float64 {
	jump := max(0, w.PriorityJump)
	if c.wspt {
		return (1 + jump) / float64(max(1, w.Uncached))
	}
	return jump - w.Arrived
}

// place returns where a waiter is in the order before its score counts: by the time until when it wants its first token, then
// those that do not say, then those that are late. After an hour that time is not later than then, whatever it wants.
func place(w *admission.Waiter, now float64) float64 {
	switch hour := w.Arrived + 3600; {
	case now >= hour && w.Due > 0 && now >= w.Latest && w.Latest < hour:
		return hour
	case w.Due > 0 && now >= w.Latest && now < hour:
		return math.Inf(1)
	case w.Due > 0:
		return min(w.Due, hour)
	case now >= hour:
		return hour
	}
	return math.MaxFloat64
}

func (c *modelClass) first(canRun func(*admission.Waiter) bool) *admission.Waiter {
	sorted := slices.Clone(c.waiting)
	slices.SortStableFunc(sorted, func(a, b *admission.Waiter) int {
		aDue, bDue := place(a, c.now), place(b, c.now)
		switch {
		case a.StrictPriority != b.StrictPriority:
			return int(b.StrictPriority) - int(a.StrictPriority)
		case aDue != bDue:
			return cmp.Compare(aDue, bDue)
		case c.score(a) > c.score(b):
			return -1
		case c.score(a) < c.score(b):
			return 1
		}
		return 0
	})
	for _, w := range sorted {
		if canRun(w) {
			return w
		}
	}
	return nil
}

func (c *modelClass) remove(w *admission.Waiter) {
	c.waiting = slices.DeleteFunc(c.waiting, func(o *admission.Waiter) bool { return o == w })
	if len(c.waiting) == 0 {
		c.deficit = 0
	}
}

func (m *model) next(canRun func(*admission.Waiter) bool) *admission.Waiter {
	for blocked := 0; blocked < len(m.classes); {
		c := m.classes[m.turn]
		blocked++
		if w := c.first(canRun); w != nil {
			blocked = 0
			cost := max(1, w.Uncached)
			if c.deficit < cost && !m.earned {
				c.deficit += c.quantum
				m.earned = true
			}
			if c.deficit >= cost {
				c.deficit -= cost
				c.remove(w)
				return w
			}
		}
		m.turn, m.earned = (m.turn+1)%len(m.classes), false
	}
	return nil
}

// matrix is a policy of explicit classes c0, c1, ... with these quanta, beside
// the default one, which takes no part.
func matrix(t testing.TB, quanta []uint64, wspt []bool) *admission.Policy {
	t.Helper()
	var classes strings.Builder
	classes.WriteString("{name: rest, policy_family: f, cache_bucket: s, quantum: 1}")
	for i, quantum := range quanta {
		order := "fcfs"
		if wspt[i] {
			order = "wspt"
		}
		fmt.Fprintf(&classes, ", {name: c%d, quantum: %d, queue_policy: %s}", i, quantum, order)
	}
	return admission.Config{File: parse(t, profileOf("{min_tokens: 0, bucket: s}", classes.String()))}.ForModel("m")
}

// TestQueueAgainstModel plays random histories of arrivals, disconnects and
// freed ranks to the queue and the model; they must agree on every step. Some want their first token by a time, and of these some
// are refused when they cannot be in time any more. Over an hour goes by: nobody waits while one of the same class, priority and
// lane has its turn that came an hour later.
func TestQueueAgainstModel(t *testing.T) {
	histories, steps := 150, 400
	if testing.Short() {
		histories = 20
	}
	for seed := range histories {
		rnd := rand.New(rand.NewPCG(uint64(seed), 1))
		classes := 1 + rnd.IntN(5)
		quanta, wspt := make([]uint64, classes), make([]bool, classes)
		m := &model{classes: []*modelClass{{quantum: 1}}}
		for i := range classes {
			quanta[i], wspt[i] = 1+rnd.Uint64N(50), rnd.IntN(2) == 0
			m.classes = append(m.classes, &modelClass{quantum: quanta[i], wspt: wspt[i]})
		}
		q := admission.NewQueue(matrix(t, quanta, wspt))
		h := history{t: t, rnd: rnd, queue: q, model: m, classes: classes, refuses: map[*admission.Waiter]bool{}}
		for h.step = range steps {
			h.play()
		}
	}
}

type history struct {
	t       *testing.T
	rnd     *rand.Rand
	queue   *admission.Queue
	model   *model
	classes int
	step    int
	now     float64
	refuses map[*admission.Waiter]bool
	waiting []*admission.Waiter
}

func (h *history) play() {
	if h.rnd.IntN(3) == 0 {
		h.now += float64(h.rnd.IntN(100))
	}
	h.expire()
	switch h.rnd.IntN(10) {
	case 0, 1, 2, 3:
		h.arrive()
	case 4:
		if len(h.waiting) > 0 {
			w := h.waiting[h.rnd.IntN(len(h.waiting))]
			if !h.queue.Remove(w) {
				h.t.Fatalf("step %d: %v is not queued", h.step, w.Value)
			}
			h.model.classes[h.classOf(w)].remove(w)
			h.left(w)
		}
	default:
		blocked := h.rnd.Uint64N(1 << 6) // a bit per lane
		if h.rnd.IntN(3) == 0 {
			blocked = 0
		}
		canRun := func(w *admission.Waiter) bool {
			lane := w.Lane.Rank.Worker
			return blocked>>lane&1 == 0
		}
		got, want := h.queue.Next(h.now, canRun), h.model.next(canRun)
		if got != want {
			h.t.Fatalf("step %d: Next = %+v, the model says %+v", h.step, got, want)
		}
		if got != nil {
			h.left(got)
			for _, w := range h.waiting {
				if w.ClassHeader == got.ClassHeader && w.StrictPriority == got.StrictPriority && w.Lane == got.Lane && w.Arrived+3600 < got.Arrived {
					h.t.Fatalf("step %d: %+v is overtaken by one that came an hour later", h.step, w)
				}
			}
		}
	}
	var tokens uint64
	for _, w := range h.waiting {
		tokens += w.Tokens
	}
	if h.queue.Len() != len(h.waiting) || h.queue.Tokens() != tokens {
		h.t.Fatalf("step %d: %d waiters with %d tokens, want %d with %d", h.step, h.queue.Len(), h.queue.Tokens(), len(h.waiting), tokens)
	}
}

func (h *history) arrive() {
	w := &admission.Waiter{
		ClassHeader:    fmt.Sprintf("c%d", h.rnd.IntN(h.classes)),
		StrictPriority: h.rnd.Uint32N(2),
		PriorityJump:   float64(h.rnd.IntN(5) - 2),
		Uncached:       h.rnd.Uint64N(200),
		Arrived:        h.now,
		Value:          h.step,
	}
	w.Tokens = w.Uncached + h.rnd.Uint64N(50)
	if lane := h.rnd.Uint64N(6); lane > 0 {
		w.Lane = admission.Lane{Pinned: true, Rank: catalog.Rank{Worker: lane}}
	}
	if h.rnd.IntN(2) == 0 {
		w.Due = h.now + 1 + float64(h.rnd.IntN(30))*float64(h.rnd.IntN(300))
		w.Latest = w.Due - float64(h.rnd.IntN(10)) // perhaps it is late from the beginning
		h.refuses[w] = h.rnd.IntN(2) == 0
	}
	if err := h.queue.Add(w, 1); err != nil {
		h.t.Fatal(err)
	}
	c := h.model.classes[h.classOf(w)]
	c.waiting = append(c.waiting, w)
	h.waiting = append(h.waiting, w)
}

// expire has those refused that refuse to be late, at once.
func (h *history) expire() {
	refused := map[*admission.Waiter]bool{}
	h.queue.Expire(h.now, func(w *admission.Waiter) bool {
		if h.refuses[w] {
			refused[w] = true
		}
		return h.refuses[w]
	})
	for _, w := range slices.Clone(h.waiting) {
		if late := w.Due > 0 && h.refuses[w] && h.now >= w.Latest; late != refused[w] {
			h.t.Fatalf("step %d at %g: %+v is refused: %t", h.step, h.now, w, refused[w])
		}
		if refused[w] {
			h.model.classes[h.classOf(w)].remove(w)
			h.left(w)
		}
	}
	for _, c := range h.model.classes {
		c.now = h.now
	}
	if next := h.queue.NextAlarm(); next <= h.now {
		h.t.Fatalf("step %d at %g: an alarm is due at %g", h.step, h.now, next)
	}
}

func (h *history) classOf(w *admission.Waiter) int {
	var i int
	_, _ = fmt.Sscanf(w.ClassHeader, "c%d", &i) // anything else stays class 0
	return i + 1
}

func (h *history) left(w *admission.Waiter) {
	h.waiting = slices.DeleteFunc(h.waiting, func(o *admission.Waiter) bool { return o == w })
}

// TestFairness: while classes are backlogged they are served in proportion to
// their quanta, whatever their requests cost: within one largest cost and one
// quantum each.
func TestFairness(t *testing.T) {
	rnd := rand.New(rand.NewPCG(7, 7))
	quanta := []uint64{1, 3, 20, 400}
	const largest = 300
	q := admission.NewQueue(matrix(t, quanta, make([]bool, len(quanta))))
	add := func(class string) {
		if err := q.Add(&admission.Waiter{ClassHeader: class, Uncached: 1 + rnd.Uint64N(largest)}, 1); err != nil {
			t.Fatal(err)
		}
	}
	for i := range quanta {
		for range 5 {
			add(fmt.Sprintf("c%d", i))
		}
	}
	served := map[string]uint64{}
	for range 20000 {
		w := q.Next(0, always)
		served[w.ClassHeader] += w.Uncached
		add(w.ClassHeader)
	}
	rounds := float64(served["c3"]) / float64(quanta[3])
	for i, quantum := range quanta {
		got, want := float64(served[fmt.Sprintf("c%d", i)]), rounds*float64(quantum)
		if slack := float64(largest + 2*quantum); got < want-slack || got > want+slack {
			t.Errorf("class c%d was served %v tokens, its share is %v +- %v", i, got, want, slack)
		}
	}
}

// TestRoundsAreComputed: a request of 2^63 tokens in classes with quantum 1
// takes no longer than any other, and the classes still alternate.
func TestRoundsAreComputed(t *testing.T) {
	q := admission.NewQueue(matrix(t, []uint64{1, 1}, []bool{false, false}))
	for i := range 6 {
		w := &admission.Waiter{ClassHeader: fmt.Sprintf("c%d", i/3), Uncached: 1 << 63, Value: i}
		if err := q.Add(w, 1); err != nil {
			t.Fatal(err)
		}
	}
	var got []int
	for w := q.Next(0, always); w != nil; w = q.Next(0, always) {
		got = append(got, w.Value.(int))
	}
	if want := []int{0, 3, 1, 4, 2, 5}; !slices.Equal(got, want) {
		t.Errorf("served %v, want %v", got, want)
	}
}

// TestBlockedClassEarnsNothing: time spent blocked is not saved up, and the
// others are served meanwhile.
func TestBlockedClassEarnsNothing(t *testing.T) {
	q := admission.NewQueue(matrix(t, []uint64{10, 10}, []bool{false, false}))
	for i := range 40 {
		w := &admission.Waiter{ClassHeader: fmt.Sprintf("c%d", i%2), Uncached: 10, Value: i}
		if err := q.Add(w, 1); err != nil {
			t.Fatal(err)
		}
	}
	for range 10 {
		w := q.Next(0, func(w *admission.Waiter) bool { return w.ClassHeader == "c1" })
		if w == nil || w.ClassHeader != "c1" {
			t.Fatalf("Next = %+v, want one of c1", w)
		}
	}
	if w := q.Next(0, never); w != nil {
		t.Fatalf("Next = %+v, want none", w)
	}
	served := map[string]int{}
	for range 10 {
		served[q.Next(0, always).ClassHeader]++
	}
	if served["c0"] != 5 || served["c1"] != 5 {
		t.Errorf("served %v, want 5 each: c0 must not catch up", served)
	}
}

// BenchmarkQueue keeps 10,000 waiters: one leaves by Next, one comes. All of
// them may use every rank, or each one of 64, all but the last one busy.
func BenchmarkQueue(b *testing.B) {
	const waiters = 10000
	for _, lanes := range []uint64{1, 64, 1024} {
		b.Run(fmt.Sprintf("lanes=%d", lanes), func(b *testing.B) {
			q := admission.NewQueue(matrix(b, []uint64{64, 256}, []bool{false, true}))
			rnd := rand.New(rand.NewPCG(1, 2))
			for i := range waiters {
				w := &admission.Waiter{ClassHeader: fmt.Sprintf("c%d", i%2), Uncached: rnd.Uint64N(5000), Arrived: float64(i)}
				w.Lane = admission.Lane{Pinned: true, Rank: catalog.Rank{Worker: rnd.Uint64N(lanes)}}
				if err := q.Add(w, 1); err != nil {
					b.Fatal(err)
				}
			}
			free := func(w *admission.Waiter) bool { return w.Lane.Rank.Worker == lanes-1 }
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				w := q.Next(0, free)
				w.Arrived = float64(waiters + i)
				if err := q.Add(w, 1); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
