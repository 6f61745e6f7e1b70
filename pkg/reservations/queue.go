package reservations

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
)

// PrefillObserver is told of the prefills of one scope that count as load
// (Request.TrackPrefill). Times are since New, as Ledger.Now returns them; tokens is the
// number of tokens to compute, prompt the length of the whole prompt in tokens.
//
// The calls come under the scope's lock: an observer must not block or call the ledger.
type PrefillObserver interface {
	// Booked: a reservation was accepted, by this or another process. It is not called
	// for reservations that come later, in a snapshot.
	Booked(at time.Duration, slot uint32, r catalog.Rank, tokens, prompt uint64)
	// Completed: a caller of this process reported that the prefill of a reservation of
	// this process is complete, before any other report about it. The prefill could
	// start at started: when it was booked, or when the rank completed the one before. predicted
	// is Placement.Predicted.
	Completed(at time.Duration, slot uint32, r catalog.Rank, tokens, prompt uint64, booked, started time.Duration, predicted float64)
	// Unreported: the first report about a reservation of this process was an output
	// block or its free.
	Unreported(at time.Duration, slot uint32, r catalog.Rank)
	// Untold: the end of the prefill of a reservation of this process was inferred, or there was no answer, before any
	// report about it.
	Untold(at time.Duration, slot uint32, r catalog.Rank)
	// Freed: a caller freed a reservation for which Completed was called, after an answer.
	Freed(at time.Duration, slot uint32, r catalog.Rank, booked, completed time.Duration, of Answer)
	// Generated: a caller freed a reservation of this process, tracked or not, after an answer. It had reported the end of its
	// prefill, or blocks of its output.
	Generated(slot uint32, r catalog.Rank, of Generated)
	// Computing returns how long a rank computes tokens of a prompt, without what each prefill takes whatever its length, for
	// Generated.Computed.
	Computing(tokens, prompt uint64) time.Duration
}

// Generated is what was reported of an answer, and what its rank did between the first and the last block of it.
type Generated struct {
	Answer
	Blocks uint64        // of output
	Took   time.Duration // from the first block to the last one; 0: it is not known, or they came at once
	// Attended is how many tokens of prompts the rank's answers attended to, in the mean of that time: the prompts of all
	// reservations there whose prefill was complete or is not tracked, this one included.
	Attended float64
	// Computed is the sum of PrefillObserver.Computing over the prefills that ended on the rank.
	Computed time.Duration
}

// Answer is what the caller of FreeAfter knows of the answer to its request.
type Answer struct {
	// Tokens is how many tokens the engine has generated; 0: unknown.
	Tokens uint64
	// Pieces: Tokens is the number of pieces of the answer, each of which has at least one token.
	Pieces bool
	// Limit is the most tokens that the request allows; 0: unknown.
	Limit uint32
	// None: the request got no answer. It was given up, or its engine failed.
	None bool
}

// SetPrefills makes the ledger keep a queue (see View.Queue) for each rank of the scopes
// for which observe returns an observer. It keeps none for scopes with a nil observer, or
// if SetPrefills is not called. It must be called before the ledger is used.
func (l *Ledger) SetPrefills(observe func(catalog.Scope) PrefillObserver) {
	l.observePrefills = observe
}

// RenewPrefills asks again which scopes have observers. Queues that begin have the prefills that are
// not complete yet, of which nothing is observed: how long their prompts are is not known.
func (l *Ledger) RenewPrefills() {
	for _, s := range l.scopesFrom(0) {
		s.observe(l.observePrefills(s.name))
	}
}

// observe sets the scope's observer, nil: none, and begins or ends its queues.
func (s *scope) observe(by PrefillObserver) {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := (by == nil) != (s.prefills == nil)
	s.prefills = by
	if !changed {
		return
	}
	for _, l := range s.loads {
		if l == nil {
			continue
		}
		if l.queue = s.newQueue(); l.queue != nil {
			l.queue.begin(l.held, s.ledger.at())
		}
	}
}

// Now returns the time since New.
func (l *Ledger) Now() time.Duration { return l.at() }

// Queue is the work to be computed on one rank: its tracked prefills that are not
// complete.
type Queue struct {
	Prefills uint32 // their number
	// Tokens is the sum over the prefills of u, their tokens to compute; Context is the
	// sum of u·(L−u/2), where L is the length of the prompt in tokens.
	Tokens, Context float64
	// HeadTokens and HeadPrompt are u and L of the prefill that the ledger has known
	// longest. Elapsed is how long it has been the one to run: since it was booked or, if later,
	// since the rank completed a prefill or the ledger began to keep the queue.
	HeadTokens, HeadPrompt uint64
	Elapsed                time.Duration
	// Decoding is the number of other reservations on the rank, without those of whose work
	// nothing is known: they have neither blocks nor tokens.
	Decoding uint32
	// Prompts is the sum of L over all reservations on the rank.
	Prompts uint64
}

