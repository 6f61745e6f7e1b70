// Package arch has the tests of the project's structure: which package may import which, and
// what the core must not touch. docs/ARCHITECTURE.md explains the structure.
package arch
