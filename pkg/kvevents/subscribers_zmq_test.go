package kvevents_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/select-service/select-service/internal/transport/zmqsock"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/kvevents"
	"github.com/select-service/select-service/test/helpers/zmqtest"
)

// journal is an Applier that writes down what it is given.
type journal struct {
	mu     sync.Mutex
	got    []string
	change chan struct{}
	slow   chan struct{} // if not nil: batches wait until it is closed
}

func newJournal() *journal { return &journal{change: make(chan struct{}, 1)} }

func (j *journal) Apply(payload []byte, _ *kvevents.Workspace) error {
	if j.slow != nil {
		<-j.slow
	}
	j.add(string(payload))
	return nil
}

func (j *journal) Clear() { j.add("clear") }

func (j *journal) Replayed() {}

func (j *journal) add(what string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.got = append(j.got, what)
	select {
	case j.change <- struct{}{}:
	default:
	}
}

func (j *journal) snapshot() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.got)
}

// await waits until exactly want has been applied.
func (j *journal) await(t testing.TB, want ...string) {
	t.Helper()
	timeout := time.After(zmqtest.Patience)
	for !slices.Equal(j.snapshot(), want) {
		select {
		case <-j.change:
		case <-timeout:
			t.Fatalf("applied %.200q, want %.200q", j.snapshot(), want)
		}
	}
}

// follow runs Subscribers on real sockets for the length of the test.
func follow(t testing.TB, config kvevents.Config) *kvevents.Subscribers {
	t.Helper()
	hub := zmqsock.New(zmqsock.DefaultOptions())
	subs := kvevents.NewSubscribers(hub, config, new(kvevents.Counters))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 2)
	hubCtx, stopHub := context.WithCancel(context.Background())
	go func() { done <- hub.Run(hubCtx) }()
	go func() { defer stopHub(); done <- subs.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		for range 2 {
			if err := <-done; err != nil {
				t.Errorf("Run: %v", err)
			}
		}
	})
	return subs
}

// patient is a configuration in which no replay is given up while a test lasts,
// however late a busy machine answers it.
func patient(workers int) kvevents.Config {
	c := kvevents.DefaultConfig(workers)
	c.Silence = zmqtest.Patience
	return c
}

