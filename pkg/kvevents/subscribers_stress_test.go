package kvevents

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/pkg/memory"
)

// engines is a Source with publishers behind it. One goroutine runs all
// callbacks and all that is asked of it, like a hub's loop; a socket that was
// stopped keeps what it may not deliver.
type engines struct {
	commands chan func()
	rnd      *rand.Rand

	streams, replays *memory.Account // of what is delivered

	// Of the loop's goroutine:
	engines map[string]*engine
	sockets map[uint64]*engineSocket
	next    uint64
	quiet   bool // nothing new is published
}

// engine publishes numbers and keeps them all for its replays.
type engine struct {
	last   uint64 // number of the next message
	silent bool   // to every second replay
	asked  int
}

type engineSocket struct {
	engine  *engine
	message func([][]byte) bool
	queue   [][][]byte
	stopped bool
}

func runEngines(ctx context.Context, seed uint64) *engines {
	e := &engines{
		commands: make(chan func()), rnd: rand.New(rand.NewPCG(seed, 1)),
		engines: map[string]*engine{}, sockets: map[uint64]*engineSocket{},
		streams: memory.NewAccount(memory.Streams, 1<<30), replays: memory.NewAccount(memory.Replay, 1<<30),
	}
	go e.run(ctx)
	return e
}

// reserve copies a message into memory of an account, as the real sockets do.
func reserve(account *memory.Account, message [][]byte) (frames [][]byte, buffer *memory.Buffer) {
	size := 0
	for _, f := range message {
		size += len(f)
	}
	buffer = memory.NewBuffer(size)
	bytes := buffer.Bytes
	for _, f := range message {
		bytes = append(bytes, f...)
		frames = append(frames, bytes[len(bytes)-len(f):])
	}
	buffer.Reserved = int64(cap(bytes)) + 128
	account.Reserve(buffer.Reserved)
	return frames, buffer
}

func (e *engines) run(ctx context.Context) {
	for {
		for range 8 {
			e.step()
		}
		wait := time.After(time.Millisecond)
		for waiting := true; waiting; {
			select {
			case <-ctx.Done():
				return
			case f := <-e.commands:
				f()
			case <-wait:
				waiting = false
			}
		}
	}
}

// step publishes a message or delivers some.
func (e *engines) step() {
	for _, g := range e.engines {
		if !e.quiet && e.rnd.IntN(20) == 0 {
			m := g.frames(g.last)
			g.last++
			for _, s := range e.sockets {
				if s.engine == g && s.queue != nil {
					s.queue = append(s.queue, m)
				}
			}
		}
	}
	for _, s := range e.sockets {
		for n := e.rnd.IntN(30); n > 0 && len(s.queue) > 1 && !s.stopped; n-- {
			m := s.queue[1]
			s.queue = append(s.queue[:1], s.queue[2:]...)
			s.stopped = !s.message(m)
		}
	}
}

func (e *engine) frames(seq uint64) [][]byte {
	return [][]byte{nil, seqFrame(seq), seqFrame(seq)}
}

func (e *engines) do(f func()) {
	done := make(chan struct{})
	e.commands <- func() { f(); close(done) }
	<-done
}

func (e *engines) engine(endpoint string) *engine {
	g := e.engines[endpoint]
	if g == nil {
		g = &engine{last: uint64(e.rnd.IntN(300)), silent: e.rnd.IntN(3) == 0} // it was there before us
		e.engines[endpoint] = g
	}
	return g
}

// open adds a socket; the first entry of its queue stands for its being live.
func (e *engines) open(endpoint string, message func([][]byte) bool) (*engineSocket, uint64) {
	e.next++
	s := &engineSocket{engine: e.engine(endpoint), message: message, queue: make([][][]byte, 1)}
	e.sockets[e.next] = s
	return s, e.next
}

func (e *engines) Subscribe(endpoint string, _ func([][]byte, time.Time) bool, message func([][]byte, *memory.Buffer, time.Time) bool, status func(bool)) (id uint64, err error) {
	e.do(func() {
		_, id = e.open(endpoint, func(m [][]byte) bool {
			frames, buffer := reserve(e.streams, m)
			return message(frames, buffer, time.Now())
		})
		status(true)
	})
	return id, nil
}

func (e *engines) Request(endpoint string, request [][]byte, answer func([][]byte, *memory.Buffer) bool) (id uint64, err error) {
	e.do(func() {
		var s *engineSocket
		s, id = e.open(endpoint, func(m [][]byte) bool { return answer(reserve(e.replays, m)) })
		g := s.engine
		s.engine = nil // it hears no live messages
		if g.asked++; g.silent && g.asked%2 == 1 {
			return
		}
		for seq := binary.BigEndian.Uint64(request[1]); seq < g.last; seq++ {
			s.queue = append(s.queue, g.frames(seq))
		}
		s.queue = append(s.queue, [][]byte{nil, seqFrame(endMark), nil})
	})
	return id, nil
}

