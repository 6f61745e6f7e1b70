package replicas_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/select-service/select-service/test/checks/e2e"
	"github.com/select-service/select-service/test/helpers/natstest"
	"github.com/select-service/select-service/test/helpers/zmqtest"
)

// withoutEvents are the arguments of replicas whose engines publish nothing.
func withoutEvents([]string, int) []string { return []string{"--use-kv-events=false"} }

// registerOnce registers the workers with one replica, and waits until all that run have them.
func (f *fleet) registerOnce(running ...*replica) {
	f.t.Helper()
	e2e.Eventually(f.t, "the workers are registered", func() error { return running[0].registerAll() })
	for _, r := range running {
		e2e.Eventually(f.t, r.name+" has the workers", func() error { return has(r, len(workers)) })
		e2e.Eventually(f.t, r.name+" is ready", r.ready)
	}
}

// registerAll registers the workers, as they may be already.
func (r *replica) registerAll() error {
	for _, w := range workers {
		if err := r.Do(r.t.Context(), http.MethodPost, "/workers", e2e.Object{
			"worker_id": w.id, "model_name": w.model, "endpoint": fmt.Sprintf("http://w%d:8000", w.id),
			"block_size": blockSize, "data_parallel_size": w.ranks,
		}, nil); err != nil {
			return err
		}
	}
	return nil
}

// TestCutOff cuts one replica off from NATS, which the others still reach, by connections that break
// and by a network that loses every packet. Nobody's call fails meanwhile, and when the replica can
// reach NATS again all agree, to the booking.
func TestCutOff(t *testing.T) {
	server := natstest.Start(t)
	const victim = 1
	way := newGate(t, strings.TrimPrefix(server.URL, "nats://"))
	urls := slices.Repeat([]string{server.URL}, fleetSize)
	urls[victim] = "nats://" + way.listener.Addr().String()
	f := newFleet(t, options{direct: true, nats: server.URL, natsOf: urls, args: withoutEvents})
	f.registerOnce(f.replicas...)
	for _, r := range f.replicas {
		e2e.Eventually(t, r.name+" hears the others", func() error { return r.hears(fleetSize - 1) })
	}
	tr := newTraffic(t, f)
	tr.start(1)
	tr.goOn(callsBetween)
	for name, cut := range map[string]func(bool){"broken": way.setShut, "frozen": way.setFrozen} {
		cut(true)
		apart := time.NewTimer(time.Duration(of(20, 4)) * time.Second) // longer than a replica may be silent
		tr.goOn(callsBetween)
		<-apart.C
		e2e.Eventually(t, "the replica knows that it is cut off", func() error {
			if state, err := f.replicas[victim].fleetState(); err != nil || state != "away" {
				return fmt.Errorf("%s: %s, %w", name, state, err)
			}
			return nil
		})
		tr.quietly(func() {
			cut(false)
			took := f.settle(tr.ledger, false)
			t.Logf("%s: all agree %v after the return", name, took)
		})
		tr.goOn(callsBetween)
	}
	tr.end()
	f.settle(tr.ledger, false)
	if lost, err := f.replicas[victim].Sum(t.Context(), `select_service_fleet_lost_total{why="unsent"}`); err != nil || lost == 0 {
		t.Errorf("%v messages were lost while the replica was cut off, %v: nothing was proven", lost, err)
	}
	t.Log(tr)
}

// hears returns an error if a replica does not hear n others.
func (r *replica) hears(n int) error {
	heard, err := r.Sum(r.t.Context(), "select_service_fleet_replicas")
	if err == nil && int(heard) != n {
		err = fmt.Errorf("%s hears %v replicas", r.name, heard)
	}
	return err
}

// fleetState returns the state of a replica's connection.
func (r *replica) fleetState() (string, error) {
	a, err := r.Call(r.t.Context(), http.MethodGet, "/ready", nil)
	var ready struct {
		Fleet struct {
			State string `json:"state"`
		} `json:"fleet"`
	}
	if err == nil {
		err = json.Unmarshal(a.Body, &ready)
	}
	return ready.Fleet.State, err
}

