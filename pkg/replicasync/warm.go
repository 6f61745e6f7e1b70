package replicasync

// introduction is how long a peer may take to announce itself: it does so every
// second. One that does not is not there, or not one of ours.
const introduction = 3 * announceEvery

// CaughtUp tells whether nothing is known to be on its way from a snapshot:
// every peer that has announced itself was asked, as was what is missing, and so
// is what was refused for want of ranks. A new peer counts as missing for the
// first 3 s.
func (r *Replica) CaughtUp() bool {
	now := r.now()
	var young []string
	r.mu.Lock()
	for _, p := range r.peers {
		if now.Sub(p.since) < introduction {
			young = append(young, p.endpoint)
		}
	}
	r.mu.Unlock()
	r.coreMu.Lock()
	defer r.coreMu.Unlock()
	return !r.newRanks.Load() && r.core.caughtUp(young)
}

// caughtUp: nothing is to be fetched, or to be asked for, and all of the given
// endpoints have been heard.
func (c *core) caughtUp(endpoints []string) bool {
	if !c.ranksDue.IsZero() {
		return false
	}
	heard := make(map[string]bool)
	for _, s := range c.senders {
		if s.absent || s.url == "" {
			continue
		}
		if s.fetching || s.wanted || s.incomplete() {
			return false
		}
		heard[s.peer] = true
	}
	for _, e := range endpoints {
		if !heard[e] {
			return false
		}
	}
	return true
}

// ReservationsDropped says that live bookings have gone with their ranks. The other
// replicas are not told of each; those that this replica accepted, and that
// nobody can end here any more, they take from its next snapshot.
func (r *Replica) ReservationsDropped(n int) {
	r.counts.merged.Add(uint64(n))
	r.counts.unannounced.Store(true)
}
