package recovery

import "math"

// uint reads an integer from 0 to limit.
func (s *scanner) uint(limit uint64) (v uint64, ok bool) {
	v, negative, ok := s.integer()
	return v, ok && !negative && v <= limit
}

// hash reads the 64 bits of a hash, written as a signed or as an unsigned
// integer: -1 and 18446744073709551615 are the same hash (decision D14).
func (s *scanner) hash() (v uint64, ok bool) {
	v, negative, ok := s.integer()
	if negative {
		return -v, ok && v <= 1<<63
	}
	return v, ok
}

// null takes the next value if it is null.
func (s *scanner) null() bool {
	if s.next() != 'n' {
		return false
	}
	s.skipWord()
	return true
}

// integer reads an integer. Any other value is passed and not ok.
func (s *scanner) integer() (magnitude uint64, negative, ok bool) {
	c := s.next()
	if c == '-' {
		negative = true
		s.pos++
		if s.pos == s.end && !s.fill() {
			return 0, false, false
		}
		c = s.buf[s.pos]
	}
	if c-'0' > 9 {
		s.skip()
		return 0, false, false
	}
	ok = true
	for {
		if s.pos == s.end && !s.fill() {
			return 0, false, false
		}
		d := uint64(s.buf[s.pos]) - '0'
		if d > 9 {
			break
		}
		if magnitude > (math.MaxUint64-d)/10 {
			ok = false
		}
		magnitude = magnitude*10 + d
		s.pos++
	}
	switch s.buf[s.pos] {
	case '.', 'e', 'E', '+', '-':
		s.skipWord()
		ok = false
	}
	return magnitude, negative, ok
}

// A block as every known peer writes it.
const (
	blockStart  = `{"block_hash":`
	blockMiddle = `,"tokens_hash":`
	blockEnd    = `,"mm_extra_info":null}`
	longBlock   = len(blockStart) + 20 + len(blockMiddle) + 20 + len(blockEnd)
)

// block reads a block in the usual form. It reads nothing and is false if the
// next value looks otherwise or does not lie in the window.
func (s *scanner) block() (name, local uint64, ok bool) {
	b := s.buf[s.pos:s.end]
	if len(b) < longBlock+1 || string(b[:len(blockStart)]) != blockStart {
		return 0, 0, false
	}
	at := len(blockStart)
	name, n := decimal(b[at:])
	at += n
	if n == 0 || string(b[at:at+len(blockMiddle)]) != blockMiddle {
		return 0, 0, false
	}
	at += len(blockMiddle)
	local, n = decimal(b[at:])
	at += n
	if n == 0 || string(b[at:at+len(blockEnd)]) != blockEnd {
		return 0, 0, false
	}
	s.pos += at + len(blockEnd)
	return name, local, true
}

// decimal reads the number that b starts with; n is its length, 0 if it has none
// of 64 bits. The caller knows that b does not end before the number does.
func decimal(b []byte) (v uint64, n int) {
	b = b[:min(len(b), 20)]
	for n < len(b) && n < 19 {
		d := b[n] - '0'
		if d > 9 {
			return v, n
		}
		v = v*10 + uint64(d)
		n++
	}
	if n < len(b) && b[n]-'0' <= 9 {
		d := uint64(b[n] - '0')
		if v > (math.MaxUint64-d)/10 {
			return 0, 0
		}
		v = v*10 + d
		n++
	}
	return v, n
}
