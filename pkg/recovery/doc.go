// Package recovery moves an index from one replica to another: it writes the
// dump of an index, reads the dump of a peer, and merges what it reads with the
// live events that arrive meanwhile.
//
// The format is that of dynamo-kv-router 1.3.1 and 1.6.1, of their selection
// service and standalone indexer alike: an object with one entry per scope,
// blocks as "stored" events. A dump may be larger than memory: neither side ever
// holds all of it.
//
// [Read] feeds one dump to a [Target], a [Gate] merges the dump of a scope with its
// live events, and [Recover] asks one peer after the other. The package has no
// sockets, clocks, logs or goroutines.
package recovery
