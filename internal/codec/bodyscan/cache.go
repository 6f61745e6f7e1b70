package bodyscan

import (
	"bytes"
	"hash/maphash"
	"math/bits"
	"sync"
	"sync/atomic"
	"unsafe"
)

const (
	// cachedBytes is the length of an array's text in bytes from which it is looked up in a
	// Cache. A shorter one is read in less than 0.1 ms.
	cachedBytes = 64 << 10
	// pieceBytes is the longest text of a piece, and pieceIDs the most ids that it may have to be
	// kept: ids have five digits on average, and a comma.
	pieceBytes = 4 << 10
	pieceIDs   = 1 << 10
	// ways is how many pieces a set has.
	ways = 8
	// unknownPieces is how many unknown pieces of an array are kept, and as many more for each known
	// one. The rest is not looked up.
	unknownPieces = 4
	// growth is for how many pieces the cache gets memory at a time.
	growth = 128

	// pieceMemory is the memory of a piece in bytes, with its part of the set.
	pieceMemory = pieceBytes + 4*pieceIDs + int64(unsafe.Sizeof(pieceSet{}))/ways
)

// Cache has the ids of long arrays that were read before, by their text: agents send prompts of
// which nearly all was sent a moment ago, and to compare a text takes an eighth of the time of
// reading its numbers. It keeps an array in pieces of at most 4 KiB of text that end with a comma,
// so that arrays which begin alike share pieces. A piece is found by a keyed hash, and its ids
// are used only if its text is the same, byte for byte. Of an array that may never come again, since
// nothing of it is known, only the first pieces are looked up and kept: to keep one takes longer than to
// read it, and pushes out another one.
//
// A Cache takes no more memory than it was given; within a set of
// pieces, one that was not used lately makes room. It is safe for concurrent use. Users never wait
// for each other: a piece that is being written counts as unknown.
type Cache struct {
	seed maphash.Seed
	room Room
	sets []pieceSet

	known, read atomic.Uint64 // bytes of text, see Bytes

	mu     sync.Mutex // guards the fields below; only ever tried
	unused int        // pieces for which no memory was taken yet
	texts  []byte     // memory of pieces to come
	ids    []uint32   // likewise
}

// pieceSet has the pieces whose keys lead to it.
type pieceSet struct {
	keys [ways]atomic.Uint64 // of pieces, to find the one to look at; 0: none
	used [ways]atomic.Bool   // the piece was used since the hand passed it
	hand atomic.Uint32       // way that was last looked at for room

	pieces [ways]piece
}

// piece has the ids of a text.
type piece struct {
	mu   sync.RWMutex // guards the fields below; only ever tried
	key  uint64
	text []byte // nil: it has no memory yet
	ids  []uint32
}

// Room returns memory for so many bytes of text and so many ids, of which and of what is kept
// beside it bytes are taken. It is never given back.
type Room func(text, ids int, bytes int64) ([]byte, []uint32)

// NewCache returns a cache of at most size bytes, for which it takes room. It returns nil if size is
// less than one set of pieces takes.
func NewCache(size int64, room Room) *Cache {
	sets := int(size / (ways * pieceMemory))
	if sets < 1 {
		return nil
	}
	return &Cache{seed: maphash.MakeSeed(), room: room, sets: make([]pieceSet, sets), unused: sets * ways}
}

// Bytes returns how many bytes of the text of long arrays were known, and how many were read. A nil
// Cache has none.
func (c *Cache) Bytes() (known, read uint64) {
	if c == nil {
		return 0, 0
	}
	return c.known.Load(), c.read.Load()
}

// set returns the set of a key.
func (c *Cache) set(key uint64) *pieceSet {
	i, _ := bits.Mul64(key, uint64(len(c.sets)))
	return &c.sets[i]
}

// appendKnown appends the ids of a text if they are known.
func (c *Cache) appendKnown(dst []uint32, key uint64, text []byte) ([]uint32, bool) {
	set := c.set(key)
	for i := range set.keys {
		p := &set.pieces[i]
		if set.keys[i].Load() != key || !p.mu.TryRLock() {
			continue
		}
		known := p.key == key && bytes.Equal(p.text, text)
		if known {
			dst = append(dst, p.ids...)
		}
		p.mu.RUnlock()
		if known {
			if !set.used[i].Load() { // others' caches keep the line if nothing changes
				set.used[i].Store(true)
			}
			return dst, true
		}
	}
	return dst, false
}

