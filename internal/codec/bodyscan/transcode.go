package bodyscan

import (
	"strconv"

	"github.com/select-service/select-service/internal/codec/msgpack"
)

// AppendMsgpack converts JSON text to msgpack and appends it to dst. The text must be one
// well-formed value; otherwise the result is undefined. Numbers with a fraction or an exponent
// become floats, all others integers.
func AppendMsgpack(dst, json []byte) []byte {
	var s Scanner
	s.Reset(JSON, json)
	return s.appendPacked(dst)
}

// AppendMembers appends the members of a JSON object as AppendMsgpack does, without
// the header of a map, and returns how many there are. An error is the text's first
// fault.
func AppendMembers(dst, json []byte) (members []byte, n int, err error) {
	var s Scanner
	s.Reset(JSON, json)
	dst, n = s.appendMembers(dst)
	return dst, n, s.End()
}

func (s *Scanner) appendMembers(dst []byte) (members []byte, n int) {
	c, ok := s.open(object, "")
	for ok && s.more(&c) {
		dst = msgpack.AppendText(dst, s.key())
		dst = s.appendPacked(dst)
		n++
	}
	return dst, n
}

// appendPacked converts and appends the next value. The header of a container is inserted
// before its entries once they are counted.
func (s *Scanner) appendPacked(dst []byte) []byte {
	at := len(dst)
	switch s.kind() {
	case object:
		members, n := s.appendMembers(dst)
		return msgpack.InsertMapLen(members, at, n)
	case array:
		n := 0
		c, ok := s.open(array, "")
		for ok && s.more(&c) {
			dst = s.appendPacked(dst)
			n++
		}
		return msgpack.InsertArrayLen(dst, at, n)
	case text:
		return msgpack.AppendText(dst, s.Text())
	case boolean:
		return msgpack.AppendBool(dst, s.Bool())
	case number:
		return s.appendNumber(dst)
	case null, noValue, byteString, extension:
		s.Skip()
	}
	return msgpack.AppendNil(dst)
}

func (s *Scanner) appendNumber(dst []byte) []byte {
	at := s.pos
	switch n := s.number(); {
	case n.fraction || n.overflow || n.negative && n.magnitude > 1<<63:
		f, _ := strconv.ParseFloat(string(s.data[at:s.pos]), 64)
		return msgpack.AppendFloat(dst, f)
	case n.negative:
		return msgpack.AppendInt(dst, int64(-n.magnitude))
	default:
		return msgpack.AppendUint(dst, n.magnitude)
	}
}
