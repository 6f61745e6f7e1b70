package curve

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pebbe/zmq4"
)

func anyone(PublicKey) bool { return true }

// shake runs both sides and returns their results.
func shake(t *testing.T, c *Client, s *Server) (client, server *Result) {
	t.Helper()
	hello, err := c.Hello()
	if err != nil {
		t.Fatal(err)
	}
	welcome, _, err := s.Next(hello)
	if err != nil {
		t.Fatal(err)
	}
	initiate, _, err := c.Next(welcome)
	if err != nil {
		t.Fatal(err)
	}
	ready, server, err := s.Next(initiate)
	if err != nil {
		t.Fatal(err)
	}
	_, client, err = c.Next(ready)
	if err != nil {
		t.Fatal(err)
	}
	return client, server
}

func TestHandshake(t *testing.T) {
	own, other := NewKeyPair(), NewKeyPair()
	var asked PublicKey
	c := NewClient(own, other.Public, []byte("of the client"))
	s := NewServer(other, func(k PublicKey) bool { asked = k; return true }, []byte("of the server"))
	client, server := shake(t, c, s)
	if asked != own.Public || server.Peer != own.Public || client.Peer != other.Public {
		t.Errorf("asked for %s; peers %s and %s", asked, server.Peer, client.Peer)
	}
	if string(server.Metadata) != "of the client" || string(client.Metadata) != "of the server" {
		t.Errorf("metadata %q and %q", server.Metadata, client.Metadata)
	}
	for i, way := range []struct{ from, to *Result }{{client, server}, {server, client}} {
		for n, frame := range []string{"", "a", strings.Repeat("b", 70000)} {
			body := way.from.Seal([]byte("before"), More, []byte(frame))
			if len(body) != 6+len(frame)+Overhead || n == 2 && bytes.Contains(body, []byte("bbbb")) {
				t.Fatalf("MESSAGE of %d bytes for a frame of %d", len(body), len(frame))
			}
			flags, got, err := way.to.Open(body[6:])
			if err != nil || flags != More || string(got) != frame {
				t.Fatalf("way %d, frame %d: %v, flags %d", i, n, err, flags)
			}
			if _, _, err := way.to.Open(body[6:]); !errors.Is(err, ErrMessage) {
				t.Fatalf("the same MESSAGE twice: %v", err)
			}
			if _, _, err := way.from.Open(way.from.Seal(nil, 0, nil)); !errors.Is(err, ErrMessage) {
				t.Fatalf("a MESSAGE that comes back: %v", err)
			}
		}
	}
}

// An older MESSAGE is refused also after a gap, and one that was changed anywhere.
func TestSessionRefuses(t *testing.T) {
	own, other := NewKeyPair(), NewKeyPair()
	client, server := shake(t, NewClient(own, other.Public, nil), NewServer(other, anyone, nil))
	first, second, third := client.Seal(nil, 0, []byte("1")), client.Seal(nil, 0, []byte("2")), client.Seal(nil, 0, []byte("3"))
	if _, _, err := server.Open(second); err != nil {
		t.Fatal(err)
	}
	if _, _, err := server.Open(first); !errors.Is(err, ErrMessage) {
		t.Errorf("an older MESSAGE: %v", err)
	}
	for i := range third {
		changed := bytes.Clone(third)
		changed[i] ^= 1
		if _, _, err := server.Open(changed); !errors.Is(err, ErrMessage) {
			t.Errorf("byte %d changed: %v", i, err)
		}
		if _, _, err := server.Open(third[:i]); !errors.Is(err, ErrMessage) {
			t.Errorf("cut to %d bytes: %v", i, err)
		}
	}
	if _, _, err := server.Open(third); err != nil {
		t.Errorf("the true one, after refused ones: %v", err)
	}
}

