package curve

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/crypto/nacl/secretbox"
)

// The commands of a handshake, in order. Lengths are in bytes, names included.
const (
	helloName, helloSize        = "\x05HELLO", 200
	welcomeName, welcomeSize    = "\x07WELCOME", 168
	initiateName, initiateShort = "\x08INITIATE", 9 + cookieSize + 8 + secretbox.Overhead + vouchedSize
	readyName, readyShort       = "\x05READY", 6 + 8 + secretbox.Overhead
	errorName                   = "\x05ERROR"

	cookieSize  = 16 + secretbox.Overhead + 64
	vouchSize   = 16 + secretbox.Overhead + 64
	vouchedSize = 32 + vouchSize // client's key and vouch, before the metadata

	helloNonce    = "CurveZMQHELLO---"
	welcomeNonce  = "WELCOME-"
	cookieNonce   = "COOKIE--"
	vouchNonce    = "VOUCH---"
	initiateNonce = "CurveZMQINITIATE"
	readyNonce    = "CurveZMQREADY---"
	clientNonce   = "CurveZMQMESSAGEC"
	serverNonce   = "CurveZMQMESSAGES"
)

// MaxCommand bounds a command of a handshake, in bytes. Metadata is just a few names.
const MaxCommand = 4 << 10

// RefusedError is the ERROR command of the other side. libzmq's servers send the status of
// their authenticator: 400 for a key that is not allowed.
type RefusedError struct{ Reason string }

func (e *RefusedError) Error() string {
	return fmt.Sprintf("curve: the other side refuses our key: %q", e.Reason)
}

// NotAllowedError is a server's error for a client whose key is not allowed.
type NotAllowedError struct{ Key PublicKey }

func (e *NotAllowedError) Error() string {
	return fmt.Sprintf("curve: client key %s is not allowed", e.Key)
}

// Causes that errors of Next wrap.
var (
	// ErrHandshake is a malformed or unexpected command.
	ErrHandshake = errors.New("curve handshake failed")
	// ErrSealed is a command sealed with other keys. A server sees it in the HELLO of a client
	// that expects another server's key.
	ErrSealed = errors.New("the other side has other keys")
)

func malformed(command string) error {
	return fmt.Errorf("%w: %s is malformed or out of turn", ErrHandshake, command[1:])
}

func sealed(command string) error {
	return fmt.Errorf("%w: %s cannot be opened: %w", ErrHandshake, command[1:], ErrSealed)
}

// Result is the outcome of a handshake.
type Result struct {
	*Session
	Peer     PublicKey // the long-term key of the other side
	Metadata []byte    // of the other side
}

// Client is the side of a handshake that knows the other side's key.
type Client struct {
	own      *KeyPair
	server   PublicKey
	metadata []byte

	short  *KeyPair  // key pair for this connection only
	agreed *[32]byte // key with the server's short-term key; nil before WELCOME
}

// NewClient begins a handshake with the server that has the given key. metadata is
// in ZMTP's encoding.
func NewClient(own *KeyPair, server PublicKey, metadata []byte) *Client {
	return &Client{own: own, server: server, metadata: metadata, short: NewKeyPair()}
}

// Hello returns the first command.
func (c *Client) Hello() ([]byte, error) {
	key, ok := shared(c.server, c.short.secret)
	if !ok {
		return nil, fmt.Errorf("%w: the server's key is no key", ErrHandshake)
	}
	b := make([]byte, 0, helloSize)
	b = append(b, helloName...)
	b = append(b, 1, 0)                // version
	b = append(b, make([]byte, 72)...) // padding: no shorter than the answer
	b = append(b, c.short.Public[:]...)
	b = binary.BigEndian.AppendUint64(b, 1)
	return secretbox.Seal(b, make([]byte, 64), shortNonce(helloNonce, 1), key), nil
}

// Next handles a command and returns the answer or, after the last command, the result.
func (c *Client) Next(command []byte) (answer []byte, done *Result, err error) {
	if reason, ok := parseError(command); ok {
		return nil, nil, &RefusedError{Reason: reason}
	}
	if c.agreed == nil {
		answer, err = c.initiate(command)
		return answer, nil, err
	}
	done, err = c.ready(command)
	return nil, done, err
}

// initiate answers WELCOME.
func (c *Client) initiate(b []byte) ([]byte, error) {
	if len(b) != welcomeSize || string(b[:8]) != welcomeName {
		return nil, malformed(welcomeName)
	}
	key, ok := shared(c.server, c.short.secret)
	if !ok {
		return nil, sealed(welcomeName)
	}
	plain, ok := secretbox.Open(nil, b[24:], longNonce(welcomeNonce, b[8:24]), key)
	if !ok {
		return nil, sealed(welcomeName)
	}
	serverShort, cookie := PublicKey(plain[:32]), plain[32:]
	if c.agreed, ok = shared(serverShort, c.short.secret); !ok {
		return nil, sealed(welcomeName)
	}
	vouchKey, ok := shared(serverShort, c.own.secret)
	if !ok {
		return nil, sealed(welcomeName)
	}
	random := randomBytes(16)
	vouched := append([]byte{}, c.own.Public[:]...)
	vouched = append(vouched, random...)
	vouched = secretbox.Seal(vouched, append(c.short.Public[:], c.server[:]...), longNonce(vouchNonce, random), vouchKey)
	vouched = append(vouched, c.metadata...)

	answer := append([]byte(initiateName), cookie...)
	answer = binary.BigEndian.AppendUint64(answer, 2)
	return secretbox.Seal(answer, vouched, shortNonce(initiateNonce, 2), c.agreed), nil
}

