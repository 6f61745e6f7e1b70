package replicasync

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/select-service/select-service/internal/wire/msgpack"
)

// errBroken is the error of a message that ends early or is no msgpack.
var errBroken = errors.New("message is not whole")

// reader reads one message after the other and checks what the format leaves
// open: the range of numbers, and that strings are UTF-8.
type reader struct{ msgpack.Reader }

func newReader() *reader { return &reader{} }

func (r *reader) reset(payload []byte) { r.Reader = msgpack.Reader{Data: payload} }

// uint reads an integer of any width and signedness from 0 to limit.
func (r *reader) uint(limit uint64) (uint64, error) {
	n, negative, ok := r.Integer()
	switch {
	case !ok:
		return 0, errors.New("want an unsigned integer")
	case negative:
		return 0, fmt.Errorf("negative number %d", int64(n))
	case n > limit:
		return 0, fmt.Errorf("number %d is above %d", n, limit)
	}
	return n, nil
}

// wide reads a number of full width, as nearly all hashes are, if that comes next.
func (r *reader) wide() (n uint64, ok bool) {
	rest := r.Data[r.Pos:]
	if len(rest) < 9 || rest[0] != msgpack.CodeUint64 {
		return 0, false
	}
	r.Pos += 9
	return binary.BigEndian.Uint64(rest[1:]), true
}

func (r *reader) text() (string, error) {
	text, ok := r.Text()
	if !ok {
		return "", errors.New("want a string")
	}
	if !utf8.Valid(text) {
		return "", errors.New("string is not UTF-8")
	}
	return string(text), nil
}

func (r *reader) bool() (bool, error) {
	c := r.Peek()
	if c != msgpack.CodeTrue && c != msgpack.CodeFalse {
		return false, errors.New("want a boolean")
	}
	r.Pos++
	return c == msgpack.CodeTrue, nil
}

// length reads the head of an array. Every element takes a byte at least, so a
// length that the message cannot hold is refused before anything is made of it.
func (r *reader) length() (int, error) {
	n, ok := r.ArrayLen()
	if !ok {
		return 0, errors.New("want a whole array")
	}
	return n, nil
}

// skip passes over one value of any type.
func (r *reader) skip() error {
	if !r.Skip() {
		return errBroken
	}
	return nil
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
	if r.IsArray() {
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
	n, ok := r.MapLen()
	if !ok {
		return errors.New("want a whole map or array")
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
