//go:build !unix

package indexer_test

import "time"

var start = time.Now()

// cpuTime is the best there is: the time.
func cpuTime() time.Duration { return time.Since(start) }
