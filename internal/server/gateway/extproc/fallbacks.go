package extproc

import (
	"context"
	"net"
	"sync/atomic"

	"google.golang.org/grpc/peer"
)

// maxFallbacks is how many destinations may follow the chosen one.
const maxFallbacks = 2

// ability is what the gateway at the other end of a connection can do, as far as its answers have shown.
// It ends with the connection: another gateway may have the same address, at the same time (behind one
// that translates addresses) or later.
type ability struct {
	// served: the last answer named the endpoint that has served its request. Only then there are fallback
	// destinations: a booking has to follow its request to the rank that serves it, and a gateway that
	// reads one destination alone takes a list for none.
	served atomic.Bool
	// observes: a second filter has shown an answer whose body the first one left out.
	observes atomic.Bool
}

// fallbacks returns how many fallback destinations the gateway gets.
func (a *ability) fallbacks() int {
	if a.served.Load() {
		return maxFallbacks
	}
	return 0
}

// learn notes whether an answer named its endpoint.
func (a *ability) learn(served bool) {
	if a.served.Load() != served { // most change nothing, and all of a connection share it
		a.served.Store(served)
	}
}

// listener gives every connection an ability, which its streams find in the address of their peer.
type listener struct{ net.Listener }

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c, remote: &address{Addr: c.RemoteAddr()}}, nil
}

type conn struct {
	net.Conn
	remote *address
}

func (c *conn) RemoteAddr() net.Addr { return c.remote }

// address is that of a gateway on one connection.
type address struct {
	net.Addr
	ability ability
}

// abilityOf returns the ability of the gateway of a stream.
func abilityOf(ctx context.Context) *ability {
	if p, ok := peer.FromContext(ctx); ok {
		if a, ok := p.Addr.(*address); ok {
			return &a.ability
		}
	}
	return new(ability)
}
