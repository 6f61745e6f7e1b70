package pending

import (
	"container/list"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
)

// ErrNone is the error if no selection is kept under an id, or it is being booked.
var ErrNone = errors.New("no pending selection")

// Limits bounds a Store. If one of them is 0, it keeps nothing.
type Limits struct {
	TTL     time.Duration // how long a selection is kept
	Entries int
	Bytes   int // approximate memory of all selections
}

// DefaultLimits are those of dynamo-kv-router 1.6.1.
func DefaultLimits() Limits {
	return Limits{TTL: 120 * time.Second, Entries: 4096, Bytes: 256 << 20}
}

// Selection has the data of a selection that a reservation needs.
type Selection struct {
	Scope catalog.Scope
	Rank  catalog.Rank
	// BlockSize (in tokens) and Eagle are the scope's; the hashes depend on them.
	BlockSize uint32
	Eagle     bool
	// Local and Sequence are the hashes of the prompt's complete blocks.
	Local, Sequence []uint64
	Tokens          uint64 // length of the prompt in tokens
	Prefill         uint64 // tokens of the prompt that the cache does not credit
	TrackPrefill    bool
	ExpectedOutput  *uint32 // tokens; nil: unknown
	Session         string  // "": none
}

// Store keeps selections until they are booked. It is safe for concurrent use.
type Store struct {
	limits Limits
	now    func() time.Time

	// mu guards the fields below.
	mu      sync.Mutex
	entries map[key]*list.Element // of order
	order   list.List             // of *entry: the oldest first
	bytes   int
}

// key identifies a selection. Its id is chosen by its caller, so each scope has its own ids.
type key struct {
	scope catalog.Scope
	id    string
}

type entry struct {
	key       key
	selection Selection
	since     time.Time // when it was put
	bytes     int
	claimed   bool
}

// New returns an empty store that reads the time from now.
func New(limits Limits, now func() time.Time) *Store {
	return &Store{limits: limits, now: now, entries: make(map[key]*list.Element)}
}

// Put keeps a selection under an id, and replaces the previous one, whose claim then has no
// effect. Old selections make room. A selection larger than the whole store is not kept.
// The hashes are copied.
func (s *Store) Put(id string, sel Selection) {
	k := key{sel.Scope, id}
	e := &entry{key: k, selection: sel, bytes: size(k, sel)}
	fits := e.bytes <= s.limits.Bytes && s.limits.Entries > 0 && s.limits.TTL > 0
	if fits {
		hashes := slices.Concat(sel.Local, sel.Sequence)
		n := len(sel.Local)
		e.selection.Local, e.selection.Sequence = hashes[:n:n], hashes[n:len(hashes):len(hashes)]
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropLocked(k)
	if !fits {
		return
	}
	e.since = s.now()
	s.sweepLocked(e.since)
	for s.order.Len() >= s.limits.Entries || s.bytes+e.bytes > s.limits.Bytes {
		s.removeLocked(s.order.Front())
	}
	s.entries[k] = s.order.PushBack(e)
	s.bytes += e.bytes
}

// overhead is the approximate memory of an entry in bytes, besides its hashes and strings.
const overhead = 384

func size(k key, sel Selection) int {
	return overhead + len(k.id) + len(k.scope.Model) + len(k.scope.Tenant) + len(sel.Session) +
		8*(len(sel.Local)+len(sel.Sequence))
}

// Take claims a selection for a reservation. Until the claim ends, other calls cannot take the
// selection, but it still counts. The error is ErrNone.
func (s *Store) Take(scope catalog.Scope, id string) (*Claim, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	el := s.entries[key{scope, id}]
	if el == nil {
		return nil, ErrNone
	}
	e := el.Value.(*entry)
	if s.expiredLocked(e, s.now()) {
		s.removeLocked(el)
		return nil, ErrNone
	}
	if e.claimed {
		return nil, ErrNone
	}
	e.claimed = true
	return &Claim{store: s, element: el}, nil
}

// Drop drops the selection under an id, claimed or not.
func (s *Store) Drop(scope catalog.Scope, id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropLocked(key{scope, id})
}

// Sweep drops expired selections.
func (s *Store) Sweep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweepLocked(s.now())
}

// Stats returns the number of selections and their approximate bytes.
func (s *Store) Stats() (entries, bytes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.order.Len(), s.bytes
}

func (s *Store) sweepLocked(now time.Time) {
	for el := s.order.Front(); el != nil && s.expiredLocked(el.Value.(*entry), now); el = s.order.Front() {
		s.removeLocked(el)
	}
}

// expiredLocked reports whether an entry is older than the TTL. At exactly the TTL it is
// still kept (1.6.1).
func (s *Store) expiredLocked(e *entry, now time.Time) bool { return now.Sub(e.since) > s.limits.TTL }

func (s *Store) dropLocked(k key) {
	if el := s.entries[k]; el != nil {
		s.removeLocked(el)
	}
}

func (s *Store) removeLocked(el *list.Element) {
	e := s.order.Remove(el).(*entry)
	delete(s.entries, e.key)
	s.bytes -= e.bytes
}

// Claim is the right to book a selection. It ends with the first call of Done
// or Back; further calls do nothing. It is used by one goroutine at a time.
type Claim struct {
	store   *Store
	element *list.Element
	ended   bool
}

// Selection returns the claimed selection. Its hashes must not be changed.
func (c *Claim) Selection() Selection { return c.element.Value.(*entry).selection }

// Done ends the claim of a selection that was booked, and drops the selection. A newer one
// under the same id stays.
func (c *Claim) Done() {
	c.end(func() { c.store.removeLocked(c.element) })
}

// Back ends the claim of a selection that could not be booked. The selection is kept as before,
// unless it has expired or been replaced.
func (c *Claim) Back() {
	c.end(func() {
		if e := c.element.Value.(*entry); c.store.expiredLocked(e, c.store.now()) {
			c.store.removeLocked(c.element)
		} else {
			e.claimed = false
		}
	})
}

// end ends the claim, and calls do if the entry is still in the store.
func (c *Claim) end(do func()) {
	if c.ended {
		return
	}
	c.ended = true
	c.store.mu.Lock()
	defer c.store.mu.Unlock()
	if e := c.element.Value.(*entry); c.store.entries[e.key] == c.element {
		do()
	}
}
