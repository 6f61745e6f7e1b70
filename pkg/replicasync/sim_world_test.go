package replicasync

import (
	"bytes"
	"container/heap"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
)

// The simulation runs real replicas, with their codec, merge core, snapshots and
// ledgers, on one goroutine: its clock, its network and its order of events come
// from a seed.

const simBlockSize = 16

var (
	simA     = catalog.Scope{Model: "a", Tenant: "default"}
	simB     = catalog.Scope{Model: "b", Tenant: "default"}
	simRanks = []simRank{
		{simA, catalog.Rank{Worker: 1}, 0},
		{simA, catalog.Rank{Worker: 1, DP: 1}, 1},
		{simA, catalog.Rank{Worker: 2}, 2},
		{simB, catalog.Rank{Worker: 2}, 0},
		{simB, catalog.Rank{Worker: 3}, 1},
	}
)

type simRank struct {
	scope catalog.Scope
	rank  catalog.Rank
	slot  uint32
}

// simNode is one replica; index and what it has of the catalog outlive its
// restarts.
type simNode struct {
	w     *simWorld
	index int
	has   map[simRank]bool

	life    int // restarts
	process uint64
	former  []uint64 // of all lives so far
	r       *Replica
	l       *reservations.Ledger
	enc     *encoder
	dec     *reader
	early   bool // it is of a version that knows no prefixes
	stalled bool // its sender stands still
	dead    bool
	ignores map[int]bool // the dead nodes that it does not follow any more
	check   time.Time
	told    uint64 // merged, as it announced last
	freeing bool   // a caller frees something; else an end that the ledger tells of is a lease's
}

// BlockSize is part of Scopes.
func (n *simNode) BlockSize(sc catalog.Scope) (uint32, bool) {
	for _, r := range simRanks {
		if r.scope == sc && n.has[r] {
			return simBlockSize, true
		}
	}
	return 0, false
}

type simWorld struct {
	rnd    *rand.Rand
	now    time.Time
	nodes  []*simNode
	queue  simQueue
	serial int
	oracle *oracle
	mutant *mutant
	log    *strings.Builder // nil: no trace
	dynamo uint64           // a process that does not number its events
	ids    int

	loss, twice, slow float64
	hostile           bool // a peer of all replicas does what it can against them
	lifeOfLies        uint64
	// batches, if set, has messages travel as over NATS: those that one replica sends within batchTime
	// share their fate, on the way to the server, that is to all, or from it to one.
	batches *rand.Rand
	// deaths, if set, has nodes die for longer than a restart takes; others stop following them.
	deaths            *rand.Rand
	fates             map[fateKey]fate
	calm              bool // little happens for which snapshots are fetched: they would repair other faults
	cut               [][]bool
	delivered         int
	jumps             int
	dropped           int
	prefixed, unknown int // reservations that were sent with a prefix, and copies that came where it is unknown
	fault             error
}

// batchTime is how long messages of a simulated batch are collected.
const batchTime = 20 * time.Millisecond

// fateKey names a batch on its way: to a replica, -1: to the server.
type fateKey struct {
	from, to int
	batch    int64
}

// fate is what becomes of a batch.
type fate struct {
	lost   bool
	copies int
	delay  time.Duration
}

// fateOf returns the fate of the batch that is on that way now.
func (w *simWorld) fateOf(from, to int) fate {
	key := fateKey{from, to, w.now.UnixNano() / int64(batchTime)}
	f, known := w.fates[key]
	if !known {
		f = fate{lost: w.batches.Float64() < w.loss/2, copies: 1, delay: time.Millisecond + time.Duration(w.batches.Int64N(int64(30*time.Millisecond)))}
		if w.batches.Float64() < w.twice { // sent again after a reconnection
			f.copies = 2
		}
		if w.batches.Float64() < w.slow {
			f.delay += time.Duration(w.batches.Int64N(int64(2 * time.Second)))
		}
		w.fates[key] = f
	}
	return f
}

// simItem is something that happens at a time.
type simItem struct {
	at     time.Time
	serial int
	do     func()
}

type simQueue []simItem

