// Package logwriter writes the log without ever blocking its callers: a line is copied into a
// bounded queue, and one goroutine writes it. If the reader of the output stops, lines are
// dropped and counted, and the process can still go on and exit.
//
// (zerolog's diode bounds lines and not bytes, and its Close waits for the output.)
package logwriter
