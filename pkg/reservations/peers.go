package reservations

import "sync"

// remoteShare is the reciprocal of the part of a limit that only this process's callers can
// use. Reservations of other processes are accepted only while less than three quarters of
// the limit are in use, so that no replica can exhaust it.
const remoteShare = 4

// peerShares divides the room for reservations of other processes among the peers that
// report them. A peer may use whatever is free. When nothing is free, the largest share
// gives way to a smaller one, so that a peer with less than an equal part always finds
// room. A peer has one share for its own reservations and one for those of others: its
// snapshot also contains what hostile peers have reported to it, which must not take the
// room of its own. The two limits (number and memory) are handled independently.
type peerShares struct {
	// mu guards the fields below, all shares, and what entry.inShare points to. It is an
	// innermost lock.
	mu       sync.Mutex
	bySource map[source]*peerShare // shares that are not empty
}

// source is where a report of a reservation came from: a peer, about its own process's
// reservations or (others) about those of other processes, in a snapshot. Reservations that
// a peer reports as its own stay in its own share, even while another endpoint claims to be the
// same process. Otherwise that endpoint could fill the share of others and displace them.
type source struct {
	peer   string
	others bool
}

// peerShare has the live reservations of one source.
type peerShare struct {
	source source
	held   []*entry
	units  int64 // the sum of their charges
}

// sharePlace is the place of a reservation in the share of the source that reported it.
type sharePlace struct {
	share *peerShare // nil: its room has been given to another reservation
	at    int        // index in share.held
}

// takeFrom makes room for r, which another replica has reported. The displaced reservations
// no longer count; the caller must end them. ok is false if there is no room.
func (ro *room) takeFrom(r *entry, from source) (displaced []*entry, ok bool) {
	r.charge = ro.chargeOf(r)
	account := ro.limits.Memory
	bytes := int64(r.charge) * chargeUnit
	p := &ro.peers
	p.mu.Lock()
	defer p.mu.Unlock()
	share := p.of(from)

	most := int64(ro.limits.Reservations)
	tooMany := ro.live.Add(1) > most-most/remoteShare && most > 0
	noMemory := ro.memoryUsedUp() || !account.TryReserve(bytes)
	switch {
	case noMemory:
		displaced = p.giveWay(share, (*peerShare).memory, int64(r.charge))
	case tooMany:
		displaced = p.giveWay(share, (*peerShare).number, 1)
	}
	if (noMemory || tooMany) && displaced == nil {
		ro.live.Add(-1)
		if noMemory {
			account.CountRefusal()
		} else {
			account.Release(bytes)
		}
		return nil, false
	}
	freed := chargesOf(displaced)
	if noMemory { // r gets the memory of the displaced, which had at least as much
		freed -= bytes
	}
	account.Release(freed)
	ro.live.Add(-int64(len(displaced)))
	share.add(r)
	p.bySource[from] = share
	return displaced, true
}

// memoryUsedUp reports whether no memory is left for reservations of other processes unless some
// are displaced.
func (ro *room) memoryUsedUp() bool {
	account := ro.limits.Memory
	return account != nil && account.Used() > account.Limit()-account.Limit()/remoteShare
}

// usedUp is memoryUsedUp for memory and number.
func (ro *room) usedUp() bool {
	most := int64(ro.limits.Reservations)
	return ro.memoryUsedUp() || most > 0 && ro.live.Load() >= most-most/remoteShare
}

// chargesOf returns the sum of the charges in bytes.
func chargesOf(some []*entry) (sum int64) {
	for _, r := range some {
		sum += int64(r.charge) * chargeUnit
	}
	return sum
}

// takeMore is called if reservations that were displaced for one from that source left a part of
// what they had been charged for, because others hold the same blocks. It displaces a further one
// out of the largest share, unless that is the source's, which the caller must end.
func (ro *room) takeMore(from source) (displaced []*entry) {
	p := &ro.peers
	p.mu.Lock()
	defer p.mu.Unlock()
	displaced = p.giveWay(p.of(from), (*peerShare).memory, 1)
	ro.limits.Memory.Release(chargesOf(displaced))
	ro.live.Add(-int64(len(displaced)))
	return displaced
}

// of returns the share of a source. A new one is not entered in bySource. It needs p.mu.
func (p *peerShares) of(from source) *peerShare {
	if p.bySource == nil {
		p.bySource = make(map[source]*peerShare)
	}
	if share := p.bySource[from]; share != nil {
		return share
	}
	return &peerShare{source: from}
}

func (s *peerShare) number() int64 { return int64(len(s.held)) }
func (s *peerShare) memory() int64 { return s.units }

// giveWay takes reservations with a total size of n, or a little more, out of the largest
// share. It returns nil if that share is not larger than newcomer would be with n more. It
// needs p.mu.
func (p *peerShares) giveWay(newcomer *peerShare, size func(*peerShare) int64, n int64) (displaced []*entry) {
	largest := newcomer
	for _, share := range p.bySource {
		if size(share) > size(largest) {
			largest = share
		}
	}
	before := size(largest)
	if before <= size(newcomer)+n {
		return nil
	}
	for before-size(largest) < n {
		r := largest.held[len(largest.held)-1]
		p.take(r)
		displaced = append(displaced, r)
	}
	return displaced
}

func (s *peerShare) add(r *entry) {
	if r.inShare == nil {
		r.inShare = new(sharePlace)
	}
	*r.inShare = sharePlace{s, len(s.held)}
	s.held = append(s.held, r)
	s.units += int64(r.charge)
}

// take takes r out of its share. It needs p.mu.
func (p *peerShares) take(r *entry) {
	s, at := r.inShare.share, r.inShare.at
	last := len(s.held) - 1
	s.held[at] = s.held[last]
	s.held[at].inShare.at = at
	s.held[last] = nil
	s.held = s.held[:last]
	s.units -= int64(r.charge)
	r.inShare.share = nil
	if last == 0 {
		delete(p.bySource, s.source)
	}
}

// remove takes r out of the share that it is in, and reports whether it was in one.
func (p *peerShares) remove(r *entry) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.inShare.share == nil {
		return false
	}
	p.take(r)
	return true
}

// moveToOwn moves r, which others had reported, to the own share of the peer that now reports
// it as its process's.
func (p *peerShares) moveToOwn(r *entry, peer string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.move(r, source{peer: peer})
}

// move moves r to the share of a source, unless its room has been given away. It needs
// p.mu.
func (p *peerShares) move(r *entry, to source) {
	if r.inShare.share == nil || r.inShare.share.source == to {
		return
	}
	p.take(r)
	share := p.of(to)
	share.add(r)
	p.bySource[to] = share
}
