package ttft

import "sync"

// Probes let some requests through that would be refused because of what is predicted for them. If all were refused, nothing
// would be observed any more, and predictions that are too long would never be corrected.
//
// One of 32 is let through. If it gets in time what it wants, refusals look wrong, so that from then on twice as many are let
// through, until all are. If it does not, half as many are, but never fewer than one of 32. So the share rises only while more
// than half of the probes are in time. The zero value is ready for use. All methods are safe for concurrent use.
type Probes struct {
	mu      sync.Mutex // guards the fields below; innermost
	doubled int        // how often the share was doubled, less how often it was halved
	refused int        // requests since the last probe
}

// probeDoublings turn one of 32 into all.
const probeDoublings = 5

// MostRefused is how many requests are refused at most until none is any more, if each probe is in time before another request
// comes: 31 before the first probe, and then 15, 7, 3 and 1.
const MostRefused = 57

// Due reports whether a request that would be refused is let through, as a probe. What comes of it is to be noted with Done.
func (p *Probes) Due() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refused++; p.refused < 1<<(probeDoublings-p.doubled) {
		return false
	}
	p.refused = 0
	return true
}

// Done notes whether a probe got in time what it wanted. If that stays unknown, it is not called.
func (p *Probes) Done(inTime bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if inTime {
		p.doubled = min(p.doubled+1, probeDoublings)
	} else {
		p.doubled = max(p.doubled-1, 0)
	}
}
