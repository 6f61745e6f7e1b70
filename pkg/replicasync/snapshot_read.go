package replicasync

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"

	"github.com/select-service/select-service/pkg/reservations/history"
)

// Bounds of what is read from one peer. A ledger of a million live bookings and
// 46 minutes of ends at 3,000 events a second stay below.
const (
	maxBookings = 4 << 20
	maxEnded    = 4 << 20
	maxPages    = 16 << 10
	maxSeen     = 4 * maxSenders
	// maxValue bounds one value of the JSON in bytes: a booking of maxHashes,
	// each of 20 digits and a comma.
	maxValue = 24 << 20
	// endedBatch is how many ended ranges are handed on at a time: 1 MiB. For each
	// batch the ledger looks at all live bookings.
	endedBatch = 1 << 16
)

var errSnapshot = errors.New("snapshot")

// snapshotSink takes what a snapshot says, as it is read. It must not keep the
// ranges.
type snapshotSink interface {
	// head comes first; its error ends the reading.
	head(process, sequence uint64) error
	renewals(sequence uint64)
	ended(process uint64, ended history.EndedSet)
	booking(*reservationJSON) error
}

// pageReader reads the pages of one snapshot.
type pageReader struct {
	sink snapshotSink
	// What all pages together have.
	bookings, ranges, pages int

	assumed map[uint64]uint64 // of this page; nil: the peer does not say
	pair    []uint64
	batch   []history.Range
	src     boundedReader
	dec     *json.Decoder
	next    string // the cursor at the end of the page
	more    bool
}

// boundedReader fails when one value takes too many bytes.
type boundedReader struct {
	r    io.Reader
	left int
}

func (b *boundedReader) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errOversized
	}
	if len(p) > b.left {
		p = p[:b.left]
	}
	n, err := b.r.Read(p)
	b.left -= n
	return n, err
}

// page reads one page. Afterwards next and more tell how it goes on. It ignores
// keys that it does not know.
func (p *pageReader) page(r io.Reader) error {
	if p.pages++; p.pages > maxPages {
		return fmt.Errorf("%w: more than %d pages", errSnapshot, maxPages)
	}
	p.src = boundedReader{r: r}
	p.dec = json.NewDecoder(&p.src)
	before := p.next
	p.next, p.more, p.assumed = "", false, nil
	if err := p.read(); err != nil {
		return fmt.Errorf("%w: %w", errSnapshot, err)
	}
	if p.more && p.next == before {
		return fmt.Errorf("%w: the cursor stands still", errSnapshot)
	}
	return nil
}

