package history

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"github.com/select-service/select-service/internal/budget"
)

const (
	// memoryShare: what is remembered takes an eighth of the account at most.
	memoryShare = 8
	// What a page of a bitmap and an entry of endedLeases take, in bytes, each with its
	// part of the map that it is in.
	pageBytes  = pageWords*8 + 64
	leaseBytes = 64
)

// memory is what the histories of all processes take. Whoever numbers reservations says
// how much is to be remembered of them, so it is bounded: beyond, the peer whose
// processes take most forgets, which means that its oldest numbers count as ended.
type memory struct {
	account *budget.Account // nil: no bound but those of each process
	limit   int64           // bytes
	used    int64           // bytes
}

// SetMemory sets the account in which the bytes are counted, and with it their limit. To
// be called before the memory is used.
func (n *Numbered) SetMemory(account *budget.Account) {
	n.memory = memory{account: account, limit: account.Limit() / memoryShare}
}

// bitmaps are the sets of x that are made of pages.
func (x *processHistory) bitmaps() [4]bitmap {
	return [...]bitmap{x.ended, x.removed, x.completed, x.leaseExpired}
}

// bytes is what x takes.
func (x *processHistory) bytes() int64 {
	pages := 0
	for _, b := range x.bitmaps() {
		pages += len(b)
	}
	return int64(pages)*pageBytes + int64(len(x.leases))*leaseBytes
}

// count takes note of what x takes after a change, and makes room if that is too much. It
// needs n.mu.
func (n *Numbered) count(x *processHistory) {
	n.recount(x)
	m := &n.memory
	for m.account != nil && m.used > m.limit {
		largest := n.largest()
		before := largest.counted
		largest.forgetOldest()
		if n.recount(largest); largest.counted >= before {
			return
		}
	}
}

func (n *Numbered) recount(x *processHistory) {
	more := x.bytes() - x.counted
	x.counted += more
	n.memory.used += more
	n.memory.account.Add(more)
}

// drop forgets a process. It needs n.mu.
func (n *Numbered) drop(process uint64) {
	if x := n.byProcess[process]; x != nil {
		n.memory.used -= x.counted
		n.memory.account.Add(-x.counted)
		delete(n.byProcess, process)
	}
}

// largest returns the process that takes most of those of the peer that takes most. It
// needs n.mu.
func (n *Numbered) largest() (most *processHistory) {
	peers := make(map[string]int64)
	for _, x := range n.byProcess {
		peers[x.peer] += x.counted
	}
	for _, x := range n.byProcess {
		if most == nil || cmp.Or(cmp.Compare(peers[x.peer], peers[most.peer]), cmp.Compare(x.peer, most.peer), cmp.Compare(x.counted, most.counted)) > 0 {
			most = x
		}
	}
	return most
}

// forgetOldest gives back about an eighth of the larger part of what x takes: the ends of
// leases that matter for the shortest time, or the pages with the lowest numbers.
func (x *processHistory) forgetOldest() {
	var pages []uint64
	for _, b := range x.bitmaps() {
		pages = slices.AppendSeq(pages, maps.Keys(b))
	}
	if len(x.leases)*leaseBytes > len(pages)*pageBytes {
		x.leases.makeRoom()
		return
	}
	slices.Sort(pages)
	if next := pages[len(pages)/8] + 1; next <= math.MaxUint64>>pageShift {
		x.assume(next<<pageShift - 1)
	}
}
