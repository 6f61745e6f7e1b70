package doctor_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/engines/load"
	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection/overload"
	"github.com/select-service/select-service/internal/selection/policies"
	"github.com/select-service/select-service/internal/server/doctor"
	"github.com/select-service/select-service/internal/server/replicastatus"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/memory"
	"github.com/select-service/select-service/pkg/selector"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// counted is a gateway with some counts.
type counted struct {
	failures                   uint64
	answers                    uint64
	observed, predicted, apart float64
	booked, pieces             uint64
}

func (c counted) TokenizerFailures() uint64 { return c.failures }
func (c counted) Cached() (answers uint64, observed, predicted, apart float64) {
	return c.answers, c.observed, c.predicted, c.apart
}

func (c counted) Answers() (booked, pieces uint64) { return c.booked, c.pieces }

// changing is a gateway whose counts change.
type changing struct{ atomic.Pointer[counted] }

func (c *changing) TokenizerFailures() uint64 { return c.Load().TokenizerFailures() }
func (c *changing) Cached() (answers uint64, observed, predicted, apart float64) {
	return c.Load().Cached()
}

func (c *changing) Answers() (booked, pieces uint64) { return c.Load().Answers() }

// findings are the sentences of an examination, each behind its check.
func findings(w *servicetest.World, gateway doctor.Gateway, of catalog.ScopeFilter) string {
	var out []string
	for _, f := range doctor.New(w.Parts(), nil, gateway, time.Now).Examine(context.Background(), of, of == catalog.ScopeFilter{}).Findings {
		out = append(out, fmt.Sprintf("%s: %s", f.Check, f.Sentence))
	}
	return strings.Join(out, "\n")
}

// getter serves the statuses of replicas, by URL.
type getter map[string]func() *replicastatus.Status

func (g getter) GetAnnounced(_ context.Context, url, _ string) (io.ReadCloser, error) {
	of := g[url]
	if of == nil {
		return nil, errors.New("connection refused")
	}
	text, err := json.Marshal(of())
	return io.NopCloser(bytes.NewReader(text)), err
}

