package replicasync

import (
	"errors"
	"fmt"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
)

const (
	defaultPage = 1_000
	// MaxPage is how many bookings a page has at most.
	MaxPage = 10_000
)

// ErrCursor refuses what was given as the end of the page before and is none.
var ErrCursor = errors.New("after is not a cursor of this snapshot")

// reservationJSON is a booking in a snapshot. All numbers are JSON numbers, also
// those above 2^53.
type reservationJSON struct {
	OriginProcess  uint64   `json:"origin_process"`
	OriginSequence uint64   `json:"origin_sequence"` // 0: its process does not count
	Model          string   `json:"model_name"`
	Tenant         string   `json:"tenant_id"`
	BlockSize      uint32   `json:"block_size"`
	ID             string   `json:"request_id"`
	PerScope       bool     `json:"per_scope"`
	Worker         uint64   `json:"worker_id"`
	DP             uint32   `json:"dp_rank"`
	AgeMS          uint64   `json:"age_ms"`               // since it was accepted, as far as is known
	LeaseMS        uint64   `json:"lease_ms,omitempty"`   // 0: none
	RenewedMS      uint64   `json:"renewed_ms,omitempty"` // the age at which it was renewed last
	PrefillTokens  uint64   `json:"prefill_tokens"`
	TrackPrefill   bool     `json:"track_prefill_tokens"`
	PrefillDone    bool     `json:"prefill_completed"`
	ExpectedOutput *uint32  `json:"expected_output_tokens"`
	Hashes         []uint64 `json:"sequence_hashes"`
}

func toJSON(b *reservations.Reservation, blockSize uint32) reservationJSON {
	j := reservationJSON{
		OriginProcess: b.Origin.Process, OriginSequence: b.Origin.Sequence,
		Model: b.Scope.Model, Tenant: b.Scope.Tenant, BlockSize: blockSize,
		ID: b.ID, PerScope: b.PerScope, Worker: b.Rank.Worker, DP: b.Rank.DP,
		AgeMS:         uint64(max(0, b.Age) / time.Millisecond),
		PrefillTokens: b.PrefillTokens, TrackPrefill: b.TrackPrefill, PrefillDone: b.PrefillDone,
		ExpectedOutput: b.ExpectedOutput, Hashes: b.Hashes,
	}
	if b.Lease > 0 {
		j.LeaseMS, j.RenewedMS = milliseconds(b.Lease), uint64(b.Renewed/time.Millisecond)
	}
	if j.Hashes == nil {
		j.Hashes = []uint64{}
	}
	return j
}

// reservation checks what a peer says; late is how long ago the page began to
// arrive.
func (j *reservationJSON) reservation(late time.Duration) (reservations.Reservation, error) {
	switch {
	case j.OriginProcess == 0:
		return reservations.Reservation{}, errZeroProcess
	case j.OriginSequence > maxSequence:
		return reservations.Reservation{}, fmt.Errorf("origin_sequence %d is above %d", j.OriginSequence, uint64(maxSequence))
	case j.LeaseMS > maxSpan:
		return reservations.Reservation{}, fmt.Errorf("lease_ms %d is above %d", j.LeaseMS, uint64(maxSpan))
	case len(j.Hashes) > maxHashes:
		return reservations.Reservation{}, errOversized
	}
	return reservations.Reservation{
		Origin:   reservations.Origin{Process: j.OriginProcess, Sequence: j.OriginSequence},
		Scope:    catalog.Scope{Model: j.Model, Tenant: j.Tenant},
		ID:       j.ID,
		PerScope: j.PerScope,
		Rank:     catalog.Rank{Worker: j.Worker, DP: j.DP},
		Age:      span(j.AgeMS) + late,
		Lease:    span(j.LeaseMS),
		Renewed:  span(j.RenewedMS),
		Hashes:   j.Hashes, ExpectedOutput: j.ExpectedOutput,
		PrefillTokens: j.PrefillTokens, TrackPrefill: j.TrackPrefill, PrefillDone: j.PrefillDone,
	}, nil
}

// span is a duration in milliseconds that others count.
func span(ms uint64) time.Duration { return time.Duration(min(ms, maxSpan)) * time.Millisecond }
