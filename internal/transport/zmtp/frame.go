package zmtp

import "encoding/binary"

// Flags of a frame. The other bits are reserved and have to be 0.
const (
	FlagMore    byte = 1 << iota // another frame of the message follows
	flagLong                     // the length takes 8 bytes instead of 1; only on the wire
	FlagCommand                  // the frame is a command
)

// Frame is a frame without its length.
type Frame struct {
	Flags byte // FlagMore, FlagCommand
	Body  []byte
}

// maxHeader is the longest header of a frame, in bytes.
const maxHeader = 9

// appendHeader appends the flags and the length of a frame.
func appendHeader(dst []byte, flags byte, length int) []byte {
	if length <= 255 {
		return append(dst, flags, byte(length))
	}
	return binary.BigEndian.AppendUint64(append(dst, flags|flagLong), uint64(length))
}

// parseHeader reads the flags and the length of a frame. n is the length of the
// header, 0 if b has only a part of it.
func parseHeader(b []byte) (flags byte, length uint64, n int, err error) {
	if len(b) < 2 {
		return 0, 0, 0, nil
	}
	flags = b[0]
	switch {
	case flags&^(FlagMore|flagLong|FlagCommand) != 0:
		return 0, 0, 0, Refuse(BadFrame, "flags 0x%02x", flags)
	case flags&FlagCommand != 0 && flags&FlagMore != 0:
		return 0, 0, 0, Refuse(BadFrame, "a command of several frames")
	case flags&flagLong == 0:
		return flags, uint64(b[1]), 2, nil
	case len(b) < maxHeader:
		return 0, 0, 0, nil
	}
	return flags &^ flagLong, binary.BigEndian.Uint64(b[1:]), maxHeader, nil
}
