package history

import (
	"sync"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
)

// Name is the full name of a reservation. A process that does not know the reservation
// cannot name it by guessing numbers.
type Name struct {
	Origin Origin
	// Hash is NameHash of the reservation's scope, id and rank.
	Hash uint64
}

// NameHash is the 64-bit FNV-1a hash of a reservation's scope, id and rank. It is the
// same on all replicas.
func NameHash(sc catalog.Scope, id string, r catalog.Rank) uint64 {
	h := fnv(14695981039346656037)
	for _, text := range [...]string{sc.Model, sc.Tenant, id} {
		h.number(uint64(len(text)), 8)
		for i := range len(text) {
			h.octet(text[i])
		}
	}
	h.number(r.Worker, 8)
	h.number(uint64(r.DP), 4)
	return uint64(h)
}

// fnv is the state of a 64-bit FNV-1a hash. Unlike that of hash/fnv it does not allocate.
type fnv uint64

func (f *fnv) octet(b byte) { *f = (*f ^ fnv(b)) * 1099511628211 }

// number adds the last octets of a number, big endian.
func (f *fnv) number(n uint64, octets int) {
	for i := octets - 1; i >= 0; i-- {
		f.octet(byte(n >> (8 * i)))
	}
}

// Note is a set of facts that are remembered of a name.
type Note uint8

// The notes.
const (
	NoteFreed        Note = 1 << iota // the reservation has ended for good
	NoteRankRemoved                   // it was lost with its rank here
	NoteLeaseExpired                  // its lease ran out here: a snapshot may bring it back
	NoteCompleted                     // its prefill is complete
)

const (
	// maxNotes bounds the notes from one process.
	maxNotes = 1 << 16
	// maxAllNotes bounds all notes: those of the process with most make room.
	maxAllNotes = 1 << 19
)

// Named remembers steps of reservations that are not live, by their full names, as
// reported by processes other than the one that accepted the reservation. These are not
// believed about its numbers, so that their reports are kept apart from Numbered.
type Named struct {
	// mu guards the fields below. It is an innermost lock.
	mu    sync.Mutex
	notes map[Name]Note
	from  map[uint64]*noteQueue // by the reporting process
}

// noteQueue has the notes from one process in the order in which they came.
type noteQueue struct {
	queue []queuedNote // queue[:head] is spent
	head  int
}

type queuedNote struct {
	name  Name
	note  Note
	until time.Duration
}

// NewNamed returns an empty memory.
func NewNamed() *Named { return &Named{notes: make(map[Name]Note), from: make(map[uint64]*noteQueue)} }

// Add remembers a note, reported by the process reporter, until a time. It reports
// whether the note is new.
func (n *Named) Add(reporter uint64, name Name, note Note, until time.Duration) (fresh bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.notes[name]&note != 0 {
		return false
	}
	q := n.from[reporter]
	if q == nil {
		q = &noteQueue{}
		n.from[reporter] = q
	}
	switch {
	case q.len() >= maxNotes:
		n.drop(q)
	case len(n.notes) >= maxAllNotes:
		n.drop(n.longest())
	}
	n.notes[name] |= note
	q.queue = append(q.queue, queuedNote{name, note, until})
	return true
}

// Of returns what is remembered of a name.
func (n *Named) Of(name Name) Note {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.notes[name]
}

// Forget drops notes whose time has passed. A note behind one that is still kept, of
// the same process, has to wait for that.
func (n *Named) Forget(at time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for reporter, q := range n.from {
		for q.len() > 0 && q.queue[q.head].until < at {
			n.drop(q)
		}
		if q.len() == 0 {
			delete(n.from, reporter)
		}
	}
	if len(n.notes) == 0 {
		n.notes = make(map[Name]Note) // maps never shrink
	}
}

func (q *noteQueue) len() int { return len(q.queue) - q.head }

// drop forgets the oldest note of a queue. It needs n.mu.
func (n *Named) drop(q *noteQueue) {
	x := q.queue[q.head]
	if rest := n.notes[x.name] &^ x.note; rest != 0 {
		n.notes[x.name] = rest
	} else {
		delete(n.notes, x.name)
	}
	if q.head++; 2*q.head >= len(q.queue) {
		q.queue, q.head = append([]queuedNote(nil), q.queue[q.head:]...), 0
	}
}

func (n *Named) longest() (most *noteQueue) {
	for _, q := range n.from {
		if most == nil || q.len() > most.len() {
			most = q
		}
	}
	return most
}
