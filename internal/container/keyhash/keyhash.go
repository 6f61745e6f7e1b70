package keyhash

import (
	"math/bits"
	"math/rand/v2"
)

// Key is the secret of one table. The zero Key is not usable: see New.
type Key struct{ mask, factor uint64 }

// New returns a random key.
func New() Key { return Key{rand.Uint64(), rand.Uint64() | 1} }

// Sum spreads x over 64 bits.
func (k Key) Sum(x uint64) uint64 { return k.Pair(x, 0) }

// Pair spreads two numbers over 64 bits, like wyhash64 (Wang Yi, public domain): the masked
// numbers are multiplied, and the halves of the product are multiplied again. A difference in
// one number cannot be compensated by the other.
func (k Key) Pair(x, y uint64) uint64 {
	hi, lo := bits.Mul64(x^k.mask, y^k.factor)
	hi, lo = bits.Mul64(lo^k.mask, hi^k.factor)
	return hi ^ lo
}
