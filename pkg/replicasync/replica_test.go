package replicasync

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/select-service/select-service/pkg/reservations"
)

// memory is a network in memory: transports by endpoint, snapshots by host.
type network struct {
	mu      sync.Mutex
	follow  map[string]map[int]func(string, []byte)
	next    int
	serves  map[string]*Replica
	drop    func(from, topic string) bool
	tapped  func(topic string, payload []byte) // hears what is published, if set
	failing bool                               // Publish and Get fail
}

func newMemory() *network {
	return &network{follow: make(map[string]map[int]func(string, []byte)), serves: make(map[string]*Replica)}
}

// set changes the network's faults.
func (n *network) set(drop func(from, topic string) bool, failing bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.drop, n.failing = drop, failing
}

// tap hears what is published from now on.
func (n *network) tap(hear func(topic string, payload []byte)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.tapped = hear
}

// deliver is a message of an endpoint that arrives.
func (n *network) deliver(from, topic string, payload []byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, deliver := range n.follow[from] {
		deliver(topic, bytes.Clone(payload))
	}
}

// end is one replica's end of the network.
type end struct {
	*network
	endpoint string
}

var errNetwork = errors.New("network is down")

func (e end) Publish(topic string, payload []byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.failing {
		return errNetwork
	}
	if e.tapped != nil {
		e.tapped(topic, bytes.Clone(payload))
	}
	if e.drop != nil && e.drop(e.endpoint, topic) {
		return nil
	}
	for _, deliver := range e.follow[e.endpoint] {
		deliver(topic, bytes.Clone(payload))
	}
	return nil
}

func (e end) PublishEither(topic string, payload []byte, _ string, _ func() []byte) error {
	return e.Publish(topic, payload)
}

func (e end) Follow(peer string, deliver func(string, []byte), status func(bool)) (func(), error) {
	if peer == "tcp://bad:1" {
		return nil, errNetwork
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.follow[peer] == nil {
		e.follow[peer] = make(map[int]func(string, []byte))
	}
	e.next++
	id := e.next
	e.follow[peer][id] = deliver
	status(true)
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.follow[peer], id)
		status(false)
	}, nil
}

func (e end) GetAnnounced(ctx context.Context, address, _ string) (io.ReadCloser, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	r, failing := e.serves[u.Host], e.failing
	e.mu.Unlock()
	if r == nil || failing || u.Path != SnapshotPath {
		return nil, errNetwork
	}
	query := u.Query()
	limit, err := strconv.Atoi(query.Get("limit"))
	if err != nil {
		return nil, err
	}
	var page bytes.Buffer
	if err := r.WriteSnapshot(ctx, &page, PageRequest{After: query.Get("after"), Limit: limit, Shared: query.Get("shared") == "true"}); err != nil {
		return nil, err
	}
	return io.NopCloser(&page), nil
}

// watched writes down what a watcher is told.
type watched struct {
	mu    sync.Mutex
	lines []string
}

func (w *watched) add(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lines = append(w.lines, fmt.Sprintf(format, args...))
}

func (w *watched) take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	lines := w.lines
	w.lines = nil
	return lines
}

func (w *watched) Connected(peer string, up bool)      { w.add("%s up %v", peer, up) }
func (w *watched) Lost(peer string, process, n uint64) { w.add("%s lost %d of %d", peer, n, process) }

func (w *watched) Fetched(url string, process uint64, failures int, err error) {
	w.add("%s of %d: %d, %v", url, process, failures, err)
}

// running is a replica with its ledger while Run runs.
type running struct {
	*Replica
	l    *reservations.Ledger
	stop func()
}

// run starts a replica on host; it stops at the end of the test at the latest.
func (n *network) run(t *testing.T, host string, process uint64, opt Options) *running {
	t.Helper()
	opt.Process, opt.URL = process, "http://0.0.0.0:80"
	e := end{n, "tcp://" + host + ":5"}
	r := New(opt, fixedScopes{benchScope: 16}, e, e, time.Now)
	l := reservations.New(process, time.Now, r)
	r.Attach(l)
	l.PutRank(benchScope, 0, benchRank)
	n.mu.Lock()
	n.serves[host+":80"] = r
	n.mu.Unlock()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return &running{r, l, stop}
}