// TestMigration moves three replicas under load from the mesh to both, to NATS, and back, one after the
// other, as an operator would: no call fails, and no booking is lost by any step.
func TestMigration(t *testing.T) {
	if testing.Short() {
		t.Skip("twelve restarts")
	}
	server := natstest.Start(t)
	mesh := options{direct: true, args: withoutEvents}
	both, nats := mesh, mesh
	both.nats, both.mesh, nats.nats = server.URL, true, server.URL
	f := newFleet(t, mesh)
	for _, r := range f.replicas {
		e2e.Eventually(t, "the workers are registered", r.registerAll)
	}
	f.acquaint()
	tr := newTraffic(t, f)
	tr.plain = true
	tr.start(1)
	for _, step := range []struct {
		name string
		options
	}{{"both", both}, {"nats", nats}, {"both", both}, {"mesh", mesh}} {
		for i, r := range f.replicas {
			tr.goOn(callsBetween)
			tr.quietly(func() { tr.down.Store(int32(i)) })
			r.Stop()
			tr.goOn(callsBetween / 3) // which the others alone hear of
			tr.quietly(func() {
				f.become(i, step.options)
				tr.lives[i]++
			})
			r.Run()
			e2e.Eventually(t, "the workers are registered", r.registerAll)
			e2e.Eventually(t, r.name+" is ready", r.ready)
			tr.down.Store(fleetSize)
		}
		tr.quietly(func() { t.Logf("%s: all agree after %v", step.name, f.settle(tr.ledger, false)) })
	}
	tr.end()
	f.settle(tr.ledger, false)
	t.Log(tr)
}

const (
	// batch is how many bookings a caller asks for at a time.
	batch = 20
	// callersEach is how many callers ask each replica at a time.
	callersEach = 4
	// kept is which part of the bookings lasts: one of so many.
	kept = 100
)

// rates is what a fleet was asked for.
type rates struct {
	bookings int // accepted
	kept     int // which last
	took     time.Duration
	cpu      time.Duration // of all replicas
}

// book asks all replicas for bookings, so many a second in all, for a time. Most end with their leases of
// two seconds or are freed by another replica; one of kept lasts.
func (f *fleet) book(prefix string, rate int, during time.Duration) (r rates) {
	f.t.Helper()
	before := f.cpu()
	began := time.Now()
	var mu sync.Mutex // guards r
	var callers sync.WaitGroup
	for i := range callersEach * len(f.replicas) {
		callers.Go(func() {
			pace := time.NewTicker(batch * time.Second * time.Duration(callersEach*len(f.replicas)) / time.Duration(rate))
			defer pace.Stop()
			for n := 0; time.Since(began) < during; n++ {
				<-pace.C
				booked, lasting, err := f.bookBatch(i%len(f.replicas), fmt.Sprintf("%s-%d-%d", prefix, i, n), n)
				if err != nil {
					f.t.Error(err)
					return
				}
				mu.Lock()
				r.bookings += booked
				r.kept += lasting
				mu.Unlock()
			}
		})
	}
	callers.Wait()
	r.took = time.Since(began)
	r.cpu = f.cpu() - before
	return r
}

// bookBatch makes bookings at replica i, and frees one of them at the next one.
func (f *fleet) bookBatch(i int, prefix string, n int) (booked, lasting int, err error) {
	requests := make([]e2e.Object, batch)
	for j := range requests {
		tokens := make([]int, 10*blockSize)
		for k := range tokens {
			tokens[k] = (n+j)%50*1000 + k
		}
		request := e2e.Object{"model_name": "alpha", "reservation_id": fmt.Sprintf("%s-%d", prefix, j), "token_ids": tokens, "lease_seconds": 2}
		if (n*batch+j)%kept == 0 {
			request["lease_seconds"] = 3600
			lasting++
		}
		requests[j] = e2e.Object{"select_and_reserve": request}
	}
	var answer struct {
		Results []struct {
			Status int             `json:"status"`
			Body   json.RawMessage `json:"body"`
		} `json:"results"`
	}
	if err := f.replicas[i].Do(f.t.Context(), http.MethodPost, "/select_batch", e2e.Object{"requests": requests}, &answer); err != nil {
		return 0, 0, err
	}
	for _, one := range answer.Results {
		if one.Status != http.StatusOK {
			return 0, 0, fmt.Errorf("status %d: %s", one.Status, one.Body)
		}
		booked++
	}
	// The other may not know of it yet.
	next := f.replicas[(i+1)%len(f.replicas)]
	freed, err := next.Call(f.t.Context(), http.MethodDelete, fmt.Sprintf("/reservations/%s-%d", prefix, batch-1), nil)
	if err == nil && freed.Status != http.StatusOK && freed.Status != http.StatusNotFound {
		err = fmt.Errorf("free: %v", freed)
	}
	return booked, lasting, err
}

