package kvevents

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/memory"
)

// fakeSource has sockets without a network. Like a real one it keeps what a
// stopped socket may not deliver.
type fakeSource struct {
	mu       sync.Mutex
	sockets  []*fakeSocket
	requests []string // "endpoint from"
	refuse   string   // endpoint that cannot be used
	resumed  int
	streams  *memory.Account // of live messages
	offers   bool            // every other live message is offered first
}

type fakeSocket struct {
	source   *fakeSource
	endpoint string
	message  func([][]byte) bool
	status   func(bool)
	request  bool
	from     uint64

	// guarded by source.mu
	queue   [][][]byte
	stopped bool
	closed  bool
}

var errRefused = errors.New("address already in use")

func (f *fakeSource) add(s *fakeSocket) (uint64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s.endpoint == f.refuse {
		return 0, errRefused
	}
	s.source = f
	f.sockets = append(f.sockets, s)
	if s.request {
		f.requests = append(f.requests, fmt.Sprintf("%s %d", s.endpoint, s.from))
	}
	return uint64(len(f.sockets) - 1), nil
}

func (f *fakeSource) Subscribe(endpoint string, offer func([][]byte, time.Time) bool, message func([][]byte, *memory.Buffer, time.Time) bool, status func(bool)) (uint64, error) {
	messages := 0
	timed := func(m [][]byte) bool {
		if messages++; f.offers && messages%2 == 1 && offered(offer, m) {
			return true
		}
		frames, buffer := reserve(f.streams, m)
		return message(frames, buffer, time.Now())
	}
	return f.add(&fakeSocket{endpoint: endpoint, message: timed, status: status})
}

// offered offers a message, and spoils its frames afterwards.
func offered(offer func([][]byte, time.Time) bool, m [][]byte) (taken bool) {
	frames := make([][]byte, len(m))
	for i, frame := range m {
		frames[i] = bytes.Clone(frame)
	}
	taken = offer(frames, time.Now())
	for _, frame := range frames {
		for i := range frame {
			frame[i] = 0xc1 // no msgpack
		}
	}
	return taken
}

func (f *fakeSource) Request(endpoint string, request [][]byte, answer func([][]byte, *memory.Buffer) bool) (uint64, error) {
	return f.add(&fakeSocket{
		endpoint: endpoint, message: func(frames [][]byte) bool { return answer(frames, nil) }, request: true,
		from: binary.BigEndian.Uint64(request[1]),
	})
}

func (f *fakeSource) Resume(id uint64) {
	f.mu.Lock()
	s := f.sockets[id]
	s.stopped = false
	f.resumed++
	f.mu.Unlock()
	go s.flush()
}

func (f *fakeSource) Close(id uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sockets[id].closed = true
}

// open returns the newest open socket of an endpoint.
func (f *fakeSource) open(endpoint string) *fakeSocket {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range slices.Backward(f.sockets) {
		if s.endpoint == endpoint && !s.closed {
			return s
		}
	}
	return nil
}

func (f *fakeSource) asked() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Join(f.requests, ", ")
}

func (s *fakeSocket) send(frames ...[]byte) {
	s.source.mu.Lock()
	s.queue = append(s.queue, frames)
	s.source.mu.Unlock()
	s.flush()
}

func (s *fakeSocket) flush() {
	for {
		s.source.mu.Lock()
		if len(s.queue) == 0 || s.stopped || s.closed {
			s.source.mu.Unlock()
			return
		}
		frames := s.queue[0]
		s.queue = s.queue[1:]
		s.source.mu.Unlock()
		if !s.message(frames) {
			s.source.mu.Lock()
			s.stopped = true
			s.source.mu.Unlock()
			return
		}
	}
}

func seqFrame(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

func (s *fakeSocket) live(seq uint64, payload string) { s.send(nil, seqFrame(seq), []byte(payload)) }

func (s *fakeSocket) answers(m ...string) {
	for seq, payload := range m {
		s.send(nil, seqFrame(s.from+uint64(seq)), []byte(payload))
	}
	s.send(nil, seqFrame(endMark), nil)
}

// recorder is an Applier that writes down what it is given.
type recorder struct {
	mu   sync.Mutex
	got  []string
	gate chan struct{} // if not nil: one receive per batch
}

func (r *recorder) Apply(payload []byte, _ *Workspace) error {
	if r.gate != nil {
		<-r.gate
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got = append(r.got, string(payload))
	return nil
}

func (r *recorder) Clear() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got = append(r.got, "clear")
}

func (r *recorder) Replayed() {}

func (r *recorder) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.got, " ")
}

// rig is one stream of real batches into an index, in a bubble.
type rig struct {
	*testing.T
	subs  *Subscribers
	src   *fakeSource
	stop  func()
	index *indexer.Space
	// config is that of the stream.
	config StreamConfig

	mu   sync.Mutex
	lags []time.Duration
}

// startRig follows rank 0 of a worker that has ranks 0 and 1, from a publisher
// with a replay server if replay is not empty.
func startRig(t *testing.T, replay string) (*rig, *fakeSocket) {
	r := &rig{T: t, src: &fakeSource{offers: true}, index: indexer.New()}
	config := DefaultConfig(1)
	config.Lag = func(lag time.Duration) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.lags = append(r.lags, lag)
	}
	r.subs, r.stop = startSubscribers(t, r.src, config)
	ranks := func(dp uint32) (uint32, bool) { return dp, dp < 2 }
	r.config = StreamConfig{
		Rank: rank(0), Endpoint: "pub", Replay: replay,
		Applier: &IndexApplier{Converter: NewConverter(hashing.Layout{BlockSize: 2}, 0, ranks), Index: r.index},
	}
	add(t, r.subs, r.config)
	pub := r.src.open("pub")
	pub.status(true)
	return r, pub
}

// state returns the state of the stream once all is applied.
func (r *rig) state() StreamState {
	synctest.Wait()
	return r.subs.Streams()[0].State
}

func (r *rig) wantLags(what string, want ...time.Duration) {
	r.Helper()
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Equal(r.lags, want) {
		r.Errorf("%s: lags %v, want %v", what, r.lags, want)
	}
	r.lags = nil
}

type (
	list = []any
	dict = map[string]any
)

func packed(t testing.TB, v any) string {
	t.Helper()
	b, err := msgpack.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// unix is the bubble's time as a batch states it, some time ago.
func unix(ago time.Duration) float64 { return float64(time.Now().Add(-ago).UnixNano()) / 1e9 }

// batch is one of a rank with events, stated as sent some time ago.
func (r *rig) batch(ago time.Duration, rank any, events ...any) string {
	return packed(r.T, list{unix(ago), append(list{}, events...), rank})
}

func storedEvent(name int) any {
	return list{"BlockStored", list{name}, nil, list{name, name + 1}, 2, nil, "GPU", nil}
}

var clearedEvent = list{"AllBlocksCleared"}
