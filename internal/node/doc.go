// Package node assembles one process: it creates catalog, ledger, scopes and event streams,
// connects, runs and closes them. It has the use cases about workers, loads, slots, replicas
// and the recovery of the index. Those about selections are in package selection, those of the
// Conductor API in package conductor. It knows no protocol.
package node
