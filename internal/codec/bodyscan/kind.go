package bodyscan

import "github.com/select-service/select-service/internal/codec/msgpack"

// kind is the type of a value.
type kind uint8

const (
	noValue kind = iota // the end of the body, or a byte that starts no value
	null
	boolean
	number
	text
	array
	object
	byteString // only msgpack has it
	extension  // only msgpack has it
)

// String is the kind's name in faults.
func (k kind) String() string {
	return [...]string{"nothing", "null", "boolean", "number", "string", "array", "object", "byte string", "extension"}[k]
}

// kind returns the type of the next value by its first byte, and leaves the scanner at that byte.
func (s *Scanner) kind() kind {
	if s.format == Msgpack {
		r := s.reader()
		return packedKind(r.Peek())
	}
	switch c := s.peek(); c {
	case '{':
		return object
	case '[':
		return array
	case '"':
		return text
	case 't', 'f':
		return boolean
	case 'n':
		return null
	default:
		if c == '-' || isDigit(c) {
			return number
		}
		return noValue
	}
}

// packedKind is the type of a msgpack value with the first byte c.
func packedKind(c byte) kind {
	switch {
	case c < 0x80, c >= 0xe0:
		return number
	case c < 0x90, c >= msgpack.CodeMap16:
		return object
	case c < 0xa0, c >= msgpack.CodeArray16:
		return array
	case c < msgpack.CodeNil, c >= msgpack.CodeStr8:
		return text
	case c >= msgpack.CodeFixExt1, c >= msgpack.CodeExt8 && c <= msgpack.CodeExt32:
		return extension
	case c >= msgpack.CodeFloat32:
		return number
	case c >= msgpack.CodeBin8:
		return byteString
	case c >= msgpack.CodeFalse:
		return boolean
	case c == msgpack.CodeNil:
		return null
	}
	return noValue
}