// read reads the page's object, and nothing behind it.
func (p *pageReader) read() error {
	if err := p.delim('{'); err != nil {
		return err
	}
	var process, sequence, renewals uint64
	have := map[string]bool{}
	started := false
	for p.hasMore() {
		key, err := p.key()
		if err != nil {
			return err
		}
		if have[key] {
			return fmt.Errorf("%s is there twice", key)
		}
		have[key] = true
		switch key {
		case "process_id":
			err = p.value(&process)
		case "sequence":
			err = p.value(&sequence)
		case "renewals":
			if err = p.value(&renewals); err == nil && renewals <= maxSequence {
				p.sink.renewals(renewals)
			}
		case "seen":
			err = p.seen()
		case "assumed":
			err = p.readAssumed(have["ended"])
		case "ended", "leases_ended", "bookings":
			switch {
			case !started:
				err = errors.New("process_id and sequence must come before")
			case key == "ended":
				err = p.ended(p.endedRanges)
			case key == "leases_ended":
				err = p.ended(endedLeases)
			default:
				err = p.list(p.booking)
			}
		case "next":
			err = p.cursor()
		default:
			err = p.value(new(json.RawMessage))
		}
		if err == nil && !started && have["process_id"] && have["sequence"] {
			started = true
			err = p.head(process, sequence)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
	}
	if err := p.delim('}'); err != nil {
		return err
	}
	for _, key := range []string{"process_id", "sequence", "bookings", "next"} {
		if !have[key] {
			return fmt.Errorf("%s is missing", key)
		}
	}
	return nil
}

func (p *pageReader) head(process, sequence uint64) error {
	if process == 0 {
		return errZeroProcess
	}
	if sequence > maxSequence {
		return fmt.Errorf("sequence %d is above %d", sequence, uint64(maxSequence))
	}
	return p.sink.head(process, sequence)
}

func (p *pageReader) cursor() error {
	var next *string
	if err := p.value(&next); err != nil {
		return err
	}
	if next != nil {
		if *next == "" || len(*next) > maxURL {
			return errors.New("is no cursor")
		}
		p.next, p.more = *next, true
	}
	return nil
}

// seen is not used: what another replica has of a third one says nothing about
// what its catalog let it take.
func (p *pageReader) seen() error {
	n := 0
	return p.members(func(uint64) error {
		if n++; n > maxSeen {
			return errOversized
		}
		return p.value(new(uint64))
	})
}

// readAssumed reads which of the ended numbers of each process are certain.
func (p *pageReader) readAssumed(tooLate bool) error {
	if tooLate {
		return errors.New("must come before ended")
	}
	p.assumed = make(map[uint64]uint64)
	return p.members(func(process uint64) error {
		var n uint64
		if err := p.value(&n); err != nil {
			return err
		}
		if len(p.assumed) >= maxSeen || n > maxSequence {
			return errOversized
		}
		p.assumed[process] = n
		return nil
	})
}

// endedRanges: of a peer that knows of no leases nothing is certain.
func (p *pageReader) endedRanges(process uint64, ranges []history.Range) history.EndedSet {
	e := history.EndedSet{Ranges: ranges, Assumed: math.MaxUint64}
	if p.assumed != nil {
		e.Assumed = p.assumed[process]
	}
	return e
}

func endedLeases(_ uint64, ranges []history.Range) history.EndedSet {
	return history.EndedSet{Leases: ranges, Assumed: math.MaxUint64}
}

// ended reads lists of ranges, which as turns into what they mean.
func (p *pageReader) ended(as func(uint64, []history.Range) history.EndedSet) error {
	return p.members(func(process uint64) error {
		if process == 0 {
			return errZeroProcess
		}
		p.batch = p.batch[:0]
		err := p.list(func() error {
			if p.ranges++; p.ranges > maxEnded {
				return errOversized
			}
			r, err := p.endedRange()
			if err != nil {
				return err
			}
			if p.batch = append(p.batch, r); len(p.batch) == endedBatch {
				p.sink.ended(process, as(process, p.batch))
				p.batch = p.batch[:0]
			}
			return nil
		})
		if err == nil && len(p.batch) > 0 {
			p.sink.ended(process, as(process, p.batch))
		}
		return err
	})
}

func (p *pageReader) endedRange() (history.Range, error) {
	p.pair = p.pair[:0]
	if err := p.value(&p.pair); err != nil {
		return history.Range{}, err
	}
	if len(p.pair) != 2 || p.pair[0] == 0 || p.pair[0] > p.pair[1] || p.pair[1] > maxSequence {
		return history.Range{}, errors.New("is no range")
	}
	return history.Range{From: p.pair[0], To: p.pair[1]}, nil
}

func (p *pageReader) booking() error {
	if p.bookings++; p.bookings > maxBookings {
		return errOversized
	}
	var b reservationJSON
	if err := p.value(&b); err != nil {
		return err
	}
	return p.sink.booking(&b)
}

// members reads an object whose keys are process ids.
func (p *pageReader) members(f func(process uint64) error) error {
	if err := p.delim('{'); err != nil {
		return err
	}
	for p.hasMore() {
		key, err := p.key()
		if err != nil {
			return err
		}
		process, err := strconv.ParseUint(key, 10, 64)
		if err != nil {
			return fmt.Errorf("process id: %w", err)
		}
		if err := f(process); err != nil {
			return err
		}
	}
	return p.delim('}')
}

func (p *pageReader) list(f func() error) error {
	if err := p.delim('['); err != nil {
		return err
	}
	for p.hasMore() {
		if err := f(); err != nil {
			return err
		}
	}
	return p.delim(']')
}

// The steps below read one token or value each, within the bound.

func (p *pageReader) hasMore() bool {
	p.src.left = maxValue
	return p.dec.More()
}

func (p *pageReader) delim(want json.Delim) error {
	p.src.left = maxValue
	t, err := p.dec.Token()
	if err != nil {
		return noEOF(err)
	}
	if t != want {
		return fmt.Errorf("want %v, got %v", want, t)
	}
	return nil
}

func (p *pageReader) key() (string, error) {
	p.src.left = maxValue
	t, err := p.dec.Token()
	if err != nil {
		return "", noEOF(err)
	}
	key, ok := t.(string)
	if !ok {
		return "", fmt.Errorf("want a key, got %v", t)
	}
	return key, nil
}

func (p *pageReader) value(v any) error {
	p.src.left = maxValue
	return noEOF(p.dec.Decode(v))
}

// noEOF: inside a page the end of the bytes is never expected.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
