package zmqsock

import (
	"errors"
	"fmt"
	"slices"

	"github.com/select-service/select-service/internal/curve"
	"github.com/select-service/select-service/internal/zmtp"
)

// Curve says which connections are encrypted and authenticated with CURVE. The zero
// value encrypts those to publishers that are subscribed to with a key.
type Curve struct {
	// Own is this process's key pair: as a client of engines, and as the server of
	// those that connect. nil is one that is made for the process.
	Own *curve.KeyPair
	// Engines is the server key of publishers that are subscribed to without one; zero
	// follows them in plain.
	Engines curve.PublicKey
	// Publishers are the clients that may connect to bound sockets; nil lets
	// anybody, in plain.
	Publishers []curve.PublicKey
	// Replicas is the key pair of all replicas; with nil they speak in plain.
	Replicas *curve.KeyPair
}

// ErrServerKey is returned for a bound socket with the key of a server: its
// publishers are clients.
var ErrServerKey = errors.New("a bound socket has no server key")

func plain() zmtp.Mechanism { return zmtp.Null{} }

// engine returns the mechanism of connections from or to an engine. serverKey is Z85, ""
// for none.
func (c *Curve) engine(bound bool, serverKey string) (func() zmtp.Mechanism, error) {
	key := c.Engines
	if serverKey != "" {
		var err error
		if key, err = curve.ParsePublicKey(serverKey); err != nil {
			return nil, fmt.Errorf("server key: %w", err)
		}
	}
	switch {
	case bound && serverKey != "":
		return nil, ErrServerKey
	case bound && c.Publishers == nil, !bound && key.IsZero():
		return plain, nil
	case bound:
		allowed := func(k curve.PublicKey) bool { return slices.Contains(c.Publishers, k) }
		return func() zmtp.Mechanism { return zmtp.CurveServer(c.Own, allowed) }, nil
	}
	return func() zmtp.Mechanism { return zmtp.CurveClient(c.Own, key) }, nil
}

// replica returns the mechanism of connections from or to other replicas: to them with
// server, from them without.
func (c *Curve) replica(server bool) func() zmtp.Mechanism {
	pair := c.Replicas
	switch {
	case pair == nil:
		return plain
	case server:
		return func() zmtp.Mechanism {
			return zmtp.CurveServer(pair, func(k curve.PublicKey) bool { return k == pair.Public })
		}
	}
	return func() zmtp.Mechanism { return zmtp.CurveClient(pair, pair.Public) }
}
