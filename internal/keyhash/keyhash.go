// Package keyhash hashes numbers for tables that outsiders fill.
//
// Engines and callers choose their block hashes, and can choose tokens for most
// values of XXH3, which can be inverted. They must not be able to choose numbers
// that meet in one place of a table, where each look-up would pass all of them. A
// [Key] is therefore secret and random, and of every two numbers it is as good as
// random, to somebody who does not know the key, whether they meet. What depends on
// the order of a table is not the same in the next process; nothing that leaves the
// process may.
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

// Pair spreads two numbers over 64 bits, as wyhash64 does (Wang Yi, public domain):
// the product of the masked numbers, of which both halves are multiplied again.
// Neither number can make up for a difference of the other.
func (k Key) Pair(x, y uint64) uint64 {
	hi, lo := bits.Mul64(x^k.mask, y^k.factor)
	hi, lo = bits.Mul64(lo^k.mask, hi^k.factor)
	return hi ^ lo
}
