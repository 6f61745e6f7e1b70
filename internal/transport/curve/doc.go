// Package curve implements the security of ZeroMQ's sockets: CurveZMQ (RFC 26) as in libzmq
// 4.3, its keys, and the files that hold them. It knows no connections: a handshake gets the
// commands of the other side and returns its own.
//
// A client knows the server's public key before it connects. The server learns
// the client's during the handshake and decides. Both then speak with keys that
// are made for the connection alone.
//
// It is built on golang.org/x/crypto/nacl, Go's NaCl, of which CurveZMQ is made.
package curve
