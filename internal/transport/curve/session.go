package curve

import (
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"math"

	"golang.org/x/crypto/nacl/box"
	"golang.org/x/crypto/nacl/secretbox"
)

const (
	messageName   = "\x07MESSAGE"
	messageHeader = len(messageName) + 8 // plus 8 bytes of nonce
	// Overhead is the number of bytes that MESSAGE adds to a frame: name, nonce, box, flags.
	Overhead = messageHeader + secretbox.Overhead + 1
)

// Flags are the flags of the frame inside a MESSAGE, as in libzmq.
type Flags byte

// The flags of a frame.
const (
	More    Flags = 1 << iota // another frame of the same message follows
	Command                   // a command, not a frame of a message
)

// ErrMessage is the error for a MESSAGE that the other side of the session cannot have sent:
// not sealed with its key, truncated, or sent before.
var ErrMessage = errors.New("curve: not a MESSAGE of this session")

// keptScratch bounds the scratch memory that a session keeps, in bytes.
const keptScratch = 4 << 10

// Session seals and opens the frames of a connection after its handshake. One goroutine may
// call Seal while another one calls Open.
type Session struct {
	key                       *[32]byte
	sendPrefix, receivePrefix string
	sent, received            uint64 // the last nonces used
	sealing, opened           []byte // scratch
}

// Seal appends the body of a MESSAGE that carries a frame to dst.
func (s *Session) Seal(dst []byte, flags Flags, frame []byte) []byte {
	if s.sent == math.MaxUint64 {
		panic("curve: nonces used up") // takes 584,000 years at a million messages a second
	}
	s.sent++
	dst = append(dst, messageName...)
	dst = binary.BigEndian.AppendUint64(dst, s.sent)
	plain := append(append(s.sealing[:0], byte(flags)), frame...)
	if cap(plain) <= keptScratch {
		s.sealing = plain
	}
	return secretbox.Seal(dst, plain, shortNonce(s.sendPrefix, s.sent), s.key)
}

// Open returns the frame in the body of a MESSAGE. It is valid until the next Open.
func (s *Session) Open(body []byte) (flags Flags, frame []byte, err error) {
	if len(body) < Overhead || string(body[:len(messageName)]) != messageName {
		return 0, nil, ErrMessage
	}
	nonce := binary.BigEndian.Uint64(body[len(messageName):])
	if nonce <= s.received {
		return 0, nil, ErrMessage
	}
	plain, ok := secretbox.Open(s.opened[:0], body[messageHeader:], shortNonce(s.receivePrefix, nonce), s.key)
	if !ok {
		return 0, nil, ErrMessage
	}
	if cap(plain) <= keptScratch {
		s.opened = plain
	}
	s.received = nonce
	return Flags(plain[0]) & (More | Command), plain[1:], nil
}

// shortNonce is a nonce that counts.
func shortNonce(prefix string, n uint64) *[24]byte {
	var nonce [24]byte
	copy(nonce[:16], prefix)
	binary.BigEndian.PutUint64(nonce[16:], n)
	return &nonce
}

// longNonce is a nonce whose rest is random.
func longNonce(prefix string, random []byte) *[24]byte {
	var nonce [24]byte
	copy(nonce[:8], prefix)
	copy(nonce[8:], random)
	return &nonce
}

// shared returns the key of the boxes between two key pairs. ok is false for a public key of
// low order, which gives the same key with every secret key; libsodium refuses it too.
func shared(public PublicKey, secret *[32]byte) (key *[32]byte, ok bool) {
	key = new([32]byte)
	box.Precompute(key, (*[32]byte)(&public), secret)
	return key, subtle.ConstantTimeCompare(key[:], weakKey[:]) == 0
}

// weakKey is the result of box.Precompute for a point of low order.
var weakKey = func() (key [32]byte) {
	box.Precompute(&key, new([32]byte), new([32]byte))
	return key
}()
