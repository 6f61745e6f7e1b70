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
//
// A Mesh is the replicas' use of a hub: one PUB socket of the own process, and
// a SUB socket for each peer.
//
// libzmq never sees a host name to connect to. It would look it up on an I/O
// thread, at every attempt, and a name server that does not answer would hold up
// all sockets of that thread. The hub looks names up beside its loops and
// connects to addresses; a name without a connection is looked up again now and
// then.
package zmqsock
