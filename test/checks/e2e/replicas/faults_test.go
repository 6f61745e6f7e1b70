package replicas_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/select-service/select-service/test/checks/e2e"
)

// schedulesEnv says how many schedules to run, instead of 10, or of the first four kinds
// with -short.
const schedulesEnv = "FAULT_SCHEDULES"

// kind is what a schedule has beside lossy links.
type kind struct {
	name    string
	cuts    bool // replicas are cut off for a while
	clashes bool // and ids have to clash then
	outputs bool // requests have output blocks, which replicas do not share
	removal bool // a worker is deleted and registered again, everywhere
	kill    bool // a replica is killed and started again
	exact   bool // nothing comes late or is lost unseen: then the losses are known to the message
}

// kinds come in turn. The first four have all that the others have.
var kinds = []kind{
	{name: "cuts", cuts: true, clashes: true},
	{name: "outputs", outputs: true, cuts: true},
	{name: "everything", cuts: true, removal: true, kill: true},
	{name: "exact", cuts: true, exact: true},
	{name: "loss"},
	{name: "kill", kill: true},
	{name: "removal", removal: true, cuts: true},
}

// TestFaults proves that replicas agree, within five seconds on an idle machine,
// after links between them lost, repeated, reordered and delayed messages: on every booking that
// was accepted and not freed, with its rank, its blocks and its prefill, and on
// the loads that follow. Then all is freed, and they agree that nothing is left.
func TestFaults(t *testing.T) {
	n := 10
	if testing.Short() {
		n = 4
	}
	if s := os.Getenv(schedulesEnv); s != "" {
		var err error
		if n, err = strconv.Atoi(s); err != nil {
			t.Fatalf("%s: %v", schedulesEnv, err)
		}
	}
	for i := range n {
		k := kinds[i%len(kinds)]
		t.Run(fmt.Sprintf("%d-%s", i, k.name), func(t *testing.T) {
			t.Parallel()
			newSchedule(t, k, uint64(i)).run()
		})
	}
}

// schedule is one run. What happens is drawn from its number; when exactly is
// up to the machine.
type schedule struct {
	kind
	t       *testing.T
	rng     *rand.Rand
	fleet   *fleet
	traffic *traffic
}

func newSchedule(t *testing.T, k kind, number uint64) *schedule {
	s := &schedule{kind: k, t: t, rng: rand.New(rand.NewPCG(number, 0))}
	s.fleet = newFleet(t, options{seed: number, env: map[string]string{"DYN_USE_KV_EVENTS": "false"}})
	s.fleet.register(workers...)
	if k.exact { // what was sent before a replica heard of its sender is not lost
		s.fleet.acquaint()
	}
	s.traffic = newTraffic(t, s.fleet)
	s.traffic.outputs = k.outputs
	s.traffic.start(number)
	return s
}

func (s *schedule) run() {
	s.t.Helper()
	steps := []func(){s.weather, s.weather, s.weather}
	if s.cuts {
		steps = append(steps, s.cutOff, s.cutOff)
	}
	if s.removal {
		steps = append(steps, s.removeWorker)
	}
	s.rng.Shuffle(len(steps), func(i, j int) { steps[i], steps[j] = steps[j], steps[i] })
	if s.kill { // the others agree before, so that little is in doubt
		steps = append(steps, func() { s.heal() }, s.killOne, s.weather)
	}
	for _, step := range steps {
		step()
	}
	for s.fleet.lost() == 0 && !s.t.Failed() { // all calls so far fell into fine weather
		s.weather()
	}
	s.traffic.end()
	took := s.heal()
	s.check()
	live := len(s.traffic.ledger.live())
	s.traffic.clear(s.rng)
	cleared := s.fleet.settle(s.traffic.ledger, false)
	s.t.Logf("%v; %v; agreed on %d bookings after %v, on none after %v", s.fleet, s.traffic, live, took, cleared)
}