func (r *running) book(t *testing.T, id string) {
	t.Helper()
	req := reservations.Request{ID: id, Hashes: []uint64{1, 2}, TrackPrefill: true}
	_, err := r.l.Book(benchScope, req, func(*reservations.View) (reservations.Placement, error) {
		return reservations.Placement{Rank: benchRank, PrefillTokens: 10}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func (r *running) register(t *testing.T, hosts ...string) {
	t.Helper()
	for _, host := range hosts {
		if added, err := r.Register("tcp://" + host + ":5"); !added || err != nil {
			t.Fatalf("register %s: %v, %v", host, added, err)
		}
	}
}

func (r *running) load() reservations.Load { return r.l.Loads(benchScope)[0] }

// agree fails unless all replicas have the same load of so many requests.
func agree(t *testing.T, requests uint32, replicas ...*running) {
	t.Helper()
	for _, r := range replicas {
		if diff := cmp.Diff(replicas[0].load(), r.load()); diff != "" || r.load().Requests != requests {
			t.Errorf("process %d: %d requests, want %d; difference to the first:\n%s", r.opt.Process, r.load().Requests, requests, diff)
		}
	}
}

// TestTwoReplicas proves that reservations, completed prefills and frees cross, in
// both directions, at once.
func TestTwoReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		a, b := m.run(t, "a", 1, Options{}), m.run(t, "b", 2, Options{})
		a.register(t, "b")
		b.register(t, "a")
		time.Sleep(3 * time.Second)
		a.book(t, "x")
		b.book(t, "y")
		synctest.Wait()
		agree(t, 2, a, b)
		if err := a.l.PrefillComplete("y"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := b.load().PrefillTokens; got != 10 {
			t.Errorf("%d tokens at b, want x's 10", got)
		}
		if err := b.l.Free("x"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		agree(t, 1, a, b)

		st := b.Stats()
		want := Stats{
			Sent:     map[string]uint64{"booked": 1, "prefill_completed": 0, "freed": 1, "renewed": 0, "session_bound": 0, "session_unbound": 0, "served": 0},
			Received: map[string]uint64{"booked": 1, "prefill_completed": 1, "freed": 0, "renewed": 0, "session_bound": 0, "session_unbound": 0, "served": 0},
			Dropped:  map[string]uint64{}, Snapshots: 1, PagesServed: 1,
			Peers: 1, Connected: 1, Replicas: 1, Sequence: 2,
		}
		delete(st.Sent, announcementText)
		delete(st.Received, announcementText)
		for why, n := range st.Dropped {
			if n == 0 {
				delete(st.Dropped, why)
			}
		}
		if diff := cmp.Diff(want, st); diff != "" {
			t.Errorf("stats of b (-want +got):\n%s", diff)
		}
	})
}

// TestLateReplica proves that a replica that starts later has the reservations of
// before soon after the first announcement that it hears, in several pages.
func TestLateReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		a := m.run(t, "a", 1, Options{})
		for i := range 25 {
			a.book(t, fmt.Sprint(i))
		}
		if err := a.l.PrefillComplete("3"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		b := m.run(t, "b", 2, Options{Page: 4})
		b.register(t, "a")
		time.Sleep(announceEvery)
		synctest.Wait()
		agree(t, 25, a, b)
		if st := b.Stats(); st.Added != 25 || st.Lost != 0 {
			t.Errorf("added %d, lost %d; want 25, 0: what was before is no loss", st.Added, st.Lost)
		}
		if page, _, _ := b.l.Reservations(reservations.Cursor{}, 1); page[0].Age < 10*time.Second {
			t.Errorf("a reservation of 10 s is %v old", page[0].Age)
		}
	})
}

// TestRestartedReplica proves that a replica gets the reservations back that it took
// in an earlier life, and can end them everywhere.
func TestRestartedReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		a, b := m.run(t, "a", 1, Options{}), m.run(t, "b", 2, Options{})
		a.register(t, "b")
		b.register(t, "a")
		time.Sleep(2 * time.Second)
		a.book(t, "x")
		synctest.Wait()
		a.stop()
		a = m.run(t, "a", 3, Options{})
		a.register(t, "b")
		time.Sleep(2 * time.Second)
		agree(t, 1, a, b)
		if err := a.l.Free("x"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		agree(t, 0, a, b)
	})
}

