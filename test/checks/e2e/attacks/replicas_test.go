package attacks

import (
	"encoding/json"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/select-service/select-service/pkg/replicasync"
	"github.com/select-service/select-service/test/checks/e2e"
	"github.com/select-service/select-service/test/helpers/zmqtest"
)

const (
	topicEvents   = "dynamo.slot-tracker.v1"
	topicLeases   = "select-service.lease.v1"
	topicAnnounce = "select-service.replica.v1"
)

// message is a map of a message.
type message = map[string]any

// rogue is a peer of the first replica of a pair, the victim's name in its mouth.
type rogue struct {
	t      *testing.T
	pub    *zmqtest.Publisher
	web    *httptest.Server
	asked  atomic.Int64 // requests to web
	page   atomic.Pointer[message]
	pair   *pair
	victim uint64 // process id of the second replica
	own    uint64 // of the first one
	base   string // URL of the second one
	marked int
	polled [2]int   // own reads of the replicas' snapshots
	ids    []string // that honest callers have booked
	first  time.Time
}

// newRogue starts a pair that has exchanged 2 x 20 bookings, and registers a rogue
// peer at the first one. args are further ones of both replicas.
func newRogue(t *testing.T, args ...string) *rogue {
	t.Helper()
	h := &rogue{t: t, pub: zmqtest.NewPublisher(t, "tcp://127.0.0.1:*")}
	t.Cleanup(h.pub.Close)
	h.web = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		h.asked.Add(1)
		page := h.page.Load()
		if page == nil {
			http.Error(w, "no", http.StatusNotFound)
			return
		}
		_ = json.NewEncoder(w).Encode(page) // who does not read it is the test's affair
	}))
	t.Cleanup(h.web.Close)
	h.pair = newPair(t, nil, args...)
	h.own, _ = h.snapshot(0)
	h.victim, _ = h.snapshot(1)
	h.base = h.pair.replicas[1].URL()
	h.book(20)
	h.agree("before the attack")
	h.pair.replicas[0].Must(t, http.StatusCreated, "POST", "/replica_sync/register_peer", e2e.Object{"endpoint": h.pub.Endpoint}, nil)
	h.pub.Subscribers(len(replicasync.Topics(false)))
	h.first = time.Now()
	return h
}

// snapshot returns who a replica is and which reservations it has.
func (ro *rogue) snapshot(replica int) (process uint64, ids map[string]bool) {
	ro.t.Helper()
	ro.polled[replica]++
	var page struct {
		Process  uint64 `json:"process_id"`
		Bookings []struct {
			ID string `json:"request_id"`
		} `json:"bookings"`
	}
	ro.pair.replicas[replica].Must(ro.t, http.StatusOK, "GET", "/replica_sync/snapshot?limit=10000", nil, &page)
	ids = make(map[string]bool)
	for _, b := range page.Bookings {
		ids[b.ID] = true
	}
	return page.Process, ids
}

// book books n at each honest replica.
func (ro *rogue) book(n int) {
	ro.t.Helper()
	for range n {
		for _, r := range ro.pair.replicas {
			id := fmt.Sprint("kept-", len(ro.ids))
			ro.ids = append(ro.ids, id)
			r.Must(ro.t, http.StatusCreated, "POST", "/reservations", e2e.Object{
				"reservation_id": id, "model_name": "m", "worker_id": 1, "dp_rank": 0,
				"token_ids": make([]int, 64), "effective_prefill_tokens": 64,
			}, nil)
		}
	}
}

// agree waits until both replicas have all honest bookings.
func (ro *rogue) agree(when string) {
	ro.t.Helper()
	e2e.Eventually(ro.t, "both replicas have all bookings "+when, func() error {
		for i := range ro.pair.replicas {
			_, have := ro.snapshot(i)
			missing := 0
			for _, id := range ro.ids {
				if !have[id] {
					missing++
				}
			}
			if missing > 0 {
				return fmt.Errorf("replica %d lacks %d of %d bookings", i, missing, len(ro.ids))
			}
		}
		return nil
	})
}

func (ro *rogue) send(topic string, m message) {
	ro.t.Helper()
	payload, err := msgpack.Marshal(m)
	if err != nil {
		ro.t.Fatal(err)
	}
	ro.pub.Send([]byte(topic), payload)
}

