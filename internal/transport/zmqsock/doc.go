// Package zmqsock owns the service's ZMQ sockets, those to engines and those to replicas.
//
// A Hub opens SUB sockets, connected or bound, and DEALER sockets that request a replay. They
// speak ZMTP with package zmtp, which bounds everything that a peer sends. Each connection has
// a goroutine that reads it and calls back the socket's opener. If the opener returns false,
// the connection is not read until Resume, and TCP holds the sender back; nothing is queued
// here. Of a publisher whose latest message says all (Sample), where there are many, messages
// gather in the kernel, and one goroutine reads the connections in turn.
//
// The memory of a message is reserved in an account while it is read, and passes to the opener
// with the message.
//
// A socket that is not connected takes a few hundred bytes and a timer. The number of
// concurrent attempts to connect is bounded over all sockets, so that thousands of endpoints
// that lead nowhere take little and delay no others.
//
// For a host name, addresses are looked up in the background, all of them are tried, and the
// name is looked up again now and then while there is no connection. A policy decides, for each
// address right before it is used, whether it is allowed.
//
// A Mesh is the replicas' use of a hub: one PUB socket of this process, and a SUB socket for
// each peer. Messages that a peer has not read wait in its own bounded queue; all queues share
// the messages' memory.
//
// Nothing is encrypted. libzmq is used only in tests, as the other side.
package zmqsock