// TestLateFromDead proves that what a replica has sent before it died, and what comes to one other only
// after a new one has read that one's snapshot, is soon known to both: whether the one still counted
// the sender as present, not any more, has forgotten it, or stops following it.
func TestLateFromDead(t *testing.T) {
	const endpoint = "tcp://a:5"
	for _, tt := range []struct {
		name  string
		late  time.Duration // from the death until the message comes
		after func(b *running) error
	}{
		{name: "present"},
		{name: "absent", late: silentAfter},
		{name: "forgotten", late: forgetAfter + time.Minute},
		{name: "not followed", after: func(b *running) error { return b.Deregister(endpoint) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMemory()
				a, b := m.run(t, "a", 1, Options{}), m.run(t, "b", 2, Options{})
				a.register(t, "b")
				b.register(t, "a")
				time.Sleep(2 * time.Second)
				m.set(func(from, _ string) bool { return from == endpoint }, false)
				var late [][]byte
				m.tap(func(topic string, payload []byte) {
					if topic == TopicEvents {
						late = append(late, payload)
					}
				})
				a.book(t, "x")
				synctest.Wait()
				m.tap(nil)
				m.mu.Lock()
				delete(m.serves, "a:80")
				m.mu.Unlock()
				a.stop()
				c := m.run(t, "c", 3, Options{})
				b.register(t, "c")
				c.register(t, "b")
				time.Sleep(2*time.Second + tt.late)
				agree(t, 0, b, c)
				for _, payload := range late {
					m.deliver(endpoint, TopicEvents, payload)
				}
				synctest.Wait()
				agree(t, 1, b)
				if tt.after != nil {
					if err := tt.after(b); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(2*silentAfter + fetchSpacing)
				agree(t, 1, b, c)
			})
		})
	}
}

// TestLossIsHealed proves that lost messages are counted one by one and that
// their effect comes with a snapshot, also when silence follows.
func TestLossIsHealed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		a, b := m.run(t, "a", 1, Options{}), m.run(t, "b", 2, Options{})
		b.register(t, "a")
		time.Sleep(2 * time.Second)
		n := 0
		m.set(func(_, topic string) bool {
			n++
			return topic == TopicEvents && n%3 == 0
		}, false)
		for i := range 30 {
			a.book(t, fmt.Sprint(i))
			time.Sleep(time.Millisecond)
		}
		for i := range 10 {
			if err := a.l.Free(fmt.Sprint(i)); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		m.set(nil, false)
		time.Sleep(2 * time.Second)
		agree(t, 20, a, b)
		if st := b.Stats(); st.Lost+st.Received["booked"]+st.Received["freed"] != 40 || st.Lost < 10 || st.Late != 0 {
			t.Errorf("lost %d, late %d, received %v; want 40 together", st.Lost, st.Late, st.Received)
		}
	})
}

// TestFullQueues proves that neither queue ever makes a reservation wait, and that
// what did not fit counts as dropped here, as lost there, and comes later.
func TestFullQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		a := m.run(t, "a", 1, Options{SendQueue: 5})
		b := m.run(t, "b", 2, Options{ReceiveBytes: 2_000})
		b.register(t, "a")
		time.Sleep(2 * time.Second)
		for i := range 200 { // none of the goroutines runs meanwhile, or some of the time
			a.book(t, fmt.Sprint(i))
		}
		time.Sleep(3 * time.Second)
		agree(t, 200, a, b)
		sent, got := a.Stats(), b.Stats()
		if sent.Sent["booked"]+sent.Dropped["send_queue_full"] != 200 {
			t.Errorf("%d sent and %d dropped, want 200 together", sent.Sent["booked"], sent.Dropped["send_queue_full"])
		}
		if got.Lost+got.Received["booked"] != 200 {
			t.Errorf("%d lost and %d received, want 200 together", got.Lost, got.Received["booked"])
		}
	})
}

// TestReceiveQueue proves the bounds of what waits to be applied.
func TestReceiveQueue(t *testing.T) {
	r := New(Options{Process: 1, ReceiveQueue: 2, ReceiveBytes: 100}, fixedScopes{}, nowhere{}, nowhere{}, time.Now)
	p := &peer{}
	for _, size := range []int{60, 60, 40, 0, MaxPayload + 1} { // the second and the fourth do not fit
		r.receive(message{p, TopicEvents, make([]byte, size)})
	}
	if full, over := r.counts.dropped[dropQueueFull].Load(), r.counts.dropped[dropOversized].Load(); full != 2 || over != 1 {
		t.Errorf("%d did not fit, %d were too long; want 2, 1", full, over)
	}
}

