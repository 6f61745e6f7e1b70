// Package procs builds the service once per test binary and runs it as a
// process of its own: with a clean environment, its output kept, on a port that
// nobody else takes. Only tests import it.
package procs
