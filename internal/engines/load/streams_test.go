package load

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/kvevents"
	"github.com/select-service/select-service/pkg/memory"
)

// network is a Sampler: a test plays what its sockets receive.
type network struct {
	next    uint64
	sockets map[uint64]*publisher
	refuse  error
}

type publisher struct {
	endpoint string
	sample   func(frames [][]byte, received time.Time, last bool)
	status   func(bool)
}

// Subscribe gives messages that have memory of their own.
func (n *network) Subscribe(endpoint string, _ func([][]byte, time.Time) bool, message func([][]byte, *memory.Buffer, time.Time) bool, status func(bool)) (uint64, error) {
	return n.Sample(endpoint, func(frames [][]byte, received time.Time, _ bool) { message(frames, nil, received) }, status)
}

func (n *network) Sample(endpoint string, message func([][]byte, time.Time, bool), status func(bool)) (uint64, error) {
	if n.refuse != nil {
		return 0, n.refuse
	}
	n.next++
	n.sockets[n.next] = &publisher{endpoint, message, status}
	return n.next, nil
}

func (n *network) Close(id uint64) { delete(n.sockets, id) }

func (n *network) at(t *testing.T, endpoint string) *publisher {
	t.Helper()
	for _, p := range n.sockets {
		if p.endpoint == endpoint {
			return p
		}
	}
	t.Fatalf("no socket to %s", endpoint)
	return nil
}

func (p *publisher) send(number int64, payload []byte) { p.sendOf(number, payload, true) }

// sendOf sends a message that is the last of those that come together, or not.
func (p *publisher) sendOf(number int64, payload []byte, last bool) {
	p.sample([][]byte{[]byte("load"), binary.BigEndian.AppendUint64(nil, uint64(number)), payload}, time.Now(), last)
}

// sink keeps what it is told, as lines.
type sink struct {
	changes bool // lines say which reports have Changed

	mu    sync.Mutex
	lines []string
}

func (s *sink) Report(rank catalog.Rank, r Report, _ time.Time) {
	changed := ""
	if s.changes && r.Changed {
		changed = " changed"
	}
	s.say("%d/%d %s: running %d%s", rank.Worker, rank.DP, r.Source, r.Running.Or(0), changed)
}

func (s *sink) Pause(rank catalog.Rank, source Source) {
	s.say("%d/%d %s: paused", rank.Worker, rank.DP, source)
}

func (s *sink) Remove(rank catalog.Rank, source Source) {
	s.say("%d/%d %s: removed", rank.Worker, rank.DP, source)
}

func (s *sink) say(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, fmt.Sprintf(format, args...))
}

func (s *sink) took() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	lines := s.lines
	s.lines = nil
	return lines
}

type streamWorld struct {
	t   *testing.T
	net *network
	to  *sink
	*Streams
}

func newStreamWorld(t *testing.T) *streamWorld {
	n, to := &network{sockets: make(map[uint64]*publisher)}, new(sink)
	return &streamWorld{t, n, to, NewStreams(n, to, nil, NewCounters())}
}

func (w *streamWorld) saw(want ...string) {
	w.t.Helper()
	if got := w.to.took(); !slices.Equal(got, want) {
		w.t.Errorf("the sink was told %q, want %q", got, want)
	}
}

func (w *streamWorld) dropped(why Reason, want uint64) {
	w.t.Helper()
	if got := w.counters.dropped[Push][why].Load(); got != want {
		w.t.Errorf("%d dropped as %s, want %d", got, why, want)
	}
}

var rank = catalog.Rank{Worker: 7, DP: 2}

// TestStream: reports go to the sink; gaps are counted; the first message of an engine that has
// started anew is dropped, and so is what is no report.
func TestStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newStreamWorld(t)
		if err := w.Add(rank, "tcp://h:1"); err != nil {
			t.Fatal(err)
		}
		p := w.net.at(t, "tcp://h:1")
		running := func(n int) []byte { return pack(t, "LoadStat", n) }
		p.status(true)
		p.send(5, running(1))
		p.send(6, running(2))
		p.send(9, running(3))
		w.saw("7/2 push: running 1", "7/2 push: running 2", "7/2 push: running 3")
		if n := w.counters.lost.Load(); n != 2 {
			t.Errorf("%d lost, want 2", n)
		}
		p.send(0, running(4))
		w.saw()
		w.dropped(Restarted, 1)
		p.send(1, running(5))
		w.saw("7/2 push: running 5")
		p.send(1, running(6))
		w.saw()
		w.dropped(Restarted, 2)

		p.send(2, pack(t, "LoadStat", -1))
		w.dropped(BadNumber, 1)
		p.send(3, []byte("x"))
		p.send(-1, running(7))
		p.sample([][]byte{[]byte("load"), make([]byte, 7), running(8)}, time.Now(), true)
		p.sample([][]byte{make([]byte, 8), running(8)}, time.Now(), true)
		w.saw()
		w.dropped(Malformed, 4)

		plain := newStreamWorld(t)
		plain.source = struct{ Subscriber }{plain.net} // cannot Sample
		if err := plain.Add(rank, "tcp://h:1"); err != nil {
			t.Fatal(err)
		}
		plain.net.at(t, "tcp://h:1").sendOf(4, running(9), false)
		plain.saw("7/2 push: running 9")
	})
}