func TestHandshakeRefuses(t *testing.T) {
	own, other := NewKeyPair(), NewKeyPair()
	t.Run("wrong server key", func(t *testing.T) {
		hello, err := NewClient(own, NewKeyPair().Public, nil).Hello()
		if err != nil {
			t.Fatal(err)
		}
		if answer, _, err := NewServer(other, anyone, nil).Next(hello); !errors.Is(err, ErrHandshake) || answer != nil {
			t.Errorf("%v, answer of %d bytes", err, len(answer))
		}
	})
	t.Run("server key of low order", func(t *testing.T) {
		if _, err := NewClient(own, PublicKey{}, nil).Hello(); !errors.Is(err, ErrHandshake) {
			t.Error(err)
		}
	})
	t.Run("client not allowed", func(t *testing.T) {
		c := NewClient(own, other.Public, nil)
		s := NewServer(other, func(PublicKey) bool { return false }, nil)
		hello, _ := c.Hello()
		welcome, _, _ := s.Next(hello)
		initiate, _, _ := c.Next(welcome)
		answer, done, err := s.Next(initiate)
		var refused *NotAllowedError
		if !errors.As(err, &refused) || refused.Key != own.Public || done != nil {
			t.Errorf("server: %v", err)
		}
		var told *RefusedError
		if _, _, err := c.Next(answer); !errors.As(err, &told) || told.Reason != "400" {
			t.Errorf("client: %v", err)
		}
	})
	t.Run("cookie of another connection", func(t *testing.T) {
		c := NewClient(own, other.Public, nil)
		s, s2 := NewServer(other, anyone, nil), NewServer(other, anyone, nil)
		hello, _ := c.Hello()
		welcome, _, _ := s.Next(hello)
		_, _, _ = s2.Next(hello)
		initiate, _, _ := c.Next(welcome)
		if _, _, err := s2.Next(initiate); !errors.Is(err, ErrHandshake) {
			t.Error(err)
		}
	})
}

// Every command that is changed, cut or out of turn ends the handshake.
func TestHandshakeOfChangedCommands(t *testing.T) {
	own, other := NewKeyPair(), NewKeyPair()
	c, s := NewClient(own, other.Public, nil), NewServer(other, anyone, nil)
	hello, _ := c.Hello()
	welcome, _, _ := s.Next(hello)
	agreedBefore := *c
	initiate, _, _ := c.Next(welcome)
	ready, _, _ := s.Next(initiate)
	for name, next := range map[string]struct {
		command []byte
		take    func(b []byte) error
		ignored func(i int) bool
	}{
		"HELLO": {
			hello, func(b []byte) error { _, _, err := NewServer(other, anyone, nil).Next(b); return err },
			func(i int) bool { return i >= 8 && i < 80 },
		}, // the padding
		"WELCOME":  {welcome, func(b []byte) error { c := agreedBefore; _, _, err := c.Next(b); return err }, nil},
		"INITIATE": {initiate, func(b []byte) error { s := *s; _, _, err := s.Next(b); return err }, nil},
		"READY":    {ready, func(b []byte) error { c := *c; _, _, err := c.Next(b); return err }, nil},
	} {
		for i := range next.command {
			changed := bytes.Clone(next.command)
			changed[i] ^= 0x80
			// The highest bit of a point is not part of it.
			if next.ignored != nil && (next.ignored(i) || i == 111) {
				continue
			}
			if err := next.take(changed); !errors.Is(err, ErrHandshake) {
				t.Errorf("%s with byte %d changed: %v", name, i, err)
			}
			if err := next.take(next.command[:i]); !errors.Is(err, ErrHandshake) {
				t.Errorf("%s cut to %d bytes: %v", name, i, err)
			}
		}
		if err := next.take(append(bytes.Clone(next.command), 0)); !errors.Is(err, ErrHandshake) {
			t.Errorf("%s with a byte more: %v", name, err)
		}
		if err := next.take(make([]byte, MaxCommand+1)); !errors.Is(err, ErrHandshake) {
			t.Errorf("%s too large: %v", name, err)
		}
	}
}

