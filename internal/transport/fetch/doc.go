// Package fetch reads from other replicas over HTTP: answers of any length, which are given up
// only if the other side stops sending.
package fetch
