// Package conductor is the index behind the Conductor API: which instances hold
// how much of a prompt, per medium and per data-parallel rank.
//
// An [Identity] (tenant, model, LoRA adapter, salt, block size) is the isolation
// key of a query: blocks of one are never seen from another. A [Publisher] is a
// registration in force, one stream of KV events. Its events say which blocks an
// owner holds: the engine itself, or a cache backend behind the instance that
// the publisher was registered for. What several publishers of one instance hold
// counts together for that instance, and for each of its ranks.
//
// Blocks of one tenant, model, block size and hash seed live in one
// indexer.Space. There each identity is a namespace with a random key that is
// folded into every block's value, so that nothing of one namespace can be met
// from another, while the hashes on the wire stay those of the standard
// (decisions C2 and C4).
//
// The package has no sockets, clocks, logs or goroutines.
package conductor
