package servicetest

import (
	"math/rand/v2"
	"sync"

	"github.com/select-service/select-service/pkg/catalog"
)

// Publisher gives the events of a simulated engine to the service. It is a node.Publisher of demo/sim.
type Publisher struct {
	To *Engine // nil: nobody listens
}

// Publish hands a message to the service.
func (p Publisher) Publish(payload []byte) {
	if p.To != nil {
		p.To.Deliver(payload)
	}
}

// Events is empty: there are no sockets.
func (Publisher) Events() string { return "" }

// Replay is empty, too.
func (Publisher) Replay() string { return "" }

// Subscribers is 0, too.
func (Publisher) Subscribers() int { return 0 }

// Close does nothing.
func (Publisher) Close() error { return nil }

// PutSimulated registers workers of one rank each, whose engines are simulated, and returns what takes the events of each.
func (w *World) PutSimulated(engines int, blockSize uint32) (events []*Engine) {
	for i := range engines {
		w.Put(Record(uint64(i), 1, func(r *catalog.Record) { r.BlockSize, r.MaxNumBatchedTokens = new(blockSize), new(uint64(8192)) }))
		events = append(events, w.Engine(uint64(i), 0))
	}
	return events
}

// Random returns a selector.Source for goroutines, by the seeds of rand.NewPCG.
func Random(seed1, seed2 uint64) *Source { return &Source{rnd: rand.New(rand.NewPCG(seed1, seed2))} }

// Source is a selector.Source that goroutines may share.
type Source struct {
	mu  sync.Mutex // guards rnd
	rnd *rand.Rand
}

// IntN implements selector.Source.
func (s *Source) IntN(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rnd.IntN(n)
}

// Float64 implements selector.Source.
func (s *Source) Float64() float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rnd.Float64()
}
