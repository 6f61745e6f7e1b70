package kubernetes_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/workers/kubernetes/mapping"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/kubetest"
)

// model is a naive reading of the life of pods, event by event: what each of them is to the catalog.
type model struct {
	grace   time.Duration
	app     string // that the pool selects, "" without a pool
	objects map[string]*modelObject
	pods    map[string]*modelPod // that discovery knows
}

// modelObject is a pod as the API server has it.
type modelObject struct {
	uid, ip, app string
	ready        bool
	deleted      time.Time
}

// modelPod is a pod as discovery has seen it last.
type modelPod struct {
	modelObject
	served         bool
	notReady, left time.Time // zero: it is ready, it has not left
}

// expire ends what time ends.
func (m *model) expire(now time.Time) {
	for name, p := range m.pods {
		switch {
		case !p.left.IsZero():
			if !now.Before(p.left.Add(m.grace)) {
				delete(m.pods, name)
			}
		case p.deleted.IsZero() && !p.ready && !now.Before(p.notReady.Add(m.grace)):
			p.served = false
		}
	}
}

// see takes what discovery sees: events, or, with listed, a list of another set of pods.
func (m *model) see(listed bool, now time.Time) {
	for name, o := range m.objects {
		if o.app != m.app {
			continue
		}
		p := m.pods[name]
		if p == nil || p.uid != o.uid {
			p = &modelPod{}
			m.pods[name] = p
		}
		p.modelObject, p.left = *o, time.Time{}
		switch {
		case o.ready:
			p.served, p.notReady = true, time.Time{}
		case p.notReady.IsZero():
			p.notReady = now
		}
	}
	for name, p := range m.pods {
		if o := m.objects[name]; o != nil && o.app == m.app || !p.left.IsZero() {
			continue
		}
		if !p.deleted.IsZero() && !listed || !p.served || m.grace == 0 {
			delete(m.pods, name)
		} else {
			p.left = now
		}
	}
}

// workers returns what the catalog should have, by pod.
func (m *model) workers(now time.Time) map[string]string {
	m.expire(now)
	want := make(map[string]string)
	for name, p := range m.pods {
		lifecycle := catalog.Draining
		switch {
		case !p.left.IsZero():
		case !p.served, !p.deleted.IsZero() && !now.Before(p.deleted.Add(time.Minute)):
			continue
		case p.ready && p.deleted.IsZero():
			lifecycle = catalog.Schedulable
		}
		want[name] = fmt.Sprintf("%s %s http://%s:8000 of llm", lifecycle, p.uid, p.ip)
	}
	return want
}

// settle lets time pass until nothing ends by itself within two seconds.
func (m *model) settle() {
	time.Sleep(time.Second)
	for again := true; again; {
		again = false
		now := time.Now()
		for _, p := range m.pods {
			for _, end := range []time.Time{p.left.Add(m.grace), p.notReady.Add(m.grace), p.deleted.Add(time.Minute)} {
				if d := end.Sub(now); d > -2*time.Second && d < 2*time.Second {
					time.Sleep(4 * time.Second)
					again = true
				}
			}
		}
	}
	synctest.Wait()
}

// TestModel: over random histories of pods and their pool, with cuts of the watches, the workers, their
// states and owners are at each moment those of a naive reading (scenario 33).
func TestModel(t *testing.T) {
	for seed, grace := range []time.Duration{0, 20 * time.Second, mapping.DefaultGrace} {
		t.Run(grace.String(), func(t *testing.T) {
			virtual(t, func(t *testing.T, api *kubetest.Server) {
				random := rand.New(rand.NewPCG(uint64(seed), 33))
				m := &model{grace: grace, app: "vllm", objects: make(map[string]*modelObject), pods: make(map[string]*modelPod)}
				api.Put("inferencepools", kubetest.Pool("llm", "llm", m.app, 8000))
				w := startVirtual(t, api, nil, pool(func(e *mapping.Entry) { e.NotReadyGrace = grace }))
				m.settle()
				steps := 300
				if testing.Short() {
					steps = 60
				}
				for range steps {
					now := time.Now()
					m.expire(now)
					step := ""
					switch name := fmt.Sprint("p-", random.IntN(4)); random.IntN(12) {
					case 0:
						step = "delete " + name
						api.Delete("pods", "llm", name)
						delete(m.objects, name)
						m.see(false, now)
					case 1:
						step = "cut"
						api.CutWatches()
					case 2:
						step = "compact and cut"
						time.Sleep(31 * time.Second) // a LIST comes at once after watches that have lived
						api.Compact()
						api.CutWatches()
					case 3:
						m.app = []string{"vllm", "other", ""}[random.IntN(3)]
						step = "pool of " + m.app
						if m.app == "" {
							api.Delete("inferencepools", "llm", "llm")
						} else {
							api.Put("inferencepools", kubetest.Pool("llm", "llm", m.app, 8000))
						}
						m.see(true, now)
					case 4, 5:
						d := time.Duration(random.Int64N(int64(max(grace, 10*time.Second))))
						step = "wait " + d.String()
						time.Sleep(d)
					default:
						o := &modelObject{
							uid: fmt.Sprint(name, "-", random.IntN(8)/7), ip: fmt.Sprint("10.0.0.", random.IntN(2)+1),
							app: []string{"vllm", "vllm", "vllm", "other"}[random.IntN(4)], ready: random.IntN(3) > 0,
						}
						change := []func(kubetest.Object){kubetest.UID(o.uid), kubetest.Ready(o.ready), kubetest.Labels("app", o.app)}
						if random.IntN(5) == 0 {
							o.deleted = now.Add(time.Duration(random.IntN(60)) * time.Second).Truncate(time.Second)
							change = append(change, kubetest.Deleted(o.deleted))
						}
						step = fmt.Sprintf("%s %+v", name, *o)
						api.Put("pods", kubetest.Pod("llm", name, o.ip, change...))
						m.objects[name] = o
						m.see(false, now)
					}
					m.settle()
					got := make(map[string]string)
					for _, x := range w.catalog.List(nil, nil) {
						got[x.Source.Pod] = fmt.Sprintf("%s %s %s of %s", x.Lifecycle, x.Source.UID, *x.Endpoint, x.Source.Pool)
					}
					if want := m.workers(time.Now()); !maps.Equal(got, want) {
						t.Fatalf("after %s:\n got %v\nwant %v", step, got, want)
					}
				}
			})
		})
	}
}
