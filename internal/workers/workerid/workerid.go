// Package workerid derives the ids of workers that nobody numbers: of engines that are known by
// their URL, and of discovered pods. The same name has the same id in every life of the process
// and on every replica, and the same as in Dynamo's endpoint picker.
package workerid

import (
	"encoding/binary"
	"math/bits"
)

// Of returns the id of a name. It is below 2^53, so that JSON readers with floating-point numbers
// keep it exact. It is the low 53 bits of the hash that Rust's DefaultHasher has for a str:
// SipHash-1-3 with a zero key, of the bytes and a final 0xFF.
func Of(name string) uint64 {
	return sip13(append([]byte(name), 0xFF)) & (1<<53 - 1)
}

// sip13 is SipHash-1-3 (Aumasson and Bernstein) with a zero key.
func sip13(b []byte) uint64 {
	s := state{0x736f6d6570736575, 0x646f72616e646f6d, 0x6c7967656e657261, 0x7465646279746573}
	last := uint64(len(b)) << 56
	for ; len(b) >= 8; b = b[8:] {
		s.absorb(binary.LittleEndian.Uint64(b))
	}
	for i, c := range b {
		last |= uint64(c) << (8 * i)
	}
	s.absorb(last)
	s[2] ^= 0xFF
	for range 3 {
		s.round()
	}
	return s[0] ^ s[1] ^ s[2] ^ s[3]
}

// state is SipHash's state v0 to v3.
type state [4]uint64

func (s *state) absorb(word uint64) {
	s[3] ^= word
	s.round()
	s[0] ^= word
}

func (s *state) round() {
	s[0] += s[1]
	s[1] = bits.RotateLeft64(s[1], 13) ^ s[0]
	s[0] = bits.RotateLeft64(s[0], 32)
	s[2] += s[3]
	s[3] = bits.RotateLeft64(s[3], 16) ^ s[2]
	s[0] += s[3]
	s[3] = bits.RotateLeft64(s[3], 21) ^ s[0]
	s[2] += s[1]
	s[1] = bits.RotateLeft64(s[1], 17) ^ s[2]
	s[2] = bits.RotateLeft64(s[2], 32)
}
