// Package container is the wing of small data structures: keyed hashes, sets of hashes, sets
// of slots. Its packages are below.
package container