// TestStreamBatch: of messages that come together the sink is told the last good report, and whether
// the engine has said something else meanwhile; all are counted.
func TestStreamBatch(t *testing.T) {
	const bad = -1
	w := newStreamWorld(t)
	if err := w.Add(rank, "tcp://h:1"); err != nil {
		t.Fatal(err)
	}
	w.to.changes = true
	p, number := w.net.at(t, "tcp://h:1"), int64(0)
	for _, step := range []struct {
		batch []int // of each message how many requests run
		want  []string
	}{
		{[]int{1}, []string{"7/2 push: running 1 changed"}},
		{[]int{1}, []string{"7/2 push: running 1"}},
		{[]int{1, 1, 1}, []string{"7/2 push: running 1"}},
		{[]int{1, 2, 1}, []string{"7/2 push: running 1 changed"}},
		{[]int{2, 3, bad}, []string{"7/2 push: running 3 changed"}},
		{[]int{bad, bad}, nil},
		{[]int{3, bad, 3}, []string{"7/2 push: running 3"}},
		{[]int{bad, 4}, []string{"7/2 push: running 4 changed"}},
	} {
		for i, n := range step.batch {
			p.sendOf(number, pack(t, "LoadStat", n), i == len(step.batch)-1)
			number++
		}
		if got := w.to.took(); !slices.Equal(got, step.want) {
			t.Errorf("after %v the sink was told %q, want %q", step.batch, got, step.want)
		}
	}
	w.dropped(BadNumber, 5)
	if n := w.counters.reports[Push].Load(); n != uint64(number)-5 {
		t.Errorf("%d reports of %d messages, 5 of them bad", n, number)
	}
}

// TestStreamRate: a stream that sends far more than an engine does is read at a bounded rate, and
// again at once when it is back to normal.
func TestStreamRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newStreamWorld(t)
		if err := w.Add(rank, "tcp://h:1"); err != nil {
			t.Fatal(err)
		}
		p := w.net.at(t, "tcp://h:1")
		number, report := int64(0), pack(t, "LoadStat", 1)
		for range 10_000 * 2 { // 10,000 a second for 2 s
			p.send(number, report)
			number++
			time.Sleep(time.Second / 10_000)
		}
		read := len(w.to.took())
		if read < 300 || read > 302 {
			t.Errorf("%d reports in 2 s, want 100 a second and 100 at once", read)
		}
		w.dropped(TooOften, uint64(10_000*2-read))
		time.Sleep(time.Second)
		for range 50 {
			p.send(number, pack(t, "LoadStat", 1))
			number++
			time.Sleep(20 * time.Millisecond)
		}
		if n := len(w.to.took()); n != 50 {
			t.Errorf("%d of 50 reports were read after the flood", n)
		}
	})
}

// TestStreamChanges: another endpoint is another engine; one that cannot be used changes nothing;
// nothing comes from a stream that has ended.
func TestStreamChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newStreamWorld(t)
		refused := errors.New("taken")
		w.net.refuse = refused
		if err := w.Add(rank, "tcp://*:1"); !errors.Is(err, refused) {
			t.Errorf("%v", err)
		}
		if err := w.Update(rank, "tcp://h:1"); !errors.Is(err, ErrUnknownStream) {
			t.Errorf("%v", err)
		}
		w.net.refuse = nil
		if err := w.Add(rank, "tcp://h:1"); err != nil {
			t.Fatal(err)
		}
		first := w.net.at(t, "tcp://h:1")
		first.send(7, pack(t, "LoadStat", 1))
		w.saw("7/2 push: running 1")
		w.net.refuse = refused
		if err := w.Update(rank, "tcp://*:2"); !errors.Is(err, refused) {
			t.Errorf("%v", err)
		}
		if err := w.Update(rank, "tcp://h:1"); err != nil {
			t.Errorf("the same endpoint: %v", err)
		}
		w.saw()
		w.net.refuse = nil
		if err := w.Update(rank, "tcp://h:2"); err != nil {
			t.Fatal(err)
		}
		w.saw("7/2 push: removed")
		second := w.net.at(t, "tcp://h:2")
		second.send(0, pack(t, "LoadStat", 2))
		w.saw("7/2 push: running 2")
		w.Remove(rank)
		w.Remove(rank)
		w.saw("7/2 push: removed")
		if len(w.net.sockets) > 0 {
			t.Errorf("%d sockets are left", len(w.net.sockets))
		}
	})
}

// TestStreamStates: a stream is connecting, live, or stale after 5 s without a message.
func TestStreamStates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newStreamWorld(t)
		if err := w.Add(rank, "tcp://h:1"); err != nil {
			t.Fatal(err)
		}
		p := w.net.at(t, "tcp://h:1")
		is := func(want kvevents.StreamState) {
			t.Helper()
			count := w.States(time.Now())
			if count[want] != 1 {
				t.Errorf("states %v, want %s", count, want)
			}
		}
		is(kvevents.Connecting)
		p.status(true)
		is(kvevents.Live)
		time.Sleep(5*time.Second + 1)
		is(kvevents.Stale)
		p.send(0, pack(t, "LoadStat", 1))
		is(kvevents.Live)
		p.status(false)
		is(kvevents.Connecting)
	})
}
