package ttft

import "sync"

// PrefixProbes are probes of another kind: requests to ranks on which nothing waits, which are late all the same because of what
// is to be computed of their own prompts. If all of them were refused, these prompts would come into no cache, so that the next
// turns of the same conversations would be late, too, and would be refused, on engines that have little to do.
//
// Such a probe is worth it if it is in time after all, or if requests that continue its prompt are in time, as many as it may have
// made late: those that came to its rank while it was computed. If it is worth it, twice as many are let through from then on, and
// otherwise half as many, as of other probes. The zero value is ready for use. All methods are safe for concurrent use.
type PrefixProbes struct {
	Probes

	mu   sync.Mutex // guards the fields below; before that of Probes
	late [maxLatePrefixes]ProbedPrefix
	next int // in late, which is a ring
	kept int // entries of late that are in use
}

// maxLatePrefixes bounds the prompts that may still turn out to be worth it. Beyond it the oldest was not.
const maxLatePrefixes = 64

// ProbedPrefix is the prompt of a probe, or of a request that continues it. The zero value is none.
type ProbedPrefix struct {
	blocks    int     // of the prompt
	last      uint64  // sequence hash of the last one
	owes      float64 // requests in time
	continues bool
}

// NewProbedPrefix returns the prompt of a probe by its sequence hashes, with how many other requests are expected to come to its
// rank while it is computed.
func NewProbedPrefix(sequence []uint64, others float64) ProbedPrefix {
	x := ProbedPrefix{owes: max(1, others)}
	x.end(sequence)
	return x
}

func (p *ProbedPrefix) end(sequence []uint64) {
	if p.blocks = len(sequence); p.blocks > 0 {
		p.last = sequence[p.blocks-1]
	}
}

// Continued takes the late prompt out that a prompt with these sequence hashes continues, and returns the longer prompt in its place.
// What comes of its request is to be noted with Ended.
func (p *PrefixProbes) Continued(sequence []uint64) (x ProbedPrefix, found bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.kept == 0 {
		return x, false
	}
	for i := range p.late {
		if y := &p.late[i]; y.blocks > 0 && y.blocks <= len(sequence) && sequence[y.blocks-1] == y.last {
			x, *y = *y, ProbedPrefix{}
			p.kept--
			x.continues = true
			x.end(sequence)
			return x, true
		}
	}
	return x, false
}

// Ended notes whether a request with a prompt got in time what it wanted.
func (p *PrefixProbes) Ended(x ProbedPrefix, inTime bool) {
	if inTime {
		if x.owes--; x.owes <= 0 || !x.continues {
			p.Done(true)
			return
		}
	}
	if x.blocks == 0 { // no request can be told to continue it
		p.Done(false)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if oldest := &p.late[p.next]; oldest.blocks > 0 {
		p.Done(false)
		p.kept--
	}
	p.late[p.next], p.next = x, (p.next+1)%maxLatePrefixes
	p.kept++
}
