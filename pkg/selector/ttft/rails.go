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
	// NothingToLearn: of the last bookings that ended none had a prefill_complete that can
	// be learned from. Nothing is learned from anything else, so the parameters stay.
	NothingToLearn Rail = iota
	// LateRank: for too many of a rank's bookings prefill_complete comes never, or after the first
	// output, or with the end. Its speed counts as 1, its oldest prefill does not
	// fade with time, and no request is held for it.
	LateRank
	// LateScope: that is so for most of the scope's bookings. Dynamo's cost decides.
	LateScope
	// StalledRank: the oldest prefill of a rank takes much longer than predicted.
	StalledRank
	// Untracked: the bookings' prefill is not tracked. Dynamo's cost decides.
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

// OfRank reports whether the rail is engaged for single ranks, not for the scope.
func (r Rail) OfRank() bool { return r == LateRank || r == StalledRank }

// Rails returns all guard rails.
func Rails() []Rail {
	all := make([]Rail, rails)
	for i := range all {
		all[i] = Rail(i)
	}
	return all
}

const (
	// recentBookings is over how many the share of late ones is taken.
	recentBookings = 200
	// A rank is late with more than lateRank of them, until these are half of that.
	lateRank = recentBookings / 20
	// A scope is late if that is more than half of its bookings, and of these there are
	// leastBookings, until it is a quarter.
	leastBookings = 20
	// silentBookings is how many in a row bring nothing to learn, until one does and
	// a quarter of the scope's bookings do.
	silentBookings = 20

	// A prefill_complete is late if the end follows within sameMoment, which is a call of a
	// caller far away, and that is less than sameShare of the time since the booking.
	sameMoment = 50 * time.Millisecond
	sameShare  = 0.1
)

// window has the last bookings that were judged: late or not.
type window struct {
	late  [(recentBookings + 63) / 64]uint64
	n, at int // how many there are, and where the next one goes
	sum   int // how many are late
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
	w.n = min(w.n+1, recentBookings)
	w.at = (w.at + 1) % recentBookings
}

// lateRank returns whether the rail is engaged, if it was or was not before.
func (w *window) lateRank(before bool) bool {
	if before {
		return w.sum > lateRank/2
	}
	return w.sum > lateRank
}

func (w *window) lateScope(before bool) bool {
	if before {
		return w.sum*4 > w.n
	}
	return w.n >= leastBookings && w.sum*2 > w.n
}

// Change is that a guard rail engages or ends.
type Change struct {
	Rail    Rail
	Rank    catalog.Rank // if Rail.OfRank
	Engaged bool
}

// RailState is what a guard rail is in at a moment.
type RailState struct {
	Rail    Rail
	Engaged bool
	// Ranks are those for which it is engaged, if Rail.OfRank.
	Ranks []catalog.Rank
	// Engagements is how often it has engaged.
	Engagements uint64
}

// maxChanges bounds the changes that nobody has asked for yet.
const maxChanges = 256
