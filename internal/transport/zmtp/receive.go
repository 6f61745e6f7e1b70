package zmtp

import (
	"math"
	"time"

	"github.com/select-service/select-service/pkg/memory"
)

// Message is a received message. The next Receive overwrites the slice Frames.
type Message struct {
	Frames [][]byte
	// Memory has the bytes of the frames, reserved from Options.Memory; the receiver releases it.
	// nil: the frames are in the read buffer, and the next Receive overwrites them; see Keep.
	Memory   *memory.Buffer
	Received time.Time // when its last byte came
}

// Receive returns the next message, and answers heartbeats. A SUBSCRIBE or CANCEL command is
// returned as the equivalent message of ZMTP 3.0: one frame, of a byte 1 or 0 and the topic. If
// the peer broke a rule, the error is an *Error. After an error there is nothing more to receive.
func (c *Conn) Receive() (Message, error) {
	m, err := c.receive()
	if err != nil {
		c.Drop()
	}
	return m, err
}

// Drop releases the memory of a partly received message. Only the receiving goroutine may call
// it, after its last Receive.
func (c *Conn) Drop() {
	c.assembly.abandon(c.opt.Memory)
	c.in.giveBuffer()
}

// Alone reports whether nothing after the last message has been read from the connection.
func (c *Conn) Alone() bool { return c.in.r == c.in.w }

// Followed reports whether another whole message has been read after the last one.
func (c *Conn) Followed() bool {
	for b := c.in.buf[c.in.r:c.in.w]; ; {
		flags, length, n, err := parseHeader(b)
		if n == 0 || err != nil || length > uint64(len(b)-n) {
			return false
		}
		if flags&(FlagCommand|FlagMore) == 0 {
			return true
		}
		b = b[n+int(length):]
	}
}

// Gather lets messages gather in the kernel, which wakes nobody for them until a Receive waits. It
// reports whether all that has come has been received before.
func (c *Conn) Gather() bool { return c.Alone() && c.in.gather() }

// Fetch reads what has gathered, without waiting, and reports whether there was something. Gathered
// returns its messages.
func (c *Conn) Fetch() bool { return c.in.fetch() }

// Gathered returns the next message of those that Fetch has read. It never waits. ok is false if
// there is none, or if something is to be done before it that may wait, which Receive does: a PING is
// to be answered, the peer has broken a rule, or the connection is not one of Options.InPlace.
func (c *Conn) Gathered() (m Message, ok bool) {
	if !c.opt.InPlace {
		return Message{}, false
	}
	for {
		b := c.in.buf[c.in.r:c.in.w]
		flags, length, n, err := parseHeader(b)
		if n == 0 || err != nil || length > uint64(len(b)-n) {
			return Message{}, false
		}
		if flags&FlagCommand == 0 {
			return c.inPlace()
		}
		end := n + int(length)
		if name, _, err := ParseCommand(b[n:end]); err != nil || name != cmdPong || !c.commands.take(c.in.receivedAt) {
			return Message{}, false
		}
		c.in.r += end
	}
}

// Keep returns m in memory of its own. It may wait for memory, and fails if there is none.
func (c *Conn) Keep(m Message) (Message, error) {
	if m.Memory != nil {
		return m, nil
	}
	a := &c.assembly
	for i, frame := range m.Frames {
		a.ends[i] = len(frame)
		if i > 0 {
			a.ends[i] += a.ends[i-1]
		}
	}
	if err := a.grow(a.ends[len(m.Frames)-1], 0, c.opt.Memory); err != nil {
		return Message{}, err
	}
	for _, frame := range m.Frames {
		a.bytes = append(a.bytes, frame...)
	}
	a.count = len(m.Frames)
	kept, err := a.finish(c.opt.Memory)
	kept.Received = m.Received
	return kept, err
}

// inPlace returns the next message if it lies in the read buffer and needs no special handling.
func (c *Conn) inPlace() (m Message, ok bool) {
	b, at := c.in.buf[c.in.r:c.in.w], 0
	for i := range c.assembly.frames {
		flags, length, n, err := parseHeader(b[at:])
		if n == 0 || err != nil || flags&FlagCommand != 0 || length > uint64(len(b)-at-n) {
			return Message{}, false
		}
		at += n
		end := at + int(length)
		c.assembly.frames[i] = b[at:end:end]
		if at = end; flags&FlagMore != 0 {
			continue
		}
		if int64(at) > c.opt.MaxMessage {
			return Message{}, false
		}
		c.in.r += at
		return Message{Frames: c.assembly.frames[:i+1], Received: c.in.receivedAt}, true
	}
	return Message{}, false
}

func (c *Conn) receive() (Message, error) {
	c.in.begin()
	for {
		if c.opt.InPlace && c.assembly.count == 0 {
			if c.in.r == c.in.w {
				if err := c.in.fill(); err != nil {
					return Message{}, err
				}
			}
			if m, ok := c.inPlace(); ok {
				return m, nil
			}
		}
		f, err := c.frame()
		if err != nil {
			return Message{}, err
		}
		if f.Flags&FlagCommand != 0 {
			subscription, err := c.command(f.Body)
			switch {
			case err != nil:
				return Message{}, err
			case subscription == nil:
				c.assembly.dropFrame()
				if c.assembly.count == 0 {
					c.in.begin()
				}
				continue
			}
			f = Frame{Body: subscription}
		}
		c.assembly.keepFrame(f.Body)
		if f.Flags&FlagMore == 0 {
			m, err := c.assembly.finish(c.opt.Memory)
			m.Received = c.in.receivedAt
			return m, err
		}
	}
}

