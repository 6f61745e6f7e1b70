package reservations

import (
	"cmp"
	"encoding"
	"errors"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"
)

// ErrCursor says that a text is no cursor.
var ErrCursor = errors.New("malformed cursor")

// Cursor is a place in the order in which one ledger lists its reservations. The zero
// Cursor is before all of them. Any other ledger treats a Cursor as the zero one.
type Cursor struct{ process, scope, serial uint64 }

var (
	_ encoding.TextMarshaler   = Cursor{}
	_ encoding.TextUnmarshaler = (*Cursor)(nil)
)

// MarshalText returns three hexadecimal numbers with dashes between them, and
// nothing for the zero Cursor.
func (c Cursor) MarshalText() ([]byte, error) {
	if c == (Cursor{}) {
		return nil, nil
	}
	text := strconv.AppendUint(nil, c.process, 16)
	text = strconv.AppendUint(append(text, '-'), c.scope, 16)
	return strconv.AppendUint(append(text, '-'), c.serial, 16), nil
}

// UnmarshalText reads what MarshalText writes; ErrCursor for anything else.
func (c *Cursor) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*c = Cursor{}
		return nil
	}
	parts := strings.Split(string(text), "-")
	if len(parts) != 3 {
		return ErrCursor
	}
	var n [3]uint64
	for i, p := range parts {
		x, err := strconv.ParseUint(p, 16, 64)
		if err != nil {
			return ErrCursor
		}
		n[i] = x
	}
	*c = Cursor{n[0], n[1], n[2]}
	return nil
}

// recordsPerLock is how many records a walk looks at before it releases the scope's
// lock for a moment.
const recordsPerLock = 1024

// blocksPerLock is how many hashes it copies before it does so, or some more.
const blocksPerLock = 1 << 16

// blocksPerPage is after how many hashes a page ends, whatever its limit: as text they are about 3 MB.
const blocksPerPage = 1 << 17

// Reservations returns the next live reservations of all processes after a cursor, at
// most limit (which counts as 1 if it is less), and fewer if they have many hashes. more reports whether there may be
// further ones after next. A walk over all pages contains every reservation that is
// live during the whole walk, and none twice. Hashes are copies.
func (l *Ledger) Reservations(after Cursor, limit int) (page []Reservation, next Cursor, more bool) {
	next, more = l.list(after, limit, allHashes, func(x *listed, at time.Duration) { page = append(page, x.reservation(at)) })
	return page, next, more
}

// ListedReservation is a Reservation on a page whose prompts have their common beginnings once.
type ListedReservation struct {
	Reservation
	// Like is the index of an earlier one on the page, if Blocks is not 0: the prompt begins
	// with the first Blocks hashes of that one's, and Hashes are those after them.
	Like, Blocks int
}

// ListedReservations is Reservations with common beginnings once, or a few times on a long page.
func (l *Ledger) ListedReservations(after Cursor, limit int) (page []ListedReservation, next Cursor, more bool) {
	next, more = l.list(after, limit, newHashes, func(x *listed, at time.Duration) {
		page = append(page, ListedReservation{x.reservation(at), x.like, x.blocks})
	})
	return page, next, more
}

// list is Reservations; it calls add for each one.
func (l *Ledger) list(after Cursor, limit int, wanted hashesWanted, add func(x *listed, at time.Duration)) (next Cursor, more bool) {
	if after.process != l.process {
		after = Cursor{}
	}
	limit = max(limit, 1)
	next, next.process = after, l.process
	var buf []listed
	at, n, blocks := l.at(), 0, 0
	for _, s := range l.scopesFrom(after.scope) {
		if s.number != next.scope {
			next.scope, next.serial = s.number, 0
		}
		for more := true; more; {
			buf, next.serial, more = s.list(buf[:0], next.serial, limit-n, wanted)
			for i := range buf {
				buf[i].like += n
				blocks += len(buf[i].hashes)
				add(&buf[i], at)
			}
			if n += len(buf); n == limit || blocks >= blocksPerPage {
				return next, true
			}
		}
	}
	return next, false
}

// hashesWanted says which hashes a walk over reservations reads.
type hashesWanted uint8

const (
	noHashes hashesWanted = iota
	allHashes
	newHashes // see ListedReservation
)

// listed is a reservation with its variable part at one moment.
type listed struct {
	*entry
	hashes                   []uint64 // nil unless wanted
	like, blocks             int      // as in ListedReservation, within one call of scope.list
	prefillDone              bool
	accepted, lease, renewed time.Duration
}

// list returns r with its variable part. It needs the scope's lock.
func (e *entry) list() listed {
	x := listed{entry: e, prefillDone: e.prefillDone, accepted: e.accepted()}
	if e.lease != nil {
		x.lease, x.renewed = e.lease.length, e.lease.renewedAfter()
	}
	return x
}

