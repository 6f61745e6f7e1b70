package kvevents

import (
	"sync"
	"sync/atomic"

	"github.com/select-service/select-service/pkg/catalog"
)

// ReplayResult says how a replay ended. Its text is a label of counters.
type ReplayResult uint8

// The results. An incomplete replay ran to its end mark without all messages that
// were missing; dynamo-kv-router 1.3.1 uses the same words.
const (
	ReplayComplete      ReplayResult = iota
	ReplayEmpty                      // incomplete: it had no message, though some were missing
	ReplayStartedLate                // incomplete: the publisher no longer had the first ones
	ReplayNotContiguous              // incomplete: numbers were left out
	ReplayEndedEarly                 // incomplete: the end mark came before the gap's end
	ReplaySilent                     // failed: no message for too long
	ReplayOverflow                   // failed: too many live messages were waiting for it
	ReplayDisconnected               // failed: the publisher went away
	ReplayNotOpened                  // failed: the request could not be sent
	ReplayAborted                    // given up: the answer was another engine's, or the endpoint changed
	NumReplayResults    = int(iota)
)

var replayResultTexts = [NumReplayResults]string{
	ReplayComplete:      "complete",
	ReplayEmpty:         "empty",
	ReplayStartedLate:   "started_after_requested",
	ReplayNotContiguous: "non_contiguous",
	ReplayEndedEarly:    "ended_before_target",
	ReplaySilent:        "silent",
	ReplayOverflow:      "overflow",
	ReplayDisconnected:  "disconnected",
	ReplayNotOpened:     "not_opened",
	ReplayAborted:       "aborted",
}

// String returns the result's label.
func (r ReplayResult) String() string {
	if int(r) < len(replayResultTexts) {
		return replayResultTexts[r]
	}
	return "unknown"
}

// failed reports whether the replay was broken off before its end mark.
func (r ReplayResult) failed() bool { return r >= ReplaySilent && r != ReplayAborted }

// Counters count what happens to the messages of all streams of a process. What
// happens to their events is counted in Tally. Fields only grow and may be read at
// any time.
type Counters struct {
	Messages      atomic.Uint64 // live messages received, well-formed frames
	Replayed      atomic.Uint64 // replayed messages received
	Applied       atomic.Uint64 // messages given to the applier, of either kind
	FrameErrors   atomic.Uint64 // messages of a wrong shape (live or replayed), dropped
	Undecodable   atomic.Uint64 // messages that the applier refused as a whole
	Duplicates    atomic.Uint64 // live messages with an old number, dropped
	Foreign       atomic.Uint64 // replayed messages of another rank, dropped
	Gaps          atomic.Uint64 // jumps in the live numbers
	GapsLost      atomic.Uint64 // jumps, live or in a replay, that nothing filled
	MessagesLost  atomic.Uint64 // message numbers in those
	Held          atomic.Uint64 // live messages that waited for a replay
	Restarts      atomic.Uint64 // new engines found: their rank was cleared
	Connects      atomic.Uint64
	Disconnects   atomic.Uint64 // losses of a stream's last connection
	Pauses        atomic.Uint64 // times that a full inbox stopped a socket from being read
	ReplayStarts  atomic.Uint64
	ReplaysAgain  atomic.Uint64 // replays from 0 repeated because one had broken off
	ReplayResults [NumReplayResults]atomic.Uint64
}

// maxLost bounds what one jump adds to MessagesLost: a sender that sends any
// number must not make the counter wrap.
const maxLost = 1 << 32

func (c *Counters) addLost(numbers uint64) {
	c.GapsLost.Add(1)
	c.MessagesLost.Add(min(numbers, maxLost))
}

// Sample is an example of something that was dropped: from which rank's stream, and
// why. It holds nothing of the content of a message.
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
	copiesAsSet                    // Tally.CopiesAsSet
	numSampleKinds
)

// samples keeps the first sample of each kind since the last call of Samples.
type samples struct {
	has [numSampleKinds]atomic.Bool // read without mu, so that all but the first of a kind take no lock

	// mu guards first, and the writing of has.
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

// Samples returns the first example of each kind since the last call: of bad frames,
// an undecodable message, a dropped event, and copies that are no longer counted.
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
