package zmtp

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"
)

// Conn is a connection whose handshake is done. One goroutine may receive while
// others send.
type Conn struct {
	conn      net.Conn
	opt       Options
	mechanism Mechanism
	minor     byte // of the peer's ZMTP 3

	in       reader
	assembly assembly
	commands commandBudget

	// writing guards writes to conn: frames, and the mechanism's Seal.
	writing sync.Mutex
	// beating guards beat and closed. It is taken before writing.
	beating sync.Mutex
	beat    *time.Timer // sends the next PING; nil: none
	closed  bool
}

// Handshake takes over conn, makes the handshake and returns a Conn; on an error it closes
// conn. It takes at most Options.HandshakeTime; closing conn ends it early.
func Handshake(conn net.Conn, opt Options) (*Conn, error) {
	if opt.Mechanism == nil {
		opt.Mechanism = Null{}
	}
	if opt.Memory == nil {
		opt.Memory = unlimited{}
	}
	if _, plain := opt.Mechanism.(Null); !plain {
		opt.InPlace = false
	}
	c := &Conn{conn: conn, opt: opt, mechanism: opt.Mechanism}
	c.in.init(conn, opt.Memory)
	if err := c.handshake(); err != nil {
		_ = conn.Close()
		c.in.giveBuffer()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = Refuse(HandshakeTimeout, "no handshake in %v", opt.HandshakeTime)
		}
		return nil, err
	}
	if opt.Heartbeat > 0 {
		c.in.silence = opt.Silence
		c.beating.Lock()
		defer c.beating.Unlock()
		c.beat = time.AfterFunc(opt.Heartbeat, c.ping)
	}
	return c, nil
}

func (c *Conn) handshake() error {
	if err := c.conn.SetDeadline(time.Now().Add(c.opt.HandshakeTime)); err != nil {
		return fmt.Errorf("zmtp handshake: %w", err)
	}
	if _, err := c.conn.Write(appendGreeting(nil, c.mechanism)); err != nil {
		return fmt.Errorf("zmtp handshake: %w", err)
	}
	var err error
	if c.minor, err = readGreeting(&c.in, c.mechanism); err != nil {
		return err
	}
	own := Metadata{{PropertySocketType, c.opt.SocketType}}
	if c.opt.SocketType == "DEALER" {
		own = append(own, Property{PropertyIdentity, ""})
	}
	peer, err := c.mechanism.Handshake(handshake{c}, own)
	if err != nil {
		return err
	}
	if t := peer.Get(PropertySocketType); !fits(c.opt.SocketType, t) {
		return Refuse(BadPeerType, "a socket of type %.20q", t)
	}
	if err := c.conn.SetDeadline(time.Time{}); err != nil {
		return fmt.Errorf("zmtp handshake: %w", err)
	}
	return nil
}

// handshake implements Commands for a Conn.
type handshake struct{ c *Conn }

func (h handshake) Send(name string, data []byte) error {
	body := AppendCommand(nil, name, data)
	_, err := h.c.conn.Write(append(appendHeader(nil, FlagCommand, len(body)), body...))
	if err != nil {
		return fmt.Errorf("zmtp handshake: %w", err)
	}
	return nil
}

func (h handshake) Receive() (name string, data []byte, err error) {
	flags, length, err := h.c.in.header()
	switch {
	case err != nil:
		return "", nil, err
	case flags != FlagCommand:
		return "", nil, Refuse(BadHandshake, "a message before the handshake is done")
	case length > maxCommand:
		return "", nil, Refuse(BadHandshake, "a command of %d bytes", length)
	}
	body := make([]byte, length)
	if err := h.c.in.full(body); err != nil {
		return "", nil, err
	}
	return ParseCommand(body)
}

// Close closes the connection. A Receive or Send under way returns an error.
func (c *Conn) Close() {
	_ = c.conn.Close() // unsent data is lost anyway
	c.beating.Lock()
	defer c.beating.Unlock()
	c.closed = true
	if c.beat != nil {
		c.beat.Stop()
	}
}
