package kvevents

import (
	"sync"
	"sync/atomic"

	"github.com/select-service/select-service/pkg/catalog"
)

// Sample is an example of what was dropped: of which stream, and why. It says
// nothing of the content of a message.
type Sample struct {
	Rank   catalog.Rank
	Reason string
}

// sampleKind is what a sample is an example of.
type sampleKind uint8

const (
	badFrames    sampleKind = iota // Counters.FrameErrors
	badMessage                     // Counters.Undecodable
	droppedEvent                   // not applied, for a reason that is not Ordinary
	numSampleKinds
)

// samples keep the first of each kind since they were looked at.
type samples struct {
	has [numSampleKinds]atomic.Bool // read without mu: all but the first of a kind take no lock

	// mu guards first, and writes to has.
	mu    sync.Mutex
	first [numSampleKinds]Sample
}

// put keeps a sample, if it is the first.
func (s *samples) put(kind sampleKind, rank catalog.Rank, reason func() string) {
	if s.has[kind].Load() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.has[kind].Load() {
		s.first[kind] = Sample{rank, reason()}
		s.has[kind].Store(true)
	}
}

// Samples returns one example each of bad frames, of messages that nothing can
// be read of, and of dropped events, as far as there were any since the last
// call: the first one.
func (s *Subscribers) Samples() []Sample {
	s.samples.mu.Lock()
	defer s.samples.mu.Unlock()
	var out []Sample
	for kind := range s.samples.first {
		if s.samples.has[kind].Swap(false) {
			out = append(out, s.samples.first[kind])
		}
	}
	return out
}