// queue is the queue of one rank. All its steps take constant time.
type queue struct {
	all            []queued      // parallel to load.held
	oldest, newest int32         // ends of the list of waiting prefills, numbered as queued.older
	waiting        uint32        // length of the list
	unknown        uint32        // elements of all with queued.unknown
	tokens         tokenSum      // sum of u over the list
	context        tokenSum      // sum of 2·u·(L−u/2), an integer
	completed      time.Duration // when the rank last completed a prefill, or begin was called
	prompts        uint64        // sum of L over all
	decoding       uint64        // of this, over those that do not wait
	// The sums below only grow, and may wrap: only differences of them count.
	attended uint64        // decoding, summed over time in outputUnit
	summed   uint64        // up to when, in outputUnit
	computed time.Duration // see Generated.Computed
}

// queued is the part of a queue about one reservation.
type queued struct {
	tokens, prompt uint32 // u and L; at most maxQueued
	older, newer   int32  // neighbours in the list: 1 + the index in queue.all, 0 for none
	booked         time.Duration
	completed      time.Duration // when its prefill was completed, if reported
	predicted      float32       // Placement.Predicted
	// When the first and the last block of output were reported, in outputUnit after booked; 0: none was.
	firstOutput, lastOutput uint32
	waiting                 bool // it is in the list
	reported                bool // Completed was called for it
	unreported              bool // Unreported or Untold was called for it, it is older than the queue, or unobserved
	unknown                 bool // see entry.workUnknown
	// The sums of the queue at the first block of output, and by how much they had grown at the last one. computed is in seconds.
	attendedFirst      uint64
	computedFirst      time.Duration
	attended, computed float32
}

// outputUnit is the unit of queued.firstOutput. An answer may take 119 hours.
const outputUnit = 100 * time.Microsecond

// maxQueued bounds numbers of tokens, so that the product of two fits into 64 bits.
const maxQueued = 1<<31 - 1

func (q *queued) context() uint64 { return uint64(q.tokens) * uint64(2*q.prompt-q.tokens) }

// newQueue returns nil if the scope needs none.
func (s *scope) newQueue() *queue {
	if s.prefills == nil {
		return nil
	}
	return &queue{}
}

// begin fills an empty queue with what is held, at a time. Its prefills have so far waited for
// others, which nobody has noted.
func (q *queue) begin(held []*entry, at time.Duration) {
	q.completed = at
	q.sum(at)
	var waiting []*entry
	for i, r := range held {
		q.note(r, 0, 0)
		q.all[i].unreported = true
		if r.fullOutput+r.decayedOutput > 0 {
			q.all[i].firstOutput = math.MaxUint32 // nobody knows when it came
		}
		if r.waits() {
			waiting = append(waiting, r)
		}
	}
	slices.SortFunc(waiting, func(a, b *entry) int { return cmp.Compare(a.accepted(), b.accepted()) })
	for _, r := range waiting {
		q.push(r.inRank)
	}
}

// add adds r, which must be the last element of load.held. If tokens is 0, r.tokens is
// used instead.
func (q *queue) add(r *entry, tokens, prompt uint64) {
	q.note(r, tokens, prompt)
	if r.waits() {
		q.push(r.inRank)
	}
}

// note appends the element of r to all.
func (q *queue) note(r *entry, tokens, prompt uint64) {
	unknown := r.workUnknown()
	if tokens == 0 {
		tokens = max(r.tokens, 1)
	}
	tokens = min(tokens, maxQueued)
	x := queued{
		tokens: uint32(tokens), prompt: uint32(min(max(prompt, tokens), maxQueued)), booked: r.accepted(),
		unknown: unknown,
	}
	q.all = append(q.all, x)
	if unknown {
		q.unknown++
	}
	q.prompts += uint64(x.prompt)
	if !r.waits() {
		q.sum(r.scope.ledger.at())
		q.decoding += uint64(x.prompt)
	}
}

// sum brings attended up to date. It is to be called before decoding changes.
func (q *queue) sum(at time.Duration) {
	now := uint64(at / outputUnit)
	q.attended += (now - q.summed) * q.decoding
	q.summed = now
}