// keep makes the ids of a text known, unless no piece can make room now.
func (c *Cache) keep(key uint64, text []byte, ids []uint32) {
	if len(ids) > pieceIDs {
		return
	}
	set := c.set(key)
	i := set.room()
	p := &set.pieces[i]
	if !p.mu.TryLock() {
		return
	}
	defer p.mu.Unlock()
	if p.text == nil && !c.grow(p) {
		return
	}
	p.key, p.text, p.ids = key, append(p.text[:0], text...), append(p.ids[:0], ids...)
	set.used[i].Store(false)
	set.keys[i].Store(key)
}

// room returns the way of a piece that makes room: an empty one, else the next one that was not
// used since the hand passed it.
func (s *pieceSet) room() int {
	for i := range s.keys {
		if s.keys[i].Load() == 0 {
			return i
		}
	}
	for range ways {
		i := s.hand.Add(1) % ways
		if !s.used[i].Load() {
			return int(i)
		}
		s.used[i].Store(false)
	}
	return int(s.hand.Add(1) % ways)
}

// grow gives a piece its memory. It returns false if another one is just getting it.
func (c *Cache) grow(p *piece) bool {
	if !c.mu.TryLock() {
		return false
	}
	defer c.mu.Unlock()
	if len(c.texts) == 0 {
		n := min(growth, c.unused)
		c.unused -= n
		c.texts, c.ids = c.room(n*pieceBytes, n*pieceIDs, int64(n)*pieceMemory)
	}
	p.text, c.texts = c.texts[:0:pieceBytes], c.texts[pieceBytes:]
	p.ids, c.ids = c.ids[:0:pieceIDs], c.ids[pieceIDs:]
	return true
}

// UseCache has arrays that are read with [AppendUint32sUnder] looked up in a cache; nil: in none.
func (s *Scanner) UseCache(c *Cache) { s.cache = c }

// postpone passes over the next value if it is an array to look up in the cache, and returns where
// it ends: at the first closing bracket, if its elements are numbers. Nothing of it is checked.
func (s *Scanner) postpone() (end int, ok bool) {
	if s.cache == nil || s.format != JSON || s.peek() != '[' {
		return 0, false
	}
	n := bytes.IndexByte(s.data[s.pos:], ']')
	if n < cachedBytes {
		return 0, false
	}
	s.postponed = true
	s.pos += n + 1
	return s.pos, true
}

// AppendUint32sUnder is [Scanner.AppendUint32s] for a Late field. Arrays that were read under another
// scope are not known, so that nobody learns from the time that it takes what others send.
func AppendUint32sUnder[S comparable](s *Scanner, dst []uint32, scope S) []uint32 {
	if s.lateEnd == 0 {
		return s.AppendUint32s(dst)
	}
	return s.appendPieces(dst, maphash.Comparable(s.cache.seed, scope))
}

// appendPieces reads the array that ends at s.lateEnd, piece by piece.
func (s *Scanner) appendPieces(dst []uint32, scope uint64) []uint32 {
	c, ok := s.open(array, "an array")
	if !ok || !s.more(&c) {
		return dst
	}
	base, start := len(dst), s.pos
	known, unknown := 0, unknownPieces // bytes; pieces that are still kept
	for s.lateEnd-s.pos > pieceBytes && unknown > 0 {
		text := s.data[s.pos : s.pos+pieceBytes]
		text = text[:bytes.LastIndexByte(text, ',')+1]
		if len(text) == 0 {
			break
		}
		key := maphash.Bytes(s.cache.seed, text) ^ scope
		if got, ok := s.cache.appendKnown(dst, key, text); ok {
			dst = got
			s.pos += len(text)
			known += len(text)
			unknown += unknownPieces
			continue
		}
		from, end := len(dst), s.pos+len(text)
		dst = s.appendPiece(dst, &c, end)
		if s.err != nil {
			s.err.insideElement(len(dst) - base)
			return dst
		}
		s.cache.keep(key, text, dst[from:])
		unknown--
	}
	if known > 0 {
		s.cache.known.Add(uint64(known))
	}
	s.cache.read.Add(uint64(s.lateEnd - start - known))
	return appendRest(s, dst, base, &c, (*Scanner).plainUint32s, (*Scanner).Uint32)
}

// appendPiece reads elements up to end, which is behind a comma.
func (s *Scanner) appendPiece(dst []uint32, c *container, end int) []uint32 {
	whole := s.data
	s.data = whole[:end]
	for s.pos < end {
		dst = s.plainUint32s(dst)
		if s.pos == end {
			break
		}
		v := s.Uint32()
		if s.err != nil || !s.more(c) {
			break
		}
		dst = append(dst, v)
	}
	s.data = whole
	return dst
}
