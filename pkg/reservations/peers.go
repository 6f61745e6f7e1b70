package reservations

import "sync"

// remoteShare: reservations of other processes fit as long as less than three quarters
// of a limit are used, by whomever. What is left is for this process's callers, so that
// no replica can take the service from them.
const remoteShare = 4

// peerShares shares out what is for the reservations of other processes among the peers
// that tell of them. A peer may use what is free. When nothing is, the share that holds
// most gives way to one that holds less, so that whoever holds less than an equal part
// always finds room. A peer has one share for its own reservations and one for those of
// others: its snapshot also has what hostile peers have told it, which must not take the
// room of its own. What is said of one limit (number, memory) says nothing of the other.
type peerShares struct {
	// mu guards the fields below, all shares, and what told points to. It is an innermost
	// lock.
	mu       sync.Mutex
	bySource map[source]*peerShare // that hold something
}

// source is who told of a reservation: a peer of its own process's or, in a snapshot, of
// others'. What a peer tells of itself stays its own while others dispute that it is that
// process: they could fill the share of others with what they tell it.
type source struct {
	peer   string
	others bool
}

// peerShare is what the reservations of one source hold.
type peerShare struct {
	source source
	held   []*entry
	units  int64 // the sum of their charges
}

// told says who told of a reservation.
type told struct {
	share *peerShare // nil: it has given its room to another one
	at    int        // index in share.held
}

// takeFrom makes room for r, of which another replica has told. Those that are displaced take no
// room any more; the caller ends them.
func (m *room) takeFrom(r *entry, from source) (displaced []*entry, ok bool) {
	r.charge = chargeOf(r)
	account := m.limits.Memory
	bytes := int64(r.charge) * chargeUnit
	p := &m.peers
	p.mu.Lock()
	defer p.mu.Unlock()
	share := p.of(from)

	most := int64(m.limits.Reservations)
	tooMany := m.live.Add(1) > most-most/remoteShare && most > 0
	noMemory := account != nil && account.Used() > account.Limit()-account.Limit()/remoteShare || !account.TryReserve(bytes)
	switch {
	case noMemory:
		displaced = p.giveWay(share, (*peerShare).memory, int64(r.charge))
	case tooMany:
		displaced = p.giveWay(share, (*peerShare).number, 1)
	}
	if (noMemory || tooMany) && displaced == nil {
		m.live.Add(-1)
		if noMemory {
			account.CountRefusal()
		} else {
			account.Release(bytes)
		}
		return nil, false
	}
	freed := int64(0)
	for _, d := range displaced {
		freed += int64(d.charge) * chargeUnit
	}
	if noMemory { // r has what they had, which was not less
		freed -= bytes
	}
	account.Release(freed)
	m.live.Add(-int64(len(displaced)))
	share.add(r)
	p.bySource[from] = share
	return displaced, true
}

// of returns the share of a source, which is not entered if it is new. It needs p.mu.
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

// giveWay takes reservations that hold n together, or a little more, from the share that
// holds most; nil if that is not more than newcomer with n more. It needs p.mu.
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
	if r.told == nil {
		r.told = new(told)
	}
	*r.told = told{s, len(s.held)}
	s.held = append(s.held, r)
	s.units += int64(r.charge)
}

// take takes r out of its share. It needs p.mu.
func (p *peerShares) take(r *entry) {
	s, at := r.told.share, r.told.at
	last := len(s.held) - 1
	s.held[at] = s.held[last]
	s.held[at].told.at = at
	s.held[last] = nil
	s.held = s.held[:last]
	s.units -= int64(r.charge)
	r.told.share = nil
	if last == 0 {
		delete(p.bySource, s.source)
	}
}

// remove takes r out of the share that it is in, and reports whether it was in one.
func (p *peerShares) remove(r *entry) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.told.share == nil {
		return false
	}
	p.take(r)
	return true
}

// bound notes that the process of r, of which others have told, tells of it now.
func (p *peerShares) bound(r *entry, peer string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.move(r, source{peer: peer})
}

// move moves r to the share of a source, unless it has given its room to another one.
// It needs p.mu.
func (p *peerShares) move(r *entry, to source) {
	if r.told.share == nil || r.told.share.source == to {
		return
	}
	p.take(r)
	share := p.of(to)
	share.add(r)
	p.bySource[to] = share
}