func (q simQueue) Len() int { return len(q) }
func (q simQueue) Less(i, j int) bool {
	if !q[i].at.Equal(q[j].at) {
		return q[i].at.Before(q[j].at)
	}
	return q[i].serial < q[j].serial
}
func (q simQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *simQueue) Push(x any)   { *q = append(*q, x.(simItem)) }
func (q *simQueue) Pop() any {
	last := len(*q) - 1
	x := (*q)[last]
	*q = (*q)[:last]
	return x
}

func newWorld(seed uint64, m *mutant, log *strings.Builder) *simWorld {
	rnd := rand.New(rand.NewPCG(seed, 1))
	w := &simWorld{rnd: rnd, now: epoch, mutant: m, log: log, dynamo: rnd.Uint64() | 1}
	n := 3 + rnd.IntN(2)
	w.oracle = newOracle(w, n)
	w.loss, w.twice, w.slow = 0.4*rnd.Float64(), 0.2*rnd.Float64(), 0.3*rnd.Float64()
	if w.calm = rnd.IntN(3) == 0; w.calm {
		w.loss = 0
	}
	w.hostile = rnd.IntN(2) == 0
	if seed%4 == 1 {
		w.batches, w.fates = rand.New(rand.NewPCG(seed, 2)), make(map[fateKey]fate)
	}
	if seed%4 == 3 {
		w.deaths = rand.New(rand.NewPCG(seed, 3))
	}
	for i := range n {
		node := &simNode{w: w, index: i, has: make(map[simRank]bool), enc: newEncoder(), dec: newReader(), early: rnd.IntN(6) == 0}
		for _, r := range simRanks {
			node.has[r] = true
		}
		w.nodes = append(w.nodes, node)
		w.cut = append(w.cut, make([]bool, n))
	}
	for _, node := range w.nodes {
		node.start()
	}
	return w
}

func (w *simWorld) clock() time.Time { return w.now }

func (w *simWorld) tracef(format string, args ...any) {
	if w.log != nil {
		fmt.Fprintf(w.log, "%9.3f %s\n", w.now.Sub(epoch).Seconds(), fmt.Sprintf(format, args...))
	}
}

func (w *simWorld) failf(format string, args ...any) {
	w.tracef("FAULT "+format, args...)
	if w.fault == nil {
		w.fault = fmt.Errorf(format, args...)
	}
}

func (w *simWorld) after(d time.Duration, do func()) {
	w.serial++
	heap.Push(&w.queue, simItem{w.now.Add(d), w.serial, do})
}

// advance lets d pass.
func (w *simWorld) advance(d time.Duration) {
	end := w.now.Add(d)
	for len(w.queue) > 0 && !w.queue[0].at.After(end) {
		x := heap.Pop(&w.queue).(simItem)
		if x.at.After(w.now) {
			w.now = x.at
		}
		x.do()
	}
	w.now = end
}

// start begins a life with an empty ledger and a process id of its own.
func (n *simNode) start() {
	w := n.w
	n.life++
	if n.process == 0 || !w.mutant.sameProcess {
		n.process = w.rnd.Uint64() | 1
	}
	opt := Options{Process: n.process, URL: fmt.Sprintf("http://0.0.0.0:%d", n.index+1), SendQueue: 4, Page: []int{2, 2, 5, 50}[w.rnd.IntN(4)]}
	n.r = New(opt, n, nowhere{}, nowhere{}, w.clock)
	n.l = reservations.New(n.process, w.clock, &recorder{n})
	var l ledger = contestedLedger{n.l, w}
	if w.log != nil {
		l = tracedLedger{l, n}
	}
	n.r.attach(w.mutant.wrap(l, n))
	n.former = append(n.former, n.process)
	n.stalled, n.dead, n.check = false, false, time.Time{}
	n.ignores = make(map[int]bool)
	n.told = 0
	for _, r := range simRanks {
		if n.has[r] {
			n.l.PutRank(r.scope, r.slot, r.rank)
		}
	}
	w.oracle.know[n.index] = nil
	w.tracef("node %d starts as %x", n.index, n.process)
	n.every(n.life, w.upTo(announceEvery))
}

// die ends a life. What the node has sent may still arrive.
func (n *simNode) die() {
	n.life++
	n.dead = true
	n.w.oracle.know[n.index] = nil
	n.w.tracef("node %d dies", n.index)
}

