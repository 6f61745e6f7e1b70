package pending

import (
	"container/list"
	"sync"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
)

// Limits bounds a Store. If one of them is 0, it keeps nothing.
type Limits struct {
	TTL     time.Duration // how long a selection is kept
	Entries int
	Bytes   int // approximate memory of all selections
}

// Selection has the data of a selection that a reservation needs.
type Selection struct {
	Scope catalog.Scope
	Rank  catalog.Rank
	// BlockSize (in tokens) and Eagle are the scope's; the hashes depend on them.
	BlockSize uint32
	Eagle     bool
	// Prompt has the hashes of the complete blocks.
	Prompt         *reservations.Pin
	Tokens         uint64 // length of the prompt in tokens
	Prefill        uint64 // tokens of the prompt that the cache does not credit
	TrackPrefill   bool
	ExpectedOutput *uint32 // tokens; nil: unknown
	Session        string  // that is to be bound; "": none
	Last           string  // the session that ends with the reservation; "": none
}

// Store keeps selections until they are booked. It is safe for concurrent use.
type Store struct {
	limits Limits
	now    func() time.Time

	// mu guards the fields below.
	mu      sync.Mutex
	entries map[key]*list.Element // of order
	order   list.List             // of *Kept: the oldest first
	bytes   int
	unpin   []*reservations.Pin // of dropped selections, to be unpinned once mu is released
}

// key identifies a selection. Its id is chosen by its caller, so each scope has its own ids.
type key struct {
	scope catalog.Scope
	id    string
}

// Kept is a selection that a Store keeps, or has kept. A caller that has got it may still book it after
// the store has dropped it, until the caller calls Release.
type Kept struct {
	Selection // must not be changed
	key       key
	since     time.Time // when it was put
	bytes     int

	// The fields below are guarded by Store.mu.
	spent bool
	users int // who must call Release, and the store while it keeps it
}

// Bytes returns the approximate memory of the selection.
func (k *Kept) Bytes() int { return k.bytes }

// New returns an empty store that reads the time from now.
func New(limits Limits, now func() time.Time) *Store {
	return &Store{limits: limits, now: now, entries: make(map[key]*list.Element)}
}

// Put keeps a selection under an id, in place of the previous one. Old selections make room. A
// selection larger than the whole store is not kept. The store will unpin the prompt.
func (s *Store) Put(id string, sel Selection) {
	k := key{sel.Scope, id}
	e := &Kept{Selection: sel, key: k, bytes: size(k, sel), users: 1}
	s.mu.Lock()
	defer s.unlock()
	s.dropLocked(k)
	if e.bytes > s.limits.Bytes || s.limits.Entries <= 0 || s.limits.TTL <= 0 {
		s.releaseLocked(e)
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

// overhead is the approximate memory of an entry in bytes, besides its strings and its pin.
const overhead = 576

func size(k key, sel Selection) int {
	return overhead + len(k.id) + len(k.scope.Model) + len(k.scope.Tenant) + len(sel.Session) + len(sel.Last) + sel.Prompt.Bytes()
}

// Get returns the selection that is kept under an id, nil if there is none. The caller must call
// Release.
func (s *Store) Get(scope catalog.Scope, id string) *Kept {
	s.mu.Lock()
	defer s.unlock()
	el := s.entries[key{scope, id}]
	if el == nil {
		return nil
	}
	k := el.Value.(*Kept)
	if s.expiredLocked(k, s.now()) {
		s.removeLocked(el)
		return nil
	}
	k.users++
	return k
}

// Release ends the use of a selection that Get has returned; nil is none.
func (s *Store) Release(k *Kept) {
	if k == nil {
		return
	}
	s.mu.Lock()
	defer s.unlock()
	s.releaseLocked(k)
}

func (s *Store) releaseLocked(k *Kept) {
	if k.users--; k.users == 0 {
		s.unpin = append(s.unpin, k.Prompt)
	}
}

// unlock releases mu, and then unpins the prompts that nobody uses any more, which takes locks of the ledger.
func (s *Store) unlock() {
	unpin := s.unpin
	s.unpin = nil
	s.mu.Unlock()
	for _, p := range unpin {
		p.Unpin()
	}
}

// Spend ends a selection that was booked, or never can be. A newer one under its id stays.
func (s *Store) Spend(k *Kept) {
	s.mu.Lock()
	defer s.unlock()
	k.spent = true
	if el := s.entries[k.key]; el != nil && el.Value.(*Kept) == k {
		s.removeLocked(el)
	}
}

// Spent reports whether Spend has ended a selection.
func (s *Store) Spent(k *Kept) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return k.spent
}

// Drop drops the selection under an id.
func (s *Store) Drop(scope catalog.Scope, id string) {
	s.mu.Lock()
	defer s.unlock()
	s.dropLocked(key{scope, id})
}

// Sweep drops expired selections.
func (s *Store) Sweep() {
	s.mu.Lock()
	defer s.unlock()
	s.sweepLocked(s.now())
}

// Stats returns the number of selections and their approximate bytes.
func (s *Store) Stats() (entries, bytes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.order.Len(), s.bytes
}

func (s *Store) sweepLocked(now time.Time) {
	for el := s.order.Front(); el != nil && s.expiredLocked(el.Value.(*Kept), now); el = s.order.Front() {
		s.removeLocked(el)
	}
}

// expiredLocked reports whether an entry is older than the TTL. At exactly the TTL it is
// still kept (1.6.1).
func (s *Store) expiredLocked(k *Kept, now time.Time) bool { return now.Sub(k.since) > s.limits.TTL }

func (s *Store) dropLocked(k key) {
	if el := s.entries[k]; el != nil {
		s.removeLocked(el)
	}
}

func (s *Store) removeLocked(el *list.Element) {
	k := s.order.Remove(el).(*Kept)
	delete(s.entries, k.key)
	s.bytes -= k.bytes
	s.releaseLocked(k)
}
