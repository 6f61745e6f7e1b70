package zmtp

import (
	"encoding/binary"
	"fmt"
	"sync"
	"time"
)

// Send sends a message. It blocks while the peer does not read, for up to writeTimeout. After
// an error the connection cannot be used.
func (c *Conn) Send(frames ...[]byte) error { return c.SendAll([][][]byte{frames}) }

// SendAll sends several messages like Send, small ones together in one write. writeTimeout
// applies to each write.
func (c *Conn) SendAll(messages [][][]byte) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	out := outgoing.Get().(*[]byte)
	defer func() {
		if cap(*out) <= maxPooled {
			outgoing.Put(out)
		}
	}()
	*out = (*out)[:0]
	for _, frames := range messages {
		for i, body := range frames {
			f := Frame{Body: body}
			if i < len(frames)-1 {
				f.Flags = FlagMore
			}
			var err error
			if *out, err = c.sendFrame(*out, f); err != nil {
				return err
			}
		}
	}
	if len(*out) == 0 {
		return nil
	}
	return c.write(*out)
}

// sendFrame appends a frame to the data to be written. It writes the data when there is much of
// it, and the body of a large frame directly, without a copy. writing must be held.
func (c *Conn) sendFrame(out []byte, f Frame) ([]byte, error) {
	out = appendHeader(out, f.Flags, len(f.Body))
	if len(out)+len(f.Body) <= maxWrite {
		return append(out, f.Body...), nil
	}
	if err := c.write(out); err != nil {
		return out, err
	}
	if len(f.Body) <= maxWrite {
		return append(out[:0], f.Body...), nil
	}
	return out[:0], c.write(f.Body)
}

const (
	// maxWrite bounds the data collected for one write, in bytes.
	maxWrite = 32 << 10
	// maxPooled bounds the pooled buffers, in bytes each.
	maxPooled = 64 << 10
)

// outgoing pools buffers of data being sent.
var outgoing = sync.Pool{New: func() any { return new([]byte) }}

// Subscribe asks a publisher for the messages whose first frame begins with topic.
func (c *Conn) Subscribe(topic []byte) error {
	if c.minor == 0 {
		return c.Send(append([]byte{1}, topic...))
	}
	return c.sendCommand(cmdSubscribe, topic)
}

func (c *Conn) sendCommand(name string, data []byte) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	body := AppendCommand(nil, name, data)
	return c.write(append(appendHeader(nil, FlagCommand, len(body)), body...))
}

// write sends b. writing must be held.
func (c *Conn) write(b []byte) error {
	if err := c.conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return fmt.Errorf("zmtp: %w", err)
	}
	if _, err := c.conn.Write(b); err != nil {
		return fmt.Errorf("zmtp: %w", err)
	}
	return nil
}

// maxPingContext bounds the bytes of a PING that are sent back in its PONG.
const maxPingContext = 16

// pong answers a PING, which has two bytes of a time to live (Options.Silence is used instead)
// and a context that is sent back.
func (c *Conn) pong(ping []byte) error {
	if len(ping) < 2 || len(ping) > 2+maxPingContext {
		return Refuse(BadFrame, "a PING of %d bytes", len(ping))
	}
	return c.sendCommand(cmdPong, ping[2:])
}

// ping sends a PING and arms the next one. It runs on a timer.
func (c *Conn) ping() {
	c.beating.Lock()
	defer c.beating.Unlock()
	if c.closed {
		return
	}
	// The time for which the peer should wait for a sign of us, in tenths of a second.
	ttl := binary.BigEndian.AppendUint16(nil, uint16(min(c.opt.Silence/(100*time.Millisecond), 1<<16-1)))
	if c.sendCommand(cmdPing, ttl) != nil {
		_ = c.conn.Close() // makes Receive fail
		return
	}
	c.beat.Reset(c.opt.Heartbeat)
}
