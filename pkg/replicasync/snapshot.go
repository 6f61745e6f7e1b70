package replicasync

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/pkg/reservations/history"
)

const (
	defaultPage = 1_000
	// MaxPage is how many reservations a page has at most.
	MaxPage = 10_000
)

// ErrCursor says that the parameter after is not a cursor.
var ErrCursor = errors.New("after is not a cursor of this snapshot")

// reservationJSON is a reservation in a snapshot. All numbers are JSON numbers, also
// those above 2^53.
type reservationJSON struct {
	OriginProcess  uint64   `json:"origin_process"`
	OriginSequence uint64   `json:"origin_sequence"` // 0: its process does not number
	Model          string   `json:"model_name"`
	Tenant         string   `json:"tenant_id"`
	BlockSize      uint32   `json:"block_size"`
	ID             string   `json:"request_id"`
	PerScope       bool     `json:"per_scope"`
	Pair           bool     `json:"pair,omitempty"` // a side of a pair
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
	// On a page with PageRequest.Shared only: see reservations.ListedReservation.
	Like       int `json:"like,omitempty"`
	LikeBlocks int `json:"like_blocks,omitempty"`
}

func toJSON(b *reservations.Reservation, blockSize uint32) reservationJSON {
	j := reservationJSON{
		OriginProcess: b.Origin.Process, OriginSequence: b.Origin.Sequence,
		Model: b.Scope.Model, Tenant: b.Scope.Tenant, BlockSize: blockSize,
		ID: b.ID, PerScope: b.PerScope, Pair: b.Pair, Worker: b.Rank.Worker, DP: b.Rank.DP,
		AgeMS:         uint64(max(0, b.Age) / time.Millisecond),
		PrefillTokens: b.PrefillTokens, TrackPrefill: b.TrackPrefill, PrefillDone: b.PrefillDone,
		ExpectedOutput: b.ExpectedOutput, Hashes: b.Hashes,
	}
	if b.Lease > 0 {
		j.LeaseMS, j.RenewedMS = toMilliseconds(b.Lease), uint64(b.Renewed/time.Millisecond)
	}
	if j.Hashes == nil {
		j.Hashes = []uint64{}
	}
	return j
}

// reservation checks and converts what a peer reports; late is the time since the page
// began to arrive, which is added to its age.
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
		Pair:     j.Pair,
		Rank:     catalog.Rank{Worker: j.Worker, DP: j.DP},
		Age:      toDuration(j.AgeMS) + late,
		Lease:    toDuration(j.LeaseMS),
		Renewed:  toDuration(j.RenewedMS),
		Hashes:   j.Hashes, ExpectedOutput: j.ExpectedOutput,
		Prompt:        promptOf(len(j.Hashes), j.BlockSize),
		PrefillTokens: j.PrefillTokens, TrackPrefill: j.TrackPrefill, PrefillDone: j.PrefillDone,
	}, nil
}

// toDuration bounds a number of milliseconds that another replica sent.
func toDuration(ms uint64) time.Duration { return time.Duration(min(ms, maxSpan)) * time.Millisecond }

// snapshotHead is the content of a page other than reservations and sessions. ended and
// freed are on the first page only.
type snapshotHead struct {
	process, sequence, renewals uint64
	at                          string // Options.AuthenticatedAt
	seen                        map[uint64]uint64
	ended                       map[uint64]history.EndedSet
	freed                       map[uint64][]history.Name
}

// pageWriter streams one page.
type pageWriter struct {
	w   *bufio.Writer
	num [20]byte
}

func (p *pageWriter) text(s string) { _, _ = p.w.WriteString(s) } // Flush has the error
func (p *pageWriter) uint(n uint64) { _, _ = p.w.Write(strconv.AppendUint(p.num[:0], n, 10)) }

// head writes everything before the reservations. Ended reservations are on the
// first page only.
func (p *pageWriter) head(h *snapshotHead, first bool) {
	p.text(`{"process_id":`)
	p.uint(h.process)
	if h.at != "" {
		quoted, _ := json.Marshal(h.at) // a text has a form in JSON
		p.text(`,"authenticated_at":`)
		_, _ = p.w.Write(quoted)
	}
	p.text(`,"sequence":`)
	p.uint(h.sequence)
	p.text(`,"renewals":`)
	p.uint(h.renewals)
	p.text(`,"seen":{`)
	for i, process := range slices.Sorted(maps.Keys(h.seen)) {
		p.member(i, process)
		p.uint(h.seen[process])
	}
	p.text(`}`)
	if !first {
		return
	}
	p.text(`,"freed":{`) // before ended: a reader passes a name on only if it did not know the end by number
	for i, process := range slices.Sorted(maps.Keys(h.freed)) {
		p.member(i, process)
		p.names(h.freed[process])
	}
	processes := slices.Sorted(maps.Keys(h.ended))
	p.text(`},"assumed":{`) // before ended: the reader needs it for each list there
	for i, process := range processes {
		p.member(i, process)
		p.uint(h.ended[process].Assumed)
	}
	p.text(`},"ended":{`)
	for i, process := range processes {
		p.member(i, process)
		p.ranges(h.ended[process].Ranges)
	}
	p.text(`},"leases_ended":{`)
	n := 0
	for _, process := range processes {
		if leases := h.ended[process].Leases; len(leases) > 0 {
			p.member(n, process)
			p.ranges(leases)
			n++
		}
	}
	p.text(`}`)
}

func (p *pageWriter) names(names []history.Name) {
	p.text(`[`)
	for i, name := range names {
		p.comma(i)
		p.text(`[`)
		p.uint(name.Origin.Sequence)
		p.text(`,`)
		p.uint(name.Hash)
		p.text(`]`)
	}
	p.text(`]`)
}