// TestNetworkDown proves that failures are counted, and that all is well when
// the network is back.
func TestNetworkDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		a, b := m.run(t, "a", 1, Options{}), m.run(t, "b", 2, Options{})
		a.register(t, "b")
		b.register(t, "a")
		time.Sleep(2 * time.Second)
		m.set(nil, true)
		a.book(t, "x")
		time.Sleep(20 * time.Second)
		if st := a.Stats(); st.Dropped["send_failed"] != 1 || st.Replicas != 0 {
			t.Errorf("%d failed, %d replicas; want 1, 0", st.Dropped["send_failed"], st.Replicas)
		}
		m.set(nil, false)
		time.Sleep(2 * time.Second)
		agree(t, 1, a, b)
	})
}

// TestMalformed proves that what cannot be read is counted, and under what.
func TestMalformed(t *testing.T) {
	r, _ := newTestReplica(fixedScopes{})
	in := newReader()
	r.applyMessage(in, "p", TopicEvents, []byte("nonsense"))
	r.applyMessage(in, "p", TopicAnnounce, []byte{0x80})
	r.applyMessage(in, "p", "dynamo.session-affinity.v1", []byte{0x80})
	r.applyMessage(in, "p", TopicEvents, pack(t, envelope("Free", dict{"routing_group": "u"})))
	r.applyMessage(in, "p", TopicAnnounce, bytes.Clone(newEncoder().announcement(announcement{process: 5, url: "ftp://x"})))
	r.applyMessage(in, "p", TopicAnnounce, bytes.Clone(newEncoder().announcement(announcement{process: 1, url: "http://x"})))
	st := r.Stats()
	if st.Dropped["malformed"] != 4 || st.Dropped["names_differ"] != 1 || st.Dropped["own"] != 1 {
		t.Errorf("dropped %v", st.Dropped)
	}
}

// TestOversizedEvent proves that a reservation that no peer would read is not sent,
// and that its number is used up.
func TestOversizedEvent(t *testing.T) {
	r, _ := newTestReplica(fixedScopes{benchScope: 16})
	hashes := make([]uint64, MaxPayload/9+1)
	for i := range hashes {
		hashes[i] = 1 << 63
	}
	r.Booked(reservations.Event{Scope: benchScope, Hashes: hashes})
	r.Booked(reservations.Event{ID: "the scope was removed"})
	if r.publish(newEncoder(), newEncoder(), r.outbox.take(make([]event, 0, 5))) {
		t.Error("sent")
	}
	st := r.Stats()
	settled, _ := r.outbox.published()
	if st.Dropped["send_oversized"] != 1 || st.Dropped["send_unknown_scope"] != 1 || st.Sequence != 2 || settled != 2 {
		t.Errorf("dropped %v, sequence %d, settled %d", st.Dropped, st.Sequence, settled)
	}
}

// TestPeers proves the peer list and its errors.
func TestPeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		a, b := m.run(t, "a", 1, Options{}), m.run(t, "b", 2, Options{})
		a.register(t, "z", "b")
		if added, err := a.Register("tcp://b:5"); added || err != nil {
			t.Errorf("again: %v, %v", added, err)
		}
		if _, err := a.Register("tcp://bad:1"); !errors.Is(err, errNetwork) {
			t.Errorf("bad: %v", err)
		}
		if diff := cmp.Diff([]string{"tcp://b:5", "tcp://z:5"}, a.Peers()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if err := a.Deregister("tcp://z:5"); err != nil {
			t.Error(err)
		}
		if err := a.Deregister("tcp://z:5"); !errors.Is(err, ErrPeerNotFound) {
			t.Error(err)
		}
		time.Sleep(2 * time.Second)
		b.book(t, "x")
		synctest.Wait()
		agree(t, 1, a, b)
		if err := a.Deregister("tcp://b:5"); err != nil {
			t.Error(err)
		}
		b.book(t, "y")
		time.Sleep(2 * time.Second)
		if got := a.load().Requests; got != 1 {
			t.Errorf("%d requests after deregistration, want 1", got)
		}
		if st := a.Stats(); st.Peers != 0 || st.Connected != 0 || st.Replicas != 0 {
			t.Errorf("%+v", st)
		}
		a.stop()
		if _, err := a.Register("tcp://b:5"); !errors.Is(err, ErrStopped) {
			t.Error(err)
		}
		if err := a.Deregister("tcp://b:5"); !errors.Is(err, ErrStopped) {
			t.Error(err)
		}
		if diff := cmp.Diff([]string(nil), a.Peers(), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}
