// Package policies plays rules of placement, the service's and those of other gateways, against each other in model time: the
// same workload in a closed loop, the same simulated engines, in one process and in a bubble of testing/synctest, where time
// passes only while everybody waits. The service runs as it is; of other gateways only their rule of placement is played, each
// in a file with its source and formula, on exact knowledge of caches and loads. The same arguments give the same figures.
// docs/figures/policies-compared.md has the results.
package policies
