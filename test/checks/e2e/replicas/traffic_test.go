package replicas_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/select-service/select-service/test/checks/e2e"
)

// worker is what is registered at every replica.
type worker struct {
	id    uint64
	model string
	ranks int
}

var workers = []worker{{1, "alpha", 2}, {2, "alpha", 1}, {3, "alpha", 2}, {4, "beta", 1}, {5, "beta", 1}}

func (r *replica) register(w worker) {
	r.t.Helper()
	r.must(http.StatusCreated, "POST", "/workers", e2e.Object{
		"worker_id": w.id, "model_name": w.model, "endpoint": fmt.Sprintf("http://w%d:8000", w.id),
		"block_size": blockSize, "data_parallel_size": w.ranks,
	})
}

func (f *fleet) register(workers ...worker) {
	f.t.Helper()
	for _, r := range f.replicas {
		for _, w := range workers {
			r.register(w)
		}
	}
}

// traffic is what a fleet is asked for. Each driver owns the requests that it
// makes, but asks any replica about them.
type traffic struct {
	t       *testing.T
	fleet   *fleet
	ledger  *ledger
	lives   [fleetSize]int // of the replicas; written with quiet held
	outputs bool           // some requests have output blocks
	plain   bool           // no id clashes, and the rank is always the client's choice

	// down is the replica that nobody should ask, fleetSize for none. An answer
	// that it owes counts as doubtful.
	down atomic.Int32

	// quiet is held by readers during a call; its writer has the fleet for itself.
	quiet sync.RWMutex
	stop  chan struct{}
	once  sync.Once // closes stop
	wg    sync.WaitGroup

	mu      sync.Mutex // guards what follows
	calls   int
	clashes int // ids that two replicas accepted at once
}

const drivers = 3

func newTraffic(t *testing.T, f *fleet) *traffic {
	tr := &traffic{t: t, fleet: f, ledger: &ledger{}, stop: make(chan struct{})}
	tr.down.Store(fleetSize)
	return tr
}

// start asks until end is called, or the test is over.
func (tr *traffic) start(seed uint64) {
	for i := range drivers {
		d := &driver{traffic: tr, name: string(rune('a' + i)), rng: rand.New(rand.NewPCG(seed, uint64(i)))}
		tr.wg.Go(d.run)
	}
	tr.t.Cleanup(tr.end)
}

// end stops the drivers. It may be called twice.
func (tr *traffic) end() {
	tr.once.Do(func() { close(tr.stop) })
	tr.wg.Wait()
}

// quietly calls do while nobody calls the replicas.
func (tr *traffic) quietly(do func()) {
	tr.quiet.Lock()
	defer tr.quiet.Unlock()
	do()
}

// goOn returns when so many more calls have been answered.
func (tr *traffic) goOn(calls int) {
	tr.t.Helper()
	answered := func() int {
		tr.mu.Lock()
		defer tr.mu.Unlock()
		return tr.calls
	}
	want := answered() + calls
	e2e.Eventually(tr.t, "the traffic goes on", func() error {
		if n := answered(); n < want {
			return fmt.Errorf("%d calls of %d", n, want)
		}
		return nil
	})
}

// clashed fails until an id has clashed.
func (tr *traffic) clashed() error {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if tr.clashes == 0 {
		return errors.New("no clash")
	}
	return nil
}

type driver struct {
	*traffic
	name string
	rng  *rand.Rand
	made int
	mine []*booking // not ended, as far as this driver knows
}

func (d *driver) run() {
	for !d.t.Failed() {
		select {
		case <-d.stop:
			return
		case <-time.After(time.Duration(d.rng.IntN(4)) * time.Millisecond):
		}
		d.quiet.RLock()
		d.act()
		d.quiet.RUnlock()
	}
}

// act does one thing that a client might do.
func (d *driver) act() {
	d.mine = slices.DeleteFunc(d.mine, func(b *booking) bool { return b.ended || b.doubt })
	switch n := d.rng.IntN(100); {
	case len(d.mine) == 0 || n < 30:
		d.book(d.anyReplica(), d.newID(), false)
	case n < 40 && !d.plain:
		d.clash()
	case n < 42:
		d.early()
	case n < 62:
		d.completePrefill(d.one())
	case n < 67 && d.outputs:
		d.output(d.one())
	case len(d.mine) > 40 || n < 90:
		d.free(d.one())
	default:
		d.book(d.anyReplica(), d.newID(), false)
	}
}

func (d *driver) anyReplica() int {
	if down := int(d.down.Load()); down < fleetSize {
		return (down + 1 + d.rng.IntN(fleetSize-1)) % fleetSize
	}
	return d.rng.IntN(fleetSize)
}

func (d *driver) one() *booking { return d.mine[d.rng.IntN(len(d.mine))] }

func (d *driver) newID() string {
	d.made++
	return fmt.Sprintf("%s%d", d.name, d.made)
}

// prompt is one of a few families of prompts that share their beginnings.
func (d *driver) prompt() []uint32 {
	family := uint32(d.rng.IntN(5))
	tokens := make([]uint32, 1+d.rng.IntN(12*blockSize))
	for i := range tokens {
		tokens[i] = family*1000 + uint32(i)
	}
	if d.rng.IntN(3) == 0 { // an end of its own
		tokens = append(tokens, d.rng.Uint32(), 1, 2, 3, 4)
	}
	return tokens
}

