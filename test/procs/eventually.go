package procs

import (
	"testing"
	"time"
)

// Eventually asks again until there is no error, and ends the test with the last
// one if that takes longer than within. what says what should become true.
func Eventually(t testing.TB, within time.Duration, what string, ok func() error) {
	t.Helper()
	for deadline := time.Now().Add(within); ; time.Sleep(20 * time.Millisecond) {
		err := ok()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v: %v", what, within, err)
		}
	}
}