// check proves that the replicas know that they missed something.
func (s *schedule) check() {
	s.t.Helper()
	lost := s.fleet.lost()
	e2e.Eventually(s.t, "the replicas know of their losses", func() error {
		missed := uint64(0)
		for _, r := range s.fleet.replicas {
			n, err := r.missed()
			if err != nil {
				return err
			}
			missed += uint64(n)
		}
		if missed == 0 || s.exact && missed != lost {
			return fmt.Errorf("%d messages were lost, the replicas miss %d", lost, missed)
		}
		return nil
	})
}

// between draws a length of time in milliseconds.
func (s *schedule) between(from, to int) time.Duration {
	return time.Duration(from+s.rng.IntN(to-from)) * time.Millisecond
}

// goOn returns when so many more calls have been answered, half as many with -short.
func (s *schedule) goOn(calls int) {
	if testing.Short() {
		calls /= 2
	}
	s.traffic.goOn(calls)
}

// weather draws a fate for each link and lets it last for some calls.
func (s *schedule) weather() {
	s.t.Helper()
	for _, l := range s.fleet.sorted() {
		l.become(s.t, s.draw())
	}
	s.goOn(100 + s.rng.IntN(150))
}

func (s *schedule) draw() (f fate) {
	switch n := s.rng.IntN(10); {
	case n == 0:
	case n < 6:
		f = fate{drop: 0.4 * s.rng.Float64(), duplicate: 0.3 * s.rng.Float64(), scatter: 0.5 * s.rng.Float64()}
	case n < 8:
		f = fate{delay: s.between(20, 150), drop: 0.1, scatter: 0.1}
	case n == 8:
		f = fate{cut: true}
	default:
		f = fate{closed: true}
	}
	return s.allowed(f)
}

// allowed takes out of a fate what would make losses uncertain: a follower that
// connects again misses messages that the link has no part in.
func (s *schedule) allowed(f fate) fate {
	if s.exact {
		f.scatter = 0
		f.cut, f.closed = f.cut || f.closed, false
	}
	return f
}

// cutOff leaves one replica alone, which goes on to answer.
func (s *schedule) cutOff() {
	s.t.Helper()
	alone := s.rng.IntN(fleetSize)
	how := fate{cut: true}
	if s.rng.IntN(2) == 0 {
		how = fate{closed: true}
	}
	how = s.allowed(how)
	s.fleet.isolate(alone, true, how)
	s.goOn(100 + s.rng.IntN(250))
	if s.clashes {
		e2e.Eventually(s.t, "an id clashes", s.traffic.clashed)
	}
	s.fleet.isolate(alone, false, how)
}

// removeWorker deletes a worker everywhere, and its bookings with it. It is
// registered again at once, while messages about them are still under way.
func (s *schedule) removeWorker() {
	s.t.Helper()
	w := workers[s.rng.IntN(len(workers))]
	s.traffic.quietly(func() {
		for _, r := range s.fleet.replicas {
			r.must(http.StatusOK, "DELETE", fmt.Sprint("/workers/", w.id), nil)
		}
		s.traffic.ledger.removed(w.id)
		s.fleet.register(w)
	})
}

// killOne kills a replica in faulty weather and starts it again. Its workers are
// registered after it has asked for its peers' bookings: it has to ask again.
func (s *schedule) killOne() {
	s.t.Helper()
	s.weather()
	victim := s.rng.IntN(fleetSize)
	s.traffic.quietly(func() {
		s.fleet.kill(victim)
		s.traffic.ledger.killed(victim)
		s.traffic.lives[victim]++
		time.Sleep(s.between(0, 500))
		s.fleet.restart(victim)
		time.Sleep(s.between(0, 500))
		for _, w := range workers {
			s.fleet.replicas[victim].register(w)
		}
	})
}

// heal ends all faults and waits until the replicas agree.
func (s *schedule) heal() (took time.Duration) {
	s.t.Helper()
	s.traffic.quietly(func() {
		s.fleet.heal()
		took = s.fleet.settle(s.traffic.ledger, s.outputs)
	})
	return took
}