// cpu returns what the replicas that run have used.
func (f *fleet) cpu() (sum time.Duration) {
	f.t.Helper()
	for _, r := range f.replicas {
		used, err := r.CPU()
		if err != nil {
			f.t.Fatal(err)
		}
		sum += used
	}
	return sum
}

// requests waits until all replicas know the same loads, of that many reservations, and fails if messages
// between them were lost.
func (f *fleet) requests(want int) {
	f.t.Helper()
	e2e.Eventually(f.t, fmt.Sprintf("the replicas know %d reservations", want), func() error {
		scopes, err := f.replicas[0].Loads(f.t.Context())
		if err != nil {
			return err
		}
		var have uint64
		for _, sc := range scopes {
			for _, l := range sc.Loads {
				have += l.Requests
			}
		}
		if have != uint64(want) {
			return fmt.Errorf("%d", have)
		}
		return nil
	})
	f.sameLoads()
	for _, r := range f.replicas {
		for _, name := range []string{"select_service_replica_messages_lost_total", "select_service_fleet_lost_total"} {
			if lost, err := r.Sum(f.t.Context(), name); err != nil || lost > 0 {
				f.t.Errorf("%s: %s is %v, %v", r.name, name, lost, err)
			}
		}
	}
}

// TestFleetRate books at three replicas as fast as the issue of a large fleet asks, 5,000 a second, and
// says which rate was reached: no message is lost, and all replicas know the same afterwards.
func TestFleetRate(t *testing.T) {
	if testing.Short() {
		t.Skip("a minute of load")
	}
	server := natstest.Start(t)
	f := newFleet(t, options{direct: true, nats: server.URL, args: withoutEvents})
	f.registerOnce(f.replicas...)
	for _, r := range f.replicas {
		e2e.Eventually(t, r.name+" hears the others", func() error { return r.hears(fleetSize - 1) })
	}
	const rate = 5000
	before, err := server.CPU()
	if err != nil {
		t.Fatal(err)
	}
	got := f.book("a", rate, time.Minute)
	after, err := server.CPU()
	if err != nil {
		t.Fatal(err)
	}
	f.requests(got.kept)
	reached := float64(got.bookings) / got.took.Seconds()
	each := func(cpu time.Duration) float64 { return cpu.Seconds() * 1e6 / float64(got.bookings) }
	t.Logf("%d bookings in %v, %.0f a second; each takes %.0f µs of CPU in all replicas, %.1f in the server",
		got.bookings, got.took, reached, each(got.cpu), each(after-before))
	if e2e.Alone() && reached < 0.98*rate {
		t.Errorf("%.0f bookings a second", reached)
	}
}

// TestFleetSize asks 3 and 16 replicas for the same rate in all: they know the same afterwards, each has
// one connection, to NATS, and a replica of many needs about as much CPU as one of few.
func TestFleetSize(t *testing.T) {
	if testing.Short() {
		t.Skip("16 processes")
	}
	const few, many, rate = fleetSize, 16, 300
	each := make(map[int]time.Duration) // CPU of a replica, by how many there are
	for _, size := range []int{few, many} {
		t.Run(strconv.Itoa(size), func(t *testing.T) {
			monitor := strconv.Itoa(e2e.FreePort(t))
			server := natstest.Start(t, "-m", monitor)
			f := newFleet(t, options{size: size, direct: true, nats: server.URL, args: withoutEvents})
			f.registerOnce(f.replicas...)
			for _, r := range f.replicas {
				e2e.Eventually(t, r.name+" hears the others", func() error { return r.hears(size - 1) })
			}
			got := f.book("a", rate, 20*time.Second)
			each[size] = got.cpu / time.Duration(size)
			f.requests(got.kept)
			var connz struct {
				Connections int `json:"num_connections"`
			}
			if a, err := e2e.Call(t.Context(), http.DefaultClient, http.MethodGet, "http://127.0.0.1:"+monitor+"/connz", nil); err != nil {
				t.Error(err)
			} else if err := json.Unmarshal(a.Body, &connz); err != nil || connz.Connections != size {
				t.Errorf("%d replicas have %d connections, %v", size, connz.Connections, err)
			}
			t.Logf("%d replicas: %.0f bookings a second, each used %.1f ms of CPU a second", size, float64(got.bookings)/got.took.Seconds(), each[size].Seconds()*1000/got.took.Seconds())
		})
	}
	ratio := float64(each[many]) / float64(each[few])
	t.Logf("a replica of %d uses %.2f of the CPU of one of %d", many, ratio, few)
	if e2e.Alone() && ratio > 1.3 {
		t.Error("more than is allowed")
	}
}

