// Package connections bounds the connections that a process accepts, and their requests over
// HTTP/2: how many there are in all and from one address, how much memory their heads take, and
// how long an answer may wait for its reader.
package connections