// push appends element i to the list.
func (q *queue) push(i int32) {
	x := &q.all[i]
	x.waiting, x.older = true, q.newest
	if q.newest == 0 {
		q.oldest = i + 1
	} else {
		q.all[q.newest-1].newer = i + 1
	}
	q.newest = i + 1
	q.waiting++
	q.tokens.add(uint64(x.tokens))
	q.context.add(x.context())
}

// leave removes element i from the list, if it is in it.
func (q *queue) leave(i int32) {
	x := &q.all[i]
	if !x.waiting {
		return
	}
	q.link(x.older, x.newer)
	x.waiting, x.older, x.newer = false, 0, 0
	q.waiting--
	q.tokens.sub(uint64(x.tokens))
	q.context.sub(x.context())
}

// link makes two elements neighbours in the list; 0 stands for an end of it.
func (q *queue) link(older, newer int32) {
	if older == 0 {
		q.oldest = newer
	} else {
		q.all[older-1].newer = newer
	}
	if newer == 0 {
		q.newest = older
	} else {
		q.all[newer-1].older = older
	}
}

// set replaces the tokens to compute of element i, which keeps its place in the list.
func (q *queue) set(i int32, tokens uint64, at time.Duration) {
	x := &q.all[i]
	if x.waiting {
		q.tokens.sub(uint64(x.tokens))
		q.context.sub(x.context())
	}
	x.tokens = uint32(min(tokens, maxQueued))
	if more := uint64(max(x.prompt, x.tokens) - x.prompt); more > 0 {
		x.prompt += uint32(more)
		q.prompts += more
		if !x.waiting {
			q.sum(at)
			q.decoding += more
		}
	}
	if x.waiting {
		q.tokens.add(uint64(x.tokens))
		q.context.add(x.context())
	}
}

// remove removes element i of q.all; the last element takes its place.
func (q *queue) remove(i int32, at time.Duration) {
	prompt := uint64(q.all[i].prompt)
	if q.prompts -= prompt; !q.all[i].waiting {
		q.sum(at)
		q.decoding -= prompt
	}
	q.leave(i)
	if q.all[i].unknown {
		q.unknown--
	}
	last := int32(len(q.all) - 1)
	if moved := q.all[last]; i != last {
		q.all[i] = moved
		if moved.waiting {
			q.link(moved.older, i+1)
			q.link(i+1, moved.newer)
		}
	}
	q.all = q.all[:last]
	if 4*len(q.all) < cap(q.all) && cap(q.all) > 64 {
		q.all = append(make([]queued, 0, 2*len(q.all)), q.all...)
	}
}

// complete removes r from the list, because its prefill is complete.
func (q *queue) complete(r *entry, at time.Duration) {
	if x := &q.all[r.inRank]; x.waiting {
		q.leave(r.inRank)
		q.sum(at)
		q.decoding += uint64(x.prompt)
		q.computed += r.scope.prefills.Computing(uint64(x.tokens), uint64(x.prompt))
		q.completed = at
	}
}

// startOf returns the earliest time at which a prefill can have started, as far as the queue knows.
func (q *queue) startOf(x *queued) time.Duration { return max(x.booked, q.completed) }

// queueOf returns the queue that r is in if the steps of its callers are reported to a
// PrefillObserver; else nil.
func (s *scope) queueOf(r *entry) *queue {
	if s.prefills == nil || !r.track || r.origin.Process != s.ledger.process {
		return nil
	}
	return s.loads[r.slot].queue
}

// observeBooked is called after r was accepted. predicted and unobserved are those of its Placement.
func (s *scope) observeBooked(r *entry, predicted float64, unobserved bool) {
	if s.prefills == nil || !r.track {
		return
	}
	x := &s.loads[r.slot].queue.all[r.inRank]
	x.predicted, x.unreported = float32(predicted), unobserved
	s.prefills.Booked(s.ledger.at(), r.slot, r.rank, uint64(x.tokens), uint64(x.prompt))
}

// observeCompletion is called before a caller's prefill_complete takes effect.
func (s *scope) observeCompletion(r *entry) {
	q := s.queueOf(r)
	if q == nil || r.prefillDone {
		return
	}
	if x := &q.all[r.inRank]; !x.unreported {
		x.completed, x.reported = s.ledger.at(), true
		s.prefills.Completed(x.completed, r.slot, r.rank, uint64(x.tokens), uint64(x.prompt), x.booked, q.startOf(x), float64(x.predicted))
	}
}

// observeOutput is called before a caller's output block takes effect.
func (s *scope) observeOutput(r *entry) {
	if q := s.queueOf(r); q != nil && !r.prefillDone {
		s.observeUnreported(r, &q.all[r.inRank])
	}
}

