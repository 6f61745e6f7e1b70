// Package indexer answers one question: how many leading blocks of a prompt
// does each rank hold, and in which tier?
//
// A [Space] is a compressed radix tree of blocks. A tree edge holds a run of
// local block hashes; a block's place in the tree is its chain of local hashes,
// hence its sequence hash. Every block of a run has the same holders in
// every tier, so one step of a walk settles a whole run for all ranks at once.
// Holders are exact per (rank, tier, block): runs are split where holders
// differ and joined again where they no longer do.
//
// Engines name blocks by hashes of their own. A rank's name of a block is the
// hash by which the rank's events refer to it. Names resolve to blocks through
// one table shared by all ranks (engines with the same hash seed agree on names);
// a rank that names a block differently has an alias.
//
// A sequence Space ([NewSequence]) knows blocks by their sequence hash, so that
// publishers without tokens can announce them, and keeps many namespaces apart.
// [Space.Match] says which ranks hold each piece of a prompt in either kind.
//
// The tree holds no pointers: blocks, nodes and tables are flat memory outside
// the garbage collector's heap, addressed by 32-bit numbers. The package has no
// sockets, clocks, logs or goroutines. A Space is safe for concurrent use.
package indexer
