package zmqsock

import (
	"context"
	"errors"
	"syscall"
	"testing"

	"github.com/pebbe/zmq4"
)

// A port that is in use is tried again for a while, since libzmq gives the port
// of a closed socket back in the background; no other error is.
func TestBindRetries(t *testing.T) {
	h := New(DefaultOptions())
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	inUse, other := zmq4.Errno(syscall.EADDRINUSE), errors.New("malformed")
	for name, tc := range map[string]struct {
		results []error // of one attempt after the other; the last one stays
		want    error
		calls   int
	}{
		"free":             {[]error{nil}, nil, 1},
		"free soon":        {[]error{inUse, inUse, nil}, nil, 3},
		"never free":       {[]error{inUse}, inUse, 1 + bindRetries},
		"another error":    {[]error{other}, other, 1},
		"another, in turn": {[]error{inUse, other}, other, 2},
	} {
		t.Run(name, func(t *testing.T) {
			calls := 0
			_, err := h.openBound(func(*loop, uint64) error {
				calls++
				return tc.results[min(calls, len(tc.results))-1]
			})
			if !errors.Is(err, tc.want) || calls != tc.calls {
				t.Errorf("error %v after %d attempts, want %v after %d", err, calls, tc.want, tc.calls)
			}
		})
	}
}
