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
	messageHeader = len(messageName) + 8 // and the nonce
	// Overhead is what MESSAGE adds to a frame, in bytes: name, nonce, box, flags.
	Overhead = messageHeader + secretbox.Overhead + 1
)

// Flags are those of the frame inside of a MESSAGE, as libzmq has them.
type Flags byte

// The flags of a frame.
const (
	More    Flags = 1 << iota // another frame of the same message follows
	Command                   // a command, not a frame of a message
)

// ErrMessage is the error of a MESSAGE that the other side of the session cannot
// have sent: not sealed with its key, cut, or sent before.
var ErrMessage = errors.New("curve: not a MESSAGE of this session")

// keptScratch bounds what a session keeps for the next frame, in bytes.
const keptScratch = 4 << 10

// Session seals and opens the frames of a connection after its handshake. Seal and
// Open may be called from a goroutine each.
type Session struct {
	key                       *[32]byte
	sendPrefix, receivePrefix string
	sent, received            uint64 // the nonces used last
	sealing, opened           []byte // scratch
}

// Seal appends the body of a MESSAGE that carries a frame to dst.
func (s *Session) Seal(dst []byte, flags Flags, frame []byte) []byte {
	if s.sent == math.MaxUint64 {
		panic("curve: nonces used up") // at a million messages a second in 584,000 years
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

// shared is the key of the boxes between two key pairs. It is false for a public key
// of low order, which makes the same key with every secret one; libsodium refuses
// it too.
func shared(public PublicKey, secret *[32]byte) (key *[32]byte, ok bool) {
	key = new([32]byte)
	box.Precompute(key, (*[32]byte)(&public), secret)
	return key, subtle.ConstantTimeCompare(key[:], weakKey[:]) == 0
}

// weakKey is what box.Precompute makes of a point of low order.
var weakKey = func() (key [32]byte) {
	box.Precompute(&key, new([32]byte), new([32]byte))
	return key
}()
