package overload_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/select-service/select-service/demo/sim/node"
	"github.com/select-service/select-service/demo/sim/simapi"
	"github.com/select-service/select-service/internal/simulation/engine"
	"github.com/select-service/select-service/test/checks/e2e"
	"github.com/select-service/select-service/test/helpers/kvpub"
)

const blockSize = 16

// fleet is the engines of one model: workers with one rank each, with ids from
// first, that publish their KV events to the service.
type fleet struct {
	service *service
	model   string
	first   int
	engines []*rig
}

// rig is one engine and what its clients did to its load.
type rig struct {
	*node.Node
	// sent is the number of output blocks that were reported or are just being
	// reported; settled is that of the requests whose end has been confirmed.
	sent, settled atomic.Uint64
}

// newFleet starts engines and registers them, with their cache as
// total_kv_blocks.
func newFleet(t *testing.T, s *service, model string, first, size int, cfg engine.Config, speedup float64) *fleet {
	t.Helper()
	f := &fleet{service: s, model: model, first: first}
	var running sync.WaitGroup
	t.Cleanup(running.Wait)
	for i := range size {
		n, err := node.New(node.Options{
			Engine: cfg, Speedup: speedup, NewSeed: rand.Uint64,
			Publisher: func() (node.Publisher, error) { return kvpub.Open(kvpub.Options{Bind: "127.0.0.1"}) },
		})
		if err != nil {
			t.Fatal(err)
		}
		running.Go(func() { // ends with the test, before its cleanup
			if err := n.Run(t.Context()); err != nil {
				t.Errorf("engine: %v", err)
			}
		})
		f.engines = append(f.engines, &rig{Node: n})
		f.register(t, i, cfg)
	}
	for _, e := range f.engines {
		e2e.Eventually(t, "the service listens to the engine", func() error {
			if e.Info().Subscribers == 0 {
				return errNotYet
			}
			return nil
		})
	}
	return f
}

func (f *fleet) register(t *testing.T, i int, cfg engine.Config) {
	t.Helper()
	info := f.engines[i].Info()
	var record struct {
		Lifecycle string   `json:"lifecycle"`
		Reasons   []string `json:"not_schedulable_reasons"`
	}
	f.service.Must(t, http.StatusCreated, http.MethodPost, "/workers", object{
		"worker_id": f.first + i, "model_name": f.model, "endpoint": fmt.Sprintf("http://engine-%d:8000", f.first+i),
		"kv_events_endpoint": info.KVEventsEndpoint, "replay_endpoint": info.ReplayEndpoint,
		"block_size": cfg.BlockSize, "max_num_batched_tokens": 8192, "total_kv_blocks": cfg.CacheBlocks,
	}, &record)
	if record.Lifecycle != "schedulable" {
		t.Fatalf("worker %d is %s: %q", f.first+i, record.Lifecycle, record.Reasons)
	}
}

// request is a prompt, the answer that the engine is going to give, and the
// body with which the service is asked for a worker.
type request struct {
	id             string // of the reservation
	prompt, output []uint32
	body           []byte
}

func newRequest(t *testing.T, rnd *rand.Rand, model, id string, prompt, output int) request {
	t.Helper()
	r := request{id: id, prompt: tokens(rnd, prompt), output: tokens(rnd, output)}
	r.body = encode(t, object{"model_name": model, "reservation_id": id, "token_ids": r.prompt})
	return r
}

func tokens(rnd *rand.Rand, n int) []uint32 {
	all := make([]uint32, n)
	for i := range all {
		all[i] = rnd.Uint32N(128_000)
	}
	return all
}

// serve plays a request that is booked on a worker to its end, and tells the
// service of every step as a router does.
func (f *fleet) serve(ctx context.Context, r *request, worker int) error {
	i := worker - f.first
	if i < 0 || i >= len(f.engines) {
		return fmt.Errorf("%s was placed on worker %d, which is not of model %s", r.id, worker, f.model)
	}
	e, path := f.engines[i], "/reservations/"+r.id
	steps, err := e.Generate(simapi.GenerateRequest{RequestID: r.id, TokenIDs: r.prompt, OutputTokenIDs: r.output})
	if err != nil {
		return errors.Join(err, f.service.Do(ctx, http.MethodDelete, path, nil, nil))
	}
	blocks := uint64(0)
	var errs []error
	for step := range steps {
		switch step.Event {
		case simapi.EventFirstToken:
			err = f.service.Do(ctx, http.MethodPost, path+"/prefill_complete", nil, nil)
		case simapi.EventBlock:
			blocks++
			e.sent.Add(1)
			err = f.service.Do(ctx, http.MethodPost, path+"/output_block", []byte("{}"), nil)
		case simapi.EventDone:
			err = f.service.Do(ctx, http.MethodDelete, path, nil, nil)
		case simapi.EventError:
			err = fmt.Errorf("%s: %s", r.id, step.Error)
		}
		errs = append(errs, err)
	}
	e.settled.Add(blocks)
	return errors.Join(errs...)
}
