// Package attacks plays hostile callers, engines, peers and operators against the
// built program: each attack of docs/run/security.md is a test. Memory, counts and state
// are asserted everywhere, delays only where nothing else runs (E2E_ALONE). They are
// a ring of their own, make test-attacks: they take minutes, and their figures are
// those of the program as it is shipped, without the race detector. With -short, as
// CI plays them, there are fewer attackers in the slowest.
package attacks

import (
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/select-service/select-service/test/checks/e2e"
	"github.com/select-service/select-service/test/helpers/length"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if length.Race {
		fmt.Println("left out: make test-attacks runs them")
		return
	}
	e2e.Main(m)
}

// size is how many attackers there are, or how often they strike: in full, and with -short.
func size(full, short int) int { return length.Of(full, short, short) }

// beside lets a test run beside others, each with a service of its own, unless delays are judged. Most of them wait more than
// they compute.
func beside(t *testing.T) {
	t.Helper()
	if !e2e.Alone() {
		t.Parallel()
	}
}

// stopTime is how long the end may take after SIGTERM, whatever is connected.
const stopTime = 6 * time.Second

// mustEnd waits for the end of a process that was asked to, with this exit code.
func mustEnd(t *testing.T, p *e2e.Process, exitCode int) {
	t.Helper()
	begin := time.Now()
	code, ended := p.Wait(e2e.Patience)
	switch took := time.Since(begin); {
	case !ended:
		t.Fatalf("still running after %v", took)
	case e2e.Alone() && took > stopTime:
		t.Errorf("it ended after %v, want at most %v", took, stopTime)
	case code != exitCode:
		t.Errorf("exit code %d, want %d: %.2000s", code, exitCode, p.Output())
	default:
		t.Logf("ended after %v", took)
	}
}

// soon is when an answer that has to come at once is given up.
func soon() time.Time { return time.Now().Add(time.Second) }
