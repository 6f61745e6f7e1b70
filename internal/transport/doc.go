// Package transport is the wing of bytes on the wire and in files that change: ZMQ sockets,
// reads from replicas, certificates, watched files. Its packages are below.
package transport
