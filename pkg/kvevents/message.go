package kvevents

import (
	"bytes"
	"encoding/binary"
	"math"
	"time"

	"github.com/select-service/select-service/pkg/memory"
)

// message is one numbered batch of a publisher.
type message struct {
	seq     uint64
	payload []byte
	// received is when a live message was read, in Unix nanoseconds; 0 for a
	// replayed one.
	received int64
	size     int64 // bytes that the accounts count for it
	// memory holds the payload until the message has been handled. nil: the payload has
	// memory of its own, or is borrowed.
	memory *memory.Buffer
	// borrowed: the payload belongs to the source, and is valid until the message has been
	// handled.
	borrowed bool
}

// kept returns m in a form that may be kept after it has been handled.
func (m message) kept() message {
	m.memory.Keep()
	m.memory = nil
	if m.borrowed {
		m.payload, m.borrowed = bytes.Clone(m.payload), false
	}
	return m
}

// endMark is the sequence number of the end of a replay. A live message may have
// it as well: there it is a number like any other.
const endMark = math.MaxUint64

// parseLive reads a live message: topic (any text), sequence number (8 bytes,
// big endian), payload.
func parseLive(frames [][]byte, received time.Time) (m message, ok bool) {
	if len(frames) != 3 || len(frames[1]) != 8 {
		return message{}, false
	}
	return message{seq: binary.BigEndian.Uint64(frames[1]), payload: frames[2], received: received.UnixNano()}, true
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
// it still has from a number on. Publishers answer exactly these two frames.
func replayRequest(from uint64) [][]byte {
	return [][]byte{nil, binary.BigEndian.AppendUint64(nil, from)}
}

// heldMessages is a queue of live messages that wait for a replay, in the order
// of their arrival.
type heldMessages struct {
	queue []message
	head  int   // of queue
	bytes int   // of the payloads from head on
	size  int64 // sum of the messages' sizes
}

func (h *heldMessages) len() int { return len(h.queue) - h.head }

func (h *heldMessages) front() message { return h.queue[h.head] }

func (h *heldMessages) push(m message) {
	h.queue = append(h.queue, m.kept())
	h.bytes += len(m.payload)
	h.size += m.size
}

func (h *heldMessages) pushFront(m message) {
	if h.head == 0 {
		h.queue = append([]message{m}, h.queue...)
	} else {
		h.head--
		h.queue[h.head] = m
	}
	h.bytes += len(m.payload)
	h.size += m.size
}

func (h *heldMessages) pop() {
	h.bytes -= len(h.queue[h.head].payload)
	h.size -= h.queue[h.head].size
	h.queue[h.head] = message{}
	if h.head++; h.head == len(h.queue) {
		*h = heldMessages{} // the next replay may be far off
	}
}

// highest returns the highest number, 0 if there is none.
func (h *heldMessages) highest() uint64 {
	var top uint64
	for _, m := range h.queue[h.head:] {
		top = max(top, m.seq)
	}
	return top
}

// dropOldEngine drops the messages of an engine that a new one has replaced:
// those before the place where the numbers first fall, starting from last. If
// they never fall, it drops none; with notReached, which means that the new
// engine cannot have reached the held numbers, it then drops all.
func (h *heldMessages) dropOldEngine(last uint64, notReached bool) {
	old := 0
	for i, m := range h.queue[h.head:] {
		if m.seq <= last {
			old, notReached = i, false
			break
		}
		last = m.seq
	}
	if notReached {
		old = h.len()
	}
	for range old {
		h.pop()
	}
}

// fingerprints remembers the content of a few numbered messages of a stream. An
// engine that restarted counts from 0 again: once its numbers have passed the old
// ones, only the content of messages tells the two engines apart. A batch begins
// with its time, so that two engines never send the same one.
type fingerprints struct {
	first, last fingerprint
	between     *olderFingerprints // nil: none. Allocated late: it is most of a stream's memory.
}

// olderFingerprints are those of messages between the first and the last.
type olderFingerprints struct {
	marks       [numMarks]fingerprint       // of every markStride-th message, a ring by number
	connections [numConnections]fingerprint // of the last messages of earlier connections, a ring
	next        int                         // index in connections to overwrite next
}

const (
	numMarks       = 16
	markStride     = 1024 // 16 marks span the usual ring of 10,000 messages
	numConnections = 4
)

// fingerprint tells messages with the same number apart. It is cheap to take: the
// payload's length and both ends of it, where time and rank are.
type fingerprint struct {
	seq        uint64
	length     int // in bytes; 0: no fingerprint
	head, tail [32]byte
}

func fingerprintOf(m message) (p fingerprint) {
	p.seq, p.length = m.seq, len(m.payload)
	copy(p.head[:], m.payload)
	copy(p.tail[:], m.payload[max(0, len(m.payload)-len(p.tail)):])
	return p
}

// note remembers m, the newest message.
func (f *fingerprints) note(m message) {
	f.last = fingerprintOf(m)
	if f.first.length == 0 {
		f.first = f.last
	}
	if m.seq%markStride == 0 {
		f.older().marks[m.seq/markStride%numMarks] = f.last
	}
}

func (f *fingerprints) older() *olderFingerprints {
	if f.between == nil {
		f.between = new(olderFingerprints)
	}
	return f.between
}

// keepLast remembers the newest message as the last one of a connection.
func (f *fingerprints) keepLast() {
	if f.last.length == 0 {
		return
	}
	o := f.older()
	o.connections[o.next] = f.last
	o.next = (o.next + 1) % numConnections
}

// compare reports whether m's number is remembered, and for the same message.
func (f *fingerprints) compare(m message) (remembered, same bool) {
	check := func(p *fingerprint) bool {
		if p.length == 0 || p.seq != m.seq {
			return false
		}
		remembered, same = true, *p == fingerprintOf(m)
		return true
	}
	o := f.between
	if check(&f.last) || check(&f.first) || o == nil || check(&o.marks[m.seq/markStride%numMarks]) {
		return remembered, same
	}
	for i := range o.connections {
		if check(&o.connections[i]) {
			break
		}
	}
	return remembered, same
}