// frame reads the next frame. Its body is in the assembly.
func (c *Conn) frame() (Frame, error) {
	flags, length, err := c.in.header()
	if err != nil {
		return Frame{}, err
	}
	switch {
	case flags&FlagCommand != 0 && length > maxCommand:
		return Frame{}, Refuse(TooLarge, "a command of %d bytes", length)
	case flags&FlagCommand == 0 && c.assembly.count == MaxFrames:
		return Frame{}, Refuse(TooManyFrames, "more than %d", MaxFrames)
	case length > math.MaxInt64 || int64(length) > c.opt.MaxMessage-int64(len(c.assembly.bytes)):
		return Frame{}, Refuse(TooLarge, "a frame of %d bytes after %d of its message, the limit is %d", length, len(c.assembly.bytes), c.opt.MaxMessage)
	}
	body, err := c.assembly.readFrame(&c.in, int(length), c.opt.Memory)
	if err != nil {
		return Frame{}, err
	}
	return Frame{flags, body}, nil
}

// command handles a command. A SUBSCRIBE or CANCEL is returned as its message of ZMTP 3.0.
func (c *Conn) command(body []byte) (subscription []byte, err error) {
	if len(body) > maxCommand {
		return nil, Refuse(TooLarge, "a command of %d bytes", len(body))
	}
	if !c.commands.take(c.in.receivedAt) {
		return nil, Refuse(TooManyCommands, "more than %d a second", commandRate)
	}
	name, data, err := ParseCommand(body)
	if err != nil {
		return nil, err
	}
	switch name {
	case cmdPing:
		return nil, c.pong(data)
	case cmdPong:
		return nil, nil
	case cmdSubscribe, cmdCancel:
		if c.assembly.count > 0 {
			return nil, Refuse(BadFrame, "%s inside of a message", name)
		}
		body[len(name)] = 0 // overwrites the last letter of the name
		if name == cmdSubscribe {
			body[len(name)] = 1
		}
		return body[len(name):], nil
	case cmdError:
		return nil, peerError(data)
	}
	return nil, Refuse(BadFrame, "unknown command %.20q", name)
}

// commandBudget bounds the rate of commands.
type commandBudget struct {
	used int       // commands beyond the rate, as of at
	at   time.Time // when used was brought up to date
}

func (b *commandBudget) take(now time.Time) bool {
	if earned := int(min(now.Sub(b.at)*commandRate/time.Second, commandBurst)); earned > 0 {
		b.used, b.at = max(b.used-earned, 0), now
	}
	b.used++
	return b.used <= commandBurst
}

// assembly is the message being read. Its frames lie one after the other in one piece of
// memory, which belongs to the message once it is more than a few bytes.
type assembly struct {
	bytes  []byte
	memory *memory.Buffer // memory of bytes; nil: they are in small
	start  int            // offset in bytes of the last frame
	ends   [MaxFrames]int
	count  int // number of frames kept
	small  [64]byte

	frames [MaxFrames][]byte // frames of the finished message
}

// readFrame appends the body of a frame. Memory grows with the bytes that have come.
func (a *assembly) readFrame(in *reader, length int, budget Memory) ([]byte, error) {
	if a.bytes == nil {
		a.bytes = a.small[:0]
	}
	a.start = len(a.bytes)
	need := a.start + length
	for len(a.bytes) < need {
		if len(a.bytes) == cap(a.bytes) {
			if err := a.grow(min(need, max(growth*cap(a.bytes), firstChunk)), need, budget); err != nil {
				return nil, err
			}
		}
		have, end := len(a.bytes), min(cap(a.bytes), need)
		if err := in.full(a.bytes[have:end]); err != nil {
			return nil, err
		}
		a.bytes = a.bytes[:end]
	}
	return a.bytes[a.start:], nil
}

// grow gives the message, which is known to be of whole bytes at least, memory for size bytes.
func (a *assembly) grow(size, whole int, budget Memory) error {
	held := a.memory.Size()
	want := int64(memory.BufferSize(size)) + MessageOverhead
	if !budget.Reserve(want-held, held, int64(whole)) {
		return Refuse(NoMemory, "no room for %d bytes of a message", size)
	}
	larger := memory.NewBuffer(size)
	larger.Reserved = want
	bytes := append(larger.Bytes, a.bytes...)
	if a.memory != nil {
		a.memory.Reserved = 0 // the reservation is larger's now
		a.memory.Release(nil)
	}
	a.memory, a.bytes = larger, bytes
	return nil
}

// keepFrame makes body, the unsealed content of the last frame read, the next frame of the
// message.
func (a *assembly) keepFrame(body []byte) {
	n := copy(a.bytes[a.start:], body) // usually body is there already
	a.bytes = a.bytes[:a.start+n]
	a.ends[a.count] = len(a.bytes)
	a.count++
}

// dropFrame drops the last frame read.
func (a *assembly) dropFrame() { a.bytes = a.bytes[:a.start] }

// finish returns the message and begins the next one.
func (a *assembly) finish(budget Memory) (Message, error) {
	if a.memory == nil {
		if err := a.grow(len(a.bytes), 0, budget); err != nil {
			return Message{}, err
		}
	}
	start := 0
	for i, end := range a.ends[:a.count] {
		a.frames[i] = a.bytes[start:end:end]
		start = end
	}
	m := Message{Frames: a.frames[:a.count], Memory: a.memory}
	a.bytes, a.memory, a.count = nil, nil, 0
	return m, nil
}

// abandon releases the memory of a partly read message.
func (a *assembly) abandon(budget Memory) {
	budget.Release(a.memory.Size())
	a.memory.Release(nil)
	a.bytes, a.memory, a.count = nil, nil, 0
}
