// Package affinity binds the requests of a session to one rank
// (dynamo-kv-router 1.6.1). A [Table] binds a session to the rank that its first
// request was booked on; the binding lasts while requests of the session are
// under way and for some time after the last one. Replicas may share their bindings,
// see [Table.Share]. The package has no clock, logs or goroutines of its own.
package affinity
