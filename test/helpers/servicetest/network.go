// Package servicetest has the common parts of tests of the use cases: a running service (World)
// whose engines (Network, Engine) and clients are the test, and readers of its log and metrics.
package servicetest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/memory"
)

// Network is a kvevents.Source without a network, in which the test plays the engines.
// Like the real one it holds messages for a stopped socket, and runs no callback of a
// socket after its Close.
type Network struct {
	mu      sync.Mutex
	sockets []*Socket
	refused map[string]bool // endpoints that cannot be bound
	opened  int
	// Flushes are the goroutines that deliver after Resume.
	Flushes sync.WaitGroup
	// Opening, if set before the service runs, is called before a socket opens.
	Opening func(endpoint string)
}

// Socket is one socket of a subscription or of a replay.
type Socket struct {
	endpoint string
	message  func([][]byte) bool
	Status   func(bool) // reports whether the publisher is connected
	request  [][]byte   // of a replay; nil: a subscription

	// mu is held while a callback runs. It guards the fields below.
	mu      sync.Mutex
	queue   [][][]byte
	stopped bool
	closed  bool
}

// ErrRefused is the error of an endpoint that is refused.
var ErrRefused = errors.New("address already in use")

// NewNetwork returns a network without sockets.
func NewNetwork() *Network { return &Network{refused: map[string]bool{}} }

func (n *Network) open(s *Socket) (uint64, error) {
	if n.Opening != nil {
		n.Opening(s.endpoint)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.refused[s.endpoint] {
		return 0, ErrRefused
	}
	n.opened++
	n.sockets = append(n.sockets, s)
	return uint64(len(n.sockets) - 1), nil
}

// Subscribe implements kvevents.Source.
func (n *Network) Subscribe(endpoint string, _ func([][]byte, time.Time) bool, message func([][]byte, *memory.Buffer, time.Time) bool, status func(bool)) (uint64, error) {
	timed := func(frames [][]byte) bool { return message(frames, nil, time.Now()) }
	return n.open(&Socket{endpoint: endpoint, message: timed, Status: status})
}

// Request implements kvevents.Source.
func (n *Network) Request(endpoint string, request [][]byte, answer func([][]byte, *memory.Buffer) bool) (uint64, error) {
	untold := func(frames [][]byte) bool { return answer(frames, nil) }
	return n.open(&Socket{endpoint: endpoint, message: untold, request: request})
}

// Resume implements kvevents.Source.
func (n *Network) Resume(id uint64) {
	n.Flushes.Add(1)
	go func() { // the caller holds locks that callbacks take
		defer n.Flushes.Done()
		s := n.socket(id)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.stopped = false
		s.flushLocked()
	}()
}

// Close implements kvevents.Source.
func (n *Network) Close(id uint64) {
	s := n.socket(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
}

func (n *Network) socket(id uint64) *Socket {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.sockets[id]
}

// Refuse makes opening a socket of an endpoint fail, or work again.
func (n *Network) Refuse(endpoint string, refused bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.refused[endpoint] = refused
}

// Count returns how many sockets were opened so far, and how many still are.
func (n *Network) Count() (opened, live int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range n.sockets {
		if s.open() {
			live++
		}
	}
	return n.opened, live
}

// At returns the newest open socket of an endpoint, or nil.
func (n *Network) At(endpoint string) *Socket {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range slices.Backward(n.sockets) {
		if s.endpoint == endpoint && s.open() {
			return s
		}
	}
	return nil
}

func (s *Socket) open() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.closed
}

// Send delivers a message, or keeps it while the socket is stopped.
func (s *Socket) Send(frames ...[]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = append(s.queue, frames)
	s.flushLocked()
}

func (s *Socket) flushLocked() {
	for len(s.queue) > 0 && !s.stopped && !s.closed {
		frames := s.queue[0]
		s.queue = s.queue[1:]
		s.stopped = !s.message(frames)
	}
}

// Connect reports that the publisher is connected.
func (s *Socket) Connect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Status(true)
}

// Engine publishes a rank's events on one endpoint, numbered from 0.
type Engine struct {
	net      *Network
	Address  string
	Seq      uint64
	NameSalt uint64 // every engine names blocks in its own way
}

// Engine returns a publisher on an endpoint; salt decides its names for blocks.
func (n *Network) Engine(endpoint string, salt uint64) *Engine {
	return &Engine{net: n, Address: endpoint, NameSalt: salt}
}

// Publish sends a batch of events as rank dp; without a listener nothing happens.
func (e *Engine) Publish(dp uint32, events ...any) {
	e.Deliver(Batch(dp, events...))
}

// Deliver sends a message with that payload and the next number.
func (e *Engine) Deliver(payload []byte) {
	if s := e.net.At(e.Address); s != nil {
		s.Send([]byte("kv"), binary.BigEndian.AppendUint64(nil, e.Seq), payload)
	}
	e.Seq++
}

// List is a list of an event as engines encode it.
type List = []any

// Dict is a map of an event as engines encode it.
type Dict = map[string]any

// Batch is a message of events of rank dp.
func Batch(dp uint32, events ...any) []byte { return BatchAt(1.5, dp, events...) }

// BatchAt is a Batch of that time, in seconds. The same events have the same bytes in every run:
// by a few of them and the time a stream tells messages apart.
func BatchAt(seconds float64, dp uint32, events ...any) []byte {
	var buf bytes.Buffer
	enc := msgpack.NewEncoder(&buf)
	enc.UseCompactInts(true)
	enc.SetSortMapKeys(true)
	if err := enc.Encode(List{seconds, events, dp}); err != nil {
		panic(err)
	}
	return buf.Bytes()
}

// Stored is the event for a whole prompt in blocks of size tokens; more sets or
// replaces fields.
func (e *Engine) Stored(tokens []uint32, size int, more Dict) Dict {
	ev := Dict{
		"type": "BlockStored", "block_hashes": e.Names(tokens, size), "parent_block_hash": nil,
		"token_ids": tokens, "block_size": size, "medium": "GPU",
	}
	for key, value := range more {
		ev[key] = value
	}
	return ev
}

// Removed is the event for the blocks of a prompt from number from on.
func (e *Engine) Removed(tokens []uint32, size, from int, medium string) Dict {
	return Dict{"type": "BlockRemoved", "block_hashes": e.Names(tokens, size)[from:], "medium": medium}
}

// Cleared is the event that everything is gone.
func Cleared() Dict { return Dict{"type": "AllBlocksCleared"} }

// Names returns the engine's hashes of a prompt's blocks.
func (e *Engine) Names(tokens []uint32, size int) []uint64 {
	names := Sequence(tokens, size)
	for i := range names {
		names[i] ^= e.NameSalt
	}
	return names
}

// Local returns the local hashes of a prompt's blocks.
func Local(tokens []uint32, size int) []uint64 {
	return hashing.Layout{BlockSize: size}.AppendLocal(nil, tokens, hashing.Seed, nil)
}

// Sequence returns the sequence hashes of a prompt's blocks.
func Sequence(tokens []uint32, size int) []uint64 {
	return hashing.AppendSequence(nil, Local(tokens, size))
}

// Prompt returns n tokens that share no block with another id's.
func Prompt(id uint32, n int) []uint32 {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = id*1_000_003 + uint32(i)
	}
	return tokens
}
