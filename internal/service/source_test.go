package service_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/select-service/select-service/pkg/hashing"
)

// network is a kvevents.Source without a network: the test is the engines.
// Like the real one it keeps what a stopped socket may not deliver, and runs no
// callback of a socket after its Close.
type network struct {
	mu      sync.Mutex
	sockets []*socket
	refused map[string]bool // endpoints that cannot be bound
	opened  int
	flushes sync.WaitGroup
	// opening, if set before the service runs, is called before a socket opens.
	opening func(endpoint string)
}

type socket struct {
	endpoint string
	message  func([][]byte) bool
	status   func(bool)
	request  [][]byte // of a replay; nil: a subscription

	// mu is held while a callback runs. It guards what follows.
	mu      sync.Mutex
	queue   [][][]byte
	stopped bool
	closed  bool
}

var errRefused = errors.New("address already in use")

func newNetwork() *network { return &network{refused: map[string]bool{}} }

func (n *network) open(s *socket) (uint64, error) {
	if n.opening != nil {
		n.opening(s.endpoint)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.refused[s.endpoint] {
		return 0, errRefused
	}
	n.opened++
	n.sockets = append(n.sockets, s)
	return uint64(len(n.sockets) - 1), nil
}

func (n *network) Subscribe(endpoint string, message func([][]byte, time.Time) bool, status func(bool)) (uint64, error) {
	timed := func(frames [][]byte) bool { return message(frames, time.Now()) }
	return n.open(&socket{endpoint: endpoint, message: timed, status: status})
}

func (n *network) Request(endpoint string, request [][]byte, answer func([][]byte) bool) (uint64, error) {
	return n.open(&socket{endpoint: endpoint, message: answer, request: request})
}

func (n *network) Resume(id uint64) {
	n.flushes.Add(1)
	go func() { // the caller holds locks that callbacks take
		defer n.flushes.Done()
		s := n.socket(id)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.stopped = false
		s.flushLocked()
	}()
}

func (n *network) Close(id uint64) {
	s := n.socket(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
}

func (n *network) socket(id uint64) *socket {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.sockets[id]
}

func (n *network) refuse(endpoint string, refused bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.refused[endpoint] = refused
}

// count returns how many sockets were opened so far, and how many still are.
func (n *network) count() (opened, live int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range n.sockets {
		if s.open() {
			live++
		}
	}
	return n.opened, live
}

// at returns the newest open socket of an endpoint, or nil.
func (n *network) at(endpoint string) *socket {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range slices.Backward(n.sockets) {
		if s.endpoint == endpoint && s.open() {
			return s
		}
	}
	return nil
}

func (s *socket) open() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.closed
}

func (s *socket) send(frames ...[]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = append(s.queue, frames)
	s.flushLocked()
}

func (s *socket) flushLocked() {
	for len(s.queue) > 0 && !s.stopped && !s.closed {
		frames := s.queue[0]
		s.queue = s.queue[1:]
		s.stopped = !s.message(frames)
	}
}

func (s *socket) connect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status(true)
}

// engine publishes a rank's events on one endpoint, numbered from 0.
type engine struct {
	net      *network
	endpoint string
	seq      uint64
	salt     uint64 // every engine names blocks in its own way
}

func (n *network) engine(endpoint string, salt uint64) *engine {
	return &engine{net: n, endpoint: endpoint, salt: salt}
}

// publish sends a batch of events as rank dp. Nobody listening is no error.
func (e *engine) publish(dp uint32, events ...any) {
	e.deliver(batch(dp, events...))
}

func (e *engine) deliver(payload []byte) {
	if s := e.net.at(e.endpoint); s != nil {
		s.send([]byte("kv"), binary.BigEndian.AppendUint64(nil, e.seq), payload)
	}
	e.seq++
}

type (
	list = []any
	dict = map[string]any
)

func batch(dp uint32, events ...any) []byte { return batchAt(1.5, dp, events...) }

// batchAt is a batch of that time, in seconds.
func batchAt(seconds float64, dp uint32, events ...any) []byte {
	var buf bytes.Buffer
	enc := msgpack.NewEncoder(&buf)
	enc.UseCompactInts(true)
	if err := enc.Encode(list{seconds, events, dp}); err != nil {
		panic(err)
	}
	return buf.Bytes()
}

// stored is the event for a whole prompt in blocks of size tokens; more sets or
// replaces fields.
func (e *engine) stored(tokens []uint32, size int, more dict) dict {
	ev := dict{
		"type": "BlockStored", "block_hashes": e.names(tokens, size), "parent_block_hash": nil,
		"token_ids": tokens, "block_size": size, "medium": "GPU",
	}
	for key, value := range more {
		ev[key] = value
	}
	return ev
}

func (e *engine) removed(tokens []uint32, size, from int, medium string) dict {
	return dict{"type": "BlockRemoved", "block_hashes": e.names(tokens, size)[from:], "medium": medium}
}

func cleared() dict { return dict{"type": "AllBlocksCleared"} }

func (e *engine) names(tokens []uint32, size int) []uint64 {
	names := sequence(tokens, size)
	for i := range names {
		names[i] ^= e.salt
	}
	return names
}

func local(tokens []uint32, size int) []uint64 {
	return hashing.Layout{BlockSize: size}.AppendLocal(nil, tokens, hashing.Seed, nil)
}

func sequence(tokens []uint32, size int) []uint64 {
	return hashing.AppendSequence(nil, local(tokens, size))
}

// prompt returns n tokens that share no block with another id's.
func prompt(id uint32, n int) []uint32 {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = id*1_000_003 + uint32(i)
	}
	return tokens
}

// TestPromptsAreApart keeps the helper honest.
func TestPromptsAreApart(t *testing.T) {
	a, b := sequence(prompt(1, 16), 4), sequence(prompt(2, 16), 4)
	for _, h := range a {
		if slices.Contains(b, h) {
			t.Fatalf("block %d is in both prompts", h)
		}
	}
}
