package replicasync

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"unicode/utf8"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

// reader reads one message. It is stricter than the library below it (no nil
// for a number, no sign lost) and never recurses into what it skips. Use it from
// one goroutine.
type reader struct {
	payload []byte
	src     bytes.Reader // of payload
	dec     *msgpack.Decoder
}

func newReader() *reader {
	r := &reader{}
	r.dec = msgpack.NewDecoder(&r.src)
	return r
}

func (r *reader) reset(payload []byte) {
	r.payload = payload
	r.src.Reset(payload)
	r.dec.Reset(&r.src)
}

// null consumes a nil if one comes next.
func (r *reader) null() (bool, error) {
	c, err := r.dec.PeekCode()
	if err != nil || c != msgpcode.Nil {
		return false, err
	}
	return true, r.dec.DecodeNil()
}

// uint reads an integer of any width and signedness from 0 to limit.
func (r *reader) uint(limit uint64) (uint64, error) {
	c, err := r.dec.PeekCode()
	if err != nil {
		return 0, err
	}
	var n uint64
	switch {
	case c <= msgpcode.PosFixedNumHigh, c >= msgpcode.Uint8 && c <= msgpcode.Uint64:
		n, err = r.dec.DecodeUint64()
	case c >= msgpcode.Int8 && c <= msgpcode.Int64:
		var signed int64
		if signed, err = r.dec.DecodeInt64(); signed < 0 {
			return 0, fmt.Errorf("negative number %d", signed)
		}
		n = uint64(signed)
	default:
		return 0, fmt.Errorf("want an unsigned integer, got code %#x", c)
	}
	if err == nil && n > limit {
		return 0, fmt.Errorf("number %d is above %d", n, limit)
	}
	return n, err
}

// wide is uint for a number of full width, as nearly all hashes are: the library
// takes five times as long.
func (r *reader) wide() (n uint64, ok bool) {
	rest := r.payload[len(r.payload)-r.src.Len():]
	if len(rest) < 9 || rest[0] != msgpcode.Uint64 {
		return 0, false
	}
	_, err := r.src.Seek(9, io.SeekCurrent)
	return binary.BigEndian.Uint64(rest[1:]), err == nil
}

func (r *reader) text() (string, error) {
	c, err := r.dec.PeekCode()
	if err != nil {
		return "", err
	}
	if !msgpcode.IsString(c) {
		return "", fmt.Errorf("want a string, got code %#x", c)
	}
	n, err := r.dec.DecodeBytesLen()
	if err != nil {
		return "", err
	}
	rest := r.payload[len(r.payload)-r.src.Len():]
	if n > len(rest) { // the library would make memory for it first
		return "", io.ErrUnexpectedEOF
	}
	if !utf8.Valid(rest[:n]) {
		return "", errors.New("string is not UTF-8")
	}
	_, err = r.src.Seek(int64(n), io.SeekCurrent)
	return string(rest[:n]), err
}

func (r *reader) bool() (bool, error) {
	c, err := r.dec.PeekCode()
	if err != nil {
		return false, err
	}
	if c != msgpcode.True && c != msgpcode.False {
		return false, fmt.Errorf("want a boolean, got code %#x", c)
	}
	return r.dec.DecodeBool()
}

// isMap, isArray and isText tell what comes next.
func (r *reader) isMap() bool {
	return r.next(msgpcode.IsFixedMap, msgpcode.Map16, msgpcode.Map32)
}

func (r *reader) isArray() bool {
	return r.next(msgpcode.IsFixedArray, msgpcode.Array16, msgpcode.Array32)
}

func (r *reader) isText() bool { return r.next(msgpcode.IsString) }

func (r *reader) next(fixed func(byte) bool, codes ...byte) bool {
	c, err := r.dec.PeekCode()
	return err == nil && (fixed(c) || bytes.IndexByte(codes, c) >= 0)
}

