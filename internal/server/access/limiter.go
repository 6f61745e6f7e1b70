package access

import (
	"hash/maphash"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/select-service/select-service/internal/transport/clientnet"
)

// An address may send failureBurst wrong tokens at once, then one per failureEvery; further
// ones are answered 429. A right token is always accepted: behind a proxy all callers share one
// address, and a token of 256 random bits cannot be guessed at any rate.
const (
	failureBurst = 400
	failureEvery = time.Second
)

// failureSlots is the number of counters. It bounds the memory for addresses; addresses whose
// hashes collide share a counter.
const failureSlots = 4096

// failures counts wrong tokens by address. Its zero value is not usable.
type failures struct {
	seed maphash.Seed
	now  func() time.Duration
	// dues has, by slot, the time in ns (of now) when the allowance is whole again.
	dues [failureSlots]atomic.Int64
}

func newFailures(now func() time.Duration) *failures {
	return &failures{seed: maphash.MakeSeed(), now: now}
}

// allow counts a failure, and reports whether it is within the allowance.
func (f *failures) allow(from netip.Addr) bool {
	return take(&f.dues[maphash.Comparable(f.seed, clientnet.Of(from))%failureSlots], f.now(), failureEvery, failureBurst)
}

// take uses up one of an allowance of burst that is refilled by one per interval (generic cell
// rate algorithm), and reports whether there was one.
func take(due *atomic.Int64, now time.Duration, interval time.Duration, burst int) bool {
	for {
		was := due.Load()
		next := max(was, int64(now)) + int64(interval)
		if next-int64(now) > int64(burst)*int64(interval) {
			return false
		}
		if due.CompareAndSwap(was, next) {
			return true
		}
	}
}
