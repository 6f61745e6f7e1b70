package ttft

import (
	"fmt"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
)

// Rail is a guard rail: a rule that replaces what is learned, or the whole prediction,
// where that cannot be right.
type Rail uint8

// The guard rails.
const (
	// NothingToLearn: none of the latest reservations had a prefill_complete that can be
	// learned from. The parameters stay as they are.
	NothingToLearn Rail = iota
	// LateRank: for too many of a rank's reservations prefill_complete never comes, or
	// only after the first output, or only at the end of the request. The rank's speed
	// counts as 1, its oldest prefill keeps its full predicted time however long it has
	// run, and no request is held for it.
	LateRank
	// LateScope: the same for most of the scope's reservations. Dynamo's cost decides.
	LateScope
	// StalledRank: the oldest prefill of a rank takes much longer than predicted.
	StalledRank
	// Untracked: the prefills of reservations are not tracked. Dynamo's cost decides.
	Untracked

	rails
)

var railNames = [rails]string{"nothing_to_learn", "late_rank", "late_scope", "stalled_rank", "untracked"}

// String returns the name in snake case.
func (r Rail) String() string {
	if r < rails {
		return railNames[r]
	}
	return fmt.Sprintf("Rail(%d)", uint8(r))
}

// OfRank reports whether the rail engages for single ranks rather than for the scope.
func (r Rail) OfRank() bool { return r == LateRank || r == StalledRank }

const (
	// recentReservations is the number of latest reservations of which late ones are counted.
	recentReservations = 200
	// LateRank engages with more than lateRank late ones, and ends with half as many.
	lateRank = recentReservations / 20
	// LateScope engages if more than half of the scope's reservations are late and there
	// are at least leastReservations, and ends when a quarter is late.
	leastReservations = 20
	// NothingToLearn engages after silentReservations late reservations in a row, and ends with
	// the next one in time if a quarter of the scope's reservations are in time.
	silentReservations = 20

	// A prefill_complete is late if the end of the request follows within sameMoment (about
	// one call of a distant caller) and within sameShare of the time since the reservation
	// was made.
	sameMoment = 50 * time.Millisecond
	sameShare  = 0.1
	// leastPerToken is the least time in which an engine generates a token: within sameMoment it generates 50 at most.
	leastPerToken = time.Millisecond
)

// window records for the latest reservations whether they were reported late.
type window struct {
	late  [(recentReservations + 63) / 64]uint64 // a ring of bits
	n, at int                                    // number of reservations; index of the next one
	sum   int                                    // number of late ones
}

func (w *window) add(late bool) {
	word, bit := &w.late[w.at/64], uint64(1)<<(w.at%64)
	if *word&bit != 0 {
		w.sum--
	}
	*word &^= bit
	if late {
		*word |= bit
		w.sum++
	}
	w.n = min(w.n+1, recentReservations)
	w.at = (w.at + 1) % recentReservations
}

// lateRank reports whether LateRank is engaged; before: whether it was until now.
func (w *window) lateRank(before bool) bool {
	if before {
		return w.sum > lateRank/2
	}
	return w.sum > lateRank
}

// lateScope is lateRank for LateScope.
func (w *window) lateScope(before bool) bool {
	if before {
		return w.sum*4 > w.n
	}
	return w.n >= leastReservations && w.sum*2 > w.n
}

// Change says that a guard rail has engaged or ended.
type Change struct {
	Rail    Rail
	Rank    catalog.Rank // if Rail.OfRank
	Engaged bool
}

// RailState is the state of a guard rail.
type RailState struct {
	Rail    Rail
	Engaged bool
	// Ranks are those for which it is engaged, if Rail.OfRank.
	Ranks []catalog.Rank
	// Engagements counts how often it has engaged.
	Engagements uint64
}

// maxChanges bounds the changes that are kept for the next call of Changes.
const maxChanges = 256
