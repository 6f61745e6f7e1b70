package node_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/engines/describe"
	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

var (
	errAway = &describe.Error{URL: "http://e/v1/models", Away: true, Err: errors.New("connection refused")}
	errHTML = &describe.Error{URL: "http://e/v1/models", Status: 200, Err: errors.New("it is a page")}
)

// engines answers questions as the test says, and notes when they come.
type engines struct {
	mu    sync.Mutex // guards the fields
	told  *catalog.Description
	err   error
	asked []time.Duration // since start
	start time.Time
}

func (e *engines) ask(context.Context, string, string) (*catalog.Description, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.asked = append(e.asked, time.Since(e.start).Round(time.Second))
	if e.err != nil {
		return nil, e.err
	}
	return e.told, nil
}

func (e *engines) say(told *catalog.Description, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.told, e.err = told, err
}

func (e *engines) times() []time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := e.asked
	e.asked = nil
	return all
}

// says is a whole description.
func says(blockSize uint32) *catalog.Description {
	return &catalog.Description{
		Engine: "vllm", Model: "m", BlockSize: blockSize, Size: 1, TotalKVBlocks: 100,
		KVEventsEndpoints: map[uint32]string{0: "tcp://e:5557"},
		From:              map[string]string{"model_name": "x", "block_size": "x", "data_parallel_size": "x", "kv_events_endpoints": "x"},
		Unknown:           map[string]string{},
	}
}

// described is a record with nothing but a URL.
func described(id uint64, change ...func(*catalog.Record)) catalog.Record {
	r := catalog.Record{
		ID: id, Scope: catalog.Scope{Model: "default", Tenant: "t"}, Endpoint: new(fmt.Sprintf("http://e-%d", id)), Describe: &catalog.Describe{Model: true},
	}
	for _, f := range change {
		f(&r)
	}
	return r
}

// startAsking runs a service whose engines are e, in a synctest bubble.
func startAsking(t *testing.T, e *engines) *servicetest.World {
	e.start = time.Now()
	return servicetest.Start(t, func(c *node.Config) { c.Ask = e.ask })
}

func lifecycle(w *servicetest.World, id uint64) string {
	for _, k := range w.Workers(nil, nil) {
		if k.ID == id {
			return k.Lifecycle + " " + strings.Join(k.Explain()[:min(1, len(k.Explain()))], "; ")
		}
	}
	return "absent"
}

// TestAskedUntilItAnswers proves when an engine is asked: at once, after 1 to 30 s while it does
// not answer, every minute when it does, and when its stream connects.
func TestAskedUntilItAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engines{err: errAway}
		w := startAsking(t, e)
		if _, err := w.ReplaceWorkers(catalog.Set{Kind: catalog.SourceFile, Records: []catalog.Record{described(1)}}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(91500 * time.Millisecond)
		synctest.Wait()
		if got := fmt.Sprint(e.times()); got != "[0s 1s 3s 7s 15s 31s 1m1s 1m31s]" {
			t.Errorf("away: asked after %s", got)
		}
		if got := lifecycle(w, 1); got != "incomplete GET http://e/v1/models: connection refused" {
			t.Errorf("away: %s", got)
		}
		e.say(says(4), nil)
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if got := lifecycle(w, 1); got != "schedulable " || len(e.times()) != 1 {
			t.Errorf("there: %s", got)
		}
		time.Sleep(3 * 67 * time.Second)
		synctest.Wait()
		if n := len(e.times()); n < 3 || n > 4 {
			t.Errorf("asked %d times in 201 s", n)
		}
		for range 3 {
			w.Net.At("tcp://e:5557").Status(true)
		}
		synctest.Wait()
		if n := len(e.times()); n < 1 || n > 3 {
			t.Errorf("its stream has connected: asked %d times", n)
		}
		e.say(nil, errAway)
		w.Net.At("tcp://e:5557").Status(true)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n, got := len(e.times()), lifecycle(w, 1); n < 4 || got != "schedulable " {
			t.Errorf("away again: asked %d times, %s", n, got)
		}
		e.say(says(8), nil)
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if got := lifecycle(w, 1); got != "incomplete the engine now has block_size 8, not 4: register the worker again" {
			t.Errorf("another block size: %s", got)
		}
		if r, err := w.DescribeWorkerIn(t.Context(), catalog.ScopeFilter{}, described(1)); err != nil || r.Lifecycle != catalog.Schedulable || *r.BlockSize != 8 {
			t.Errorf("registered again: %+v, %v", r, err)
		}
		if _, err := w.DeleteWorker(1); err != nil {
			t.Error(err)
		}
		e.times()
		time.Sleep(5 * time.Minute)
		if n := len(e.times()); n > 0 {
			t.Errorf("asked %d times after its worker has gone", n)
		}
	})
}

