// Package replicasync lets replicas share their reservations: what one accepts,
// completes or ends is published to the others, and a replica that missed something
// notices and catches up from a snapshot.
//
// A step of the own ledger: ledger → Booked, PrefillCompleted, Freed, Renewed
// (numbered and queued) → encoder → Transport. A step of another replica: Transport
// → bounded queue → reader → core → ledger. The core (core.go, coverage.go) decides,
// without goroutines, sockets or a clock, what effect a message has and when to fetch
// which replica's snapshot. Replica (replica.go, run.go) has the goroutines.
//
// Lock order: Replica.mu, Replica.coreMu, the ledger's locks, the lock of a queue.
// The ledger calls Booked and the others under its locks; these take a queue's lock
// and ask Scopes.
//
// The messages are those of Dynamo's selection service and slot tracker
// (dynamo-kv-router 1.3.1 and 1.6.1) with further keys, which those ignore.
// docs/how-it-works/replica-sync.md has the protocol, docs/run/replicas.md what it promises.
package replicasync
