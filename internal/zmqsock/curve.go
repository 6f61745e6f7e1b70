package zmqsock

import (
	"errors"
	"fmt"
	"slices"

	"github.com/select-service/select-service/internal/curve"
	"github.com/select-service/select-service/internal/zmtp"
)

// Curve configures which connections are encrypted and authenticated with CURVE. The zero value
// encrypts only connections to publishers that are subscribed to with a key.
type Curve struct {
	// Own is this process's key pair: as a client of engines, and as the server of publishers
	// that connect. nil: one is generated for the process.
	Own *curve.KeyPair
	// Engines is the server key of publishers that are subscribed to without a key; zero: these
	// are followed in plain text.
	Engines curve.PublicKey
	// Publishers has the keys that may connect to bound sockets; nil: anyone may, in plain text.
	Publishers []curve.PublicKey
	// Replicas is the key pair that all replicas share; nil: they use plain text.
	Replicas *curve.KeyPair
}

// ErrServerKey is returned for a bound socket with a server key: its publishers are the clients.
var ErrServerKey = errors.New("a bound socket has no server key")

func plain() zmtp.Mechanism { return zmtp.Null{} }

// engine returns the mechanism for connections with an engine. serverKey is in Z85, "" for none.
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

// replica returns the mechanism for connections with other replicas; server: those that they
// make to this process.
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
