package kvevents

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// fakeSource has sockets without a network. Like a real one it keeps what a
// stopped socket may not deliver.
type fakeSource struct {
	mu       sync.Mutex
	sockets  []*fakeSocket
	requests []string // "endpoint from"
	refuse   string   // endpoint that cannot be used
	resumed  int
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

func (f *fakeSource) Subscribe(endpoint string, message func([][]byte, time.Time) bool, status func(bool)) (uint64, error) {
	timed := func(frames [][]byte) bool { return message(frames, time.Now()) }
	return f.add(&fakeSocket{endpoint: endpoint, message: timed, status: status})
}

func (f *fakeSource) Request(endpoint string, request [][]byte, answer func([][]byte) bool) (uint64, error) {
	return f.add(&fakeSocket{
		endpoint: endpoint, message: answer, request: true,
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
