// Package hashset finds repeats in lists of block hashes.
//
// Block hashes come from engines and clients. They may choose them, but must
// not be able to choose hashes that collide, so every [Set] multiplies them by
// a secret random number.
package hashset
