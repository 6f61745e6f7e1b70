package zmtp

import (
	"bytes"
	"errors"
	"io"
	"syscall"
)

// A greeting is 64 bytes: signature (10), version (2), mechanism (20, padded with
// zeros), as-server (1), filler (31).
const (
	greetingSize  = 64
	signatureSize = 10
	mechanismSize = 20
)

// mechanism is the only security mechanism that this package speaks: none.
const mechanism = "NULL"

// appendGreeting appends our greeting.
func appendGreeting(dst []byte) []byte {
	dst = append(dst, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 3, 1)
	var name [mechanismSize]byte
	copy(name[:], mechanism)
	dst = append(dst, name[:]...)
	return append(dst, make([]byte, greetingSize-signatureSize-2-mechanismSize)...)
}

// readGreeting reads the peer's greeting and checks that it fits ours. It reads a few bytes at
// a time, because a peer of another protocol may never send 64 bytes. minor is the minor
// version of the peer's ZMTP 3.
func readGreeting(r io.Reader) (minor byte, err error) {
	var g [greetingSize]byte
	read := func(from, to int) bool {
		if err == nil {
			_, err = io.ReadFull(r, g[from:to])
		}
		return err == nil
	}
	switch {
	case !read(0, 1):
		return 0, hangsUp(err)
	case g[0] != 0xff:
		return 0, Refuse(BadGreeting, "the first byte is 0x%02x", g[0])
	case !read(1, signatureSize):
		return 0, hangsUp(err)
	case g[9]&1 == 0:
		return 0, Refuse(BadGreeting, "byte 10 is 0x%02x", g[9])
	case !read(signatureSize, signatureSize+1):
		return 0, hangsUp(err)
	case g[10] < 3:
		return 0, Refuse(OldVersion, "major version %d", g[10])
	case !read(signatureSize+1, greetingSize):
		return 0, hangsUp(err)
	}
	name := bytes.TrimRight(g[12:12+mechanismSize], "\x00")
	if string(name) != mechanism {
		return 0, Refuse(OtherMechanism, "the peer's mechanism is %q, ours %s", name, mechanism)
	}
	return g[11], nil
}

// hangsUp turns the end of the connection within a greeting into an *Error: libzmq refuses our
// mechanism like that, usually before it has sent its own.
func hangsUp(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) {
		return Refuse(OtherMechanism, "the peer hangs up on our greeting: it may want another mechanism than %s", mechanism)
	}
	return err
}
