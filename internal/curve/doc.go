// Package curve is the security of ZeroMQ's sockets: CurveZMQ (RFC 26) as libzmq
// 4.3 speaks it, its keys, and the files that hold them. It knows no connection:
// a handshake takes the commands of the other side and returns its own.
//
// A client knows the server's public key before it connects. The server learns
// the client's during the handshake and decides. Both then speak with keys that
// are made for the connection alone.
//
// It is built on golang.org/x/crypto/nacl, Go's NaCl, of which CurveZMQ is made.
package curve
