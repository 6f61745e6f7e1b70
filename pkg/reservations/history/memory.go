package history

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"github.com/select-service/select-service/pkg/memory"
)

const (
	// memoryShare: the histories take at most an eighth of the account's limit.
	memoryShare = 8
	// Estimates of what a page of a bitmap and an entry of endedLeases take, in bytes,
	// with their part of the map included.
	pageBytes  = pageWords*8 + 64
	leaseBytes = 64
)

// memory counts what the histories of all processes take. Peers determine how much there
// is to remember, so it is bounded: beyond the limit, a process of the peer whose
// processes take most forgets its oldest numbers, which then count as ended.
type accounts struct {
	account *memory.Account // nil: no bound but those of each process
	limit   int64           // bytes
	used    int64           // bytes
}

// SetMemory sets the account in which bytes are counted; an eighth of its limit is the
// bound. It must be called before n is used.
func (n *Numbered) SetMemory(account *memory.Account) {
	n.memory = accounts{account: account, limit: account.Limit() / memoryShare}
}

// bitmaps returns the sets of x that are bitmaps.
func (p *processHistory) bitmaps() [4]bitmap {
	return [...]bitmap{p.ended, p.removed, p.completed, p.leaseExpired}
}

// bytes returns an estimate of what x takes.
func (p *processHistory) bytes() int64 {
	pages := 0
	for _, b := range p.bitmaps() {
		pages += len(b)
	}
	return int64(pages)*pageBytes + int64(len(p.leases))*leaseBytes
}

// count updates the memory that is counted after a change of x, and makes room if it is
// beyond the limit. It needs n.mu.
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

// largest returns, of the peer whose processes take most together, the process that takes
// most. It needs n.mu.
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

// forgetOldest gives back about an eighth of either the ends of leases, those with the
// earliest until, or the pages, those with the lowest numbers, whichever takes more.
func (p *processHistory) forgetOldest() {
	var pages []uint64
	for _, b := range p.bitmaps() {
		pages = slices.AppendSeq(pages, maps.Keys(b))
	}
	if len(p.leases)*leaseBytes > len(pages)*pageBytes {
		p.leases.makeRoom()
		return
	}
	slices.Sort(pages)
	if next := pages[len(pages)/8] + 1; next <= math.MaxUint64>>pageShift {
		p.assume(next<<pageShift - 1)
	}
}
