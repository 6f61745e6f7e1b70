package replicas_test

import (
	"io"
	"net"
	"sync"
	"testing"
)

// gate is a TCP port in front of a listener: a replica's HTTP, as the other
// replicas see it, or NATS, as one replica sees it. It can be shut: connections
// break, and new ones fail; or frozen, as a network that loses every packet:
// connections are made and stay, but nothing passes.
type gate struct {
	listener net.Listener
	to       string
	wg       sync.WaitGroup

	// mu guards what follows.
	mu     sync.Mutex
	shut   bool
	open   map[net.Conn]struct{}
	thawed chan struct{} // closed while the gate is not frozen
}

func newGate(t *testing.T, to string) *gate {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{listener: listener, to: to, open: make(map[net.Conn]struct{}), thawed: make(chan struct{})}
	close(g.thawed)
	g.wg.Go(g.accept)
	t.Cleanup(func() {
		_ = g.listener.Close() // ends accept
		g.setShut(true)
		g.setFrozen(false)
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

func (g *gate) setFrozen(frozen bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-g.thawed:
		if frozen {
			g.thawed = make(chan struct{})
		}
	default:
		if !frozen {
			close(g.thawed)
		}
	}
}

// awaitThaw waits until the gate is not frozen.
func (g *gate) awaitThaw() {
	g.mu.Lock()
	thawed := g.thawed
	g.mu.Unlock()
	<-thawed
}

// thawing writes what passes a gate.
type thawing struct {
	io.Writer
	gate *gate
}

func (t thawing) Write(p []byte) (int, error) {
	t.gate.awaitThaw()
	return t.Writer.Write(p)
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
	_, _ = io.Copy(thawing{to, g}, from) // how it ended does not matter
	g.awaitThaw()                        // the end does not pass either
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range []net.Conn{to, from} {
		_ = c.Close()
		delete(g.open, c)
	}
}
