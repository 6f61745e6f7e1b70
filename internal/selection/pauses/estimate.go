package pauses

import (
	"math"
	"time"
)

// estimate is what was seen of the sessions of one class. Slots are numbered from the learner's start.
type estimate struct {
	newest int64        // the slot that is being filled
	turns  [slots]turns // by slot modulo slots: the turns of the horizon
	before turnsBefore

	samples      int // pauses that were learned
	mu, variance float64

	made  time.Time // when known was made
	known Pauses
}

// turns are those that ended in one slot, and how many of them were followed by another one.
type turns struct{ ended, returned uint32 }

// turnsBefore are the turns of which all is known. One that was watched for a part of the horizon counts as much as the part
// of all pauses that end within it.
type turnsBefore struct{ ended, returned float64 }

func (l *Learner) slot(at time.Time) int64 { return int64(at.Sub(l.start) / l.width()) }

// width returns the length of a slot.
func (l *Learner) width() time.Duration { return max(l.horizon/parts, 1) }

// advance begins the slots up to a new one. The turns of those that leave the horizon are settled.
func (e *estimate) advance(slot int64) {
	for range min(slot-e.newest, slots) {
		e.newest++
		leaving := &e.turns[e.newest%slots]
		e.settle(float64(leaving.ended), float64(leaving.returned))
		*leaving = turns{}
	}
	e.newest = max(e.newest, slot)
}

func (e *estimate) settle(ended, returned float64) {
	b := &e.before
	b.ended += ended
	b.returned += returned
	if b.ended > memory {
		b.returned *= memory / b.ended
		b.ended = memory
	}
}

// at returns the turns of a slot, nil if it has left the horizon.
func (e *estimate) at(slot int64) *turns {
	if slot < 0 || slot > e.newest || slot <= e.newest-slots {
		return nil
	}
	return &e.turns[slot%slots]
}

func (e *estimate) ended(slot int64) {
	e.advance(slot)
	e.turns[e.newest%slots].ended++
}

func (e *estimate) returned(slot int64) {
	if t := e.at(slot); t != nil && t.returned < t.ended {
		t.returned++
	}
}

// withdraw takes back a turn that was watched for a part of the horizon only.
func (e *estimate) withdraw(slot int64, watched float64) {
	if t := e.at(slot); t != nil && t.returned < t.ended {
		t.ended--
		e.settle(watched, 0)
	}
}

// learn takes the logarithm of a pause.
func (e *estimate) learn(x float64, prior Pauses) {
	if e.samples == 0 {
		e.mu, e.variance = prior.Mu, prior.Sigma*prior.Sigma
	}
	e.samples = min(e.samples+1, enough)
	d := x - e.mu
	e.mu += rate * d
	e.variance = (1 - rate) * (e.variance + rate*d*d)
}

// pauses returns the pauses with the prior's share.
func (e *estimate) pauses(prior Pauses) Pauses {
	if e.samples >= enough {
		prior.Mu, prior.Sigma = e.mu, max(math.Sqrt(e.variance), leastSigma)
	}
	return prior
}

// share returns the share of turns that are followed by another one, or the one of p if too few were seen.
func (e *estimate) share(p Pauses, l *Learner, now time.Time) float64 {
	ended, returned := e.watched(p, l, now)
	if ended < enough {
		return p.Share
	}
	// Laplace's rule: that all have come back, or none, is no proof that it is always so.
	return min((returned+1)/(ended+2), (ended+1)/(ended+2))
}

// watched returns how many turns were watched, each by the part of its pause that has passed, and how many of them were followed by another
// one. The slot that is being filled does not count yet, since a turn's time is known to a slot only.
func (e *estimate) watched(p Pauses, l *Learner, now time.Time) (ended, returned float64) {
	e.advance(l.slot(now))
	ended, returned = e.before.ended, e.before.returned
	width := l.width()
	for slot := max(0, e.newest-slots+1); slot < e.newest; slot++ {
		t := e.turns[slot%slots]
		if t.ended > 0 {
			ended += float64(t.ended) * (1 - p.longer(now.Sub(l.start)-time.Duration(slot)*width-width/2))
			returned += float64(t.returned)
		}
	}
	return ended, returned
}
