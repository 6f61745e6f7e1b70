// Package selector decides which rank a prompt runs on: it filters the ranks,
// gives each a cost and picks one. Everything is a pure function of its
// arguments; the caller brings the loads, the overlaps and the randomness.
//
// Lengths are in blocks or in tokens as each field says, costs are in blocks.
//
// The examples show how a program uses the packages of this module together,
// without HTTP and ZMQ: package indexer finds the overlaps, this package weighs
// them, and package reservations books the choice.
package selector
