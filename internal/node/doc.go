// Package node assembles one process: it creates catalog, ledger, scopes and event streams,
// connects, runs and closes them. Its [UseCases] are those of the packages selection and workers, and here
// those of the slot tracker, of other replicas, of the dump, and of the start. Those of the Conductor API are in
// package conductor. It knows no protocol.
package node
