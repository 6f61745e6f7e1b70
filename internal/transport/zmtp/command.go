package zmtp

import (
	"encoding/binary"
	"strings"
)

// Names of commands.
const (
	cmdReady     = "READY"
	cmdError     = "ERROR"
	cmdPing      = "PING"
	cmdPong      = "PONG"
	cmdSubscribe = "SUBSCRIBE"
	cmdCancel    = "CANCEL"
)

// AppendCommand appends the body of a command: the length of the name, the name,
// the data.
func AppendCommand(dst []byte, name string, data []byte) []byte {
	dst = append(dst, byte(len(name)))
	dst = append(dst, name...)
	return append(dst, data...)
}

// ParseCommand splits the body of a command.
func ParseCommand(body []byte) (name string, data []byte, err error) {
	if len(body) < 1 || int(body[0]) > len(body)-1 || body[0] == 0 {
		return "", nil, Refuse(BadFrame, "a command of %d bytes without a name", len(body))
	}
	end := 1 + int(body[0])
	return string(body[1:end]), body[end:], nil
}

// Metadata has the properties that a side announces in the handshake. Names are compared
// without regard to case.
type Metadata []Property

// Property is one property, for example Socket-Type.
type Property struct{ Name, Value string }

// Names of properties.
const (
	PropertySocketType = "Socket-Type"
	PropertyIdentity   = "Identity"
)

// maxProperties bounds the properties that are read; peers send two.
const maxProperties = 32

// Get returns the value of a property, "" if there is none.
func (m Metadata) Get(name string) string {
	for _, p := range m {
		if strings.EqualFold(p.Name, name) {
			return p.Value
		}
	}
	return ""
}

// Append appends the wire form of m. Each property is the length of the name (1 byte), the
// name, the length of the value (4 bytes), the value.
func (m Metadata) Append(dst []byte) []byte {
	for _, p := range m {
		dst = append(dst, byte(len(p.Name)))
		dst = append(dst, p.Name...)
		dst = binary.BigEndian.AppendUint32(dst, uint32(len(p.Value)))
		dst = append(dst, p.Value...)
	}
	return dst
}

// ParseMetadata reads the wire form of metadata.
func ParseMetadata(b []byte) (Metadata, error) {
	var m Metadata
	for len(b) > 0 {
		name := int(b[0])
		if name == 0 || len(b) < 1+name+4 {
			return nil, Refuse(BadHandshake, "malformed metadata")
		}
		p := Property{Name: string(b[1 : 1+name])}
		b = b[1+name:]
		value := binary.BigEndian.Uint32(b)
		b = b[4:]
		if uint64(value) > uint64(len(b)) || len(m) == maxProperties {
			return nil, Refuse(BadHandshake, "malformed metadata")
		}
		p.Value = string(b[:value])
		m, b = append(m, p), b[value:]
	}
	return m, nil
}
