package zmtp

import (
	"errors"
	"fmt"
	"io"
	"syscall"

	"github.com/select-service/select-service/internal/transport/curve"
)

// CurveClient returns the CURVE mechanism of one connection to a server that has the given
// public key.
func CurveClient(own *curve.KeyPair, server curve.PublicKey) Mechanism {
	return &curveMechanism{own: own, server: server}
}

// CurveServer returns the CURVE mechanism of one connection from a client; allowed reports
// whether a client's public key is accepted.
func CurveServer(own *curve.KeyPair, allowed func(curve.PublicKey) bool) Mechanism {
	return &curveMechanism{own: own, allowed: allowed}
}

// curveMechanism is one side of CURVE.
type curveMechanism struct {
	own     *curve.KeyPair
	server  curve.PublicKey            // of a client
	allowed func(curve.PublicKey) bool // of a server; nil: it is a client
	session *curve.Session             // after the handshake
	sealed  []byte                     // scratch of Seal
}

// keptSealed bounds the scratch that is kept, in bytes.
const keptSealed = 4 << 10

// Name implements Mechanism.
func (m *curveMechanism) Name() string { return "CURVE" }

// Server implements Mechanism.
func (m *curveMechanism) Server() bool { return m.allowed != nil }

// Overhead implements Mechanism.
func (m *curveMechanism) Overhead() int { return curve.Overhead }

// Handshake implements Mechanism.
func (m *curveMechanism) Handshake(x Commands, own Metadata) (Metadata, error) {
	var result *curve.Result
	var err error
	if m.Server() {
		result, err = m.serve(x, curve.NewServer(m.own, m.allowed, own.Append(nil)))
	} else {
		result, err = m.connect(x, curve.NewClient(m.own, m.server, own.Append(nil)))
	}
	if err != nil {
		return nil, err
	}
	m.session = result.Session
	return ParseMetadata(result.Metadata)
}

func (m *curveMechanism) connect(x Commands, c *curve.Client) (*curve.Result, error) {
	command, err := c.Hello()
	if err != nil {
		return nil, curveError(err)
	}
	for {
		if err := sendCommand(x, command); err != nil {
			return nil, err
		}
		received, err := receiveCommand(x)
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
			// libzmq's server does not say why.
			return nil, Refuse(BadKey, "the server hangs up: it does not have the key %s, or refuses ours, %s", m.server, m.own.Public)
		case err != nil:
			return nil, err
		}
		answer, result, err := c.Next(received)
		if err != nil || result != nil {
			return result, curveError(err)
		}
		command = answer
	}
}

func (m *curveMechanism) serve(x Commands, s *curve.Server) (*curve.Result, error) {
	for {
		command, err := receiveCommand(x)
		if err != nil {
			return nil, err
		}
		answer, result, err := s.Next(command)
		if answer != nil {
			if err := sendCommand(x, answer); err != nil {
				return nil, err
			}
		}
		if err != nil || result != nil {
			return result, curveError(err)
		}
	}
}

// Seal implements Mechanism. The body is valid until the next call.
func (m *curveMechanism) Seal(f Frame) (Frame, error) {
	// FlagMore and curve.More are the same bit, the flags of commands are not.
	flags := curve.Flags(f.Flags & FlagMore)
	if f.Flags&FlagCommand != 0 {
		flags |= curve.Command
	}
	body := m.session.Seal(m.sealed[:0], flags, f.Body)
	if cap(body) <= keptSealed {
		m.sealed = body
	}
	return Frame{Body: body}, nil
}

// Open implements Mechanism.
func (m *curveMechanism) Open(f Frame) (Frame, error) {
	flags, body, err := m.session.Open(f.Body)
	if err != nil {
		return Frame{}, Refuse(BadFrame, "%v", err)
	}
	opened := Frame{Flags: byte(flags & curve.More), Body: body}
	if flags&curve.Command != 0 {
		opened.Flags |= FlagCommand
	}
	if opened.Flags == FlagCommand|FlagMore {
		return Frame{}, Refuse(BadFrame, "a command of several frames")
	}
	return opened, nil
}

func sendCommand(x Commands, command []byte) error {
	name, data, err := ParseCommand(command)
	if err != nil {
		return err
	}
	return x.Send(name, data)
}

func receiveCommand(x Commands) ([]byte, error) {
	name, data, err := x.Receive()
	if err != nil {
		return nil, err
	}
	return AppendCommand(nil, name, data), nil
}

// curveError returns the *Error for an error of package curve, nil for nil.
func curveError(err error) error {
	var refused *curve.RefusedError
	var stranger *curve.NotAllowedError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refused), errors.As(err, &stranger), errors.Is(err, curve.ErrSealed):
		return &Error{BadKey, err.Error()}
	}
	return &Error{BadHandshake, fmt.Sprint(err)}
}
