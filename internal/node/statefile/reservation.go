package statefile

import (
	"encoding/binary"
	"encoding/json"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
)

// maxAge bounds ages and leases, so that sums of them cannot overflow. No real clock is that
// wrong.
const maxAge = 100 * 365 * 24 * time.Hour

// reservation is the JSON part of a reservation's section. It follows its own length (32 bits)
// and precedes the block hashes.
type reservation struct {
	Scope          catalog.Scope
	ID             string
	Rank           catalog.Rank
	PerScope       bool
	Pair           bool `json:",omitempty"` // a side of a pair
	PrefillTokens  uint64
	TrackPrefill   bool
	PrefillDone    bool
	ExpectedOutput *uint32
	Accepted       int64 // Unix time in nanoseconds
	Age            time.Duration
	Lease          time.Duration
	Renewed        time.Duration // time since the acceptance
}

// encodeReservation encodes a reservation as of the time at, without its hashes, which follow.
func encodeReservation(b []byte, r *reservations.Reservation, at time.Time) []byte {
	text, _ := json.Marshal(reservation{ // cannot fail for such values
		Scope: r.Scope, ID: r.ID, Rank: r.Rank, PerScope: r.PerScope, Pair: r.Pair,
		PrefillTokens: r.PrefillTokens, TrackPrefill: r.TrackPrefill, PrefillDone: r.PrefillDone,
		ExpectedOutput: r.ExpectedOutput,
		Accepted:       at.Add(-r.Age).UnixNano(), Age: r.Age, Lease: r.Lease, Renewed: r.Renewed,
	})
	b = binary.LittleEndian.AppendUint32(b, uint32(len(text)))
	return append(b, text...)
}

// decodeReservation returns the reservation with its age at the time at. The age is at least
// that at the time of writing, in case the clock was set back.
func decodeReservation(b []byte, at time.Time) (r reservations.Reservation, ok bool) {
	if len(b) < 4 {
		return r, false
	}
	n, b := uint64(binary.LittleEndian.Uint32(b)), b[4:]
	if n > uint64(len(b)) || (uint64(len(b))-n)%8 != 0 {
		return r, false
	}
	var s reservation
	if json.Unmarshal(b[:n], &s) != nil || !bounded(s.Age) || !bounded(s.Lease) || !bounded(s.Renewed) {
		return r, false
	}
	hashes := b[n:]
	r = reservations.Reservation{
		Scope: s.Scope, ID: s.ID, Rank: s.Rank, PerScope: s.PerScope, Pair: s.Pair,
		PrefillTokens: s.PrefillTokens, TrackPrefill: s.TrackPrefill, PrefillDone: s.PrefillDone,
		ExpectedOutput: s.ExpectedOutput,
		Age:            min(max(s.Age, at.Sub(time.Unix(0, s.Accepted))), maxAge), Lease: s.Lease, Renewed: s.Renewed,
	}
	r.Hashes, _ = readNumbers(make([]uint64, 0, len(hashes)/8), hashes, len(hashes)/8)
	return r, true
}

func bounded(d time.Duration) bool { return d >= 0 && d <= maxAge }