func FuzzHandshake(f *testing.F) {
	own, other := NewKeyPair(), NewKeyPair()
	c, s := NewClient(own, other.Public, nil), NewServer(other, anyone, nil)
	hello, _ := c.Hello()
	welcome, _, _ := s.Next(hello)
	initiate, _, _ := c.Next(welcome)
	ready, _, _ := s.Next(initiate)
	for _, b := range [][]byte{hello, welcome, initiate, ready, errorCommand("400"), []byte("\x05ERROR\xff")} {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c, s := *c, *s // after WELCOME and HELLO
		_, _, _ = c.Next(b)
		if _, done, _ := s.Next(b); done != nil && !bytes.Equal(b, initiate) {
			t.Errorf("INITIATE of nobody was taken")
		}
		_, _, _ = NewServer(other, anyone, nil).Next(b)
		_, _, _ = NewClient(own, other.Public, nil).Next(b)
		session := Session{key: new([32]byte), sendPrefix: clientNonce, receivePrefix: serverNonce}
		_, _, _ = session.Open(b)
	})
}

// The texts of keys are those of libzmq, and so is the public key of a secret one.
func TestKeysAreThoseOfLibzmq(t *testing.T) {
	for range 50 {
		public, secret, err := zmq4.NewCurveKeypair()
		if err != nil {
			t.Fatal(err)
		}
		pair, err := ParseSecretKey(secret)
		if err != nil || pair.Public.String() != public || pair.SecretText() != secret {
			t.Fatalf("%v, public key %s, want %s", err, pair.Public, public)
		}
		pair = NewKeyPair()
		if derived, err := zmq4.AuthCurvePublic(pair.SecretText()); err != nil || derived != pair.Public.String() {
			t.Fatalf("%v, libzmq's public key is %s, want %s", err, derived, pair.Public)
		}
	}
	for _, text := range []string{"", strings.Repeat("0", 39), strings.Repeat("0", 41), strings.Repeat("#", 40), strings.Repeat("~", 40), strings.Repeat("é", 20)} {
		if _, err := ParseSecretKey(text); !errors.Is(err, ErrKey) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestKeyPairIsNotPrinted(t *testing.T) {
	pair := NewKeyPair()
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%x", "%q"} {
		if s := fmt.Sprintf(format, pair); !strings.Contains(s, pair.Public.String()) || strings.Contains(s, pair.SecretText()) {
			t.Errorf("%s prints %s", format, s)
		}
	}
}

func TestFiles(t *testing.T) {
	pair, second := NewKeyPair(), NewKeyPair()
	keygen := "This tool generates a CurveZMQ keypair, as two printable strings\n\n== CURVE PUBLIC KEY ==\n" + pair.Public.String() +
		"\n\n== CURVE SECRET KEY ==\n" + pair.SecretText() + "\n"
	pyzmq := "#   ****  Generated by pyzmq  ****\n#   ZeroMQ CURVE **Secret** Certificate\n\nmetadata\n    name = \"x\"\ncurve\n    public-key = \"" +
		pair.Public.String() + "\"\n    secret-key = \"" + pair.SecretText() + "\"\n"
	for name, tc := range map[string]struct {
		content string
		secret  error // nil: it has pair's
	}{
		"certificate":   {pair.Certificate(), nil},
		"pyzmq":         {pyzmq, nil},
		"curve_keygen":  {keygen, nil},
		"one key alone": {"# mine\n" + pair.SecretText() + "\n", nil},
		"public only":   {"curve\n  public-key = \"" + pair.Public.String() + "\"\n", errNoSecret},
		"empty":         {"# nothing\n", errNoSecret},
		"no key":        {"hello\n", ErrKey},
		"two secrets":   {pair.Certificate() + second.Certificate(), errTwoSecret},
		"mismatch":      {strings.Replace(pair.Certificate(), pair.Public.String(), second.Public.String(), 1), errMismatch},
		"no Z85":        {"curve\n secret-key = \"short\"\n public-key = \"short\"\n", ErrKey},
		"too large":     {strings.Repeat("#\n", maxFile), errTooLarge},
		"two lone ones": {pair.SecretText() + "\n" + second.SecretText(), errTwoSecret},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "key")
			if err := os.WriteFile(path, []byte(tc.content), 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := ReadKeyPair(path)
			if !errors.Is(err, tc.secret) || tc.secret == nil && got.SecretText() != pair.SecretText() {
				t.Errorf("secret key: %v, want %v", err, tc.secret)
			}
			if err != nil && strings.Contains(err.Error(), pair.SecretText()) {
				t.Errorf("the error shows the key")
			}
		})
	}
	if _, err := ReadKeyPair(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}
