package pending

import (
	"container/list"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
)

// ErrNone says that no selection is kept under an id, or that it is being
// booked.
var ErrNone = errors.New("no pending selection")

// Limits bounds a Store. Without one of them it keeps nothing.
type Limits struct {
	TTL     time.Duration // how long a selection is kept
	Entries int
	Bytes   int // about what the selections take in memory
}

// DefaultLimits are those of dynamo-kv-router 1.6.1.
func DefaultLimits() Limits {
	return Limits{TTL: 120 * time.Second, Entries: 4096, Bytes: 256 << 20}
}

// Selection is what a reservation needs of a selection.
type Selection struct {
	Scope catalog.Scope
	Rank  catalog.Rank
	// BlockSize in tokens and Eagle are the scope's, which the hashes depend on.
	BlockSize uint32
	Eagle     bool
	// Local and Sequence are the hashes of the prompt's complete blocks.
	Local, Sequence []uint64
	Tokens          uint64 // of the prompt
	Prefill         uint64 // tokens: those that the cache did not credit
	TrackPrefill    bool
	ExpectedOutput  *uint32 // tokens; nil: unknown
	Session         string  // "": none
}

// Store keeps selections until they are booked. It is safe for concurrent use.
type Store struct {
	limits Limits
	now    func() time.Time

	// mu guards what follows.
	mu      sync.Mutex
	entries map[key]*list.Element // of order
	order   list.List             // of *entry: the oldest first
	bytes   int
}

// key: a selection's id is its caller's, so that scopes do not share them.
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

// Put keeps a selection under an id, in place of the one that it has; a claim of
// that has no effect any more. Old selections make room. One that is larger than
// the whole store is not kept. The hashes are copied.
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

// overhead is about what an entry takes beside its hashes and texts, in bytes:
// the entry, and its elements of the order and of the map.
const overhead = 384

func size(k key, sel Selection) int {
	return overhead + len(k.id) + len(k.scope.Model) + len(k.scope.Tenant) + len(sel.Session) +
		8*(len(sel.Local)+len(sel.Sequence))
}

// Take claims a selection for a reservation. Until the claim ends no one else can
// take it; it still counts. The error is ErrNone.
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

// Drop forgets what is kept under an id, claimed or not.
func (s *Store) Drop(scope catalog.Scope, id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropLocked(key{scope, id})
}

// Sweep forgets what is too old.
func (s *Store) Sweep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweepLocked(s.now())
}

// Stats returns how many selections are kept, and about how many bytes they take.
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

// expiredLocked: a selection is kept for the whole of its time (1.6.1).
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

// Selection returns what was kept. Its hashes must not be changed.
func (c *Claim) Selection() Selection { return c.element.Value.(*entry).selection }

// Done ends the claim of a selection that was booked: it is forgotten. A newer
// one under its id stays.
func (c *Claim) Done() {
	c.end(func() { c.store.removeLocked(c.element) })
}

// Back ends the claim of a selection that could not be booked: it is kept as
// before, unless it has expired or been replaced.
func (c *Claim) Back() {
	c.end(func() {
		if e := c.element.Value.(*entry); c.store.expiredLocked(e, c.store.now()) {
			c.store.removeLocked(c.element)
		} else {
			e.claimed = false
		}
	})
}

// end does what is to be done with an entry that is in the store still.
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
