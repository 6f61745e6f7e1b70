package indexer

import (
	"sync/atomic"

	"github.com/select-service/select-service/pkg/memory"
)

// Account is the memory that several Spaces share. At its limit new blocks are
// refused, while removals and clears go on and make room.
//
// One engine must not take the room of the others, nor may several together. A rank is
// refused while it holds more than freeFactor times the free memory. So ranks that store without
// end leave a part for those that hold little or nothing yet: a single rank gets three quarters
// of the limit, and n ranks with equally many blocks leave 1/(3n+1) of it.
//
// A nil Account refuses nothing. It takes no lock.
type Account struct {
	bytes   *memory.Account
	entries atomic.Int64 // blocks, orphans, aliases and names in attention groups, of all ranks
}

const freeFactor = 3

// NewAccount returns an Account that counts the Spaces' bytes in bytes and has its
// limit. For nil it returns nil, which has no limit.
func NewAccount(bytes *memory.Account) *Account {
	if bytes == nil {
		return nil
	}
	return &Account{bytes: bytes}
}

// admits reports whether a rank that has this many entries may get more, and counts
// a refusal.
func (a *Account) admits(entries int64) bool {
	if a == nil {
		return true
	}
	used := a.bytes.Used()
	free := a.bytes.Limit() - used
	if used <= freeFactor*free { // nobody holds more than is used
		return true
	}
	// An entry takes as much as the mean of all.
	if float64(entries)*float64(used) <= freeFactor*float64(free)*float64(a.entries.Load()) && free > 0 {
		return true
	}
	a.bytes.CountRefusal()
	return false
}

// Estimates, in bytes, of what an entry takes outside flat memory, with the spare room
// of the maps included.
const (
	orphanBytes  = 192
	aliasBytes   = 160
	copyBytes    = 48 // a name in copies.counts; counted at the map's largest size
	removedBytes = 48 // a block in removedBlocks.byName
	groupBytes   = 48 // a name in slotGroups; counted at the maps' largest size
)

// rankCharge is one rank's share of what an Account has counted.
type rankCharge struct {
	entries int64
	bytes   int64 // outside flat memory
}

func (r *rank) charge() rankCharge {
	n, orphans, aliases, grouped := 0, r.orphans.len(), len(r.aliases.cells), r.groups.size()
	for _, held := range r.blocks {
		n += held
	}
	return rankCharge{
		entries: int64(n + orphans + aliases + grouped),
		bytes:   int64(orphans*orphanBytes + aliases*aliasBytes + len(r.removed.byName)*removedBytes + r.copies.largest*copyBytes + r.groups.room()*groupBytes),
	}
}

// counted is one Space's share of what an Account has counted.
type counted struct {
	in       *Account // nil: nothing is counted; constant once in use
	bytes    int64    // in all
	mapBytes int64    // the part of bytes outside flat memory, of all ranks
}

// SetAccount sets where the Space counts its memory. It must be called before the
// Space is used.
func (s *Space) SetAccount(a *Account) { s.account.in = a }

// admits reports whether a slot may get more blocks. The slot must exist. It needs s.mu.
func (s *Space) admits(slot uint32) bool {
	return s.account.in == nil || s.account.in.admits(s.ranks[slot].charged.entries)
}

// settle brings the account up to date after a change of a slot. It needs s.mu.
func (s *Space) settle(slot uint32) {
	a := s.account.in
	if a == nil {
		return
	}
	if int(slot) < len(s.ranks) {
		r := &s.ranks[slot]
		was, now := r.charged, r.charge()
		r.charged = now
		s.account.mapBytes += now.bytes - was.bytes
		if now.entries != was.entries {
			a.entries.Add(now.entries - was.entries)
		}
	}
	if bytes := s.mem.Bytes() + s.account.mapBytes; bytes != s.account.bytes {
		a.bytes.Add(bytes - s.account.bytes)
		s.account.bytes = bytes
	}
}

// Discard takes a Space that is no longer used out of its account.
func (s *Space) Discard() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.account.in == nil {
		return
	}
	for slot := range s.ranks {
		s.ranks[slot].blocks, s.ranks[slot].orphans, s.ranks[slot].aliases = [NumTiers]int{}, orphans{}, aliases{}
		s.ranks[slot].copies = copies{}
		s.forgetGroups(uint32(slot))
		s.settle(uint32(slot))
	}
	s.account.in.bytes.Add(-s.account.bytes)
	s.account = counted{}
}
