// Package arch holds the shape of the project in a test: which package may
// import which, what the core must not touch, and how large a file may grow.
// docs/ARCHITECTURE.md explains the shape.
package arch
