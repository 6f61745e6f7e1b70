package kvevents

// StreamState is a stream's state in one word; its text is a label of metrics.
type StreamState uint8

// The states.
const (
	// Connecting: the publisher is not there (yet, or any more).
	Connecting StreamState = iota
	// Replaying: live messages wait for a replay, or one is still to begin.
	Replaying
	// Live: every message since the stream was joined has been applied.
	Live
	// Stale: messages are lost for good, or after a reconnect no replay has shown
	// that the engine is still the same. Blocks may be wrong until the engine
	// restarts or clears them all, or a later replay reaches back far enough.
	Stale
	NumStreamStates = int(iota)
)

var streamStateTexts = [NumStreamStates]string{
	Connecting: "connecting",
	Replaying:  "replaying",
	Live:       "live",
	Stale:      "stale",
}

// String gives the state's label.
func (s StreamState) String() string {
	if int(s) < len(streamStateTexts) {
		return streamStateTexts[s]
	}
	return "unknown"
}

// StreamCounts are one stream's share of the Counters, since it was added.
type StreamCounts struct {
	Applied  uint64 // messages
	Gaps     uint64 // that nothing filled
	Lost     uint64 // message numbers in them
	Restarts uint64
	Replays  uint64 // begun
	// BadReplays failed or had gaps, the last of them as BadReplay says.
	BadReplays uint64
	BadReplay  ReplayResult
}

// state is what a stream shows of itself.
func (s *stream) state() StreamState {
	switch {
	case s.replay.wanted():
		return Replaying
	case !s.up:
		return Connecting
	case s.hole.ok || s.doubt.ok && s.replayable:
		return Stale
	}
	return Live
}