// liveOrDie may have a node die, or live again, or be given up by another one.
func (w *simWorld) liveOrDie() {
	var living, dead []*simNode
	for _, n := range w.nodes {
		if n.dead {
			dead = append(dead, n)
		} else {
			living = append(living, n)
		}
	}
	one := living[w.deaths.IntN(len(living))]
	switch x := w.deaths.IntN(12); {
	case x == 0 && len(living) > 2:
		one.die()
	case x == 1 && len(dead) > 0:
		for _, n := range living {
			delete(n.ignores, dead[0].index)
		}
		w.restart(dead[0])
	case x < 4 && len(dead) > 0:
		gone := dead[w.deaths.IntN(len(dead))].index
		one.ignores[gone] = true
		one.r.core.forgetPeer(simPeer(gone))
		w.tracef("node %d does not follow %d any more", one.index, gone)
		one.look()
	}
}

// wasOwn: the node had that process id in an earlier life.
func (n *simNode) wasOwn(process uint64) bool {
	return process != n.process && slices.Contains(n.former, process)
}

// every announces once a second as long as this life lasts.
func (n *simNode) every(life int, in time.Duration) {
	n.w.after(in, func() {
		if n.life != life {
			return
		}
		if !n.stalled {
			n.announce()
		}
		n.l.Expire()
		n.flush()
		n.every(life, announceEvery)
	})
}

func (n *simNode) announce() {
	a := n.r.announcement()
	n.told = a.merged
	if n.w.mutant.announcement != nil {
		n.w.mutant.announcement(&a)
	}
	n.broadcast(TopicAnnounce, bytes.Clone(n.enc.announcement(a)), false)
}

// flush publishes what waits.
func (n *simNode) flush() {
	if n.stalled || n.dead {
		return
	}
	buf := make([]event, 0, batch)
	for buf = n.r.outbox.take(buf); len(buf) > 0; buf = n.r.outbox.take(buf) {
		for i := range buf {
			n.publish(&buf[i])
		}
	}
}

// publish sends an event in the form that each replica knows.
func (n *simNode) publish(e *event) {
	whole, prefixed := bytes.Clone(n.enc.event(e)), []byte(nil)
	if e.prefix.Blocks > 0 {
		n.w.prefixed++
		prefixed = bytes.Clone(n.enc.reservation(e))
	}
	for _, to := range n.w.nodes {
		switch {
		case to == n:
		case prefixed != nil && !to.early:
			n.w.send(n.index, to, TopicReservations, prefixed, true)
		default:
			n.w.send(n.index, to, e.kind.topic(), whole, true)
		}
	}
}

func (n *simNode) broadcast(topic string, payload []byte, repeats bool) {
	for _, to := range n.w.nodes {
		if to != n {
			n.w.send(n.index, to, topic, payload, repeats)
		}
	}
}

// delay of one message: mostly short, sometimes long enough to be overtaken.
func (w *simWorld) delay() time.Duration {
	d := time.Millisecond + w.upTo(30*time.Millisecond)
	if w.rnd.Float64() < w.slow {
		d += w.upTo(2 * time.Second)
	}
	return d
}

func (w *simWorld) send(from int, to *simNode, topic string, payload []byte, repeats bool) {
	if w.cut[from][to.index] || w.batches == nil && w.rnd.Float64() < w.loss {
		w.dropped++
		return
	}
	if w.batches != nil {
		w.sendBatched(from, to, topic, payload, repeats)
		return
	}
	copies := 1
	if repeats && w.rnd.Float64() < w.twice {
		copies = 2
	}
	for range copies {
		w.arrive(w.delay(), from, to, topic, payload)
	}
}

// sendBatched is send over NATS.
func (w *simWorld) sendBatched(from int, to *simNode, topic string, payload []byte, repeats bool) {
	up, down := w.fateOf(from, -1), w.fateOf(from, to.index)
	if up.lost || down.lost {
		w.dropped++
		return
	}
	w.arrive(up.delay+down.delay, from, to, topic, payload)
	if repeats && max(up.copies, down.copies) > 1 {
		w.arrive(2*up.delay+down.delay, from, to, topic, payload)
	}
}

