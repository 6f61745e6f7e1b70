// Package scopes has what each scope (a model of a tenant) has besides its workers in the catalog:
// its index, its wait queue, and the event streams of its workers. Requests read it without locks.
// Its Registry is the catalog's reconciler: it makes of a change of workers one of index, ledger
// and streams.
package scopes
