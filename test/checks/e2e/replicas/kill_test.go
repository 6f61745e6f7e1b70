package replicas_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/select-service/select-service/test/checks/e2e"
	"github.com/select-service/select-service/test/helpers/natstest"
	"github.com/select-service/select-service/test/helpers/zmqtest"
)

const (
	// chains of blocks are in the cache of each rank.
	chains      = 20
	chainBlocks = 100
	// callsBetween is how many calls come between two events of the test.
	callsBetween = 300
)

// TestKilledReplicaComesBackWarm kills a replica under load and starts it again.
// When it says that it is ready it has the index of its peers, to the block, and
// their loads; and it completes and frees what its former self has booked.
func TestKilledReplicaComesBackWarm(t *testing.T) {
	t.Run("mesh", func(t *testing.T) {
		killedComesBackWarm(t, options{direct: true, args: func(urls []string, own int) []string {
			var peers []string
			for i := 1; i < fleetSize; i++ {
				peers = append(peers, urls[(own+i)%fleetSize])
			}
			return []string{"--indexer-peers", strings.Join(peers, ",")}
		}}, func(*traffic) {})
	})
	// The replicas are told one NATS server, which is killed, too, under load, and comes back.
	t.Run("nats", func(t *testing.T) {
		server := natstest.Start(t)
		killedComesBackWarm(t, options{direct: true, nats: server.URL}, func(tr *traffic) {
			server.Kill(t)
			tr.goOn(callsBetween)
			server.Restart(t)
			tr.goOn(callsBetween)
		})
	})
}

// killedComesBackWarm also calls trouble under load.
func killedComesBackWarm(t *testing.T, opt options, trouble func(*traffic)) {
	f := newFleet(t, opt)
	engines := newEngines(t)
	registered := f.replicas
	if opt.nats != "" {
		registered = f.replicas[:1] // the others have its workers
	}
	for _, r := range registered {
		engines.register(r)
	}
	for _, r := range f.replicas { // all started together, and nobody waits for ever
		e2e.Eventually(t, r.name+" is ready", r.ready)
	}
	engines.publish()
	for _, r := range f.replicas {
		e2e.Eventually(t, r.name+" has every block", func() error { return engines.check(r) })
	}

	tr := newTraffic(t, f)
	tr.plain = true
	tr.start(1)
	tr.goOn(callsBetween)
	trouble(tr)
	tr.quietly(func() { f.settle(tr.ledger, false) }) // little shall be in doubt
	tr.goOn(callsBetween)
	const victim = 1
	r := f.replicas[victim]
	tr.down.Store(victim)
	f.kill(victim)
	tr.quietly(func() {
		tr.ledger.killed(victim)
		tr.lives[victim]++
	})
	killed := time.Now()
	tr.goOn(callsBetween) // which the others alone hear of

	began := time.Now()
	f.restart(victim)
	if opt.nats == "" {
		engines.register(r)
	}
	e2e.Eventually(t, "the restarted replica is ready", r.ready)
	ready := time.Since(began)
	if err := engines.check(r); err != nil {
		t.Errorf("ready, but: %v", err)
	}
	if err := tr.check(r, killed); err != nil {
		t.Errorf("ready, but: %v", err)
	}
	tr.down.Store(fleetSize)
	tr.goOn(callsBetween)
	tr.quietly(func() { f.settle(tr.ledger, false) })
	tr.end()

	before := 0
	for _, b := range tr.ledger.live() {
		if b.replica != victim || b.life == tr.lives[victim] {
			continue
		}
		before++
		r.must(http.StatusOK, "POST", "/reservations/"+b.id+"/prefill_complete", nil)
		b.prefilled = true
		if before%2 == 0 {
			r.must(http.StatusOK, "DELETE", "/reservations/"+b.id, nil)
			b.ended = true
		}
	}
	if before == 0 {
		t.Error("no booking of the killed replica was left")
	}
	f.settle(tr.ledger, false)
	tr.clear(rand.New(rand.NewPCG(1, 1)))
	f.settle(tr.ledger, false)
	t.Logf("%v; ready after %v; %d bookings of the former life", tr, ready, before)
}

