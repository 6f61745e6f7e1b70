// Package catalog knows the workers: what each one registered, whether it may
// be chosen, and which ranks it contributes to its scope.
//
// A worker's record is kept as it was given. From the records the catalog derives
// attachments (which ranks and event streams of a worker take part in its scope)
// and calls a Reconciler for every change of them. Readers see one
// immutable view, which is replaced as a whole: reading takes no lock and never
// waits for a registration.
//
// Workers come through two contracts. Those of the selection contract have ids
// that are unique in the process and can be chosen; those of the slot tracker
// have ids that are unique in their scope and only carry load. Both share the
// slots and the block size of their scope (decision S4).
//
// The package has no sockets, logs, clocks or goroutines.
package catalog
