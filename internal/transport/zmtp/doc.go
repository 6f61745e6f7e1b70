// Package zmtp implements ZMTP 3.1 (https://rfc.zeromq.org/spec/37) over a net.Conn, and 3.0
// (spec 23) with peers that know no more: libzmq from 4.0 on and compatible implementations. It
// handles one connection and has no sockets: its callers decide who connects to whom, and what
// is done with a message.
//
// Everything that a peer can make this side keep is bounded before memory is spent: the
// greeting, commands, the frames of a message, the bytes of a frame and of a message, and the
// time of a handshake and of a message. A partly read message takes memory as its bytes come
// in, whatever length its header announces, and reserves it in an account. Exceeding a bound is
// an *Error and ends the connection.
package zmtp
