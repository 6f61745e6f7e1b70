package replicas_test

import (
	"io"
	"net"
	"sync"
	"testing"
)

// gate is a TCP port in front of a replica's HTTP listener, as the other
// replicas see it. It can be shut: connections break, and new ones fail.
type gate struct {
	listener net.Listener
	to       string
	wg       sync.WaitGroup

	// mu guards what follows.
	mu   sync.Mutex
	shut bool
	open map[net.Conn]struct{}
}

func newGate(t *testing.T, to string) *gate {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{listener: listener, to: to, open: make(map[net.Conn]struct{})}
	g.wg.Go(g.accept)
	t.Cleanup(func() {
		_ = g.listener.Close() // ends accept
		g.setShut(true)
		g.wg.Wait()
	})
	return g
}

// URL is what the replica announces.
func (g *gate) URL() string { return "http://" + g.listener.Addr().String() }

func (g *gate) setShut(shut bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = shut
	if shut {
		for conn := range g.open {
			_ = conn.Close() // breaking it is the purpose
		}
	}
}

func (g *gate) accept() {
	for {
		near, err := g.listener.Accept()
		if err != nil {
			return // the test is over
		}
		far, err := net.Dial("tcp", g.to)
		if err != nil { // the replica is not there
			_ = near.Close()
			continue
		}
		if g.keep(near, far) {
			g.wg.Go(func() { g.pipe(near, far) })
			g.wg.Go(func() { g.pipe(far, near) })
		}
	}
}

func (g *gate) keep(conns ...net.Conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range conns {
		if g.shut {
			_ = c.Close()
			continue
		}
		g.open[c] = struct{}{}
	}
	return !g.shut
}

// pipe copies until one end is closed, and closes both.
func (g *gate) pipe(to, from net.Conn) {
	_, _ = io.Copy(to, from) // how it ended does not matter
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range []net.Conn{to, from} {
		_ = c.Close()
		delete(g.open, c)
	}
}
