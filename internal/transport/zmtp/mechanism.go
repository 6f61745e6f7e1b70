package zmtp

import "fmt"

// Mechanism is the security mechanism of one connection. Handshake is called once, after the
// greetings. Then Seal and Open wrap and unwrap every frame, including commands. Seal is called
// by one goroutine at a time, in the order in which frames are sent, and Open likewise for
// received frames; the two may run concurrently.
type Mechanism interface {
	// Name is the name in the greeting, at most 20 bytes.
	Name() string
	// Server reports whether this side is the mechanism's server; NULL has none.
	Server() bool
	// Handshake exchanges commands until both sides know each other's metadata. If the peer
	// breaks the rules, the error is an *Error.
	Handshake(x Commands, own Metadata) (peer Metadata, err error)
	// Overhead is the most bytes that Seal adds to a frame.
	Overhead() int
	// Seal returns the frame to send for f. It may share f's body.
	Seal(f Frame) (Frame, error)
	// Open returns the frame that was sealed as f. It may use, and overwrite, f's body.
	Open(f Frame) (Frame, error)
}

// Commands sends and receives the commands of a handshake. The data returned by Receive is
// valid until the next call, and at most maxCommand bytes long.
type Commands interface {
	Send(name string, data []byte) error
	Receive() (name string, data []byte, err error)
}

const null = "NULL"

// Null is the mechanism without security.
type Null struct{}

// Name implements Mechanism.
func (Null) Name() string { return null }

// Server implements Mechanism.
func (Null) Server() bool { return false }

// Handshake implements Mechanism: both sides send READY with their metadata.
func (Null) Handshake(x Commands, own Metadata) (Metadata, error) {
	if err := x.Send(cmdReady, own.Append(nil)); err != nil {
		return nil, err
	}
	name, data, err := x.Receive()
	switch {
	case err != nil:
		return nil, err
	case name == cmdError:
		return nil, PeerError(data)
	case name != cmdReady:
		return nil, Refuse(BadHandshake, "command %.20q instead of READY", name)
	}
	return ParseMetadata(data)
}

// Overhead implements Mechanism.
func (Null) Overhead() int { return 0 }

// Seal implements Mechanism.
func (Null) Seal(f Frame) (Frame, error) { return f, nil }

// Open implements Mechanism.
func (Null) Open(f Frame) (Frame, error) { return f, nil }

// PeerError returns the *Error for an ERROR command with this data.
func PeerError(data []byte) error {
	reason := ""
	if len(data) > 0 && int(data[0]) <= len(data)-1 {
		reason = string(data[1 : 1+int(data[0])])
	}
	return &Error{BadHandshake, fmt.Sprintf("the peer refuses: %.100q", reason)}
}