// TestReplicas: replicas that agree have no finding; each difference has its own, and so has one
// that cannot be read.
func TestReplicas(t *testing.T) {
	for name, tt := range map[string]struct {
		provoke func(a *servicetest.World, b *replicastatus.Status)
		of      catalog.ScopeFilter
		want    string
	}{
		"agree": {},
		"clock": {
			provoke: func(_ *servicetest.World, b *replicastatus.Status) { b.Time = b.Time.Add(-3 * time.Second) },
			want:    "peer_clock: The clock of the replica at tcp://b:1 is 3.0 s apart from this one's.",
		},
		"thresholds": {
			provoke: func(a *servicetest.World, _ *replicastatus.Status) {
				a.SetBusy(overload.Thresholds{DecodeBlocks: new(0.5)})
			},
			want: `peer_thresholds: The replica at tcp://b:1 has other busy thresholds for model "m".`,
		},
		"weights": {
			provoke: func(_ *servicetest.World, b *replicastatus.Status) { b.Settings = "others" },
			want:    "peer_policies: The replica at tcp://b:1 chooses by other rules.",
		},
		"policy": {
			provoke: func(_ *servicetest.World, b *replicastatus.Status) { b.Loads[0].Policy = "other" },
			want:    "peer_policies: The replica at tcp://b:1 chooses by other rules.",
		},
		"loads": {
			provoke: func(_ *servicetest.World, b *replicastatus.Status) { b.Loads[0].Requests += 20 },
			want:    `peer_loads: The replica at tcp://b:1 counts 20 requests with 0 blocks of model "m", this one 0 with 0.`,
		},
		"a few on their way": {provoke: func(_ *servicetest.World, b *replicastatus.Status) { b.Loads[0].Requests += 8 }},
		"blocks of output":   {provoke: func(_ *servicetest.World, b *replicastatus.Status) { b.Loads[0].Blocks += 2000 }},
		"thresholds of another tenant's model": {
			provoke: func(a *servicetest.World, b *replicastatus.Status) {
				b.Thresholds = append(b.Thresholds, replicastatus.Thresholds{Model: "theirs", DecodeBlocks: new(0.5)})
				a.Put(servicetest.Record(2, 1, func(r *catalog.Record) { r.Scope = catalog.Scope{Model: "theirs", Tenant: "other"} }))
				if _, err := a.SetBusyThreshold("theirs", overload.Thresholds{DecodeBlocks: new(0.7)}); err != nil {
					a.T.Error(err)
				}
			},
			of: catalog.ScopeFilter{Tenant: new(servicetest.Scope.Tenant)},
		},
		"too much": {
			provoke: func(_ *servicetest.World, b *replicastatus.Status) {
				b.Loads = slices.Repeat(b.Loads, 4097)
			},
			want: "peer_unreachable: The replica at tcp://b:1 does not tell its state: status of a replica: a list has more than 4096 elements.",
		},
		"unreachable": {
			provoke: func(_ *servicetest.World, b *replicastatus.Status) { *b = replicastatus.Status{} },
			want:    "peer_unreachable: The replica at tcp://b:1 does not tell its state: connection refused.",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mesh := servicetest.NewMesh()
				a, b := mesh.Start(t, "a", servicetest.EventsOff), mesh.Start(t, "b", servicetest.EventsOff)
				a.Put(servicetest.Record(1, 1))
				b.Put(servicetest.Record(1, 1))
				mesh.Connect(t, "a", "b")
				time.Sleep(10 * time.Second)
				change := tt.provoke
				if change == nil {
					change = func(*servicetest.World, *replicastatus.Status) {}
				}
				status := func() *replicastatus.Status {
					return replicastatus.New(replicastatus.Config{Process: b.Parts().Process}, b, nil, nil, time.Now).Status()
				}
				from := getter{"http://b/replica_sync/status": func() *replicastatus.Status {
					st := status()
					change(a, st)
					return st
				}}
				if name == "unreachable" {
					from = nil
				}
				peers := replicastatus.New(replicastatus.Config{Process: a.Parts().Process}, a, a.Parts().Replica, from, time.Now)
				var got []string
				for _, f := range doctor.New(a.Parts(), peers, nil, time.Now).Examine(t.Context(), tt.of, true).Findings {
					got = append(got, fmt.Sprintf("%s: %s", f.Check, f.Sentence))
				}
				if strings.Join(got, "\n") != tt.want {
					t.Errorf("found\n%s\nwant\n%s", strings.Join(got, "\n"), tt.want)
				}
				for _, f := range doctor.New(a.Parts(), peers, nil, time.Now).Examine(t.Context(), catalog.ScopeFilter{Model: &servicetest.Scope.Model}, false).Findings {
					if text := fmt.Sprintf("%+v", f); strings.Contains(text, "b:1") || strings.Contains(text, "//b") {
						t.Errorf("who asks for one model hears where a replica is: %s", text)
					}
				}
			})
		})
	}
}

// live is a worker of one rank whose stream is connected, with its engine.
func live(w *servicetest.World, id uint64, change ...func(*catalog.Record)) *servicetest.Engine {
	w.Put(servicetest.Record(id, 1, change...))
	w.Net.At(servicetest.Endpoint(id, 0)).Connect()
	return w.Engine(id, 0)
}

