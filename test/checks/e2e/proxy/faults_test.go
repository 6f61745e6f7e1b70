package proxy_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/select-service/select-service/test/checks/e2e"
	"github.com/select-service/select-service/test/helpers/faultproxy"
)

// TestFaults: whatever an engine or the network to it does, the client gets an answer that says so, or a
// connection that breaks; never an end that looks whole. Nothing is computed twice, nothing stays booked, and no
// goroutine stays.
func TestFaults(t *testing.T) {
	e := startEngine(t)
	f := faultproxy.Start(t, e.address)
	b := lay(t, e, []string{f.URL()}, "--proxy-retries", "1")
	for _, kind := range kinds { // what there is at first: connections, pools
		b.ask(t.Context(), t, kind)
	}
	before := b.use(t)
	// Errors before an answer are the gateway's own answers. An event stream that ends between two events ends with
	// an event of the error and without [DONE]; within an event, and in other answers, the connection breaks.
	const unreachable, protocol = "502 engine_unreachable", "502 engine_protocol"
	for fault, want := range map[faultproxy.Fault][3]string{ // whole, stream, upgrade
		faultproxy.None:         {"200 whole", "200 whole", "101 whole"},
		faultproxy.Refuse:       {unreachable, unreachable, unreachable},
		faultproxy.ResetUnread:  {unreachable, unreachable, unreachable},
		faultproxy.ResetBefore:  {unreachable, unreachable, unreachable},
		faultproxy.CloseBefore:  {unreachable, unreachable, unreachable},
		faultproxy.CloseReused:  {"200 whole", "200 whole", "101 whole"},
		faultproxy.ResetReused:  {"200 whole", "200 whole", "101 whole"},
		faultproxy.Garbage:      {protocol, protocol, protocol},
		faultproxy.ResetInHead:  {unreachable, unreachable, unreachable},
		faultproxy.ResetBehind:  {"cut", "200 error engine_unreachable", "101 cut"},
		faultproxy.HalfPiece:    {"200 cut", "200 cut", "101 cut"},
		faultproxy.FirstPiece:   {"200 cut", "200 error engine_unreachable", "101 cut"},
		faultproxy.WrongLength:  {"200 cut", "200 cut", "101 whole"}, // what the first chunk has too much is no end of an event
		faultproxy.GarbageChunk: {"200 whole", "200 error engine_protocol", "101 whole"},
	} {
		for i, kind := range kinds {
			t.Run(fmt.Sprint(fault, ", ", kind), func(t *testing.T) {
				f.Set(faultproxy.None)
				if got := b.ask(t.Context(), t, whole); got != "200 whole" { // so that a connection is idle
					t.Fatalf("without a fault: %s", got)
				}
				f.Set(fault)
				asked := f.Requests()
				if got := b.ask(t.Context(), t, kind); got != want[i] {
					t.Errorf("%s, want %s", got, want[i])
				}
				// An engine that is sure not to have begun is asked again; a reused connection makes the one more.
				most := 1
				switch fault {
				case faultproxy.CloseReused, faultproxy.ResetReused, faultproxy.ResetBefore, faultproxy.CloseBefore:
					most = 2
				}
				if n := f.Requests() - asked; n > most {
					t.Errorf("the engine was asked %d times", n)
				}
			})
		}
	}
	f.Set(faultproxy.None)
	b.isIdle(t, before)
}

// TestSilence: an engine that says nothing is waited for until its client leaves, which ends its request at once,
// or for --proxy-first-byte-timeout.
func TestSilence(t *testing.T) {
	e := startEngine(t)
	f := faultproxy.Start(t, e.address)
	b := lay(t, e, []string{f.URL()})
	for _, kind := range kinds {
		b.ask(t.Context(), t, kind)
	}
	before := b.use(t)
	for _, fault := range []faultproxy.Fault{faultproxy.Stall, faultproxy.StallBehind} {
		for _, kind := range kinds {
			if kind == upgraded && fault == faultproxy.StallBehind {
				continue // the echo has come
			}
			t.Run(fmt.Sprint(fault, ", ", kind), func(t *testing.T) {
				f.Set(fault)
				asked := f.Requests()
				ctx, leave := context.WithCancel(t.Context())
				got := make(chan string, 1)
				go func() { got <- b.ask(ctx, t, kind) }()
				e2e.Eventually(t, "the engine has the request", func() error {
					if f.Requests() == asked {
						return fmt.Errorf("%d requests", asked)
					}
					return nil
				})
				if fault == faultproxy.Stall && f.Open() == 0 {
					t.Error("the engine's connection has ended too early")
				}
				leave()
				if got := <-got; got != "left" && got != "200 left" {
					t.Errorf("the client got %s", got)
				}
				f.Set(faultproxy.None)
				e2e.Eventually(t, "the engine's request ends", func() error {
					if n := e.open.Load(); n > 0 {
						return fmt.Errorf("%d requests are under way", n)
					}
					return nil
				})
				e2e.Eventually(t, "connections are idle or closed", func() error {
					if n := f.Open(); n > 1 {
						return fmt.Errorf("%d are open", n)
					}
					return nil
				})
			})
		}
	}
	b.isIdle(t, before)

	late := lay(t, e, []string{f.URL()}, "--proxy-first-byte-timeout", "1s")
	f.Set(faultproxy.Stall)
	for _, kind := range kinds {
		asked, began := f.Requests(), time.Now()
		if got := late.ask(t.Context(), t, kind); got != "504 engine_timeout" {
			t.Errorf("%s: %s", kind, got)
		}
		took := time.Since(began)
		e2e.Eventually(t, "the engine has the request", func() error { // it may be slower than the client's answer
			if f.Requests() == asked {
				return fmt.Errorf("%d requests", asked)
			}
			return nil
		})
		if n := f.Requests() - asked; n != 1 || took < time.Second {
			t.Errorf("%s: the engine was asked %d times, and left after %v", kind, n, took)
		}
	}
}

// TestElsewhere: a request goes to another engine if the first one cannot have begun to serve it, and to no other
// one if it may have.
func TestElsewhere(t *testing.T) {
	e := startEngine(t)
	bad, good := faultproxy.Start(t, e.address), faultproxy.Start(t, e.address)
	b := lay(t, e, []string{bad.URL(), good.URL()})
	before := b.use(t)
	const requests = 8
	for fault, repeated := range map[faultproxy.Fault]bool{
		faultproxy.Refuse: true, faultproxy.CloseReused: true, faultproxy.ResetReused: true,
		faultproxy.ResetBefore: false, faultproxy.CloseBefore: false, faultproxy.Garbage: false, faultproxy.ResetInHead: false,
	} {
		for _, kind := range kinds {
			t.Run(fmt.Sprint(fault, ", ", kind), func(t *testing.T) {
				bad.Set(fault)
				served := e.asked.Load()
				answered := 0
				for range requests {
					switch got := b.ask(t.Context(), t, kind); {
					case got == "200 whole" || got == "101 whole":
						answered++
					case repeated || got != "502 engine_unreachable" && got != "502 engine_protocol":
						t.Errorf("got %s", got)
					}
				}
				// Half of a head comes from an engine that has computed the answer.
				if n := int(e.asked.Load() - served); n != answered && fault != faultproxy.ResetInHead {
					t.Errorf("%d requests were served, %d answered", n, answered)
				} else if n > requests {
					t.Errorf("%d requests of %d were served", n, requests)
				}
				bad.Set(faultproxy.None)
			})
		}
	}
	b.isIdle(t, before)
}
