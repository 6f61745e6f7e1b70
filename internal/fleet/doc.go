// Package fleet shares the workers of the API and of the workers file among the replicas of a fleet,
// in a key-value bucket of NATS JetStream.
//
// # In the bucket
//
// The catalog is the value of one key, head, which names up to 64 shards; a worker is in the shard
// of its id. A shard never changes: a change of its workers makes a new one under a new key. A new
// catalog is its new shards and then the head, which replaces the one that the change began with, or
// fails because another replica was first. So a change of any size is seen as a whole or not at all,
// and the versions of the catalog form one line. A reader that misses a shard reads the head again.
//
// Shards that the head does not name are removed half a minute after they were left, see Catalog.sweep.
//
// One value would not do: 65,536 workers with one rank have 41 bytes each once they are compressed, so 2.7 MB, where a
// server takes 1 MiB by default. Values that each have a part of the workers and are replaced in their place would not
// do either: a reader between two writes would see a part of a change.
//
// # Changes
//
// A change is made to a shadow: a catalog with the settings of this process's own whose workers are not
// attached. It says what the change makes of the workers, or why it is refused. If another replica was
// first, the change is made again on what that one left. Changes that wait are written together.
//
// # Reading
//
// Replicas announce each second which version they have. A replica that does not have it yet reads it, and makes it the
// workers of its own catalog. So nobody has a watch in the server, and an announcement that is lost is repeated a
// second later.
package fleet