// TestUnasked proves which engines a start waits for: those that are asked, until they answer or fail to.
func TestUnasked(t *testing.T) {
	pod := func(draining string) func(*catalog.Record) {
		return func(r *catalog.Record) {
			r.Source = catalog.Source{Kind: catalog.SourceKubernetes, Namespace: "llm", Pod: "a", UID: "u"}
			r.Draining = draining
		}
	}
	for name, row := range map[string]struct {
		change func(*catalog.Record)
		err    error
		first  bool
	}{
		"it answers":             {func(*catalog.Record) {}, nil, true},
		"it is away":             {func(*catalog.Record) {}, errAway, true},
		"it is no engine":        {func(*catalog.Record) {}, errHTML, true},
		"that of a pod":          {pod(""), errAway, true},
		"its pod does not serve": {pod("pod llm/a is not ready"), nil, false},
		"it is not to describe":  {func(r *catalog.Record) { r.Describe = nil }, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &engines{told: says(4), err: row.err, start: time.Now()}
				w := servicetest.Start(t, discovers, func(c *node.Config) {
					c.Ask = func(ctx context.Context, url, engine string) (*catalog.Description, error) {
						time.Sleep(time.Second)
						return e.ask(ctx, url, engine)
					}
				})
				if w.Unasked() {
					t.Error("without workers an engine is unasked")
				}
				set := catalog.Set{Kind: catalog.SourceFile, Records: []catalog.Record{described(1, row.change)}}
				if k := set.Records[0].Source.Kind; k != "" {
					set.Kind = k
				}
				if _, err := w.ReplaceWorkers(set); err != nil {
					t.Fatal(err)
				}
				if w.Unasked() != row.first {
					t.Errorf("unasked at once: %t", !row.first)
				}
				time.Sleep(1100 * time.Millisecond)
				synctest.Wait()
				if w.Unasked() {
					t.Error("still unasked")
				}
			})
		})
	}
}

// TestAskedAtShutdown proves that an engine is not asked again and again while the service shuts down,
// when its answers have no effect any more.
func TestAskedAtShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engines{told: says(4), start: time.Now()}
		w := servicetest.Start(t, func(c *node.Config) {
			c.Ask = func(ctx context.Context, url, engine string) (*catalog.Description, error) {
				time.Sleep(10 * time.Millisecond)
				return e.ask(ctx, url, engine)
			}
		})
		if _, err := w.ReplaceWorkers(catalog.Set{Kind: catalog.SourceFile, Records: []catalog.Record{described(1)}}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		w.Close()
		w.Net.At("tcp://e:5557").Status(true) // it is due
		e.times()
		time.Sleep(4 * time.Second)
		if n := len(e.times()); n == 0 || n > 5 {
			t.Errorf("asked %d times in 4 s", n)
		}
	})
}

// TestDescribeWorker proves what a registration answers that asks the engine first.
func TestDescribeWorker(t *testing.T) {
	const refused = "the engine at http://e-1 does not describe worker 1: "
	noSockets := says(4)
	noSockets.KVEventsEndpoints, noSockets.Unknown = nil, map[string]string{"kv_events_endpoints": "it has none"}
	busy := *noSockets
	busy.Unanswered = true
	for name, row := range map[string]struct {
		told    *catalog.Description
		err     error
		record  catalog.Record
		want    string // lifecycle
		refusal string
	}{
		"whole":           {told: says(4), record: described(1), want: "schedulable "},
		"away":            {err: errAway, record: described(1), want: "incomplete GET http://e/v1/models: connection refused"},
		"a page":          {err: errHTML, record: described(1), refusal: refused + "GET http://e/v1/models: it is a page"},
		"no sockets":      {told: noSockets, record: described(1), refusal: refused + "it has none"},
		"too busy":        {told: &busy, record: described(1), want: "incomplete it has none"},
		"its own sockets": {told: noSockets, record: described(1, func(r *catalog.Record) { r.KVEventsEndpoint = new("tcp://e:1") }), want: "schedulable "},
		"nobody to ask": {
			told: says(4), record: described(1, func(r *catalog.Record) { r.Endpoint = nil }),
			refusal: "describe needs an endpoint: the engine's http:// or https:// URL",
		},
		"a forbidden socket": {
			told: says(4), record: described(1, func(r *catalog.Record) { r.KVEventsEndpoint = new("inproc://x") }),
			want: "incomplete reconciliation failed: invalid kv_events endpoint for worker 1 dp_rank 0: invalid ZMQ endpoint `inproc://x`: unsupported scheme `inproc`",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := startAsking(t, &engines{told: row.told, err: row.err})
				_, err := w.DescribeWorkerIn(t.Context(), catalog.ScopeFilter{}, row.record)
				if row.refusal != "" {
					servicetest.WantError(t, err, contract.BadRequest, row.refusal)
					if got := lifecycle(w, 1); got != "absent" {
						t.Errorf("refused, but %s", got)
					}
				} else if got := lifecycle(w, 1); err != nil || got != row.want {
					t.Errorf("%s, %v, want %s", got, err, row.want)
				}
			})
		})
	}
	w := servicetest.Start(t)
	_, err := w.DescribeWorkerIn(t.Context(), catalog.ScopeFilter{}, described(1))
	servicetest.WantError(t, err, contract.BadRequest, "this process does not ask engines: register without describe")
}