// arrive delivers a message after a time, unless the way is cut then or the replica is another one.
func (w *simWorld) arrive(in time.Duration, from int, to *simNode, topic string, payload []byte) {
	life := to.life
	w.after(in, func() {
		if to.life == life && !to.dead && !to.ignores[from] && !w.cut[from][to.index] {
			w.delivered++
			to.deliver(from, topic, payload)
		} else {
			w.dropped++
		}
	})
}

func (n *simNode) deliver(from int, topic string, payload []byte) {
	if topic == TopicAnnounce {
		n.r.applyMessage(n.dec, simPeer(from), topic, payload)
	} else {
		n.deliverEvent(from, topic, payload)
	}
	n.look()
}

func (n *simNode) deliverEvent(from int, topic string, payload []byte) {
	decode := n.dec.event
	switch topic {
	case TopicLeases:
		decode = n.dec.renewal
	case TopicReservations:
		decode = n.dec.reservation
	}
	e, err := decode(payload)
	if err != nil {
		n.w.failf("message of node %d: %v", from, err)
		return
	}
	heard := !n.silenced(from, e.sender)
	unknown := n.r.counts.dropped[dropUnknownPrefix].Load()
	changed := e
	if m := n.w.mutant.event; m != nil && m(n, &changed) {
		payload = bytes.Clone(newEncoder().encode(&changed, changed.prefix))
	} else if m != nil {
		payload = nil
	}
	if payload != nil {
		n.r.applyMessage(n.dec, simPeer(from), topic, payload)
	}
	if n.r.counts.dropped[dropUnknownPrefix].Load() != unknown { // it is as if it was lost
		n.w.unknown++
		return
	}
	if heard {
		n.w.oracle.delivered(n, &e)
	}
}

func simPeer(node int) string { return fmt.Sprintf("tcp://host%d:5", node) }

// silenced: the node believes the hostile peer, which came first, that it is that process,
// and refuses what the process itself sends until its snapshot is read.
func (n *simNode) silenced(from int, process uint64) bool {
	id := n.r.core.identities[process]
	s := id.at(hostilePeer)
	return s != nil && s.confirmed && !s.absent && !id.confirmedAt(simPeer(from))
}

// look begins the fetches that are due, and looks again when others may be.
func (n *simNode) look() {
	if n.dead {
		return
	}
	requests, wait := n.r.dueNow()
	for _, q := range requests {
		n.beginFetch(q)
	}
	if n.r.counts.unannounced.Swap(false) && !n.stalled {
		life := n.life
		n.w.after(earlyAnnounceEvery, func() {
			if n.life == life && n.told != n.r.counts.merged.Load() {
				n.announce()
			}
		})
	}
	at := n.w.now.Add(wait)
	if n.check.After(n.w.now) && !at.Before(n.check) {
		return
	}
	n.check = at
	life := n.life
	n.w.after(wait, func() {
		if n.life == life && !n.check.After(n.w.now) {
			n.look()
		}
	})
}

// beginFetch gets a snapshot page by page; pages are as old as the network
// makes them, and a fetch may break at every step.
func (n *simNode) beginFetch(q fetchRequest) {
	var from int
	if _, err := fmt.Sscanf(q.url, "http://host%d", &from); err != nil {
		n.w.failf("url %q: %v", q.url, err)
		return
	}
	if from == hostileHost {
		n.w.lie(n, q)
		return
	}
	f := &simFetch{
		n: n, life: n.life, jumps: n.w.jumps, had: maps.Clone(n.has), of: n.w.nodes[from], m: n.r.newMerge(q),
		spoke: make(map[uint64]bool),
	}
	f.page()
}

type simFetch struct {
	n     *simNode
	life  int
	jumps int
	of    *simNode
	m     *snapshotMerge
	had   map[simRank]bool // the ranks when the fetch began
	known knowledge        // of the asked replica when it served the first page
	spoke map[uint64]bool  // the processes that spoke for themselves at n while it was read
	own   bool             // n believed the process of its own numbers, which are on the first page
}

// noteSpeakers is to be called before and after each page.
func (f *simFetch) noteSpeakers() {
	for process, id := range f.n.r.core.identities {
		f.spoke[process] = f.spoke[process] || id.speaks()
	}
}

