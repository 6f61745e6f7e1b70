package e2e

import (
	"os"
	"testing"
	"time"
)

// Patience bounds every wait for something that has to happen in the end, and every
// request. It is long: on a machine with 20 busy processes things take ten times
// as long as on an idle one, and only a failing test waits it out.
const Patience = 2 * time.Minute

// Eventually asks again until there is no error, and ends the test with the last
// one if that takes longer than Patience. what says what should become true.
func Eventually(t testing.TB, what string, ok func() error) {
	t.Helper()
	for deadline := time.Now().Add(Patience); ; time.Sleep(20 * time.Millisecond) {
		err := ok()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v: %v", what, Patience, err)
		}
	}
}

// AloneEnv is set (to anything) where nothing else runs on the machine, so that
// rates, ratios and delays can be judged. make test-overload, test-proxy and test-faults set it.
const AloneEnv = "E2E_ALONE"

// Alone reports whether nothing else runs on the machine.
func Alone() bool { return os.Getenv(AloneEnv) != "" }
