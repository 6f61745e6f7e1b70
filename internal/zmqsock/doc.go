// Package zmqsock owns the service's libzmq sockets. It is the only package
// that imports the ZMQ library.
//
// A libzmq socket must stay with one goroutine. A Hub therefore runs a few
// loops (one by default), each of which owns many sockets, waits for them in
// one epoll set on their ZMQ_FD, and calls the openers back. 1,024 subscribers
// cost the threads of one loop and of one libzmq context, not 1,024 threads.
//
// Everything that a caller asks of a socket travels to its loop as a command;
// an eventfd in the same epoll set wakes the loop. Nothing polls on a timer: an
// idle hub costs nothing.
package zmqsock