func (p *pageWriter) ranges(ranges []history.Range) {
	p.text(`[`)
	for i, r := range ranges {
		p.comma(i)
		p.text(`[`)
		p.uint(r.From)
		p.text(`,`)
		p.uint(r.To)
		p.text(`]`)
	}
	p.text(`]`)
}

func (p *pageWriter) comma(i int) {
	if i > 0 {
		p.text(`,`)
	}
}

func (p *pageWriter) member(i int, process uint64) {
	p.comma(i)
	p.text(`"`)
	p.uint(process)
	p.text(`":`)
}

// PageRequest asks for a page of a snapshot.
type PageRequest struct {
	// After is the field next of the previous page, "" for the first page.
	After string
	// Limit is how many reservations the page has at most: 1,000 if it is not positive, never
	// more than MaxPage.
	Limit int
	// Shared: prompts that begin alike have the common part once. Earlier versions do not ask
	// for that, and do not know the parameter of the same name.
	Shared bool
}

// PageOf returns the page that the query of a request asks for. Parameters that it does not
// understand are ignored.
func PageOf(query url.Values) PageRequest {
	limit, _ := strconv.Atoi(query.Get("limit"))
	return PageRequest{After: query.Get("after"), Limit: limit, Shared: query.Get("shared") == "true"}
}

// WriteSnapshot writes one page of everything that this replica knows, as JSON: the
// live reservations after the cursor. If After is not a cursor, the error is ErrCursor and
// nothing is written.
func (r *Replica) WriteSnapshot(ctx context.Context, w io.Writer, q PageRequest) error {
	after, limit := q.After, q.Limit
	if limit <= 0 {
		limit = defaultPage
	}
	limit = min(limit, MaxPage)
	sessionsAfter, onlySessions := sessionCursor(after)
	var cursor reservations.Cursor
	if after != "" && !onlySessions {
		if err := cursor.UnmarshalText([]byte(after)); err != nil {
			return fmt.Errorf("%w: %w", ErrCursor, err)
		}
	}
	// The numbers are read first: the effects of all events up to them are in the ledger.
	h := snapshotHead{process: r.opt.Process, at: r.opt.AuthenticatedAt, seen: r.seen()}
	h.sequence, h.renewals = r.outbox.last()
	if after == "" {
		h.ended = r.core.ledger.Ended()
		h.freed = r.freedNames()
	}
	var page []reservations.ListedReservation
	var next reservations.Cursor
	more := false
	switch {
	case onlySessions:
	case q.Shared:
		page, next, more = r.core.ledger.ListedReservations(cursor, limit)
	default:
		var whole []reservations.Reservation
		whole, next, more = r.core.ledger.Reservations(cursor, limit)
		for _, b := range whole {
			page = append(page, reservations.ListedReservation{Reservation: b})
		}
	}
	r.counts.snapshotsServed.Add(1)

	p := &pageWriter{w: bufio.NewWriter(w)}
	p.head(&h, after == "")
	if q.Shared {
		p.text(`,"shared":true`)
	}
	if err := p.writeReservations(ctx, page, r.scopes); err != nil {
		return err
	}
	var following string
	var err error
	switch {
	case more:
		var text []byte
		text, err = next.MarshalText()
		following = string(text)
	case r.sessions != nil:
		following, err = p.writeSessions(ctx, r.sessions, sessionsAfter, limit)
	}
	if err != nil {
		return err
	}
	p.text(`,"next":`)
	if following != "" {
		quoted, err := json.Marshal(following)
		if err != nil {
			return fmt.Errorf("cursor: %w", err)
		}
		_, _ = p.w.Write(quoted)
	} else {
		p.text(`null`)
	}
	p.text("}\n")
	return p.w.Flush()
}

// freedNames returns the frees that other replicas may not learn from the process that
// reported them: this replica's own, because its events may have been lost, and those of
// processes that are gone.
func (r *Replica) freedNames() map[uint64][]history.Name {
	r.coreMu.Lock()
	present := make(map[uint64]bool)
	for process, id := range r.core.identities {
		present[process] = id.speaks()
	}
	r.coreMu.Unlock()
	return r.core.freed.names(func(reporter uint64) bool { return !present[reporter] }, r.now())
}

// writeReservations writes the reservations of a page, except those whose scope is no
// longer in the catalog.
func (p *pageWriter) writeReservations(ctx context.Context, page []reservations.ListedReservation, scopes Scopes) error {
	p.text(`,"bookings":[`)
	n := 0
	written := make([]int, len(page)) // the index of each among those that are written; -1: it is not
	for i := range page {
		if err := cmp.Or(ctx.Err(), p.failed()); err != nil {
			return err
		}
		written[i] = -1
		size, known := scopes.BlockSize(page[i].Scope)
		if !known || page[i].Blocks > 0 && written[page[i].Like] < 0 { // the scope was gone a moment ago
			continue
		}
		j := toJSON(&page[i].Reservation, size)
		if page[i].Blocks > 0 {
			j.Like, j.LikeBlocks = written[page[i].Like], page[i].Blocks
		}
		written[i] = n
		line, err := json.Marshal(j)
		if err != nil {
			return fmt.Errorf("reservation: %w", err)
		}
		p.comma(n)
		_, _ = p.w.Write(line)
		n++
	}
	p.text(`]`)
	return nil
}

// failed returns the error of an earlier write, if there was one.
func (p *pageWriter) failed() error {
	_, err := p.w.Write(nil)
	return err
}
