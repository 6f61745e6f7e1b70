package kvevents

import (
	"encoding/binary"
	"math"
	"time"
)

// message is one numbered batch of a publisher.
type message struct {
	seq     uint64
	payload []byte
	// received is when a live message came, in Unix nanoseconds.
	received int64
}

// endMark is the sequence number of the end of a replay. A live message may
// have it as well: there it is a number like any other.
const endMark = math.MaxUint64

// parseLive reads a live message: topic (any text), sequence number (8 bytes,
// big endian), payload.
func parseLive(frames [][]byte, received time.Time) (m message, ok bool) {
	if len(frames) != 3 || len(frames[1]) != 8 {
		return message{}, false
	}
	return message{binary.BigEndian.Uint64(frames[1]), frames[2], received.UnixNano()}, true
}

// parseAnswer reads one answer of a replay: "", [topic,] sequence number,
// payload. vLLM sends the topic since 0.26, SGLang since 0.5.23 (decision K6).
// The end of the replay is a number of all ones or an empty payload.
func parseAnswer(frames [][]byte) (m message, end, ok bool) {
	n := len(frames)
	if n != 3 && n != 4 || len(frames[n-2]) != 8 {
		return message{}, false, false
	}
	m = message{seq: binary.BigEndian.Uint64(frames[n-2]), payload: frames[n-1]}
	return m, m.seq == endMark || len(m.payload) == 0, true
}

// replayRequest returns the frames that ask a publisher for every message that
// it still has from a number on. Exactly these two: publishers do not answer
// others.
func replayRequest(from uint64) [][]byte {
	return [][]byte{nil, binary.BigEndian.AppendUint64(nil, from)}
}
