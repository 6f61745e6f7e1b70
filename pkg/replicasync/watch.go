package replicasync

import (
	"cmp"
	"slices"
	"time"
)

// lossEvery is how often lost events of one process are reported at most.
const lossEvery = time.Second

// loss is a report of lost events.
type loss struct {
	peer            string
	process, events uint64
}

// losses returns what is to be reported, and when there may be more.
func (c *core) losses(now time.Time) (found []loss, next time.Time) {
	next = now.Add(silentAfter)
	for _, s := range c.byProcess() {
		if s.unreported == 0 {
			continue
		}
		if at := s.reported.Add(lossEvery); at.After(now) {
			next = earlier(next, at)
			continue
		}
		found = append(found, loss{s.peer, s.process, s.unreported})
		s.unreported, s.reported = 0, now
	}
	return found, next
}

// report tells the watcher of connections and losses, and returns how long there
// will be nothing to tell.
func (r *Replica) report() time.Duration {
	if r.opt.Watcher == nil {
		return silentAfter
	}
	for _, p := range r.changedConnections() {
		r.opt.Watcher.Connected(p.endpoint, p.upTold)
	}
	now := r.now()
	r.coreMu.Lock()
	lost, next := r.core.losses(now)
	r.coreMu.Unlock()
	for _, l := range lost {
		r.opt.Watcher.Lost(l.peer, l.process, l.events)
	}
	return max(time.Millisecond, next.Sub(now))
}

// changedConnections returns the peers whose connection has come or gone, in order.
func (r *Replica) changedConnections() (peers []*peer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.peers {
		if up := p.up.Load(); up != p.upTold {
			p.upTold = up
			peers = append(peers, p)
		}
	}
	slices.SortFunc(peers, func(a, b *peer) int { return cmp.Compare(a.endpoint, b.endpoint) })
	return peers
}
