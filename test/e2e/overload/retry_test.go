package overload_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// The client of docs/callers.md.
const (
	maxRetries  = 5 // attempts, the first one included
	longestWait = 60 * time.Second
)

var errMaxRetries = errors.New("max retries exceeded")

// retry sends a request until it is not refused any more. Attempts count from
// 0; after each the client waits min(60, 2^attempt + U(0, 1)) seconds.
func retry(rnd *rand.Rand, send func(attempt int) (refused bool, err error), wait func(time.Duration) error) error {
	for attempt := range maxRetries {
		if refused, err := send(attempt); err != nil || !refused {
			return err
		}
		seconds := math.Pow(2, float64(attempt)) + rnd.Float64()
		if err := wait(min(longestWait, time.Duration(seconds*float64(time.Second)))); err != nil {
			return err
		}
	}
	return errMaxRetries
}

// TestRetry proves that the client of these tests waits as the documented one:
// 1 to 2, 2 to 3, 4 to 5, 8 to 9, 16 to 17 seconds, and gives up after that.
func TestRetry(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 1))
	for accepted := range maxRetries + 1 {
		attempts, waits := 0, 0
		err := retry(rnd, func(attempt int) (bool, error) {
			if attempt != attempts {
				t.Errorf("attempt %d, want %d", attempt, attempts)
			}
			attempts++
			return attempt != accepted, nil
		}, func(d time.Duration) error {
			if least := time.Second << waits; d < least || d >= least+time.Second {
				t.Errorf("wait %d lasts %v", waits, d)
			}
			waits++
			return nil
		})
		if gaveUp := accepted == maxRetries; gaveUp != errors.Is(err, errMaxRetries) || waits != accepted || attempts != min(accepted+1, maxRetries) {
			t.Errorf("accepted at attempt %d: %v after %d attempts and %d waits", accepted, err, attempts, waits)
		}
	}
}
