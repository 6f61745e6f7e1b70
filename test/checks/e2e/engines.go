package e2e

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
)

// Engine is a simulated engine: its URL, and the endpoints of its KV events and their replay.
type Engine struct{ URL, Events, Replay string }

// Engines starts n simulated engines (demo/engine) in one process, until the end of the test.
// TestMain has to call Clean at the end.
func Engines(tb testing.TB, n int, args ...string) (*Process, []Engine) {
	tb.Helper()
	p := Start(tb, Options{Command: append([]string{Program(tb, "./demo/engine"), "--engines", strconv.Itoa(n)}, args...)})
	Eventually(tb, "the engines are up", func() error {
		if code, ended := p.Wait(0); ended {
			tb.Fatalf("sim-engine ended with code %d: %s", code, p.Output())
		}
		if !strings.Contains(p.Output(), "ready\n") {
			return fmt.Errorf("its output is %q", p.Output())
		}
		return nil
	})
	var engines []Engine
	for line := range strings.Lines(p.Output()) {
		if f := strings.Fields(line); len(f) == 7 { // engine 1 URL events EVENTS replay REPLAY
			engines = append(engines, Engine{f[2], f[4], f[6]})
		}
	}
	return p, engines
}