// TestFindings provokes each fault of workers, streams, engines and the process in a running
// service, and wants its sentence and no other one.
func TestFindings(t *testing.T) {
	small := memory.New(1 << 20)
	for name, tt := range map[string]struct {
		config  func(*node.Config)
		gateway doctor.Gateway
		provoke func(w *servicetest.World)
		want    string
	}{
		"healthy": {gateway: counted{answers: 1000, observed: 500, predicted: 510, apart: 30}, provoke: func(w *servicetest.World) {
			e := live(w, 1, servicetest.Total(100))
			e.Publish(0, e.Stored(servicetest.Prompt(1, 8), servicetest.BlockSize, nil))
			w.Reports().Report(catalog.Rank{Worker: 1}, load.Report{Source: load.Told, KVTokensTotal: load.Known(400)}, time.Now())
		}},
		"incomplete": {provoke: func(w *servicetest.World) {
			_, _ = w.PutWorker(servicetest.Record(1, 1, func(r *catalog.Record) { r.Endpoint = nil }))
		}, want: "worker_incomplete: Worker 1 cannot be chosen: endpoint is required."},
		"block size of a record": {provoke: func(w *servicetest.World) {
			live(w, 1)
			_, _ = w.PutWorker(servicetest.Record(2, 1, func(r *catalog.Record) { r.BlockSize = new(uint32(8)) }))
		}, want: "block_size: Worker 2 has another block size and cannot be chosen: *"},
		"block size of events": {provoke: func(w *servicetest.World) {
			e := live(w, 1)
			e.Publish(0, e.Stored(servicetest.Prompt(1, 16), 8, nil))
		}, want: "block_size: The engine of worker 1 rank 0 has another block size than the 4 tokens of its record: its KV events have 8, and none can be used. 1 were dropped in the last 10 minutes."},
		"dropped": {provoke: func(w *servicetest.World) {
			e := live(w, 1)
			e.Publish(0, servicetest.Dict{"type": "BlockStored"})
		}, want: "dropped_events: 1 KV events of worker 1 rank 0 were dropped in the last 10 minutes, the last one as missing_field."},
		"undecodable": {provoke: func(w *servicetest.World) {
			live(w, 1).Deliver([]byte("nonsense"))
		}, want: "undecodable_events: 1 messages of the KV event stream of worker 1 rank 0 could not be read in the last 10 minutes."},
		"lost without a replay endpoint": {provoke: func(w *servicetest.World) {
			e := live(w, 1)
			e.Publish(0, e.Stored(servicetest.Prompt(1, 8), servicetest.BlockSize, nil))
			e.Seq += 3
			e.Publish(0, e.Stored(servicetest.Prompt(2, 8), servicetest.BlockSize, nil))
		}, want: "stream_stale: The KV event stream of worker 1 rank 0 is stale: 3 messages are lost, and its cached blocks may be wrong.\n" +
			"no_replay: The KV event stream of worker 1 rank 0 has lost 3 messages in the last 10 minutes, and nothing could bring them back: it has no replay endpoint."},
		"disconnected": {provoke: func(w *servicetest.World) {
			w.Put(servicetest.Record(1, 1))
		}, want: "stream_down: The KV event stream of worker 1 rank 0 is not connected: nobody publishes at tcp://worker-1:5000."},
		"silent": {provoke: func(w *servicetest.World) {
			live(w, 1)
			w.Reports().Report(catalog.Rank{Worker: 1}, load.Report{Source: load.Push, Interval: time.Second, Running: load.Known(0)}, time.Now())
			time.Sleep(30 * time.Second)
		}, want: "engine_silent: The engine of worker 1 rank 0 is silent for 30 s, and gets no new requests."},
		"stalled": {provoke: func(w *servicetest.World) {
			live(w, 1)
			for range 20 {
				w.Reports().Report(catalog.Rank{Worker: 1}, load.Report{Source: load.Push, Interval: time.Second, Running: load.Known(3)}, time.Now())
				time.Sleep(time.Second)
			}
		}, want: "engine_stalled: The engine of worker 1 rank 0 has unfinished work and makes no progress; it gets no new requests."},
		// The gateway awaits an answer of an engine that reports nothing: it gets no requests all the same.
		"stalled without reports": {provoke: func(w *servicetest.World) {
			live(w, 1)
			w.Await(servicetest.Scope, catalog.Rank{Worker: 1})
			time.Sleep(20 * time.Second)
		}, want: "engine_stalled: The engine of worker 1 rank 0 has unfinished work and makes no progress; it gets no new requests."},
		// An engine that was drained may go: nobody has to look at its stream.
		"drained and gone": {provoke: func(w *servicetest.World) {
			w.Put(servicetest.Record(1, 1))
			w.Burden("r", 1, 0, 1, 4)
			if _, err := w.DrainWorkerIn(catalog.ScopeFilter{}, 1, nil); err != nil {
				w.T.Error(err)
			}
		}},
		"another model": {
			config: func(c *node.Config) {
				told := 0
				c.Ask = func(context.Context, string, string) (*catalog.Description, error) {
					told++ // the engine is replaced after the first answer
					return &catalog.Description{
						Engine: "vllm", Model: fmt.Sprint("m", min(told, 2)), BlockSize: servicetest.BlockSize, Size: 1,
						From: map[string]string{"model_name": "/v1/models", "block_size": "/metrics", "data_parallel_size": "/metrics"},
					}, nil
				}
			},
			provoke: func(w *servicetest.World) {
				_, _ = w.PutWorker(catalog.Record{
					ID: 1, Scope: catalog.Scope{Model: "default", Tenant: "t"}, Endpoint: new("http://e"), Describe: &catalog.Describe{Model: true},
				})
				time.Sleep(2 * time.Minute) // it is asked once a minute
			},
			want: `model: Worker 1 serves another model and cannot be chosen: *`,
		},
		"another hash seed": {provoke: func(w *servicetest.World) {
			r := servicetest.Registration("store", 0)
			w.Register(r)
			w.Net.At(r.Endpoint).Connect()
			own := []uint64{771, 772}
			w.Publisher(r).Publish(0, servicetest.Envelope(1, "stored", own, servicetest.Dict{
				"token_ids": servicetest.Prompt(1, 2*servicetest.BlockSize), "base_block_idx": 0, "parent_hash": nil,
			}))
			w.Publisher(r).Publish(0, servicetest.Envelope(2, "stored", []uint64{779, 780}, servicetest.Dict{"medium": "cpu", "base_block_idx": 2}))
			synctest.Wait() // Settle waits for the events of workers
		}, want: `hash_seeds: The hashes of publisher "store" rank 0 are the engine's own, not XXH3-64 with seed *`},
		"capacity": {provoke: func(w *servicetest.World) {
			live(w, 1, servicetest.Total(100))
			w.Reports().Report(catalog.Rank{Worker: 1}, load.Report{Source: load.Told, KVTokensTotal: load.Known(800)}, time.Now())
		}, want: "capacity: The engine of worker 1 rank 0 has room for 200 blocks, its record says 100."},
		"first tokens come late": { // answers that are not streamed, or whose bodies nobody sees
			config: served,
			provoke: func(w *servicetest.World) {
				live(w, 1)
				for i := range 30 {
					id := fmt.Sprint("r", i)
					w.Book(id, servicetest.Prompt(uint32(i)<<12, 40))
					time.Sleep(time.Second)
					if err := w.Free(id); err != nil {
						w.T.Error(err)
					}
				}
			},
			want: `policy: Dynamo's cost decides for model "m" instead of policy predicted-ttft, and targets refuse nothing, as the first tokens of most of its requests are told late, or never.`,
		},
		// Four of five requests take a tenth of a second and one takes 5 s, whatever their prompts: nothing predicts that.
		"predictions are off": {
			config: func(c *node.Config) { served(c); servicetest.EventsOff(c) },
			provoke: func(w *servicetest.World) {
				w.Put(servicetest.Record(1, 1))
				for i := range 400 {
					if i == 190 {
						w.Settle()
						if got := findings(w, nil, catalog.ScopeFilter{}); got != "" {
							w.T.Errorf("before 200 were compared: %s", got)
						}
					}
					id := fmt.Sprint("r", i)
					w.Book(id, servicetest.Prompt(uint32(i)<<12, 400))
					time.Sleep(100 * time.Millisecond)
					if i%5 == 0 {
						time.Sleep(4900 * time.Millisecond)
					}
					if err := w.PrefillComplete(id); err != nil {
						w.T.Error(err)
					}
					time.Sleep(10 * time.Second)
					if err := w.Free(id); err != nil {
						w.T.Error(err)
					}
				}
				time.Sleep(2 * time.Second)
			},
			want: `calibration: First tokens of model "m" come sooner than predicted: after *`,
		},
		"tokenizer": {gateway: counted{failures: 7}, want: "tokenizer: The tokens of 7 prompts of the last 10 minutes were unknown, as the tokenizer failed: " +
			"their engines were chosen by load alone, or they were refused."},
		"hit rate": {
			gateway: counted{answers: 200, observed: 500, predicted: 1000, apart: 500},
			want:    "hit_rate: Of 200 prompts of the last 10 minutes engines had cached 500 tokens where the index said 1000: it is wrong by 50 %.",
		},
		"bodies, nothing learns": {
			config:  servicetest.EventsOff,
			gateway: counted{booked: 100, pieces: 1600},
			provoke: func(w *servicetest.World) { w.Put(servicetest.Record(1, 1)) },
			want:    "answer_bodies: Envoy sends each answer of the last 10 minutes through this process in 16 pieces on average, and no policy learns from them.",
		},
		"bodies, the first token is learnt from": {
			config:  func(c *node.Config) { served(c); servicetest.EventsOff(c) },
			gateway: counted{booked: 100, pieces: 10000},
			provoke: func(w *servicetest.World) { w.Put(servicetest.Record(1, 1)) },
			want:    "answer_bodies: Envoy sends each answer of the last 10 minutes through this process in 100 pieces on average, and the policy needs the first one alone.",
		},
		"bodies of short answers, learnt from": {
			config:  func(c *node.Config) { served(c); servicetest.EventsOff(c) },
			gateway: counted{booked: 100, pieces: 1600},
			provoke: func(w *servicetest.World) { w.Put(servicetest.Record(1, 1)) },
		},
		"no bodies":    {gateway: counted{booked: 100, pieces: 99}},
		"few requests": {gateway: counted{booked: 99, pieces: 9900}},
		"memory": {
			config:  func(c *node.Config) { c.Memory = small },
			provoke: func(*servicetest.World) { small.Account(memory.Replay).Set(31400) },
			want:    "memory: The memory account replay is nearly full: 31400 of 31440 bytes.",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				config := tt.config
				if config == nil {
					config = func(*node.Config) {}
				}
				w := servicetest.Start(t, config)
				if tt.provoke != nil {
					tt.provoke(w)
				}
				w.Settle()
				got := findings(w, tt.gateway, catalog.ScopeFilter{})
				if head, isHead := strings.CutSuffix(tt.want, "*"); got != tt.want && (!isHead || !strings.HasPrefix(got, head) || strings.Contains(got, "\n")) {
					t.Errorf("found\n%s\nwant\n%s", got, tt.want)
				}
				if other := findings(w, tt.gateway, catalog.ScopeFilter{Tenant: new("other")}); other != "" {
					t.Errorf("another tenant hears %s", other)
				}
			})
		})
	}
}

