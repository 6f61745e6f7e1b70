package zmtp

import "fmt"

// Reason is why a connection was refused or given up. Its text is a label of metrics.
type Reason uint8

// The reasons.
const (
	BadGreeting      Reason = iota // the peer does not speak ZMTP
	OldVersion                     // ZMTP before 3.0
	OtherMechanism                 // the peer speaks another security mechanism
	BadHandshake                   // a malformed or unexpected command, or the peer refused
	BadPeerType                    // the peer's socket type does not fit ours
	HandshakeTimeout               // no handshake in Options.HandshakeTime
	BadFrame                       // a frame or command that is malformed
	TooManyFrames                  // more than MaxFrames in a message
	TooLarge                       // a message above Options.MaxMessage, or a command above maxCommand
	TooManyCommands                // more commands than a peer has reason to send
	TooSlow                        // a message comes in too slowly
	NoMemory                       // Options.Memory has no room for the message
	// For the callers of this package:
	NotAllowed         // the address is not allowed by the policy
	TooManyConnections // the connection was closed to make room for others
	NumReasons         = int(iota)
)

var reasonTexts = [NumReasons]string{
	BadGreeting:      "bad_greeting",
	OldVersion:       "old_version",
	OtherMechanism:   "other_mechanism",
	BadHandshake:     "bad_handshake",
	BadPeerType:      "bad_peer_type",
	HandshakeTimeout: "handshake_timeout",
	BadFrame:         "bad_frame",
	TooManyFrames:    "too_many_frames",
	TooLarge:         "too_large",
	TooManyCommands:  "too_many_commands",
	TooSlow:          "too_slow",
	NoMemory:         "no_memory",

	NotAllowed:         "not_allowed",
	TooManyConnections: "too_many_connections",
}

// String returns the reason's label.
func (r Reason) String() string {
	if int(r) < len(reasonTexts) {
		return reasonTexts[r]
	}
	return "unknown"
}

// Error says what a peer did that ends its connection.
type Error struct {
	Reason Reason
	Detail string // of the peer's bytes it has only numbers and quoted names
}

func (e *Error) Error() string { return "zmtp: " + e.Reason.String() + ": " + e.Detail }

// Refuse returns an *Error.
func Refuse(reason Reason, format string, args ...any) error {
	return &Error{reason, fmt.Sprintf(format, args...)}
}