// book makes a booking at a replica, which may refuse an id that it knows.
func (d *driver) book(replica int, id string, home bool) (accepted bool) {
	w := workers[d.rng.IntN(len(workers))]
	b := &booking{id: id, model: w.model, replica: replica, life: d.lives[replica], tokens: d.prompt(), home: home}
	request := e2e.Object{"reservation_id": id, "model_name": w.model, "token_ids": b.tokens}
	path, status := "/select_and_reserve", http.StatusOK
	if home || d.plain || d.rng.IntN(3) == 0 {
		path, status = "/reservations", http.StatusCreated
		b.prefill = uint64(d.rng.IntN(len(b.tokens) + 1))
		b.rank = rank{w.id, uint32(d.rng.IntN(w.ranks))}
		request["worker_id"], request["dp_rank"], request["effective_prefill_tokens"] = b.rank.Worker, b.rank.DPRank, b.prefill
	}
	a := d.call(replica, "POST", path, request)
	switch a.Status {
	case status:
	case unanswered:
		b.doubt = true
		d.ledger.add(b)
		return false
	case http.StatusConflict:
		if !home {
			d.t.Errorf("%s at replica %d: %v, but the id is new", path, replica, a)
		}
		return false
	default:
		d.t.Errorf("%s at replica %d: %v", path, replica, a)
		return false
	}
	var booked struct {
		rank
		Prefill *uint64 `json:"effective_prefill_tokens"`
	}
	if err := json.Unmarshal(a.Body, &booked); err != nil {
		d.t.Errorf("%s: %v: %v", path, err, a)
	}
	b.rank = booked.rank
	if booked.Prefill != nil {
		b.prefill = *booked.Prefill
	}
	b.touch(replica)
	b.made = b.touched[replica]
	d.ledger.add(b)
	d.mine = append(d.mine, b)
	return true
}

// clash gives one id to two replicas at once. Both accept it if they are cut
// off from each other, and then it counts twice.
func (d *driver) clash() {
	id := d.newID()
	first := d.anyReplica()
	second := (first + 1 + d.rng.IntN(fleetSize-1)) % fleetSize
	if d.book(first, id, true) && d.book(second, id, true) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.clashes++
	}
}

// early asks about an id that nobody has booked, and books it afterwards: the
// early calls leave nothing behind.
func (d *driver) early() {
	id, replica := d.newID(), d.anyReplica()
	for _, do := range []struct{ method, path string }{{"DELETE", ""}, {"POST", "/prefill_complete"}} {
		if a := d.call(replica, do.method, "/reservations/"+id+do.path, nil); a.Status != http.StatusNotFound && a.Status != unanswered {
			d.t.Errorf("%s of an unknown id: %v, want 404", do.method, a)
		}
	}
	d.book(replica, id, false)
}

// at picks the replica that is asked about b: any, unless only one knows which
// b is meant. ok is false if that one is no more.
func (d *driver) at(b *booking) (replica int, ok bool) {
	if b.home {
		return b.replica, b.life == d.lives[b.replica]
	}
	return d.anyReplica(), true
}

// lifecycle makes a call about b, and tells whether it was accepted. Only a
// replica that has not heard of b may refuse it.
func (d *driver) lifecycle(b *booking, method, suffix string, body any) (accepted bool) {
	replica, ok := d.at(b)
	if !ok {
		return false
	}
	switch a := d.call(replica, method, "/reservations/"+b.id+suffix, body); a.Status {
	case http.StatusOK:
		b.touch(replica)
		return true
	case unanswered:
		b.doubt = true
	case http.StatusNotFound:
		if replica == b.replica && b.life == d.lives[replica] {
			d.t.Errorf("%s %s at replica %d, which booked it: %v", method, b.id, replica, a)
		}
	default:
		d.t.Errorf("%s %s at replica %d: %v", method, b.id, replica, a)
	}
	return false
}

func (d *driver) completePrefill(b *booking) {
	if d.lifecycle(b, "POST", "/prefill_complete", nil) {
		b.prefilled = true
	}
}

func (d *driver) output(b *booking) { d.lifecycle(b, "POST", "/output_block", e2e.Object{}) }

// free frees a booking, now and then a second time elsewhere.
func (d *driver) free(b *booking) {
	if !d.lifecycle(b, "DELETE", "", nil) {
		return
	}
	b.ended = true
	if again := d.anyReplica(); !b.home && d.rng.IntN(5) == 0 {
		if a := d.call(again, "DELETE", "/reservations/"+b.id, nil); a.Status == http.StatusOK {
			b.touch(again)
		} else if a.Status != http.StatusNotFound && a.Status != unanswered {
			d.t.Errorf("free %s again: %v", b.id, a)
		}
	}
}

// unanswered is the status of a call to a replica that was killed meanwhile.
const unanswered = 0

func (d *driver) call(replica int, method, path string, body any) e2e.Answer {
	a, err := d.fleet.replicas[replica].Call(d.t.Context(), method, path, body)
	d.mu.Lock()
	d.calls++
	d.mu.Unlock()
	if err != nil {
		a.Status = unanswered
		if int(d.down.Load()) != replica && d.t.Context().Err() == nil { // else the test is over
			d.t.Errorf("%s %s at replica %d: %v", method, path, replica, err)
		}
	}
	return a
}

// clear frees everything that is live, when all replicas agree: each id as
// often as it was accepted, and not once more.
func (tr *traffic) clear(rng *rand.Rand) {
	tr.t.Helper()
	copies := make(map[string]int)
	for _, b := range tr.ledger.live() {
		copies[b.id]++
		b.ended = true
	}
	for id, n := range copies {
		r := tr.fleet.replicas[rng.IntN(fleetSize)]
		for range n {
			r.must(http.StatusOK, "DELETE", "/reservations/"+id, nil)
		}
		r.must(http.StatusNotFound, "DELETE", "/reservations/"+id, nil)
	}
}

func (tr *traffic) String() string {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "%d calls, %d bookings, %d clashes", tr.calls, len(tr.ledger.bookings), tr.clashes)
	return b.String()
}