// length reads the head of an array. Every element takes a byte at least, so a
// length that the message cannot hold is refused before anything is made of it.
func (r *reader) length() (int, error) {
	if !r.isArray() {
		return 0, errors.New("want an array")
	}
	n, err := r.dec.DecodeArrayLen()
	if err == nil && n > r.src.Len() {
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}

// fields reads a struct: a map whose unknown keys are ignored, or an array of
// the first values in order. f reads the value of names[i]. The first required
// ones must be there, none may be there twice.
func (r *reader) fields(names []string, required int, f func(i int) error) error {
	var seen uint64
	read := func(i int) error {
		if seen&(1<<i) != 0 {
			return fmt.Errorf("%s is there twice", names[i])
		}
		seen |= 1 << i
		if err := f(i); err != nil {
			return fmt.Errorf("%s: %w", names[i], err)
		}
		return nil
	}
	var err error
	if r.isArray() {
		err = r.positional(names, read)
	} else {
		err = r.keyed(names, read)
	}
	if err != nil {
		return err
	}
	for i := range required {
		if seen&(1<<i) == 0 {
			return fmt.Errorf("%s is missing", names[i])
		}
	}
	return nil
}

func (r *reader) positional(names []string, read func(i int) error) error {
	n, err := r.length()
	if err != nil {
		return err
	}
	for i := range n {
		if i < len(names) {
			err = read(i)
		} else {
			err = r.skip()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *reader) keyed(names []string, read func(i int) error) error {
	if !r.isMap() {
		return errors.New("want a map or an array")
	}
	n, err := r.dec.DecodeMapLen()
	if err != nil {
		return err
	}
	for range n {
		key, err := r.text()
		if err != nil {
			return fmt.Errorf("key: %w", err)
		}
		if i := slices.Index(names, key); i >= 0 {
			err = read(i)
		} else {
			err = r.skip()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// skip passes over one value. Nesting costs nothing.
func (r *reader) skip() error {
	for left := 1; left > 0; left-- {
		c, err := r.src.ReadByte()
		if err != nil {
			return err
		}
		size, inner, err := r.extent(c)
		if err != nil {
			return err
		}
		if size > r.src.Len() || inner > r.src.Len() {
			return io.ErrUnexpectedEOF
		}
		if _, err := r.src.Seek(int64(size), io.SeekCurrent); err != nil {
			return err
		}
		left += inner
	}
	return nil
}

// extent reads the rest of a value's head: how many bytes and how many values
// belong to it.
func (r *reader) extent(c byte) (size, inner int, err error) {
	switch {
	case c <= msgpcode.PosFixedNumHigh, c >= msgpcode.NegFixedNumLow:
		return 0, 0, nil
	case msgpcode.IsFixedMap(c):
		return 0, 2 * int(c&msgpcode.FixedMapMask), nil
	case msgpcode.IsFixedArray(c):
		return 0, int(c & msgpcode.FixedArrayMask), nil
	case msgpcode.IsFixedString(c):
		return int(c & msgpcode.FixedStrMask), 0, nil
	}
	switch c {
	case msgpcode.Nil, msgpcode.False, msgpcode.True:
	case msgpcode.Uint8, msgpcode.Int8:
		size = 1
	case msgpcode.Uint16, msgpcode.Int16:
		size = 2
	case msgpcode.Uint32, msgpcode.Int32, msgpcode.Float:
		size = 4
	case msgpcode.Uint64, msgpcode.Int64, msgpcode.Double:
		size = 8
	case msgpcode.FixExt1, msgpcode.FixExt2, msgpcode.FixExt4, msgpcode.FixExt8, msgpcode.FixExt16:
		size = 1 + 1<<(c-msgpcode.FixExt1)
	case msgpcode.Str8, msgpcode.Bin8:
		size, err = r.big(1)
	case msgpcode.Str16, msgpcode.Bin16:
		size, err = r.big(2)
	case msgpcode.Str32, msgpcode.Bin32:
		size, err = r.big(4)
	case msgpcode.Ext8:
		size, err = r.big(1)
		size++
	case msgpcode.Ext16:
		size, err = r.big(2)
		size++
	case msgpcode.Ext32:
		size, err = r.big(4)
		size++
	case msgpcode.Array16:
		inner, err = r.big(2)
	case msgpcode.Array32:
		inner, err = r.big(4)
	case msgpcode.Map16:
		inner, err = r.big(2)
		inner *= 2
	case msgpcode.Map32:
		inner, err = r.big(4)
		inner *= 2
	default:
		err = fmt.Errorf("code %#x has no meaning", c)
	}
	return size, inner, err
}

// big reads a big-endian number of that many bytes.
func (r *reader) big(width int) (n int, err error) {
	for range width {
		c, err := r.src.ReadByte()
		if err != nil {
			return 0, err
		}
		n = n<<8 | int(c)
	}
	return n, nil
}