func (f *simFetch) page() {
	w := f.n.w
	w.after(w.delay(), func() {
		if f.of.dead || w.cut[f.of.index][f.n.index] || w.rnd.Float64() < w.loss/4 {
			w.after(time.Second, func() { f.end(errors.New("no answer")) })
			return
		}
		var page bytes.Buffer
		if err := f.of.r.WriteSnapshot(context.Background(), &page, PageRequest{
			After: f.m.pages.next, Limit: f.n.r.opt.Page, Shared: !f.n.early && !f.of.early,
		}); err != nil {
			w.failf("snapshot of node %d: %v", f.of.index, err)
			return
		}
		known := slices.Clone(w.oracle.know[f.of.index])
		if f.m.pages.pages == 0 {
			f.known = known
		}
		text := page.Bytes()
		if w.mutant.page != nil {
			text = w.mutant.page(text)
		}
		if w.rnd.Float64() < w.loss/8 {
			text = text[:w.rnd.IntN(len(text))]
		}
		w.after(w.delay()+w.upTo(150*time.Millisecond), func() { f.read(text, known) })
	})
}

func (f *simFetch) read(text []byte, known knowledge) {
	if f.n.life != f.life {
		return
	}
	if f.jumps != f.n.w.jumps {
		f.end(errors.New("no byte for long"))
		return
	}
	f.n.w.oracle.perhaps(f.n, known)
	f.noteSpeakers()
	err := f.m.pages.page(bytes.NewReader(text))
	f.noteSpeakers()
	if f.m.pages.pages == 1 {
		f.own = f.n.r.core.authorityAbout(f.m.request, f.m.request.process) == reservations.ByOwner
	}
	if err == nil && f.m.unfinished() {
		f.page()
		return
	}
	f.end(err)
}

func (f *simFetch) end(err error) {
	n := f.n
	if n.life != f.life {
		return
	}
	f.m.result.err = err
	if w := n.w; w.mutant.lateSequence {
		f.m.result.sequence, f.m.result.renewals = f.of.r.outbox.last()
	}
	if err == nil {
		n.w.oracle.merged(f)
	}
	n.w.tracef("node %d has the snapshot of %d: up to %d, %v", n.index, f.of.index, f.m.result.sequence, err)
	n.r.core.fetchDone(f.m.request, f.m.result, n.w.now)
	n.look()
}

// sendDynamo sends what a Dynamo service would. Its links lose nothing, because no
// replica could notice that.
func (w *simWorld) sendDynamo(e *event, delay func() time.Duration) {
	payload, err := msgpack.Marshal(asPeer(e, []string{"1.3.1", "1.6.1"}[w.rnd.IntN(2)]))
	if err != nil {
		w.failf("%v", err)
		return
	}
	for _, to := range w.nodes {
		life := to.life
		w.after(delay(), func() {
			if to.life == life && !to.dead {
				to.deliver(-1, TopicEvents, payload)
			}
		})
	}
}

// recorder tells the oracle of what a node's ledger has accepted.
type recorder struct{ n *simNode }

func (r *recorder) Booked(e reservations.Event) uint64 {
	number := r.n.r.Booked(e)
	e.Origin = reservations.Origin{Process: r.n.process, Sequence: number}
	r.n.w.oracle.local(r.n, booked, e, number)
	return number
}

func (r *recorder) PrefillCompleted(e reservations.Event) {
	r.n.r.PrefillCompleted(e)
	number, _ := r.n.r.outbox.last()
	r.n.w.oracle.touch(r.n, e.Origin)
	r.n.w.oracle.local(r.n, prefillCompleted, e, number)
}

func (r *recorder) Freed(e reservations.Event) {
	if !r.n.freeing {
		r.n.w.oracle.leaseEnds(r.n, e)
	}
	var number uint64
	if r.n.freeing || !r.n.w.mutant.silentExpiry {
		r.n.r.Freed(e)
		number, _ = r.n.r.outbox.last()
	}
	r.n.w.oracle.local(r.n, freed, e, number)
}

func (r *recorder) Renewed(e reservations.Event) {
	r.n.r.Renewed(e)
	_, number := r.n.r.outbox.last()
	r.n.w.oracle.local(r.n, renewed, e, number)
}

// upTo is a random time below d.
func (w *simWorld) upTo(d time.Duration) time.Duration { return time.Duration(w.rnd.Int64N(int64(d))) }
