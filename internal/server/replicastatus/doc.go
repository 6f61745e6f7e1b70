// Package replicastatus compares this process with the other replicas: each tells its [Status], and a
// [Reader] reads those of the processes that this one follows.
package replicastatus
