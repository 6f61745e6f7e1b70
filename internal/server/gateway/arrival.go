package gateway

import (
	"sync"
	"time"
)

const (
	// leastRate is what a request's body must bring on average, in bytes a second, beside PickTimeout.
	leastRate = 16 << 10
	// While others need its place or its memory, a request's body may take stalledAfter for its next progressBytes.
	stalledAfter  = 2 * time.Second
	progressBytes = 16 << 10
)

// arrival is a request's body while it comes. The request's place and the body's memory are lent meanwhile.
type arrival struct {
	began time.Time
	size  int64         // bytes that have come
	noted int64         // size when the client last counted as making progress
	cut   chan struct{} // closed when the request has lost its place or its memory
	onCut func()        // called then; nil: nothing
	once  sync.Once     // of cut
}

func newArrival(onCut func()) *arrival {
	return &arrival{began: time.Now(), cut: make(chan struct{}), onCut: onCut}
}

// CutOff implements memory.Client.
func (a *arrival) CutOff() {
	a.once.Do(func() {
		close(a.cut)
		if a.onCut != nil {
			a.onCut()
		}
	})
}

// isCut reports whether the request has lost its place or its memory.
func (a *arrival) isCut() bool {
	select {
	case <-a.cut:
		return true
	default:
		return false
	}
}

// came notes a piece of the body, and reports whether that is progress.
func (a *arrival) came(n int) (progress bool) {
	a.size += int64(n)
	if progress = a.size-a.noted >= progressBytes; progress {
		a.noted = a.size
	}
	return progress
}

// patience is how long the next piece is waited for: most since the last one, and most for the whole body
// beside the time that it takes at leastRate.
func (a *arrival) patience(most time.Duration) time.Duration {
	atLeastRate := time.Duration(float64(a.size) / leastRate * float64(time.Second))
	return min(most, time.Until(a.began.Add(most+atLeastRate)))
}
