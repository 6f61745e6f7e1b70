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
	conn  net.Conn
	opt   Options
	minor byte // of the peer's ZMTP 3

	in       reader
	assembly assembly
	commands commandBudget

	// writing guards writes to conn.
	writing sync.Mutex
	// beating guards beat and closed. It is taken before writing.
	beating sync.Mutex
	beat    *time.Timer // sends the next PING; nil: none
	closed  bool
}

// Handshake takes over conn, makes the handshake and returns a Conn; on an error it closes
// conn. It takes at most Options.HandshakeTime; closing conn ends it early.
func Handshake(conn net.Conn, opt Options) (*Conn, error) {
	if opt.Memory == nil {
		opt.Memory = unlimited{}
	}
	c := &Conn{conn: conn, opt: opt}
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
	if _, err := c.conn.Write(appendGreeting(nil)); err != nil {
		return fmt.Errorf("zmtp handshake: %w", err)
	}
	var err error
	if c.minor, err = readGreeting(&c.in); err != nil {
		return err
	}
	own := Metadata{{PropertySocketType, c.opt.SocketType}}
	if c.opt.SocketType == "DEALER" {
		own = append(own, Property{PropertyIdentity, ""})
	}
	peer, err := c.exchangeReady(own)
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

// exchangeReady makes the handshake of the mechanism NULL: both sides send READY with their metadata.
func (c *Conn) exchangeReady(own Metadata) (peer Metadata, err error) {
	ready := AppendCommand(nil, cmdReady, own.Append(nil))
	if _, err := c.conn.Write(append(appendHeader(nil, FlagCommand, len(ready)), ready...)); err != nil {
		return nil, fmt.Errorf("zmtp handshake: %w", err)
	}
	flags, length, err := c.in.header()
	switch {
	case err != nil:
		return nil, err
	case flags != FlagCommand:
		return nil, Refuse(BadHandshake, "a message before the handshake is done")
	case length > maxCommand:
		return nil, Refuse(BadHandshake, "a command of %d bytes", length)
	}
	body := make([]byte, length)
	if err := c.in.full(body); err != nil {
		return nil, err
	}
	name, data, err := ParseCommand(body)
	switch {
	case err != nil:
		return nil, err
	case name == cmdError:
		return nil, peerError(data)
	case name != cmdReady:
		return nil, Refuse(BadHandshake, "command %.20q instead of READY", name)
	}
	return ParseMetadata(data)
}

// peerError returns the *Error for an ERROR command with this data.
func peerError(data []byte) error {
	reason := ""
	if len(data) > 0 && int(data[0]) <= len(data)-1 {
		reason = string(data[1 : 1+int(data[0])])
	}
	return &Error{BadHandshake, fmt.Sprintf("the peer refuses: %.100q", reason)}
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
