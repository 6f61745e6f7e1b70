package identity

import "bytes"

// MaxName is the largest length of a session's name in bytes (dynamo-kv-router 1.6.1).
const MaxName = 256

// Faults is a set of reasons why names of sessions are not used.
type Faults uint8

// The reasons.
const (
	TooLong  Faults = 1 << iota // longer than MaxName
	Control                     // it has a control character
	Reserved                    // it begins with a control character, as the names do that the service makes, see IsReserved
)

// NumFaults is the number of reasons.
const NumFaults = 3

// FaultLabel names the reason 1<<bit.
func FaultLabel(bit int) string {
	return [NumFaults]string{"too_long", "control_character", "reserved"}[bit]
}

// FaultOf returns the first reason why a name cannot be used, 0 if it can. The empty name, which is of no session, has none.
func FaultOf(name string) Faults {
	switch {
	case IsReserved(name):
		return Reserved
	case len(name) > MaxName:
		return TooLong
	}
	for i := range len(name) {
		if name[i] < ' ' || name[i] == 0x7f {
			return Control
		}
	}
	return 0
}

// Clip returns a name without spaces around it; of one that is too long, no more than shows that it is.
func Clip(name []byte) string {
	name = bytes.TrimSpace(name)
	if len(name) > MaxName {
		return string(name[:MaxName]) + "…"
	}
	return string(name)
}

// IsReserved reports whether no client may give a session this name: one that begins with a control character is made by the
// service, for the sessions of tenants, for groups and for what engines keep.
func IsReserved(name string) bool { return name != "" && name[0] < ' ' }