// served is a change of the configuration: a port for requests to engines serves all scopes.
func served(c *node.Config) {
	c.Scopes.Policies, _ = (*policies.Section)(nil).Resolve(policies.Settings{
		Weights: selector.DefaultWeights(), Served: policies.NewServed(func(catalog.Scope) bool { return true }),
	})
}

// TestRecent: a fault that shows in counts alone is told while it goes on and for the Window after it, with what was
// counted then; a worker that comes anew is judged by its own counts.
func TestRecent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t)
		gateway := new(changing)
		gateway.Store(new(counted))
		d := doctor.New(w.Parts(), nil, gateway, time.Now)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- d.Run(ctx) }()
		defer func() {
			stop()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}()
		r := servicetest.Registration("store", 0)
		w.Register(r)
		w.Net.At(r.Endpoint).Connect()
		p := w.Publisher(r)
		want := func(when string, counts map[doctor.Check]uint64) {
			t.Helper()
			w.Settle()
			synctest.Wait() // for those of the publisher
			got := make(map[doctor.Check]uint64)
			for _, f := range d.Examine(t.Context(), catalog.ScopeFilter{}, true).Findings {
				got[f.Check] += f.Count
			}
			if !maps.Equal(got, counts) {
				t.Errorf("%s: %v, want %v", when, got, counts)
			}
		}
		fail := func(e *servicetest.Engine) {
			e.Deliver([]byte("nonsense"))
			e.Publish(0, servicetest.Dict{"type": "BlockStored"})
			p.Deliver([]byte("nonsense"))
			c := *gateway.Load()
			gateway.Store(&counted{failures: c.failures + 1, answers: c.answers + 100, observed: c.observed + 100, apart: c.apart + 100})
		}
		once := map[doctor.Check]uint64{doctor.UndecodableEvents: 2, doctor.DroppedEvents: 1, doctor.Tokenizer: 1, doctor.HitRate: 100}
		time.Sleep(20 * time.Minute)
		e := live(w, 1)
		fail(e)
		want("at once", once)
		time.Sleep(doctor.Window - time.Minute)
		want("before the window has passed", once)
		time.Sleep(2*time.Minute + time.Second)
		want("later", map[doctor.Check]uint64{})
		fail(e)
		want("again", once)
		w.Remove(1)
		time.Sleep(time.Minute)
		e = live(w, 1)
		e.Deliver([]byte("nonsense"))
		want("of a worker that came anew", map[doctor.Check]uint64{doctor.UndecodableEvents: 2, doctor.Tokenizer: 1, doctor.HitRate: 100})
		time.Sleep(doctor.Window + time.Minute)
		want("at the end", map[doctor.Check]uint64{})
	})
}

