package replicasync

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"

	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/pkg/reservations/history"
)

// snapshotHead is what a page says besides its bookings.
type snapshotHead struct {
	process, sequence, renewals uint64
	seen                        map[uint64]uint64
	ended                       map[uint64]history.EndedSet
}

// pageWriter streams one page.
type pageWriter struct {
	w   *bufio.Writer
	num [20]byte
}

func (p *pageWriter) text(s string) { _, _ = p.w.WriteString(s) } // Flush tells
func (p *pageWriter) uint(n uint64) { _, _ = p.w.Write(strconv.AppendUint(p.num[:0], n, 10)) }

// head writes everything before the bookings. What is ended belongs to the
// first page.
func (p *pageWriter) head(h *snapshotHead, first bool) {
	p.text(`{"process_id":`)
	p.uint(h.process)
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
	processes := slices.Sorted(maps.Keys(h.ended))
	p.text(`,"assumed":{`) // read with each list of ended: before it
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

// WriteSnapshot writes one page of everything that this replica knows, as JSON:
// the live bookings after the cursor, at most limit (1,000 if it is not positive,
// never more than MaxPage). after is the page before's next, "" for the first.
// ErrCursor, before anything is written, if it is no cursor.
func (r *Replica) WriteSnapshot(ctx context.Context, w io.Writer, after string, limit int) error {
	if limit <= 0 {
		limit = defaultPage
	}
	limit = min(limit, MaxPage)
	var cursor reservations.Cursor
	if after != "" {
		if err := cursor.UnmarshalText([]byte(after)); err != nil {
			return fmt.Errorf("%w: %w", ErrCursor, err)
		}
	}
	// The numbers are read first: whatever they cover is in the ledger already.
	h := snapshotHead{process: r.opt.Process, seen: r.seen()}
	h.sequence, h.renewals = r.outbox.last()
	if after == "" {
		h.ended = r.core.ledger.Ended()
	}
	page, next, more := r.core.ledger.Reservations(cursor, limit)
	r.counts.snapshotsServed.Add(1)

	p := &pageWriter{w: bufio.NewWriter(w)}
	p.head(&h, after == "")
	if err := p.bookings(ctx, page, r.scopes); err != nil {
		return err
	}
	p.text(`,"next":`)
	if more {
		text, err := next.MarshalText()
		if err != nil {
			return fmt.Errorf("cursor: %w", err)
		}
		quoted, err := json.Marshal(string(text))
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

// bookings writes a page's bookings but those whose scope is gone by now.
func (p *pageWriter) bookings(ctx context.Context, page []reservations.Reservation, scopes Scopes) error {
	p.text(`,"bookings":[`)
	n := 0
	for i := range page {
		if err := cmp.Or(ctx.Err(), p.failed()); err != nil {
			return err
		}
		size, known := scopes.BlockSize(page[i].Scope)
		if !known {
			continue
		}
		line, err := json.Marshal(toJSON(&page[i], size))
		if err != nil {
			return fmt.Errorf("booking: %w", err)
		}
		p.comma(n)
		_, _ = p.w.Write(line)
		n++
	}
	p.text(`]`)
	return nil
}

// failed returns the error of the writes before, if there was one.
func (p *pageWriter) failed() error {
	_, err := p.w.Write(nil)
	return err
}
