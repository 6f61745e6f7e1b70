package zmtp

import (
	"slices"
	"time"
)

const (
	// MaxFrames bounds the frames of a message. The KV event wire and the mesh use at most four.
	MaxFrames = 8
	// MessageOverhead is the memory of a message in bytes besides its content: the structures
	// that hold it while it waits.
	MessageOverhead = 128

	// maxCommand bounds a command, in bytes; a READY has about 50.
	maxCommand = 8 << 10
	// commandBurst and commandRate bound the commands of a peer: the number at once, and per
	// second. A heartbeat is two commands every few seconds.
	commandBurst = 1000
	commandRate  = 100
	// slowestMessage is the lowest rate, in bytes per second, at which a message may come in
	// once messageTime has passed since its first byte.
	slowestMessage = 16 << 10
	messageTime    = 10 * time.Second
	// writeTimeout is how long a peer may leave sent data unread.
	writeTimeout = 15 * time.Second

	// smallBuffer and largeBuffer are the sizes of read buffers, in bytes. If firstChunk bytes
	// or more of a frame are still to come, they are read directly into the message's memory.
	smallBuffer = 4 << 10
	largeBuffer = 16 << 10
	// firstChunk is the memory of a frame, in bytes, before its bytes have come. Whenever it is
	// full, it grows by the factor growth.
	firstChunk = 16 << 10
	growth     = 4
)

// Memory is the account of partly read messages. Reserve reports whether n more bytes may be
// taken by a message that holds held bytes so far, and has at least whole bytes in all; it may
// wait. ReserveBuffer reports whether there is plenty of room for a read buffer of n bytes; it
// does not wait.
type Memory interface {
	Reserve(n, held, whole int64) bool
	Release(n int64)
	ReserveBuffer(n int64) bool
	ReleaseBuffer(n int64)
}

// Options are the options of a connection.
type Options struct {
	// SocketType is our socket type: SUB, PUB or DEALER.
	SocketType string
	// MaxMessage bounds a message, in bytes of all its frames.
	MaxMessage int64
	// Memory is the account of messages being read; nil: no limit.
	Memory Memory
	// InPlace lets Receive return messages that lie in the read buffer.
	InPlace bool
	// HandshakeTime bounds the duration of the handshake.
	HandshakeTime time.Duration
	// Heartbeat is the time between two PINGs; 0: none, and a dead peer is never noticed.
	Heartbeat time.Duration
	// Silence is the time without a byte after which a peer counts as dead. It has an effect
	// only with Heartbeat.
	Silence time.Duration
}

// fitting has the peers' socket types that fit each of ours.
var fitting = map[string][]string{
	"SUB":    {"PUB", "XPUB"},
	"PUB":    {"SUB", "XSUB"},
	"DEALER": {"ROUTER", "DEALER", "REP"},
}

func fits(own, peer string) bool { return slices.Contains(fitting[own], peer) }

// unlimited is a Memory without limits.
type unlimited struct{}

func (unlimited) Reserve(int64, int64, int64) bool { return true }
func (unlimited) Release(int64)                    {}
func (unlimited) ReserveBuffer(int64) bool         { return true }
func (unlimited) ReleaseBuffer(int64)              {}
