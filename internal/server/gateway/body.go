package gateway

import (
	"context"
	"io"

	"github.com/select-service/select-service/pkg/memory"
)

// body is the body of a request while its engine is chosen. Its memory is reserved from
// accounts of --max-memory. Bodies up to memory.SmallBody have an account of their own, so that
// large ones cannot crowd them out.
type body struct {
	bytes   []byte
	buffer  *memory.Buffer // has bytes; nil: they are a message's
	small   *memory.Limiter
	large   *memory.Limiter
	memory  memory.Token
	arrival *arrival // while it comes; nil: it does not
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

// reserve makes the reservation n bytes in all, from the account for a body of that size, and reports whether they
// fit, if need be in place of bodies that do not come. If not, the old reservation stays.
func (b *body) reserve(n int64) bool {
	from := b.small
	if n > memory.SmallBody {
		from = b.large
	}
	if from == b.memory.Of() && n <= b.memory.Bytes() {
		return true
	}
	if from.Resize(context.Background(), &b.memory, n, 0) != nil {
		return false
	}
	if b.arrival != nil {
		b.memory.Lend(b.arrival, stalledAfter)
	}
	return true
}

// release returns the memory, which is another body's from then on. Further calls do nothing.
func (b *body) release() {
	b.memory.Release()
	b.buffer.Release(nil)
	b.bytes, b.buffer = nil, nil
}
