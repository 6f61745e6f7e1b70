package conductor

import (
	"sync/atomic"

	"github.com/select-service/select-service/pkg/kvevents"
)

// UnusedEvents is how many events of a publisher were not used for one reason.
type UnusedEvents struct {
	Reason kvevents.Reason
	Events uint64
}

// unused counts the events of a publisher that were not used. It is written by
// the stream's goroutine and read by any.
type unused struct {
	byReason [kvevents.NumReasons]atomic.Uint64
	// Of the last events that stated something else than is registered, where
	// byReason has any:
	blockSize atomic.Int64  // tokens
	rank      atomic.Uint32 // data-parallel rank
}

// add adds the events of a batch that were not applied.
func (u *unused) add(events *[kvevents.NumReasons]uint64, b *kvevents.Batch, reg *Registration) {
	u.note(events, b, reg)
	for r, n := range events {
		if n > 0 {
			u.byReason[r].Add(n)
		}
	}
}

// note remembers what the events of a batch stated instead of what is registered.
func (u *unused) note(more *[kvevents.NumReasons]uint64, b *kvevents.Batch, reg *Registration) {
	if more[kvevents.UnknownRank] > 0 {
		u.rank.Store(b.RankOr(reg.Rank))
	}
	if more[kvevents.BlockSizeMismatch] == 0 {
		return
	}
	for i := range b.Events {
		ev := &b.Events[i]
		if ev.Envelope == nil && ev.Kind == kvevents.Stored && ev.BlockSize != int(reg.BlockSize) {
			u.blockSize.Store(int64(ev.BlockSize))
		}
	}
}

// list returns the counts that are not 0.
func (u *unused) list() []UnusedEvents {
	var found []UnusedEvents
	for r := range u.byReason {
		if n := u.byReason[r].Load(); n > 0 {
			found = append(found, UnusedEvents{kvevents.Reason(r), n})
		}
	}
	return found
}