func addStream(t testing.TB, s *kvevents.Subscribers, dp uint32, endpoint, replay string) *journal {
	t.Helper()
	got := newJournal()
	err := s.Add(kvevents.StreamConfig{
		Rank: catalog.Rank{Worker: 1, DP: dp}, Endpoint: endpoint, Replay: replay, Applier: got,
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func awaitState(t testing.TB, s *kvevents.Subscribers, want kvevents.StreamState) {
	t.Helper()
	deadline := time.Now().Add(zmqtest.Patience)
	for s.Streams()[0].State != want {
		if time.Now().After(deadline) {
			t.Fatalf("status %+v, want %v", s.Streams()[0], want)
		}
		<-time.After(5 * time.Millisecond)
	}
}

func kept(generation string, from, to uint64) []zmqtest.Kept {
	var ring []zmqtest.Kept
	for seq := from; seq <= to; seq++ {
		ring = append(ring, zmqtest.Kept{Seq: seq, Payload: fmt.Appendf(nil, "%s%d", generation, seq)})
	}
	return ring
}

func words(generation string, from, to uint64) []string {
	var out []string
	for _, k := range kept(generation, from, to) {
		out = append(out, string(k.Payload))
	}
	return out
}

// A whole life on real sockets, with both layouts of replay answers: warm start,
// live, gap, reconnect to the same engine, restart.
func TestStreamLife(t *testing.T) {
	for _, topic := range []bool{false, true} {
		t.Run(fmt.Sprintf("topic=%v", topic), func(t *testing.T) {
			pub := zmqtest.NewPublisher(t, "")
			defer pub.Close()
			ring := zmqtest.NewReplayServer(t, "", topic)
			defer ring.Close()
			ring.SetRing(kept("a", 0, 2)...)
			subs := follow(t, patient(2))
			got := addStream(t, subs, 0, pub.Endpoint, ring.Endpoint)
			want := words("a", 0, 2)
			got.await(t, want...)

			pub.Subscribers(1)
			ring.SetRing(kept("a", 0, 6)...)
			pub.Publish(3, []byte("a3"))
			pub.Publish(6, []byte("a6"))
			want = append(want, words("a", 3, 6)...)
			got.await(t, want...)
			if asked := ring.Requests(); !slices.Equal(asked, []uint64{0, 4}) {
				t.Errorf("replays from %v, want 0 and 4", asked)
			}

			pub.Restart() // only the sockets
			pub.Subscribers(1)
			ring.SetRing(kept("a", 2, 8)...)
			pub.Publish(9, []byte("a9"))
			want = append(want, words("a", 7, 9)...)
			got.await(t, want...)
			awaitState(t, subs, kvevents.Live)

			ring.SetRing(kept("b", 0, 1)...)
			pub.Restart() // the engine
			pub.Subscribers(1)
			pub.Publish(1, []byte("b1"))
			pub.Publish(2, []byte("b2"))
			want = append(append(want, "clear"), words("b", 0, 2)...)
			got.await(t, want...)
			awaitState(t, subs, kvevents.Live)
		})
	}
}

// TestRestartOfIdleEngine proves over real sockets that an idle engine's restart is noticed by
// its replays alone: by an empty ring, and by one that is shorter than the history.
func TestRestartOfIdleEngine(t *testing.T) {
	pub := zmqtest.NewPublisher(t, "")
	defer pub.Close()
	ring := zmqtest.NewReplayServer(t, "", true)
	defer ring.Close()
	ring.SetRing(kept("a", 0, 4)...)
	got := addStream(t, follow(t, patient(2)), 0, pub.Endpoint, ring.Endpoint)
	want := words("a", 0, 4)
	got.await(t, want...)

	ring.SetRing(kept("b", 2, 3)...)
	pub.Restart()
	want = append(append(want, "clear"), words("b", 2, 3)...)
	got.await(t, want...)

	ring.SetRing()
	pub.Restart()
	got.await(t, append(want, "clear")...)
	if asked := ring.Requests(); !slices.Equal(asked, []uint64{0, 0, 4, 0, 0}) {
		t.Errorf("replays from %v", asked)
	}
}

// TestRestartAfterOneMessage proves over real sockets that a new engine's first message is not
// taken for the only one of the old engine.
func TestRestartAfterOneMessage(t *testing.T) {
	pub := zmqtest.NewPublisher(t, "")
	defer pub.Close()
	got := addStream(t, follow(t, patient(2)), 0, pub.Endpoint, "")
	pub.Subscribers(1)
	pub.Publish(0, []byte("a0"))
	got.await(t, "a0")
	pub.Restart()
	pub.Subscribers(1)
	for i, payload := range words("b", 0, 2) {
		pub.Publish(uint64(i), []byte(payload))
	}
	got.await(t, "a0", "clear", "b0", "b1", "b2")
}

// An engine that restarts on the same ports, as fast as it can.
func TestStreamRestartWithoutReplay(t *testing.T) {
	pub := zmqtest.NewPublisher(t, "")
	defer pub.Close()
	subs := follow(t, patient(2))
	got := addStream(t, subs, 0, pub.Endpoint, "")
	pub.Subscribers(1)
	pub.Publish(7, []byte("a7"))
	pub.Publish(8, []byte("a8"))
	got.await(t, "a7", "a8")
	pub.Restart()
	pub.Subscribers(1)
	pub.Publish(0, []byte("b0"))
	pub.Publish(1, []byte("b1"))
	got.await(t, "a7", "a8", "clear", "b0", "b1")
}

// A replay server that says nothing, and one that is not there, hold live
// messages up no longer than Silence.
func TestStreamSilentReplay(t *testing.T) {
	pub := zmqtest.NewPublisher(t, "")
	defer pub.Close()
	ring := zmqtest.NewReplayServer(t, "", true)
	defer ring.Close()
	ring.SetSilent(true)
	config := kvevents.DefaultConfig(2)
	config.Silence = 500 * time.Millisecond
	subs := follow(t, config)
	got := addStream(t, subs, 0, pub.Endpoint, ring.Endpoint)
	absent := addStream(t, subs, 1, pub.Endpoint, zmqtest.FreeEndpoint(t))
	pub.Subscribers(2)
	pub.Publish(0, []byte("a0"))
	got.await(t, "a0")
	absent.await(t, "a0")
	if n := subs.Counters().ReplayResults[kvevents.ReplaySilent].Load(); n < 2 {
		t.Errorf("%d silent replays counted, want one of each stream", n)
	}
}

var errInUse = errors.New("address already in use")

func TestStreamBound(t *testing.T) {
	subs := follow(t, patient(2))
	endpoint := zmqtest.Wildcard(zmqtest.FreeEndpoint(t))
	got := addStream(t, subs, 0, endpoint, "")
	err := subs.Add(kvevents.StreamConfig{Rank: catalog.Rank{Worker: 2}, Endpoint: endpoint, Applier: got})
	if err == nil || !strings.Contains(err.Error(), errInUse.Error()) {
		t.Errorf("a second bind: %v", err)
	}
	pub := zmqtest.Connect(t, strings.Replace(endpoint, "*", "127.0.0.1", 1))
	defer pub.Close()
	pub.Subscribers(1)
	pub.Publish(0, []byte("a0"))
	got.await(t, "a0")
	if !subs.Remove(catalog.Rank{Worker: 1}) {
		t.Error("not removed")
	}
	// libzmq gives the port back in the background.
	begin := time.Now()
	for err = errInUse; err != nil && strings.Contains(err.Error(), errInUse.Error()) && time.Since(begin) < zmqtest.Patience; {
		err = subs.Add(kvevents.StreamConfig{Rank: catalog.Rank{Worker: 1}, Endpoint: endpoint, Applier: got})
	}
	if err != nil {
		t.Errorf("a bind after Remove: %v", err)
	}
}

// An applier that stands still: when the inbox is full the socket is not read any
// more, so that libzmq holds the publisher back. When the applier goes on every
// message arrives.
func TestStreamOverload(t *testing.T) {
	pub := zmqtest.NewPublisher(t, "")
	defer pub.Close()
	config := patient(2)
	config.Inbox = 100
	subs := follow(t, config)
	got := newJournal()
	got.slow = make(chan struct{})
	err := subs.Add(kvevents.StreamConfig{Rank: catalog.Rank{Worker: 1}, Endpoint: pub.Endpoint, Applier: got})
	if err != nil {
		t.Fatal(err)
	}
	pub.Subscribers(1)
	pad := strings.Repeat(".", 4096)
	sent, want := uint64(0), []string(nil)
	pauses := &subs.Counters().Pauses
	// Fill the inbox, unless the first message is applied where it is read, then the
	// queues: nothing depends on their being quite full.
	begin := time.Now()
	for refused := 0; refused < 20 && time.Since(begin) < zmqtest.Patience; {
		payload := fmt.Sprint(sent, pad)
		if pub.TrySend(sent, []byte(payload)) {
			want = append(want, payload)
			sent++
			refused = 0
		} else {
			refused++
			<-time.After(2 * time.Millisecond)
		}
	}
	if pending := subs.Streams()[0].Pending; pauses.Load() > 1 || pending > config.Inbox+1 {
		t.Errorf("%d pauses, %d messages taken, want 1 at most and %d", pauses.Load(), pending, config.Inbox)
	}
	close(got.slow)
	got.await(t, want...)
	if err := subs.Barrier(t.Context()); err != nil { // the status follows the last message
		t.Fatal(err)
	}
	status := subs.Streams()[0]
	if status.Lost != 0 || status.Last != sent-1 {
		t.Errorf("status %+v after %d messages", status, sent)
	}
	t.Logf("%d messages, %d pauses", sent, pauses.Load())
}

// A ring as large as vLLM's, of real size, comes whole.
func TestStreamLargeReplay(t *testing.T) {
	pub := zmqtest.NewPublisher(t, "")
	defer pub.Close()
	ring := zmqtest.NewReplayServer(t, "", true)
	defer ring.Close()
	const n = 10000
	pad := strings.Repeat(".", 1000)
	want := make([]string, n)
	for i := range want {
		want[i] = fmt.Sprint(i, pad)
		ring.Keep(zmqtest.Kept{Seq: uint64(i), Payload: []byte(want[i])})
	}
	subs := follow(t, patient(2))
	got := addStream(t, subs, 0, pub.Endpoint, ring.Endpoint)
	pub.Subscribers(1)
	got.await(t, want...)
	pub.Publish(n, []byte("live"))
	got.await(t, append(want, "live")...)
}

func threadsAndDescriptors(t testing.TB) (threads, descriptors int) {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Skip(err)
	}
	for line := range strings.Lines(string(status)) {
		if n, ok := strings.CutPrefix(line, "Threads:"); ok {
			threads, _ = strconv.Atoi(strings.TrimSpace(n))
		}
	}
	open, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	return threads, len(open)
}

// 1,024 ranks with publisher and replay server, an event through each: fewer
// than 64 threads, and afterwards all descriptors are back.
func TestManyStreams(t *testing.T) {
	const ranks, rings = 1024, 8
	subs := follow(t, patient(4))
	ring := make([]*zmqtest.ReplayServer, rings)
	for i := range ring {
		ring[i] = zmqtest.NewReplayServer(t, "", true)
		defer ring[i].Close()
		ring[i].SetRing(kept("a", 0, 1)...)
	}
	pubs := make([]*zmqtest.Publisher, ranks)
	for i := range pubs {
		pubs[i] = zmqtest.NewPublisher(t, "")
		defer pubs[i].Close()
	}
	_, before := threadsAndDescriptors(t)

	sinks := make([]*journal, ranks)
	for i := range sinks {
		sinks[i] = addStream(t, subs, uint32(i), pubs[i].Endpoint, ring[i%rings].Endpoint)
	}
	for i, p := range pubs {
		p.Subscribers(1)
		p.Publish(2, []byte("a2"))
		sinks[i].await(t, "a0", "a1", "a2")
	}
	threads, _ := threadsAndDescriptors(t)
	if threads >= 64 {
		t.Errorf("%d threads, want fewer than 64", threads)
	}
	for i := range sinks {
		subs.Remove(catalog.Rank{Worker: 1, DP: uint32(i)})
	}
	for _, p := range pubs {
		p.Subscribers(0)
	}
	deadline := time.Now().Add(zmqtest.Patience)
	for {
		_, after := threadsAndDescriptors(t)
		if after <= before+8 {
			t.Logf("%d threads", threads)
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d descriptors before, %d after", before, after)
		}
		<-time.After(20 * time.Millisecond)
	}
}
