// Package zmqsock owns the service's ZMQ sockets: of engines and of replicas.
//
// A Hub opens SUB sockets, connected or bound, and DEALER sockets that ask for a
// replay. They speak ZMTP by package zmtp, which bounds whatever a peer sends. Every
// connection has a goroutine that reads it and calls the socket's opener back. When
// that has enough it says so, the connection is not read, and TCP holds the sender
// back; nothing is queued here. What a message takes while it is read comes out of an
// account, and passes to the opener with the message.
//
// A socket that is connected to a host name has it looked up beside the other
// sockets, tries all addresses, and looks it up again now and then while there is no
// connection. Where an endpoint may lead is a policy's business, which is asked about
// each address that is about to be used.
//
// A Mesh is the replicas' use of a hub: one PUB socket of the own process, and
// a SUB socket for each peer. The PUB socket is libzmq's, in a loop of its own; this
// is the only package that imports that library.
package zmqsock