// TestJoin has a replica join two that know 3.2 million blocks and 10,000 live reservations. When it is
// ready, it knows all of them.
func TestJoin(t *testing.T) {
	if testing.Short() {
		t.Skip("3.2 million blocks")
	}
	const (
		ranks, messages, blocks = 32, 100, 1000
		live                    = 10_000
	)
	server := natstest.Start(t)
	f := newFleet(t, options{last: 1, direct: true, nats: server.URL})
	running, late := f.replicas[:fleetSize-1], f.replicas[fleetSize-1]
	publishers := make([]*zmqtest.Publisher, ranks)
	endpoints := make(map[string]string)
	for dp := range publishers {
		publishers[dp] = zmqtest.NewPublisher(t, "")
		t.Cleanup(publishers[dp].Close)
		endpoints[strconv.Itoa(dp)] = publishers[dp].Endpoint
	}
	e2e.Eventually(t, "the worker is registered", func() error {
		return running[0].Do(t.Context(), http.MethodPost, "/workers", e2e.Object{
			"worker_id": 1, "model_name": "alpha", "endpoint": "http://w:8000", "block_size": blockSize, "data_parallel_size": ranks, "kv_events_endpoints": endpoints,
		}, nil)
	})
	for _, r := range running {
		e2e.Eventually(t, r.name+" is ready", r.ready)
	}
	for dp, p := range publishers {
		p.Subscribers(len(running))
		names, tokens := make([]uint64, blocks), make([]uint32, blocks*blockSize)
		for n := range messages {
			for i := range names {
				names[i] = uint64(dp+1)<<48 | uint64(n)<<32 | uint64(i)
			}
			for i := range tokens {
				tokens[i] = uint32(dp)<<24 | uint32(n)<<16 | uint32(i/blockSize)
			}
			payload, err := msgpack.Marshal([]any{1.5, []any{[]any{"BlockStored", names, nil, tokens, blockSize, nil}}, dp})
			if err != nil {
				t.Fatal(err)
			}
			p.Publish(uint64(n), payload)
		}
	}
	knows := func(r *replica) error {
		n, err := r.Sum(t.Context(), "select_service_index_blocks")
		if err == nil && n != ranks*messages*blocks {
			err = fmt.Errorf("%s has %.0f blocks", r.name, n)
		}
		return err
	}
	for _, r := range running {
		e2e.Eventually(t, r.name+" has every block", func() error { return knows(r) })
	}
	for n := range live {
		running[n%2].must(http.StatusCreated, http.MethodPost, "/reservations", e2e.Object{
			"reservation_id": fmt.Sprint("live-", n), "model_name": "alpha", "worker_id": 1, "dp_rank": n % ranks, "token_ids": []int{n, n, n, n, 1, 2, 3, 4}, "effective_prefill_tokens": 8,
		})
	}
	cpu := func(of ...*replica) (sum time.Duration) {
		for _, r := range of {
			used, err := r.CPU()
			if err != nil {
				t.Fatal(err)
			}
			sum += used
		}
		return sum
	}
	before, began := cpu(running...), time.Now()
	late.Run()
	e2e.Eventually(t, "the late replica is ready", late.ready)
	took, own, others := time.Since(began), cpu(late), cpu(running...)-before
	if err := knows(late); err != nil {
		t.Errorf("ready, but: %v", err)
	}
	want, err := running[0].state()
	if err != nil {
		t.Fatal(err)
	}
	have, err := late.state()
	if err != nil {
		t.Fatal(err)
	}
	if d := want.differs(have); d != "" || len(want) != live {
		t.Errorf("ready with %d of %d reservations: %s", len(have), len(want), d)
	}
	f.sameLoads()
	t.Logf("ready after %v (%v of CPU, %v of the others') with %d blocks and %d reservations", took, own, others, ranks*messages*blocks, len(have))
	if e2e.Alone() && took > 5*time.Second {
		t.Error("too late")
	}
}