func (c *Client) ready(b []byte) (*Result, error) {
	if len(b) < readyShort || len(b) > MaxCommand || string(b[:6]) != readyName {
		return nil, malformed(readyName)
	}
	nonce := binary.BigEndian.Uint64(b[6:])
	metadata, ok := secretbox.Open(nil, b[14:], shortNonce(readyNonce, nonce), c.agreed)
	if !ok {
		return nil, sealed(readyName)
	}
	return &Result{
		Session: &Session{key: c.agreed, sendPrefix: clientNonce, receivePrefix: serverNonce, sent: 2, received: nonce},
		Peer:    c.server, Metadata: metadata,
	}, nil
}

// Server is the side of a handshake that accepts or refuses the other side's key. Between HELLO
// and INITIATE it keeps only the key of the cookie that the client must send back: the state of
// the client is in the cookie.
type Server struct {
	own      *KeyPair
	allowed  func(PublicKey) bool
	metadata []byte

	cookieKey *[32]byte // nil before HELLO
	hello     uint64    // nonce of HELLO
}

// NewServer begins a handshake with a client. allowed reports whether the client's key is
// accepted. metadata is in ZMTP's encoding.
func NewServer(own *KeyPair, allowed func(PublicKey) bool, metadata []byte) *Server {
	return &Server{own: own, allowed: allowed, metadata: metadata}
}

// Next handles a command and returns the answer, and with the last one the result. The answer
// must be sent even if there is an error.
func (s *Server) Next(command []byte) (answer []byte, done *Result, err error) {
	if s.cookieKey == nil {
		answer, err = s.welcome(command)
		return answer, nil, err
	}
	return s.initiated(command)
}

// welcome answers HELLO.
func (s *Server) welcome(b []byte) ([]byte, error) {
	if len(b) != helloSize || string(b[:6]) != helloName || b[6] != 1 || b[7] != 0 {
		return nil, malformed(helloName)
	}
	clientShort := PublicKey(b[80:112])
	s.hello = binary.BigEndian.Uint64(b[112:])
	key, ok := shared(clientShort, s.own.secret)
	if !ok {
		return nil, sealed(helloName)
	}
	signature, ok := secretbox.Open(nil, b[120:], shortNonce(helloNonce, s.hello), key)
	if !ok || subtle.ConstantTimeCompare(signature, make([]byte, 64)) != 1 {
		return nil, sealed(helloName)
	}
	short := NewKeyPair()
	s.cookieKey = (*[32]byte)(randomBytes(32))
	random := randomBytes(16)
	welcome := append(short.Public[:], random...)
	welcome = secretbox.Seal(welcome, append(clientShort[:], short.secret[:]...), longNonce(cookieNonce, random), s.cookieKey)

	random = randomBytes(16)
	return secretbox.Seal(append([]byte(welcomeName), random...), welcome, longNonce(welcomeNonce, random), key), nil
}

// initiated answers INITIATE.
func (s *Server) initiated(b []byte) ([]byte, *Result, error) {
	if len(b) < initiateShort || len(b) > MaxCommand || string(b[:9]) != initiateName {
		return nil, nil, malformed(initiateName)
	}
	cookie, ok := secretbox.Open(nil, b[25:9+cookieSize], longNonce(cookieNonce, b[9:25]), s.cookieKey)
	if !ok {
		return nil, nil, sealed(initiateName)
	}
	clientShort := PublicKey(cookie[:32])
	short := (*[32]byte)(cookie[32:])
	b = b[9+cookieSize:]
	nonce := binary.BigEndian.Uint64(b)
	agreed, ok := shared(clientShort, short)
	if !ok || nonce <= s.hello {
		return nil, nil, sealed(initiateName)
	}
	vouched, ok := secretbox.Open(nil, b[8:], shortNonce(initiateNonce, nonce), agreed)
	if !ok {
		return nil, nil, sealed(initiateName)
	}
	client := PublicKey(vouched[:32])
	vouchKey, ok := shared(client, short)
	if !ok {
		return nil, nil, sealed(initiateName)
	}
	vouch, ok := secretbox.Open(nil, vouched[48:vouchedSize], longNonce(vouchNonce, vouched[32:48]), vouchKey)
	if !ok || subtle.ConstantTimeCompare(vouch, append(clientShort[:], s.own.Public[:]...)) != 1 {
		return nil, nil, sealed(initiateName)
	}
	if !s.allowed(client) {
		return errorCommand("400"), nil, &NotAllowedError{Key: client}
	}
	ready := binary.BigEndian.AppendUint64([]byte(readyName), 1)
	ready = secretbox.Seal(ready, s.metadata, shortNonce(readyNonce, 1), agreed)
	return ready, &Result{
		Session: &Session{key: agreed, sendPrefix: serverNonce, receivePrefix: clientNonce, sent: 1, received: nonce},
		Peer:    client, Metadata: vouched[vouchedSize:],
	}, nil
}

func errorCommand(reason string) []byte {
	return append(append([]byte(errorName), byte(len(reason))), reason...)
}

func parseError(b []byte) (reason string, ok bool) {
	if len(b) <= len(errorName) || string(b[:len(errorName)]) != errorName || int(b[len(errorName)]) != len(b)-len(errorName)-1 {
		return "", false
	}
	return string(b[len(errorName)+1:]), true
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // crypto/rand does not fail
	return b
}
