package gateway_test

import (
	"context"
	"fmt"
	"net"
	"sync"
	"syscall"
	"testing"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// wires are the connections that a picker can make.
type wires struct {
	mu    sync.Mutex
	cut   map[string]error // by address
	asked map[string]int
}

func (w *wires) dial(ctx context.Context, network, address string) (net.Conn, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked[address]++
	if err := w.cut[address]; err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	return connects(ctx, network, address)
}

func (w *wires) set(address string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut[address] = err
}

func (w *wires) looks(address string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.asked[address]
}

// startWired starts a picker with these connections.
func startWired(t *testing.T) (*world, *wires) {
	n := &wires{cut: make(map[string]error), asked: make(map[string]int)}
	w := start(t, func(_ *node.Config, c *settings) { c.Dial = n.dial })
	return w, n
}

// pairWith places a request and ends it with a status, and returns the address of the worker that prefills; "": none.
func (w *world) pairWith(n, status int) string {
	w.T.Helper()
	e, p := w.post(chatPath, chat(servicetest.Prompt(uint32(1+1000*n), 16), `,"stream":true`))
	e.response(status, "application/json", false)
	e.chunk("{}", true)
	e.close()
	return p.headers[prefiller]
}

// pairsWith returns a function that does so with one request after the other.
func (w *world) pairsWith(status int) (next func() string) {
	n := 0
	return func() string { n++; return w.pairWith(n, status) }
}

// awaitPair waits for a request that gets a pair with the worker of this address.
func awaitPair(t *testing.T, next func() string, address string) {
	t.Helper()
	await(t, func() string {
		if next() != address {
			return address + " gets no pair"
		}
		return ""
	})
}

// TestDeadPrefillWorker: a worker that prefills and takes no connections gets no pairs, whatever the sidecar of the other side
// answers: 502, as most do, or 200, as those that have their own engine compute the prompt (llm-d's, pkg/sidecar/proxy,
// shouldFallbackToDecode). Once it takes connections again, it gets pairs.
func TestDeadPrefillWorker(t *testing.T) {
	for _, status := range []int{502, 200} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			w, n := startWired(t)
			w.put(1, 1, role("prefill"))
			w.put(2, 1, role("prefill"))
			w.put(3, 1, role("decode"))
			n.set(at(1), syscall.ECONNREFUSED)
			next := w.pairsWith(status)
			await(t, func() string {
				for range 20 { // of two that are alike each gets some
					if next() == at(1) {
						return "the dead worker gets pairs"
					}
				}
				return ""
			})
			n.set(at(1), nil)
			awaitPair(t, next, at(1))
		})
	}
}

// TestAllPrefillWorkersDead: the worker that decodes then prefills, and what cannot be reached gets no request on trial.
func TestAllPrefillWorkersDead(t *testing.T) {
	w, n := startWired(t)
	w.put(1, 1, role("prefill"))
	w.put(2, 1, role("decode"))
	n.set(at(1), syscall.ECONNREFUSED)
	next := w.pairsWith(502)
	await(t, next)
	looks := n.looks(at(1))
	await(t, func() string {
		if n.looks(at(1)) < looks+2 {
			return "it is not looked at again"
		}
		return ""
	})
	if got := next(); got != "" {
		t.Errorf("%s gets a pair", got)
	}
	n.set(at(1), nil)
	awaitPair(t, next, at(1))
}

// TestUnreachableFromHere: a host that has never answered may be out of this process's reach alone, so that a look that comes to
// nothing says nothing. One that did answer before is dead.
func TestUnreachableFromHere(t *testing.T) {
	w, n := startWired(t)
	w.put(1, 1, role("prefill"))
	w.put(2, 1, role("decode"))
	n.set(at(1), syscall.EHOSTUNREACH)
	next := w.pairsWith(502)
	look := func() {
		looks := n.looks(at(1))
		await(t, func() string {
			if next(); n.looks(at(1)) == looks {
				return "it is not looked at"
			}
			return ""
		})
	}
	for range 3 {
		look()
	}
	if next() == "" {
		t.Error("it gets no pair")
	}
	n.set(at(1), nil)
	look()
	n.set(at(1), syscall.EHOSTUNREACH)
	await(t, next)
}

// TestDeadPrefillWorkerMoves: a dead worker that gets an endpoint with a host name, which nobody has looked up yet, cannot be looked
// at. It gets requests again, by which its name is looked up, and does not stay without any for ever.
func TestDeadPrefillWorkerMoves(t *testing.T) {
	w, n := startWired(t)
	w.put(1, 1, role("prefill"))
	w.put(2, 1, role("decode"))
	n.set(at(1), syscall.ECONNREFUSED)
	next := w.pairsWith(502)
	await(t, next)
	w.put(1, 1, role("prefill"), func(r *catalog.Record) { r.Endpoint = new("http://localhost:8123") })
	await(t, func() string {
		if next() == "" {
			return "it gets no pair"
		}
		return ""
	})
}