// event is a message about a reservation in the name of a process.
func event(process, sequence uint64, id string, data any, more message) message {
	m := message{
		"model_name": "m", "tenant_id": "default", "routing_group": "default", "block_size": 16, "per_scope": false, "sequence": sequence,
		"event": message{
			"request_id": id, "worker": message{"worker_id": 1, "dp_rank": 0}, "data": data, "router_id": process, "lora_name": nil,
		},
	}
	if sequence == 0 {
		delete(m, "sequence")
	}
	for k, v := range more {
		m[k] = v
	}
	return m
}

func add() message { return message{"AddRequest": message{"token_sequence": []uint64{1, 2, 3}}} }

func (ro *rogue) announce(process uint64, url string, sequence, merged uint64) {
	ro.t.Helper()
	ro.send(topicAnnounce, message{"process_id": process, "url": url, "sequence": sequence, "merged": merged, "renewals": sequence})
}

// heard waits until everything that was sent has been applied: a booking as Dynamo's
// router makes it comes last.
func (ro *rogue) heard() {
	ro.t.Helper()
	ro.marked++
	id := fmt.Sprint("marker-", ro.marked)
	ro.send(topicEvents, event(4711, 0, id, add(), nil))
	e2e.Eventually(ro.t, "the messages are applied", func() error {
		if _, have := ro.snapshot(0); !have[id] {
			return fmt.Errorf("%s is not there", id)
		}
		return nil
	})
}

// read waits until the rogue peer's snapshot was asked for n more times.
func (ro *rogue) read(n int64, again func(i int)) {
	ro.t.Helper()
	want, i := ro.asked.Load()+n, 0
	e2e.Eventually(ro.t, "the rogue snapshot is read", func() error {
		i++
		again(i)
		if got := ro.asked.Load(); got < want {
			return fmt.Errorf("%d times, want %d", got, want)
		}
		return nil
	})
}

// lies is a snapshot of a process that says everything of all others has ended.
func (ro *rogue) lies(process uint64) *message {
	all := [][2]uint64{{1, 1 << 61}}
	key, own := fmt.Sprint(ro.victim), fmt.Sprint(ro.own)
	return &message{
		"process_id": process, "sequence": 60, "renewals": 60, "seen": message{key: uint64(1) << 61},
		"assumed": message{key: 0, own: 0}, "ended": message{key: all, own: all}, "leases_ended": message{key: all, own: all},
		"bookings": []message{}, "next": nil,
	}
}

const liar = 99