// TestManyEngines proves that all of many engines are asked, few at a time.
func TestManyEngines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		now, most, all := 0, 0, 0
		w := servicetest.Start(t, servicetest.EventsOff, func(c *node.Config) {
			c.Ask = func(context.Context, string, string) (*catalog.Description, error) {
				mu.Lock()
				now++
				all++
				most = max(most, now)
				mu.Unlock()
				time.Sleep(time.Second)
				mu.Lock()
				now--
				mu.Unlock()
				return says(4), nil
			}
		})
		var set catalog.Set
		for id := range uint64(100) {
			set.Records = append(set.Records, described(id))
		}
		if _, err := w.ReplaceWorkers(set); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if _, n, _ := w.Ready(); n != 100 || all != 100 || most != 16 {
			t.Errorf("%d schedulable, asked %d, %d at a time", n, all, most)
		}
	})
}

// TestCapacityDiffers proves that a record that is not as its engine says counts, with one warning.
func TestCapacityDiffers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startAsking(t, &engines{told: says(4)})
		for id, blocks := range []uint64{100, 105, 106} {
			if _, err := w.PutWorker(described(uint64(id), func(r *catalog.Record) { r.TotalKVBlocks = &blocks })); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		var warned []string
		for _, line := range w.Log.Take(t) {
			if strings.Contains(line, "the record counts") {
				warned = append(warned, line)
			}
		}
		if len(warned) != 1 || !strings.Contains(warned[0], "106") {
			t.Errorf("%q", warned)
		}
	})
}

// TestAskedPods proves when the engine of a pod is asked: while the pod serves, at once when it serves
// again or its engine has another turn, also if that comes while it is asked. A pod that needs nothing of
// its engine serves without an answer, and whoever found it is told of what is new.
func TestAskedPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engines{err: errAway, start: time.Now()}
		told := 0
		slow := time.Duration(0)
		w := servicetest.Start(t, func(c *node.Config) {
			c.Ask = func(ctx context.Context, url, engine string) (*catalog.Description, error) {
				time.Sleep(slow)
				return e.ask(ctx, url, engine)
			}
			c.Discovers = []catalog.SourceKind{catalog.SourceKubernetes}
			c.Described = func() { told++ }
		})
		pod := func(turn uint64, draining string) {
			t.Helper()
			r := described(1, func(r *catalog.Record) {
				r.Source = catalog.Source{Kind: catalog.SourceKubernetes, Namespace: "llm", Pod: "a", UID: "u"}
				r.Scope.Model, r.Describe = "m", &catalog.Describe{Turn: turn}
				r.BlockSize, r.KVEventsEndpoint, r.Draining = new(uint32(16)), new("tcp://e:5557"), draining
			})
			if _, err := w.ReplaceWorkers(catalog.Set{Kind: catalog.SourceKubernetes, Records: []catalog.Record{r}}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(500 * time.Millisecond)
			synctest.Wait()
		}
		asked := func(want string) {
			t.Helper()
			if got := fmt.Sprint(e.times()); got != want {
				t.Errorf("asked after %s, want %s", got, want)
			}
		}
		pod(1, "")
		asked("[0s]")
		if got := lifecycle(w, 1); got != "schedulable " {
			t.Errorf("without an answer: %s", got)
		}
		pod(1, "pod llm/a is not ready")
		time.Sleep(3 * time.Minute)
		asked("[]")
		d := says(16)
		d.Adapters = []string{"sql"}
		e.say(d, nil)
		told = 0
		pod(1, "") // after 3 m 1 s
		asked("[3m1s]")
		if told != 1 {
			t.Errorf("told %d times", told)
		}
		pod(2, "")
		asked("[3m2s]")
		slow = 10 * time.Second
		pod(3, "")
		pod(4, "")
		time.Sleep(25 * time.Second)
		asked("[3m12s 3m22s]")
	})
}
