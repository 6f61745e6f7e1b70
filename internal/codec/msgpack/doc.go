// Package msgpack reads msgpack messages from untrusted peers, and writes values.
//
// A [Reader] never reads outside its message, allocates nothing, and refuses a
// length that the rest of the message could not hold, so that its caller may
// allocate in proportion to any length that it returns. The format is that of
// https://github.com/msgpack/msgpack/blob/master/spec.md.
package msgpack
