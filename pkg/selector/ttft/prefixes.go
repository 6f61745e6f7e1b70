package ttft

import "sync"

// PrefixProbes are probes of another kind: requests to ranks on which nothing waits, which are late all the same because of what
// is to be computed of their own prompts. If all of them were refused, these prompts would come into no cache, so that the next
// turns of the same conversations would be late, too, and would be refused, on engines that have little to do.
//
// Such a probe costs as many requests as it may delay, at least one. A request brings one back if it continues a probe's prompt, wants
// its first token sooner than that prompt alone takes, and gets it in time. Probes are let through while they have cost at most mostSpent
// more than was brought back. Otherwise one of 32 is, which is free. So probes make at most as many requests late as come in time because
// of them, but for mostSpent and those that are free. The zero value is ready for use. All methods are safe for concurrent use.
type PrefixProbes struct {
	mu      sync.Mutex // guards the fields below; innermost
	spent   float64    // requests, at least 0
	refused int        // since the last free probe
	late    [maxLatePrefixes]latePrefix
	next    int // in late, which is a ring
	kept    int // entries of late that are in use, the first ones
}

const (
	// mostSpent is how many requests probes may cost before any has brought one.
	mostSpent = 64
	// maxLatePrefixes bounds the prompts that requests may continue. Beyond it the oldest one is forgotten.
	maxLatePrefixes = 1024
	// freeProbe of so many requests that would be refused one is let through in any case.
	freeProbe = 1 << probeDoublings
)

// latePrefix is the prompt of a probe, or of the latest request that continues it.
type latePrefix struct {
	blocks int
	last   uint64  // sequence hash of the last one
	takes  float64 // seconds that the probe was predicted to take to its first token
}

func (p *latePrefix) continuedBy(sequence []uint64) bool {
	return p.blocks <= len(sequence) && sequence[p.blocks-1] == p.last
}

// Due reports whether a request that would be refused is let through, as a probe, and what it costs. sequence has the sequence hashes
// of its prompt, takes is the predicted time to its first token in seconds, and delayed is how many requests it may delay.
func (p *PrefixProbes) Due(sequence []uint64, takes, delayed float64) (cost float64, due bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if cost = max(1, delayed); p.spent+cost > mostSpent {
		if p.refused++; p.refused < freeProbe {
			return 0, false
		}
		p.refused = 0
	} else {
		p.spent += cost
	}
	if n := len(sequence); n > 0 {
		p.late[p.next] = latePrefix{n, sequence[n-1], takes}
		p.next = (p.next + 1) % maxLatePrefixes
		p.kept = min(p.kept+1, maxLatePrefixes)
	}
	return cost, true
}

// Continues reports whether a request whose prompt has these sequence hashes continues the prompt of a probe, and owes it that its
// first token can come within so many seconds. From then on it is the longer prompt that is to be continued. If the request is in time,
// that is to be noted with InTime.
func (p *PrefixProbes) Continues(sequence []uint64, within float64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.late[:p.kept] {
		if x := &p.late[i]; x.continuedBy(sequence) && within < x.takes {
			x.blocks, x.last = len(sequence), sequence[len(sequence)-1]
			return true
		}
	}
	return false
}

// InTime notes that a request that continues the prompt of a probe has got in time what it wanted; cost is 0 for it. If the probe
// itself has, for which refusals look wrong, it brings the cost that Due has returned, so that another one is let through.
func (p *PrefixProbes) InTime(cost float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.spent = max(0, p.spent-max(1, cost))
}
