package curve

import (
	"crypto/rand"
	"errors"
	"fmt"

	"golang.org/x/crypto/curve25519"
	"golang.org/x/crypto/nacl/box"
)

// KeyText is the length of a key in text, in characters of Z85.
const KeyText = 40

// ErrKey is the error for text that is no key.
var ErrKey = errors.New("want a CURVE key: 40 characters of Z85 (RFC 32)")

// PublicKey is a long-term key by which others know its owner. Its text form is Z85.
type PublicKey [32]byte

// String returns the key in Z85.
func (k PublicKey) String() string { return encodeZ85(k) }

// KeyPair is a secret key and its public key. Printing it shows only the public key.
type KeyPair struct {
	Public PublicKey
	secret *[32]byte
}

// NewKeyPair makes a key pair.
func NewKeyPair() *KeyPair {
	public, secret, err := box.GenerateKey(rand.Reader)
	if err != nil {
		panic(err) // crypto/rand does not fail
	}
	return &KeyPair{Public: *public, secret: secret}
}

// ParseSecretKey returns the pair of a secret key in Z85.
func ParseSecretKey(text string) (*KeyPair, error) {
	secret, ok := decodeZ85(text)
	if !ok {
		return nil, ErrKey
	}
	public, err := curve25519.X25519(secret[:], curve25519.Basepoint)
	if err != nil {
		return nil, ErrKey
	}
	return &KeyPair{Public: PublicKey(public), secret: &secret}, nil
}

// SecretText returns the secret key in Z85, to be written to a file.
func (p *KeyPair) SecretText() string { return encodeZ85(*p.secret) }

// Format prints the public key, whatever the verb.
func (p *KeyPair) Format(f fmt.State, _ rune) {
	_, _ = fmt.Fprintf(f, "curve key pair of %s", p.Public)
}

const z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"

// z85Value is a character's digit plus 1; 0 for other characters.
var z85Value = func() (v [256]byte) {
	for i := range len(z85) {
		v[z85[i]] = byte(i + 1)
	}
	return v
}()

func encodeZ85(raw [32]byte) string {
	var text [KeyText]byte
	for i := range 8 {
		v := uint32(raw[4*i])<<24 | uint32(raw[4*i+1])<<16 | uint32(raw[4*i+2])<<8 | uint32(raw[4*i+3])
		for d := 4; d >= 0; d-- {
			text[5*i+d] = z85[v%85]
			v /= 85
		}
	}
	return string(text[:])
}

func decodeZ85(text string) (raw [32]byte, ok bool) {
	if len(text) != KeyText {
		return raw, false
	}
	for i := range 8 {
		v := uint64(0)
		for d := range 5 {
			digit := z85Value[text[5*i+d]]
			if digit == 0 {
				return raw, false
			}
			v = v*85 + uint64(digit-1)
		}
		if v > 1<<32-1 {
			return raw, false
		}
		raw[4*i], raw[4*i+1], raw[4*i+2], raw[4*i+3] = byte(v>>24), byte(v>>16), byte(v>>8), byte(v)
	}
	return raw, true
}
