// Package selector decides which rank a prompt runs on: it filters the ranks,
// gives each a cost and picks one. Everything but History is a pure function of its
// arguments; the caller brings the loads, the overlaps and the randomness.
//
// The costs come from a Policy. The default, CostFunction, is that of
// dynamo-kv-router; each other policy has a file of its own. Lengths are in blocks or
// in tokens as each field says, costs in the policy's unit.
//
// The examples show how a program uses the packages of this module together,
// without HTTP and ZMQ: package indexer finds the overlaps, this package weighs
// them, and package reservations books the choice.
package selector