// TestHostileReplica: one peer of a replica says whatever it can to end the bookings of
// the others, to silence them, or to have their snapshots read for ever. All of theirs
// stay, new ones arrive, and reads stay rare.
func TestHostileReplica(t *testing.T) {
	for name, attack := range map[string]func(*rogue){
		"a jump in another's name": func(h *rogue) {
			for _, n := range []uint64{1 << 62, 1<<62 - 1, math.MaxUint64, 1 << 63, 1 << 24} {
				h.send(topicEvents, event(h.victim, n, "forged", add(), nil))
			}
		},
		"steps in another's name": func(h *rogue) {
			for n := range uint64(20_000) {
				h.send(topicEvents, event(h.victim, n+1, "forged", add(), nil))
			}
		},
		"frees by guessed numbers": func(h *rogue) {
			for n := range uint64(5_000) {
				h.send(topicEvents, event(liar, n+1, "guess", "Free", message{"origin_process": h.victim, "origin_sequence": n + 1}))
				h.send(topicEvents, event(h.victim, n+1, "guess", "Free", message{"origin_process": h.victim, "origin_sequence": n + 1}))
				h.send(topicEvents, event(liar, 0, "guess", "Free", message{"origin_process": h.victim, "origin_sequence": n + 1}))
				h.send(topicEvents, event(liar, 0, "guess", "Free", message{"origin_process": h.own, "origin_sequence": n + 1}))
				h.send(topicLeases, event(liar, n+1, "guess", "Renew", message{"origin_process": h.victim, "origin_sequence": 1<<61 + n}))
			}
		},
		"in the reader's own name": func(h *rogue) {
			h.announce(h.own, h.web.URL, 1<<61, 1)
			for n := range uint64(100) {
				h.send(topicEvents, event(h.own, 1<<61+n, "forged", add(), nil))
			}
		},
		"an impostor with a snapshot of its own": func(h *rogue) {
			h.page.Store(h.lies(h.victim))
			h.read(3, func(i int) {
				h.announce(h.victim, h.web.URL, 60, uint64(i))
				h.send(topicEvents, event(h.victim, 60, "forged", "Free", message{"origin_process": h.victim, "origin_sequence": 1}))
				h.send(topicEvents, event(h.victim, 1<<61, "forged", add(), nil))
			})
		},
		"an impostor with the victim's snapshot": func(h *rogue) {
			for i := range uint64(200) {
				h.announce(h.victim, h.base, 40, i)
				h.send(topicEvents, event(h.victim, 1<<20-1+i<<18, "forged", add(), nil))
				h.announce(h.victim, h.base, 1<<61, i)
				h.heard()
			}
		},
		"a snapshot of lies": func(h *rogue) {
			h.page.Store(h.lies(liar))
			h.read(4, func(i int) { h.announce(liar, h.web.URL, 60, uint64(i)) })
		},
		"a new process with each message": func(h *rogue) {
			h.page.Store(h.lies(liar))
			h.read(3, func(i int) {
				for n := range uint64(100) {
					h.announce(uint64(i)<<20+n+1, h.web.URL, 1<<61, n)
				}
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newRogue(t)
			served := h.pair.replicas[1].Metric(t, `select_service_replica_snapshots_total{outcome="pages_served"}`)
			polled := h.polled[1]
			attack(h)
			h.heard()
			h.book(10)
			h.agree("after the attack")
			took := time.Since(h.first).Seconds()
			reads := h.pair.replicas[1].Metric(t, `select_service_replica_snapshots_total{outcome="pages_served"}`) - served
			reads -= h.polled[1] - polled
			if most := 3*took + 6; float64(reads) > most || float64(h.asked.Load()) > most {
				t.Errorf("in %.1f s the victim's snapshot was read %d times, the rogue one %d times", took, reads, h.asked.Load())
			}
		})
	}
}

// TestAnnouncedElsewhere: announcements lead to a host that is none of the replicas'.
// It is never asked.
func TestAnnouncedElsewhere(t *testing.T) {
	t.Parallel()
	var hits atomic.Int64
	elsewhere, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Skip(err)
	}
	var taken sync.WaitGroup
	taken.Go(func() {
		for {
			c, err := elsewhere.Accept()
			if err != nil {
				return
			}
			hits.Add(1)
			_ = c.Close()
		}
	})
	t.Cleanup(func() {
		_ = elsewhere.Close()
		taken.Wait()
	})
	h := newRogue(t)
	failed := func() int {
		return h.pair.replicas[0].Metric(t, `select_service_replica_snapshots_total{outcome="failed"}`)
	}
	before := failed()
	e2e.Eventually(t, "the announced URL is refused", func() error {
		h.announce(liar, "http://"+elsewhere.Addr().String(), 1, 1)
		if failed() == before {
			return fmt.Errorf("not tried")
		}
		return nil
	})
	if n := hits.Load(); n != 0 {
		t.Errorf("the URL was asked %d times", n)
	}
	h.book(5)
	h.agree("after the attack")
}

