package bodyscan

import (
	"math"
	"strconv"
)

func isDigit(c byte) bool { return c-'0' < 10 }

// Uint64 reads an integer in [0, 2^64). A number with a fraction or exponent is no integer,
// whatever its value.
func (s *Scanner) Uint64() uint64 { return s.unsigned(math.MaxUint64, "an unsigned 64-bit integer") }

// Uint32 reads an integer in [0, 2^32).
func (s *Scanner) Uint32() uint32 {
	return uint32(s.unsigned(math.MaxUint32, "an unsigned 32-bit integer"))
}

func (s *Scanner) unsigned(limit uint64, want string) uint64 {
	at, n, ok := s.integer(want)
	if ok && (n.negative || n.overflow || n.magnitude > limit) {
		s.fail(Shape, at, "integer out of range, expected "+want)
		return 0
	}
	return n.magnitude
}

// Hash64 reads the 64 bits of a hash, written as a signed or as an unsigned
// integer (decision D14): -1 and 18446744073709551615 are the same hash.
func (s *Scanner) Hash64() uint64 {
	const want = "a 64-bit integer"
	at, n, ok := s.integer(want)
	switch {
	case !ok:
		return 0
	case n.overflow, n.negative && n.magnitude > 1<<63:
		s.fail(Shape, at, "integer out of range, expected "+want)
		return 0
	case n.negative:
		return -n.magnitude
	}
	return n.magnitude
}

// parsed is a number's integer part.
type parsed struct {
	magnitude uint64
	negative  bool
	overflow  bool // the magnitude does not fit
	fraction  bool // a fraction or an exponent follows
}

// integer reads a number that must be an integer; at is its offset.
func (s *Scanner) integer(want string) (at int, n parsed, ok bool) {
	if s.err != nil {
		return 0, n, false
	}
	if s.kind() != number {
		s.failType(want)
		return 0, n, false
	}
	at = s.pos
	if s.format == Msgpack {
		n = s.packedNumber()
	} else {
		n = s.number()
	}
	if n.fraction {
		s.fail(Shape, at, "invalid type: number with a fraction or exponent, expected "+want)
	}
	if s.err != nil {
		return at, parsed{}, false
	}
	return at, n, true
}

// number reads a number of JSON; the scanner is at its first byte. A number beyond the range of
// a float64 is a fault of syntax everywhere, as in serde_json.
func (s *Scanner) number() (n parsed) {
	at := s.pos
	if s.data[s.pos] == '-' {
		n.negative = true
		s.pos++
	}
	start := s.pos
	for s.pos < len(s.data) && isDigit(s.data[s.pos]) {
		d := uint64(s.data[s.pos] - '0')
		if n.magnitude > (math.MaxUint64-d)/10 {
			n.overflow = true
		}
		n.magnitude = n.magnitude*10 + d
		s.pos++
	}
	switch length := s.pos - start; {
	case length == 0:
		s.failSyntax("a digit")
		return n
	case length > 1 && s.data[start] == '0':
		s.fail(Syntax, start, "number with a leading zero")
		return n
	}
	if s.at('.') {
		n.fraction = true
		s.pos++
		s.digits()
	}
	exponent := s.at('e') || s.at('E')
	if exponent {
		n.fraction = true
		s.pos++
		if s.at('+') || s.at('-') {
			s.pos++
		}
		s.digits()
	}
	if s.err == nil && (exponent || s.pos-at > maxPlain) {
		if _, err := strconv.ParseFloat(string(s.data[at:s.pos]), 64); err != nil {
			s.fail(Syntax, at, outOfRange)
		}
	}
	return n
}

const (
	// maxPlain is the length up to which a number without an exponent is within the range of a
	// float64: 308 digits.
	maxPlain   = 308
	outOfRange = "number out of range"
)

func (s *Scanner) at(c byte) bool { return s.pos < len(s.data) && s.data[s.pos] == c }

// digits skips a run of digits, at least one.
func (s *Scanner) digits() {
	start := s.pos
	for s.pos < len(s.data) && isDigit(s.data[s.pos]) {
		s.pos++
	}
	if s.pos == start {
		s.failSyntax("a digit")
	}
}

// Float64 reads a number, rounded to the nearest float64. It is always finite.
func (s *Scanner) Float64() float64 { return s.float(64) }

// Float32 reads a number, rounded to the nearest float32. It is always finite.
func (s *Scanner) Float32() float32 { return float32(s.float(32)) }

func (s *Scanner) float(bits int) float64 {
	if s.err != nil {
		return 0
	}
	if s.kind() != number {
		s.failType("a number")
		return 0
	}
	at := s.pos
	if s.format == Msgpack {
		return s.packedFloat(bits)
	}
	if s.number(); s.err != nil {
		return 0
	}
	f, err := strconv.ParseFloat(string(s.data[at:s.pos]), bits)
	if err != nil { // only a float32's range can be wrong: the rest was checked
		s.fail(Shape, at, outOfRange)
		return 0
	}
	return f
}
