package replicasync

import (
	"time"

	"github.com/select-service/select-service/pkg/reservations"
)

// touch is a renewal at a node, of which others may hear later or never.
func (o *oracle) touch(n *simNode, origin reservations.Origin) {
	b := o.byOrigin[origin]
	if b == nil || b.lease == 0 {
		return
	}
	o.w.tracef("node %d renews %v", n.index, b)
	if b.touches == nil {
		b.touches = make(map[simLife]time.Time)
	}
	b.touches[simLife{n.index, n.life}] = o.w.now
}

// ends is when a reservation's time is over for who knows these steps: by its age, or
// a lease after its last renewal. Renewals that a running node has not told of yet
// count: it will.
func (o *oracle) ends(b *simReservation, k knowledge) time.Time {
	if b.lease == 0 {
		return b.accepted.Add(lifetime)
	}
	last := b.accepted
	for _, i := range b.steps {
		if k.has(i) && o.steps[i].kind == renewed && o.steps[i].renewal.After(last) {
			last = o.steps[i].renewal
		}
	}
	for _, n := range o.w.nodes {
		if at := b.touches[simLife{n.index, n.life}]; at.After(last) {
			last = at
		}
	}
	return last.Add(b.lease)
}

// leaseEnds: n has let a lease expire. Only the replica that granted it may, and
// not while it knows of a renewal that is younger.
func (o *oracle) leaseEnds(n *simNode, e reservations.Event) {
	b := o.byOrigin[e.Origin]
	if b == nil || b.lease == 0 || e.Origin.Process != n.process {
		o.w.failf("node %d lets the lease of %+v expire", n.index, e)
		return
	}
	last := b.accepted
	if at := b.touches[simLife{n.index, n.life}]; at.After(last) {
		last = at
	}
	for _, i := range b.steps {
		if o.know[n.index].has(i) && o.steps[i].kind == renewed && o.steps[i].renewal.After(last) {
			last = o.steps[i].renewal
		}
	}
	// Of what snapshots tell, the age at which it was renewed may be too low.
	const merged = 3 * time.Second
	if o.w.now.Before(last.Add(b.lease - b.lag - merged)) {
		o.w.failf("node %d lets the lease of %v expire %v after a renewal", n.index, b, o.w.now.Sub(last))
	}
}
