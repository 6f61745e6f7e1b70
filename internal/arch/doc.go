// Package arch has the tests of the project's structure: which package may import which, what the
// core must not touch, and how large a file may grow. docs/ARCHITECTURE.md explains the structure.
package arch