func (l *listed) reservation(at time.Duration) Reservation {
	return Reservation{
		Origin:         l.origin,
		Scope:          l.scope.name,
		ID:             l.id,
		Rank:           l.rank,
		PerScope:       l.perScope,
		Pair:           l.pair,
		Hashes:         l.hashes,
		PrefillTokens:  l.tokens,
		TrackPrefill:   l.track,
		PrefillDone:    l.prefillDone,
		ExpectedOutput: l.output,
		Age:            max(0, at-l.accepted), // accepted after at was read: no age
		Lease:          l.lease,
		Renewed:        l.renewed,
	}
}

// list appends to buf, which is empty, at most limit live reservations after a serial, with the
// hashes that are wanted. It may stop
// early: last is the serial that it reached, more reports whether records are left.
func (s *scope) list(buf []listed, serial uint64, limit int, wanted hashesWanted) (found []listed, last uint64, more bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var runs map[uint32]int // the runs that have been listed, with the index of a reservation of each
	i, end, blocks := s.entries.after(serial), 0, 0
	for end = min(i+recordsPerLock, len(s.entries.records)); i < end && limit > 0 && blocks < blocksPerLock; i++ {
		x := s.entries.records[i]
		serial = x.serial
		if r := x.entry; r != nil {
			x := r.list()
			switch wanted {
			case noHashes:
			case allHashes:
				x.hashes = s.hashes(r)
			case newHashes:
				if runs == nil {
					runs = make(map[uint32]int)
				}
				s.listNew(&x, runs, len(buf))
			}
			blocks += len(x.hashes)
			buf = append(buf, x)
			limit--
		}
	}
	return buf, serial, i < len(s.entries.records)
}

// listNew lists the prompt of x, which is the reservation of that index, but for what it shares
// with earlier ones.
func (s *scope) listNew(x *listed, runs map[uint32]int, index int) {
	b := &s.blocks
	x.blocks = int(x.entry.blocks)
	for id := x.tail; id != 0; id = b.nodes[id].parent {
		if like, found := runs[id]; found {
			x.like = like
			break
		}
		runs[id] = index
		x.blocks -= int(b.nodes[id].n)
	}
	x.hashes = b.appendAfter(nil, s.match(x.entry), x.blocks)
}

// eachListed calls f, without a lock, with lists of reservations of one scope each.
// Together they contain every reservation that was live, or was being entered, when
// eachListed was called and is still live when its scope is read.
func (l *Ledger) eachListed(f func(*scope, []listed)) {
	var buf []listed
	for _, s := range l.scopesFrom(0) {
		serial := uint64(0)
		for more := true; more; {
			buf, serial, more = s.list(buf[:0], serial, recordsPerLock, noHashes)
			f(s, buf)
		}
	}
}

// scopesFrom returns the scopes from that number on, ordered by number.
func (l *Ledger) scopesFrom(number uint64) []*scope {
	l.mu.RLock()
	scopes := make([]*scope, 0, len(l.scopes))
	for _, s := range l.scopes {
		if s.number >= number {
			scopes = append(scopes, s)
		}
	}
	l.mu.RUnlock()
	slices.SortFunc(scopes, func(a, b *scope) int { return cmp.Compare(a.number, b.number) })
	return scopes
}

// entryLog lists the reservations of a scope in the order of their entry, each under
// a serial number that is never used again, so that a walk over many of them can
// release the lock and continue later.
type entryLog struct {
	records []logRecord // by serial; serials may have gaps
	ended   int         // records without an entry
	last    uint64      // serial given
}

type logRecord struct {
	serial uint64
	entry  *entry // nil: it has ended
}

func (e *entryLog) add(r *entry) {
	e.last++
	r.inLog = int32(len(e.records))
	e.records = append(e.records, logRecord{e.last, r})
}

func (e *entryLog) remove(r *entry) {
	e.records[r.inLog].entry = nil
	e.ended++
	if e.ended > 32 && 2*e.ended > len(e.records) { // constant cost per removal, on average
		e.compact()
	}
}

func (e *entryLog) compact() {
	kept := e.records[:0]
	for _, x := range e.records {
		if x.entry != nil {
			x.entry.inLog = int32(len(kept))
			kept = append(kept, x)
		}
	}
	clear(e.records[len(kept):])
	e.records, e.ended = kept, 0
}

// trim gives spare memory back.
func (e *entryLog) trim() {
	if 4*len(e.records) < cap(e.records) {
		e.records = append([]logRecord(nil), e.records...)
	}
}

// after returns the index of the first record beyond that serial.
func (e *entryLog) after(serial uint64) int {
	return sort.Search(len(e.records), func(i int) bool { return e.records[i].serial > serial })
}
