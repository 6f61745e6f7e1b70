package reservations

import (
	"cmp"
	"encoding"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ErrCursor says that a text is no cursor.
var ErrCursor = errors.New("malformed cursor")

// Cursor is a place in the order in which a ledger lists its bookings. The zero
// Cursor is before all of them. It means nothing to another ledger, which takes
// it for the zero one.
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

// recordsPerLock is how many lines a walk looks at before it lets others have the
// scope's lock.
const recordsPerLock = 1024

// Reservations returns at most limit, at least one, of the live bookings of all
// processes, beginning after a cursor; more says whether there may be further
// ones after next. A walk over all pages has every booking that is live during
// the whole of it, and each at most once. The caller must not change Hashes.
func (l *Ledger) Reservations(after Cursor, limit int) (page []Reservation, next Cursor, more bool) {
	if after.process != l.process {
		after = Cursor{}
	}
	limit = max(limit, 1)
	next, next.process = after, l.process
	var buf []listed
	at := l.at()
	for _, s := range l.scopesFrom(after.scope) {
		if s.number != next.scope {
			next.scope, next.serial = s.number, 0
		}
		for more := true; more; {
			buf, next.serial, more = s.list(buf[:0], next.serial, limit-len(page))
			for _, x := range buf {
				page = append(page, x.booking(at))
			}
			if len(page) == limit {
				return page, next, true
			}
		}
	}
	return page, next, false
}

// listed is a reservation with its variable part at one moment.
type listed struct {
	*entry
	done                     bool
	accepted, lease, renewed time.Duration
}

// list needs the scope's lock.
func (r *entry) list() listed {
	x := listed{entry: r, done: r.prefillDone, accepted: r.accepted()}
	if r.lease != nil {
		x.lease, x.renewed = r.lease.length, r.lease.renewedAfter()
	}
	return x
}

func (x *listed) booking(at time.Duration) Reservation {
	return Reservation{
		Origin:         x.origin,
		Scope:          x.scope.name,
		ID:             x.id,
		Rank:           x.rank,
		PerScope:       x.perScope,
		Hashes:         x.hashes,
		PrefillTokens:  x.tokens,
		TrackPrefill:   x.track,
		PrefillDone:    x.done,
		ExpectedOutput: x.output,
		Age:            max(0, at-x.accepted), // booked after at was read: no age
		Lease:          x.lease,
		Renewed:        x.renewed,
	}
}

// list appends at most limit live reservations after that serial to buf. It may
// stop early: last is how far it came, more whether there is something left.
func (s *scope) list(buf []listed, serial uint64, limit int) (found []listed, last uint64, more bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	i, end := s.entries.after(serial), 0
	for end = min(i+recordsPerLock, len(s.entries.records)); i < end && limit > 0; i++ {
		x := s.entries.records[i]
		serial = x.serial
		if r := x.entry; r != nil {
			buf = append(buf, r.list())
			limit--
		}
	}
	return buf, serial, i < len(s.entries.records)
}

// eachListed calls f, without a lock, with lists of reservations of one scope. Every
// one is in them that was live when each was called and is live still when its
// scope's turn comes, or that was being entered at that time.
func (l *Ledger) eachListed(f func(*scope, []listed)) {
	var buf []listed
	for _, s := range l.scopesFrom(0) {
		serial := uint64(0)
		for more := true; more; {
			buf, serial, more = s.list(buf[:0], serial, recordsPerLock)
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