func (e *engines) Resume(id uint64) {
	go e.do(func() {
		if s := e.sockets[id]; s != nil {
			s.stopped = false
		}
	})
}

func (e *engines) Close(id uint64) { e.do(func() { delete(e.sockets, id) }) }

// ledger is an applier that knows which messages it has.
type ledger struct {
	mu   sync.Mutex
	have map[uint64]bool
}

func (l *ledger) Apply(payload []byte, _ *Workspace) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.have == nil {
		l.have = map[uint64]bool{}
	}
	l.have[binary.BigEndian.Uint64(payload)] = true
	return nil
}

func (l *ledger) Clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.have = nil
}

func (l *ledger) Replayed() {}

func (l *ledger) missing(n uint64) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	missing := 0
	for seq := range n {
		if !l.have[seq] {
			missing++
		}
	}
	return missing
}

// TestSubscribersStress proves that no message is lost and no slot, wakeup or
// goroutine leaks while streams come, go and change under load: sockets are
// stopped by full inboxes all the time, replays wait for each other, and every
// second one of some engines is silent (those lose what they had before).
func TestSubscribersStress(t *testing.T) {
	seeds := uint64(5)
	if testing.Short() {
		seeds = 1
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { stress(t, seed) })
		})
	}
}

func stress(t *testing.T, seed uint64) {
	const ranks = 12
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	src := runEngines(ctx, seed)
	config := DefaultConfig(3)
	config.Inbox, config.InboxBytes, config.Replays, config.Silence = 4, 200, 3, 200*time.Millisecond
	config.Streams, config.Replay = src.streams, src.replays
	s, stop := startSubscribers(t, src, config)
	defer stop()
	ledgers, at := make([]*ledger, ranks), make([]int, ranks)
	var owners sync.WaitGroup
	for i := range ranks { // each rank has one owner, as in the catalog
		owners.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, uint64(i)))
			for range 30 {
				time.Sleep(time.Duration(rnd.IntN(40)) * time.Millisecond)
				change(t, s, rnd, i, &ledgers[i], &at[i])
			}
		})
	}
	for range 50 {
		if err := s.Barrier(ctx); err != nil {
			t.Error(err)
		}
		s.Streams()
		s.Tally()
		time.Sleep(10 * time.Millisecond)
	}
	owners.Wait()
	src.do(func() { src.quiet = true })
	time.Sleep(30 * time.Second) // every replay has run or been given up
	if err := s.Barrier(ctx); err != nil {
		t.Error(err)
	}
	for i, l := range ledgers {
		var n uint64
		var silent bool
		src.do(func() {
			g := src.engine(endpointOf(i, at[i]))
			n, silent = g.last, g.silent
		})
		if l == nil || silent {
			continue
		}
		if missing := l.missing(n); missing > 0 {
			t.Errorf("rank %d: %d of %d messages are missing", i, missing, n)
		}
	}
	for _, status := range s.Streams() {
		if status.Pending != 0 || status.Held != 0 || status.State == Replaying {
			t.Errorf("not at rest: %+v", status)
		}
	}
	if n := src.streams.Used(); n != 0 {
		t.Errorf("at rest %d bytes are held for live messages", n)
	}
	for i := range ranks {
		s.Remove(rank(uint32(i)))
	}
	if s.replays.free != config.Replays || len(s.replays.waiting) != 0 {
		t.Errorf("%d replay slots are free, %d wait", s.replays.free, len(s.replays.waiting))
	}
	if s.Counters().Pauses.Load() == 0 {
		t.Error("no socket was ever stopped: this proves nothing")
	}
	src.do(func() {
		if len(src.sockets) != 0 {
			t.Errorf("%d sockets are open", len(src.sockets))
		}
	})
	stop()
	cancel()
	if live, replayed := src.streams.Used(), src.replays.Used(); live != 0 || replayed != 0 {
		t.Errorf("without a stream %d bytes are held for live messages and %d for replays", live, replayed)
	}
}

func endpointOf(rank, version int) string { return fmt.Sprintf("%d-%d", rank, version) }

// change does something to a rank's stream. Replays come from the endpoint of
// the live messages.
func change(t *testing.T, s *Subscribers, rnd *rand.Rand, i int, l **ledger, at *int) {
	config := StreamConfig{Rank: rank(uint32(i)), Endpoint: endpointOf(i, *at), Replay: endpointOf(i, *at)}
	switch n := rnd.IntN(5); {
	case *l == nil:
		*l = new(ledger)
		config.Applier = *l
		add(t, s, config)
	case n == 0:
		if !s.Remove(config.Rank) {
			t.Error("nothing to remove")
		}
		*l = nil
	case n == 1: // another engine
		*at++
		config.Endpoint, config.Replay = endpointOf(i, *at), endpointOf(i, *at)
		fallthrough
	case n == 2:
		config.Applier = *l
		if err := s.Update(config); err != nil {
			t.Error(err)
		}
	}
}
