package proxy_test

import (
	"sync/atomic"
	"testing"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// sidecar is an engine that decodes: it answers 502 as long as the worker that is to prefill cannot be reached.
func sidecar(t *testing.T, dead *engine, asked *atomic.Int64) *engine {
	return startEngine(t, func(s *served) {
		for {
			r := s.read()
			if r == nil {
				return
			}
			asked.Add(1)
			if r.Header.Get("X-Prefiller-Host-Port") == dead.address {
				s.write("HTTP/1.1 502 Bad Gateway\r\ncontent-length: 2\r\n\r\nno")
			} else {
				s.write(jsonAnswer(`{"by":"` + r.Header.Get("X-Prefiller-Host-Port") + `"}`))
			}
		}
	})
}

// putPair registers prefill engines and, as the last worker, one that decodes.
func (w *world) putPair(decode *engine, prefills ...*engine) {
	for i, e := range append(prefills, decode) {
		role := catalog.RolePrefill
		if e == decode {
			role = catalog.RoleDecode
		}
		w.Put(servicetest.Record(uint64(i+1), 1, func(r *catalog.Record) { r.Endpoint, r.Role = new("http://"+e.address), &role }))
	}
}

// TestPrefillUnreachable: a request whose prefill worker cannot be reached goes to another one, and to the worker that decodes alone
// where there is none. No client notices, and after the first request nobody asks for the dead worker.
func TestPrefillUnreachable(t *testing.T) {
	for name, others := range map[string]int{"another": 1, "none": 0} {
		t.Run(name, func(t *testing.T) {
			w := start(t)
			dead := refusing(t)
			prefills, want := []*engine{dead}, `{"by":""}`
			if others > 0 {
				alive := answering(t, jsonAnswer("{}"))
				prefills, want = append(prefills, alive), `{"by":"`+alive.address+`"}`
			}
			var asked atomic.Int64
			w.putPair(sidecar(t, dead, &asked), prefills...)
			const requests = 20
			for range requests {
				c := w.dial()
				c.send(request(chatPath, chatBody("")))
				if a := c.receive("POST"); a.StatusCode != 200 || a.body != want {
					t.Fatalf("%d %s, want %s", a.StatusCode, a.body, want)
				}
				_ = c.Close()
			}
			w.wantLoads([]string{"1:0 2:0", "1:0 2:0 3:0"}[others])
			if n := asked.Load(); n == requests {
				t.Error("no request was sent to the dead worker")
			}
		})
	}
}

// TestPrefillAnswersErrors: an error of a pair whose prefill worker can be reached is the client's: the request may have been served.
func TestPrefillAnswersErrors(t *testing.T) {
	w := start(t)
	alive := answering(t, jsonAnswer("{}"))
	var asked atomic.Int64
	w.putPair(sidecar(t, alive, &asked), alive)
	c := w.dial()
	c.send(request(chatPath, chatBody("")))
	if a := c.receive("POST"); a.StatusCode != 502 || a.body != "no" {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("it was sent %d times", n)
	}
}
