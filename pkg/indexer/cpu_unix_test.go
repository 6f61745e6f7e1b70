//go:build unix

package indexer_test

import (
	"syscall"
	"time"
)

// cpuTime is what the process has used so far: a long measurement on a busy
// machine is interrupted more often than a short one.
func cpuTime() time.Duration {
	var use syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &use); err != nil {
		panic(err)
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}
