package gateway

import (
	"io"

	"github.com/select-service/select-service/pkg/memory"
)

// body is the body of a request while its engine is chosen. Its memory is reserved from
// accounts of --max-memory. Bodies up to memory.SmallBody have an account of their own, so that
// large ones cannot crowd them out.
type body struct {
	of       *Exchange // nil: nobody gives memory up for it
	bytes    []byte
	buffer   *memory.Buffer // has bytes; nil: they are a message's
	small    *memory.Account
	large    *memory.Account
	reserved int64
	in       *memory.Account // the account that reserved was taken from; nil: none
}

// add appends a chunk; it may keep the chunk's memory. The problem is a body above limit bytes,
// or no memory.
func (b *body) add(chunk []byte, limit int) *Problem {
	n := len(b.bytes) + len(chunk)
	if n > limit {
		return errTooLarge(limit)
	}
	switch {
	case len(b.bytes) == 0:
		b.bytes = chunk // most bodies come at once
	case n > cap(b.bytes):
		former := b.buffer
		b.buffer = memory.NewBuffer(max(min(2*cap(b.bytes), limit), n))
		b.bytes = append(append(b.buffer.Bytes, b.bytes...), chunk...)
		former.Release(nil)
	default:
		b.bytes = append(b.bytes, chunk...)
	}
	if !b.reserve(int64(cap(b.bytes))) {
		return NoMemory()
	}
	return nil
}

// firstRead is the memory for the first bytes of a body whose length is not known, or is longer: it grows
// with what comes, and not with what is announced.
const firstRead = 64 << 10

// read reads a body whose length is announced, -1 if it is not. The error is from's.
func (b *body) read(from io.Reader, length int64, limit int) (*Problem, error) {
	if length > int64(limit) {
		return errTooLarge(limit), nil
	}
	most := limit + 1
	if length >= 0 {
		most = int(length) + 1 // so that its end is seen without more memory
	}
	for {
		if len(b.bytes) == cap(b.bytes) {
			former := b.buffer
			b.buffer = memory.NewBuffer(max(min(max(2*cap(b.bytes), firstRead), most), len(b.bytes)+1))
			b.bytes = append(b.buffer.Bytes, b.bytes...)
			former.Release(nil)
			if !b.reserve(int64(cap(b.bytes))) {
				return NoMemory(), nil
			}
		}
		n, err := from.Read(b.bytes[len(b.bytes):cap(b.bytes)])
		b.bytes = b.bytes[:len(b.bytes)+n]
		switch {
		case len(b.bytes) > limit:
			return errTooLarge(limit), nil
		case err == io.EOF:
			return nil, nil
		case err != nil:
			return nil, err
		}
	}
}

// reserve makes the reservation n bytes in all, from the account for a body of that size, and
// reports whether they fit, if need be in place of bodies that do not come. If not, the old reservation stays.
func (b *body) reserve(n int64) bool {
	in := b.small
	if n > memory.SmallBody {
		in = b.large
	}
	if in == b.in && n <= b.reserved {
		return true
	}
	if in == b.in {
		n -= b.reserved
	}
	for !in.Reserve(n) {
		if b.of == nil || !b.of.makeRoom(in) {
			return false
		}
	}
	if in == b.in {
		n += b.reserved
		b.reserved = 0
	}
	b.in.Release(b.reserved)
	b.in, b.reserved = in, n
	if b.of != nil && b.of.read != nil {
		b.of.read.in.Store(in)
	}
	return true
}

// release returns the memory, which is another body's from then on. Further calls do nothing.
func (b *body) release() {
	b.in.Release(b.reserved)
	b.buffer.Release(nil)
	b.bytes, b.buffer, b.reserved, b.in = nil, nil, 0, nil
}