// TestDrippingPeers: the snapshots of many peers come byte by byte. An honest peer that
// comes then is heard at once.
func TestDrippingPeers(t *testing.T) {
	t.Parallel()
	drip := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			_, _ = w.Write([]byte(" "))
			_ = http.NewResponseController(w).Flush()
			select {
			case <-r.Context().Done():
			case <-time.After(100 * time.Millisecond):
			}
		}
	}))
	t.Cleanup(func() {
		drip.CloseClientConnections()
		drip.Close()
	})
	h := newRogue(t)
	const peers = 40
	for i := range peers {
		p := zmqtest.NewPublisher(t, "tcp://127.0.0.1:*")
		t.Cleanup(p.Close)
		h.pair.replicas[0].Must(t, http.StatusCreated, "POST", "/replica_sync/register_peer", e2e.Object{"endpoint": p.Endpoint}, nil)
		p.Subscribers(len(replicasync.Topics(false)))
		payload, err := msgpack.Marshal(message{"process_id": uint64(1000 + i), "url": drip.URL, "sequence": 0, "merged": 0, "renewals": 0})
		if err != nil {
			t.Fatal(err)
		}
		p.Send([]byte(topicAnnounce), payload)
	}
	h.heard()
	// The honest one makes its bookings where nobody hears of them: the first replica
	// learns of them from a snapshot.
	endpoint := "tcp://" + h.pair.publisher[1]
	h.pair.replicas[0].Must(t, http.StatusOK, "POST", "/replica_sync/deregister_peer", e2e.Object{"endpoint": endpoint}, nil)
	h.book(5)
	h.pair.replicas[0].Must(t, http.StatusCreated, "POST", "/replica_sync/register_peer", e2e.Object{"endpoint": endpoint}, nil)
	begin := time.Now()
	h.agree("beside slow peers")
	if took := time.Since(begin); e2e.Alone() && took > 6*time.Second {
		t.Errorf("the honest peer was heard after %v", took)
	}
}

// TestPeersFillTheLedger: several peers book at the first replica until nothing of what
// is for replicas is free. The honest one's bookings find room all the same, and those
// of callers, also where the first replica's snapshot has brought the hostile ones.
func TestPeersFillTheLedger(t *testing.T) {
	t.Parallel()
	const peers, most = 5, 1000
	h := newRogue(t, "--max-reservations", strconv.Itoa(most))
	n := uint64(0)
	var hostile []*zmqtest.Publisher
	fill := func() {
		for range most / peers {
			for i, p := range append(hostile, h.pub) {
				n++
				payload, err := msgpack.Marshal(event(uint64(1000+i), 0, fmt.Sprint("hostile-", n), add(), nil))
				if err != nil {
					t.Fatal(err)
				}
				p.Send([]byte(topicEvents), payload)
			}
		}
	}
	for range peers {
		p := zmqtest.NewPublisher(t, "tcp://127.0.0.1:*")
		t.Cleanup(p.Close)
		h.pair.replicas[0].Must(t, http.StatusCreated, "POST", "/replica_sync/register_peer", e2e.Object{"endpoint": p.Endpoint}, nil)
		p.Subscribers(len(replicasync.Topics(false)))
		hostile = append(hostile, p)
	}
	fill()
	e2e.Eventually(t, "there is no room for replicas", func() error {
		if n := h.pair.replicas[0].Metric(t, `select_service_replica_messages_dropped_total{reason="full"}`); n < most/8 {
			return fmt.Errorf("%d messages found none", n)
		}
		return nil
	})
	fill()
	endpoint := e2e.Object{"endpoint": "tcp://" + h.pair.publisher[0]}
	h.pair.replicas[1].Must(t, http.StatusOK, "POST", "/replica_sync/deregister_peer", endpoint, nil)
	h.pair.replicas[1].Must(t, http.StatusCreated, "POST", "/replica_sync/register_peer", endpoint, nil)
	e2e.Eventually(t, "the second replica has the snapshot of the first one", func() error {
		if _, have := h.snapshot(1); len(have) < most/2 {
			return fmt.Errorf("%d reservations", len(have))
		}
		return nil
	})
	h.book(40)
	h.agree("beside peers that fill the ledger")
	if n := h.pair.replicas[0].Metric(t, `select_service_reservation_events_total{event="displaced"}`); n == 0 {
		t.Error("none was displaced: the ledger was not full")
	}
}

// TestTooManyPeers: peers beyond --max-peers are refused.
func TestTooManyPeers(t *testing.T) {
	t.Parallel()
	p := newPair(t, nil, "--max-peers", "3")
	for i, want := range []int{http.StatusCreated, http.StatusCreated, http.StatusConflict, http.StatusConflict} {
		p.replicas[0].Must(t, want, "POST", "/replica_sync/register_peer", e2e.Object{"endpoint": fmt.Sprintf("tcp://127.0.0.1:%d", 40+i)}, nil)
	}
	p.exchange(t, "after the refusals")
}
