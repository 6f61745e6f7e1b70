// Package libzmq is a [kvevents.Source] on libzmq's sockets, for programs that already have
// libzmq or may run no other implementation of ZMTP. It needs cgo; without it, the package is
// empty.
//
// One goroutine, that of Run, owns all sockets, because they are not safe for concurrent use:
// it waits for them with one poller, makes the calls of the other methods, and runs the
// callbacks. Each wait takes time in proportion to the number of open sockets.
//
// # What is not bounded
//
// libzmq bounds one frame (Options.MaxFrame) and the messages that wait in a queue
// (Options.Queue), and nothing else that a publisher sends. An endless message of small or empty
// frames grows until the process ends; the memory of a message is reserved only once libzmq
// hands it over; the connections to a bound socket, and attempts to connect, have no limit; a
// name server that does not answer delays all sockets. A message of an earlier connection may
// come after the status of a new one. Use it with publishers that are trusted.
//
// docs/adr/0006-transport.md compares it with the service's own sockets.
package libzmq
