// Package catalog knows the workers: what each one registered, whether it may
// be chosen, and which ranks it contributes to its scope.
//
// A worker's record is kept as it was given. From the records the catalog works
// out attachments (which ranks and event streams of a worker take part in its
// scope) and has a Reconciler carry every change of them out. What readers see
// is one immutable view, replaced as a whole: reading takes no lock and never
// waits for a registration.
//
// The package has no sockets, logs, clocks or goroutines.
package catalog
