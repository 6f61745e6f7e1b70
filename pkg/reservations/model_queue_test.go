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

func (p *prefillsTold) Generated(slot uint32, r catalog.Rank, blocks uint64, took time.Duration) {
	p.note("generated", slot, r, blocks, took)
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
	if b.track && !b.done {
		m.prefills.last[b.place] = m.now
	}
	b.done = true
}

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
	// The ledger notes tenths of a millisecond, the first of which is not told from the beginning.
	const unit = time.Millisecond / 10
	first, last := max(unit, b.queued.firstOutput.Truncate(unit)), max(unit, b.queued.lastOutput.Truncate(unit))
	if b.origin.Process == 1 && len(b.outputs) > 1 && last > first {
		m.prefills.told.Generated(b.slot, b.rank, uint64(len(b.outputs)-1), last-first)
	}
}

// outputOf notes when a block of output came.
func (m *model) outputOf(b *modelEntry) {
	b.queued.lastOutput = m.now - b.queued.booked
	if len(b.outputs) == 1 {
		b.queued.firstOutput = b.queued.lastOutput
	}
}

// queue is View.Queue.
func (m *model) queue(p place) (q Queue) {
	for _, b := range m.live {
		switch {
		case b.place != p, !b.track && b.tokens == 0 && len(b.chain) == 0: // of the latter's work nothing is known
			continue
		case !b.track || b.done:
			q.Decoding++
			continue
		}
		tokens, prompt := b.sizes()
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
