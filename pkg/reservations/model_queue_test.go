package reservations

import (
	"fmt"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
)

// modelQueued is what the model knows of a prefill beside the reservation.
type modelQueued struct {
	uncached, prompt                uint64 // as booked
	predicted                       float64
	booked, completed               time.Duration
	unreportedToldOf, completedTold bool
	firstOutput, lastOutput         time.Duration // since booked
	// What its rank's answers attended to since its first output, summed over time in tenths of a millisecond, and what was
	// computed there; and both at its last output.
	attended, attendedLast uint64
	computed, computedLast time.Duration
}

// modelPrefills is what the model knows of prefills: the last completion on each rank,
// and what observers were told.
type modelPrefills struct {
	last map[place]time.Duration
	told prefillsTold
}

// prefillsTold writes down what an observer is told.
type prefillsTold []string

func (p *prefillsTold) note(v ...any) { *p = append(*p, fmt.Sprintln(v...)) }

func (p *prefillsTold) Booked(at time.Duration, slot uint32, r catalog.Rank, tokens, prompt uint64) {
	p.note("booked", at, slot, r, tokens, prompt)
}

func (p *prefillsTold) Completed(at time.Duration, slot uint32, r catalog.Rank, tokens, prompt uint64, booked, started time.Duration, predicted float64) {
	p.note("completed", at, slot, r, tokens, prompt, booked, started, predicted)
}

func (p *prefillsTold) Unreported(at time.Duration, slot uint32, r catalog.Rank) {
	p.note("unreported", at, slot, r)
}

func (p *prefillsTold) Untold(at time.Duration, slot uint32, r catalog.Rank) {
	p.note("untold", at, slot, r)
}

func (p *prefillsTold) Freed(at time.Duration, slot uint32, r catalog.Rank, booked, completed time.Duration, of Answer) {
	p.note("freed", at, slot, r, booked, completed, of)
}

func (p *prefillsTold) Generated(slot uint32, r catalog.Rank, of Generated) {
	p.note("generated", slot, r, of)
}

func (p *prefillsTold) Computing(tokens, prompt uint64) time.Duration {
	return time.Duration(tokens + 3*prompt)
}

// sizes returns u and L.
func (m *modelEntry) sizes() (tokens, prompt uint64) {
	const most = 1<<31 - 1
	tokens = m.queued.uncached
	if tokens == 0 {
		tokens = max(1, m.tokens)
	}
	tokens = min(tokens, most)
	return tokens, min(max(tokens, m.queued.prompt), most)
}

// complete ends the prefill of a live reservation, reported by this or another process.
func (m *model) complete(b *modelEntry) {
	if b.waits() {
		m.prefills.last[b.place] = m.now
		for _, o := range m.live {
			if o.place == b.place {
				o.queued.computed += m.prefills.told.Computing(b.sizes())
			}
		}
	}
	b.done = true
}

// waits reports whether the prefill is still to be computed.
func (m *modelEntry) waits() bool { return m.track && !m.done }

// pass lets time pass.
func (m *model) pass(d time.Duration) {
	m.now += d
	for _, b := range m.live {
		for _, o := range m.live {
			if _, prompt := o.sizes(); o.place == b.place && !o.waits() {
				b.queued.attended += prompt * uint64(d/modelUnit)
			}
		}
	}
}

// The ledger notes tenths of a millisecond.
const modelUnit = time.Millisecond / 10

// observed reports whether steps of callers about b are told.
func (m *modelEntry) observed() bool { return m.track && m.origin.Process == 1 }

func (m *model) bookedPrefill(b *modelEntry) {
	if b.track {
		tokens, prompt := b.sizes()
		m.prefills.told.Booked(m.now, b.slot, b.rank, tokens, prompt)
	}
}

func (m *model) completedPrefill(b *modelEntry) {
	if !b.observed() || b.done || b.queued.unreportedToldOf {
		return
	}
	tokens, prompt := b.sizes()
	started := max(b.queued.booked, m.prefills.last[b.place])
	m.prefills.told.Completed(m.now, b.slot, b.rank, tokens, prompt, b.queued.booked, started, b.queued.predicted)
	b.queued.completed, b.queued.completedTold = m.now, true
}

func (m *model) unreportedPrefill(b *modelEntry) {
	if b.observed() && !b.done && !b.queued.unreportedToldOf {
		b.queued.unreportedToldOf = true
		m.prefills.told.Unreported(m.now, b.slot, b.rank)
	}
}

func (m *model) freedPrefill(b *modelEntry) {
	m.unreportedPrefill(b)
	if b.queued.completedTold {
		m.prefills.told.Freed(m.now, b.slot, b.rank, b.queued.booked, b.queued.completed, Answer{})
	}
	if b.origin.Process != 1 || !b.done && len(b.outputs) == 0 {
		return
	}
	g := Generated{Blocks: uint64(len(b.outputs))}
	// The first of the ledger's units is not told from the beginning.
	first, last := max(modelUnit, b.queued.firstOutput.Truncate(modelUnit)), max(modelUnit, b.queued.lastOutput.Truncate(modelUnit))
	if g.Took = last - first; g.Took > 0 {
		g.Attended = float64(float32(b.queued.attendedLast)) / float64(g.Took/modelUnit)
		g.Computed = time.Duration(float64(float32(b.queued.computedLast.Seconds())) * float64(time.Second))
	}
	m.prefills.told.Generated(b.slot, b.rank, g)
}

// outputOf notes when a block of output came.
func (m *model) outputOf(b *modelEntry) {
	b.queued.lastOutput = m.now - b.queued.booked
	if len(b.outputs) == 1 {
		b.queued.firstOutput = b.queued.lastOutput
		b.queued.attended, b.queued.computed = 0, 0
	}
	b.queued.attendedLast, b.queued.computedLast = b.queued.attended, b.queued.computed
}

// queue is View.Queue.
func (m *model) queue(p place) (q Queue) {
	for _, b := range m.live {
		tokens, prompt := b.sizes()
		if b.place == p {
			q.Prompts += prompt
		}
		switch {
		case b.place != p, !b.track && b.tokens == 0 && len(b.chain) == 0: // of the latter's work nothing is known
			continue
		case !b.waits():
			q.Decoding++
			continue
		}
		if q.Prefills == 0 {
			q.HeadTokens, q.HeadPrompt = tokens, prompt
			q.Elapsed = m.now - max(b.queued.booked, m.prefills.last[p])
		}
		q.Prefills++
		q.Tokens += float64(tokens)
		q.Context += float64(tokens) * (float64(prompt) - float64(tokens)/2)
	}
	return q
}
