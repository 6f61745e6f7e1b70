// Package zmqsock owns the service's ZMQ sockets: of engines and of replicas.
//
// A Hub opens SUB sockets, connected or bound, and DEALER sockets that ask for a
// replay. They speak ZMTP by package zmtp, which bounds whatever a peer sends. Every
// connection has a goroutine that reads it and calls the socket's opener back. When
// that has enough it says so, the connection is not read, and TCP holds the sender
// back; nothing is queued here. What a message takes while it is read comes out of an
// account, and passes to the opener with the message.
//
// A socket that is not connected is a few hundred bytes and a timer. Attempts to connect
// are bounded in number over all sockets, so that thousands of endpoints that lead nowhere take
// little, and keep nobody else waiting.
//
// A socket that is connected to a host name has it looked up beside the other
// sockets, tries all addresses, and looks it up again now and then while there is no
// connection. Where an endpoint may lead is a policy's business, which is asked about
// each address that is about to be used.
//
// A Mesh is the replicas' use of a hub: one PUB socket of the own process, and
// a SUB socket for each peer. What a peer does not read waits in a queue of its own,
// which has a limit, and all queues share the messages.
//
// Both may be encrypted and authenticated with CURVE. libzmq is the other side in
// tests, and nothing else.
package zmqsock