// TestHealthyHistories: whatever a healthy system goes through, workers that come, drain and leave,
// events, reservations, reports, there is no finding.
func TestHealthyHistories(t *testing.T) {
	histories := 100
	if testing.Short() {
		histories = 5
	}
	for seed := range uint64(histories) {
		synctest.Test(t, func(t *testing.T) {
			w := servicetest.Start(t)
			r := rand.New(rand.NewPCG(seed, 3))
			engines := make(map[uint64]*servicetest.Engine)
			for step := range 60 {
				id := 1 + r.Uint64N(5)
				e := engines[id]
				tokens := servicetest.Prompt(r.Uint32N(20), 4*(1+r.IntN(8)))
				switch act := r.IntN(8); {
				case e == nil:
					engines[id] = live(w, id, servicetest.Total(1000))
				case act == 0:
					w.Remove(id)
					delete(engines, id)
				case act == 1:
					_, _ = w.DrainWorkerIn(catalog.ScopeFilter{}, id, nil)
				case act == 2:
					_, _ = w.UndrainWorkerIn(catalog.ScopeFilter{}, id)
				case act < 5:
					e.Publish(0, e.Stored(tokens, servicetest.BlockSize, nil))
				case act == 5:
					w.Reports().Report(catalog.Rank{Worker: id}, load.Report{Source: load.Told, Running: load.Known(r.Uint64N(4)), KVTokensTotal: load.Known(4000)}, time.Now())
				default:
					req := servicetest.Ask(tokens)
					req.ReservationID = new(fmt.Sprint(step))
					_, _ = w.Select(t.Context(), req, true) // there may be no worker
				}
				w.Settle()
				for id := range engines {
					if w.Catalog().WorkerIn(catalog.ScopeFilter{}, id) == nil {
						delete(engines, id) // drained
					}
				}
				if got := findings(w, counted{answers: 1000, observed: 10, predicted: 10}, catalog.ScopeFilter{}); got != "" {
					t.Fatalf("seed %d, step %d: %s", seed, step, got)
				}
			}
		})
	}
}

// TestRunbook: each check has a name and a title, and the runbook has the place that it names.
func TestRunbook(t *testing.T) {
	page, err := os.ReadFile("../../../docs/run/runbook.md")
	if err != nil {
		t.Fatal(err)
	}
	places := make(map[string]bool)
	for line := range strings.Lines(string(page)) {
		if strings.HasPrefix(line, "#") {
			title := strings.ToLower(strings.TrimSpace(strings.TrimLeft(line, "# ")))
			places["docs/run/runbook.md#"+strings.ReplaceAll(title, " ", "-")] = true
		}
	}
	for c := range doctor.NumChecks {
		if check := doctor.Check(c); check.String() == "" || check.Title() == "" || !places[check.Runbook()] {
			t.Errorf("check %d: %q, %q, %s", c, check, check.Title(), check.Runbook())
		}
	}
}