// queuedOf returns the queue's part about a reservation of this process, tracked or not; nil: there is no observer.
func (s *scope) queuedOf(r *entry) *queued {
	if s.prefills == nil || r.origin.Process != s.ledger.process {
		return nil
	}
	return &s.loads[r.slot].queue.all[r.inRank]
}

// noteOutput notes when a caller's output block has come.
func (s *scope) noteOutput(r *entry) {
	x := s.queuedOf(r)
	if x == nil {
		return
	}
	q, at := s.loads[r.slot].queue, s.ledger.at()
	q.sum(at)
	x.lastOutput = uint32(min(max(1, (at-x.booked)/outputUnit), math.MaxUint32))
	if x.firstOutput == 0 {
		x.firstOutput = x.lastOutput
		x.attendedFirst, x.computedFirst = q.attended, q.computed
	}
	x.attended, x.computed = float32(q.attended-x.attendedFirst), float32((q.computed - x.computedFirst).Seconds())
}

// observeGenerated is called before a caller's free takes effect.
func (s *scope) observeGenerated(r *entry, of Answer) {
	x, blocks := s.queuedOf(r), r.fullOutput+r.decayedOutput
	if x == nil || of.None || r.prefills() || !r.prefillDone && blocks == 0 {
		return
	}
	g := Generated{Answer: of, Blocks: blocks}
	if ticks := x.lastOutput - x.firstOutput; x.lastOutput > x.firstOutput {
		g.Took = time.Duration(ticks) * outputUnit
		g.Attended = float64(x.attended) / float64(ticks)
		g.Computed = time.Duration(float64(x.computed) * float64(time.Second))
	}
	s.prefills.Generated(r.slot, r.rank, g)
}

// observeInferred is called before the end of a prefill that a caller has inferred takes effect.
func (s *scope) observeInferred(r *entry) {
	if q := s.queueOf(r); q != nil && !r.prefillDone {
		s.observeUntold(r, &q.all[r.inRank])
	}
}

// mostBrief is the expected output, or the limit of the output, in tokens, up to which it says how long the answer was: with that the
// request ends.
const mostBrief = 2

// observeFree is called before a caller's free takes effect.
func (s *scope) observeFree(r *entry, of Answer) {
	q := s.queueOf(r)
	if q == nil {
		return
	}
	if of.Tokens == 0 && r.output != nil && *r.output <= mostBrief {
		of.Tokens = max(1, uint64(*r.output))
	}
	if of.Limit > 0 && of.Limit <= mostBrief {
		of.Pieces = false
	}
	switch x := &q.all[r.inRank]; {
	case !r.prefillDone && of.None:
		s.observeUntold(r, x)
	case !r.prefillDone:
		s.observeUnreported(r, x)
	case x.reported && !r.prefills(): // it ends with its prefill, which says nothing of the report
		s.prefills.Freed(s.ledger.at(), r.slot, r.rank, x.booked, x.completed, of)
	}
}

func (s *scope) observeUntold(r *entry, x *queued) {
	if !x.unreported {
		x.unreported = true
		s.prefills.Untold(s.ledger.at(), r.slot, r.rank)
	}
}

func (s *scope) observeUnreported(r *entry, x *queued) {
	if !x.unreported {
		x.unreported = true
		s.prefills.Unreported(s.ledger.at(), r.slot, r.rank)
	}
}

// Queue returns the work to be computed on the rank in a slot. It is empty if no queues
// are kept; see SetPrefills.
func (v *View) Queue(slot uint32) (q Queue) {
	if v.scope == nil || int(slot) >= len(v.scope.loads) || v.scope.loads[slot] == nil || v.scope.loads[slot].queue == nil {
		return Queue{}
	}
	of := v.scope.loads[slot].queue
	q.Prefills, q.Decoding, q.Prompts = of.waiting, uint32(len(of.all))-of.waiting-of.unknown, of.prompts
	if of.waiting == 0 {
		return q
	}
	head := &of.all[of.oldest-1]
	q.Tokens, q.Context = of.tokens.float(), of.context.float()/2
	q.HeadTokens, q.HeadPrompt = uint64(head.tokens), uint64(head.prompt)
	q.Elapsed = max(0, v.Now()-of.startOf(head))
	return q
}

// Now returns the time since New, read once per View.
func (v *View) Now() time.Duration {
	if v.at == 0 && v.scope != nil {
		v.at = v.scope.ledger.at()
	}
	return v.at
}

// float returns the sum, which is exact below 2^53.
func (s tokenSum) float() float64 { return float64(s.hi)*(1<<64) + float64(s.lo) }
