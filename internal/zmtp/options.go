package zmtp

import (
	"slices"
	"time"
)

const (
	// MaxFrames is the most frames of a message. The KV event wire and the mesh know
	// four.
	MaxFrames = 8
	// MessageOverhead is what a message counts in memory beside its bytes: what
	// holds it while it waits.
	MessageOverhead = 128

	// maxCommand bounds a command, in bytes; READY has some 50.
	maxCommand = 8 << 10
	// commandBurst and commandRate bound the commands of a peer: so many at once,
	// and so many a second. A heartbeat is two commands in some seconds.
	commandBurst = 1000
	commandRate  = 100
	// slowestMessage is the lowest rate in bytes a second at which a message may
	// come in once messageTime has passed since its first byte.
	slowestMessage = 16 << 10
	messageTime    = 10 * time.Second
	// writeTimeout is how long a peer may not read what is sent to it.
	writeTimeout = 15 * time.Second

	// smallBuffer and largeBuffer are the sizes of what connections are read into, in
	// bytes. Of a frame that is not there yet firstChunk bytes or more are read to where
	// they stay.
	smallBuffer = 4 << 10
	largeBuffer = 16 << 10
	// firstChunk is the memory that a frame takes before its bytes have come; when it
	// is full, it takes growth times as much.
	firstChunk = 16 << 10
	growth     = 4
)

// Memory is where partly read messages take their memory. Reserve reports whether n more bytes
// may be taken by a message that has held bytes so far; it may wait. ReserveBuffer reports
// whether there is plenty of room for a buffer of n bytes that many messages are read into; it
// does not wait.
type Memory interface {
	Reserve(n, held int64) bool
	Release(n int64)
	ReserveBuffer(n int64) bool
	ReleaseBuffer(n int64)
}

// Options are the options of a connection.
type Options struct {
	// SocketType is ours: SUB, PUB or DEALER.
	SocketType string
	// Mechanism is the connection's own; nil is NULL.
	Mechanism Mechanism
	// MaxMessage bounds a message, in bytes of all its frames.
	MaxMessage int64
	// Memory is where messages that are read take their bytes; nil is without limits.
	Memory Memory
	// InPlace lets Receive return messages that lie in what the connection is read into:
	// only with NULL, which leaves frames as they are.
	InPlace bool
	// HandshakeTime bounds the time from the first byte to the last of the handshake.
	HandshakeTime time.Duration
	// Heartbeat is the time between two PINGs, 0 for none; then a dead peer is never noticed.
	Heartbeat time.Duration
	// Silence is the time without a byte after which a peer is taken for dead. Only
	// with Heartbeat.
	Silence time.Duration
}

// fitting are the types of peers for each type of ours.
var fitting = map[string][]string{
	"SUB":    {"PUB", "XPUB"},
	"PUB":    {"SUB", "XSUB"},
	"DEALER": {"ROUTER", "DEALER", "REP"},
}

func fits(own, peer string) bool { return slices.Contains(fitting[own], peer) }

// unlimited is the Memory of those who have none.
type unlimited struct{}

func (unlimited) Reserve(int64, int64) bool { return true }
func (unlimited) Release(int64)             {}
func (unlimited) ReserveBuffer(int64) bool  { return true }
func (unlimited) ReleaseBuffer(int64)       {}