// check looks for every live booking that is beyond doubt and that nothing has
// changed since then.
func (tr *traffic) check(r *replica, since time.Time) (err error) {
	tr.quietly(func() {
		var s state
		if s, err = r.state(); err != nil {
			return
		}
		have := make(map[known]bool)
		for _, k := range s {
			have[k] = true
		}
		missing := 0
		for _, b := range tr.ledger.live() {
			if !b.doubt && !b.changed(since) && !have[b.known()] {
				missing++
			}
		}
		if missing > 0 {
			err = fmt.Errorf("%d bookings are missing", missing)
		}
	})
	return err
}

// ready returns what keeps the replica from being ready.
func (r *replica) ready() error {
	return r.get("/ready", nil)
}

// engines are the publishers of all workers' ranks. They repeat nothing: who
// starts late has to ask another replica.
type engines struct {
	t          *testing.T
	publishers map[rank]*zmqtest.Publisher
}

func newEngines(t *testing.T) *engines {
	e := &engines{t: t, publishers: make(map[rank]*zmqtest.Publisher)}
	for _, w := range workers {
		for dp := range w.ranks {
			p := zmqtest.NewPublisher(t, "")
			t.Cleanup(p.Close)
			e.publishers[rank{w.id, uint32(dp)}] = p
		}
	}
	return e
}

// register registers the workers and their event streams.
func (e *engines) register(r *replica) {
	e.t.Helper()
	for _, w := range workers {
		endpoints := make(map[string]string)
		for dp := range w.ranks {
			endpoints[fmt.Sprint(dp)] = e.publishers[rank{w.id, uint32(dp)}].Endpoint
		}
		r.must(http.StatusCreated, "POST", "/workers", e2e.Object{
			"worker_id": w.id, "model_name": w.model, "endpoint": fmt.Sprintf("http://w%d:8000", w.id),
			"block_size": blockSize, "data_parallel_size": w.ranks, "kv_events_endpoints": endpoints,
		})
	}
}

// chain is the prompt of a chain of blocks in the cache of a rank.
func chain(at rank, number int) []uint32 {
	tokens := make([]uint32, chainBlocks*blockSize)
	for i := range tokens {
		tokens[i] = uint32(at.Worker)<<24 | at.DPRank<<16 | uint32(number)<<8 | uint32(i/blockSize)
	}
	return tokens
}

// held is how many blocks of a chain are cached: not of all chains the same.
func held(number int) int { return chainBlocks - number }

// publish stores the chains, once all replicas listen.
func (e *engines) publish() {
	e.t.Helper()
	for at, p := range e.publishers {
		p.Subscribers(fleetSize)
		for n := range chains {
			names := make([]uint64, held(n))
			for i := range names {
				names[i] = uint64(n+1)<<32 | uint64(i)
			}
			event := []any{"BlockStored", names, nil, chain(at, n)[:len(names)*blockSize], blockSize, nil}
			payload, err := msgpack.Marshal([]any{1.5, []any{event}, at.DPRank})
			if err != nil {
				e.t.Fatal(err)
			}
			p.Publish(uint64(n), payload)
		}
	}
}

// check asks a replica for the overlap of every chain.
func (e *engines) check(r *replica) error {
	models := make(map[uint64]string)
	for _, w := range workers {
		models[w.id] = w.model
	}
	for at := range e.publishers {
		for n := range chains {
			var scores struct {
				Workers []struct {
					rank
					Device int `json:"device_blocks"`
				} `json:"workers"`
			}
			prompt := e2e.Object{"model_name": models[at.Worker], "token_ids": chain(at, n)}
			if err := r.Do(e.t.Context(), http.MethodPost, "/overlap_scores", prompt, &scores); err != nil {
				return fmt.Errorf("overlap of %v: %w", at, err)
			}
			for _, row := range scores.Workers {
				want := 0
				if row.rank == at {
					want = held(n)
				}
				if row.Device != want {
					return fmt.Errorf("%s: %v has %d blocks of chain %d of %v, want %d", r.name, row.rank, row.Device, n, at, want)
				}
			}
			if len(scores.Workers) == 0 {
				return fmt.Errorf("%s knows no rank of %s", r.name, models[at.Worker])
			}
		}
	}
	return nil
}
