package conductor

import (
	"cmp"
	"slices"

	"github.com/select-service/select-service/internal/selection/diagnose"
	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/kvevents"
)

// applyEnvelope applies an event in the standard envelope. It states its identity; members left
// out are the registration's. Its hashes name blocks inside that identity only, so they are
// folded with the namespace's seed.
func (p *Publisher) applyEnvelope(ev *kvevents.Event, dp uint32, t *kvevents.Tally) kvevents.Reason {
	n := blocksOf(ev, t)
	if ev.Kind == kvevents.Stored {
		return p.storeEnvelope(ev, dp, n)
	}
	m := p.find(p.envelopeKey(ev, dp))
	if m != nil && p.clearsAll(ev) {
		p.clearAll(m, ev.Envelope)
		return kvevents.Applied
	}
	i := -1
	if m != nil {
		name, _ := mediumOf(ev)
		i = m.owner.mediumSlotIndex(name)
	}
	if i < 0 { // nothing was ever stored there
		if ev.Kind == kvevents.Removed {
			n[kvevents.BlocksUnknown] += uint64(len(ev.Hashes))
		}
		return kvevents.Applied
	}
	if reason := p.checkEventID(m, i, ev.Envelope); reason != kvevents.Applied {
		return reason
	}
	if ev.Kind == kvevents.Cleared {
		p.clearMedium(m, i)
		return kvevents.Applied
	}
	s := &m.owner.mediumSlots[i]
	p.fold(ev.Hashes, m.ns)
	p.checkBase(ev, m, s)
	p.remove(m.owner, s, p.folded, n)
	return kvevents.Applied
}

// envelopeKey returns the namespace and the owner of an envelope.
func (p *Publisher) envelopeKey(ev *kvevents.Event, dp uint32) memberKey {
	env := ev.Envelope
	id := Identity{
		Tenant: cmp.Or(env.Tenant, p.Tenant), Model: cmp.Or(env.Model, p.Model),
		LoRA: cmp.Or(ev.LoRA, p.LoRA), Salt: cmp.Or(env.Salt, p.Salt),
		BlockSize: uint32(ev.BlockSize),
	}
	return memberKey{nsKey: nsKey{Identity: id}, backend: env.Backend, rank: dp}
}

// skipEnvelope advances the sequence of an event's stream, if there is one.
func (p *Publisher) skipEnvelope(ev *kvevents.Event, dp uint32) {
	m := p.find(p.envelopeKey(ev, dp))
	if m == nil {
		return
	}
	name, _ := mediumOf(ev)
	if i := m.owner.mediumSlotIndex(name); i >= 0 {
		p.checkEventID(m, i, ev.Envelope)
	}
}

// checkEventID compares an event's number with the last one of its stream. A late event must
// not be applied. A stream that restarts its numbers loses its blocks, and so do all others
// that share its numbers.
func (p *Publisher) checkEventID(m *member, i int, env *kvevents.Envelope) kvevents.Reason {
	if !env.HasEventID {
		return kvevents.Applied
	}
	for len(m.sequences) <= i {
		m.sequences = append(m.sequences, eventSequence{})
	}
	o := &m.sequences[i]
	if !o.started {
		if p.streams.Load() >= maxStreams {
			return kvevents.TooMany
		}
		p.streams.Add(1)
	}
	stale := o.stale
	v, missing := o.advance(env.EventID, p.usedEventID())
	if o.stale != stale {
		p.stale.Add(1)
	}
	if p.Type == Mooncake && (v == stepRestarted || v == stepLate && env.EventID == p.previous+1) {
		return p.restart(m, i, env)
	}
	switch v {
	case stepLate:
		p.counts.add(late, 1)
		return kvevents.Late
	case stepAfterGap:
		p.counts.add(gaps, 1)
		p.counts.add(missed, missing)
	case stepRestarted:
		p.counts.add(restarts, 1)
		p.clearNamespace(m, i)
	}
	p.noteLastEventID(env)
	return kvevents.Applied
}

// restart clears a publisher whose streams share their numbers, and starts their numbers again
// at the late event, the first of the new count.
func (p *Publisher) restart(m *member, i int, env *kvevents.Envelope) kvevents.Reason {
	p.reset()
	p.counts.add(restarts, 1)
	reason := p.checkEventID(m, i, env)
	if reason == kvevents.Applied {
		m.sequences[i].stale = true
		p.stale.Add(1)
	}
	return reason
}

// noteLastEventID remembers the number of the last event.
func (p *Publisher) noteLastEventID(env *kvevents.Envelope) {
	if env.HasEventID {
		p.lastEventID.Store(env.EventID)
		p.hasEventID.Store(true)
	}
}

// noteHighest remembers the highest number of all streams.
func (p *Publisher) noteHighest(env *kvevents.Envelope) {
	if env.HasEventID {
		p.highest, p.previous = max(p.highest, env.EventID), env.EventID
	}
}

// usedEventID returns the highest number of the publisher's streams if they share their
// numbers, as those of Mooncake's master do, which numbers all events in one sequence.
func (p *Publisher) usedEventID() uint64 {
	if p.Type != Mooncake {
		return 0
	}
	return p.highest
}

// clearNamespace removes all blocks of one namespace from a medium of an owner.
func (p *Publisher) clearNamespace(m *member, i int) {
	s := &m.owner.mediumSlots[i]
	m.ns.space.index.ClearTier(s.Slot, s.Tier, m.ns.seed)
}

// clearMedium removes all blocks of one namespace from a medium of an owner. Afterwards its
// stream counts as complete.
func (p *Publisher) clearMedium(m *member, i int) {
	p.clearNamespace(m, i)
	if i < len(m.sequences) && m.sequences[i].stale {
		m.sequences[i].stale = false
		p.stale.Add(-1)
	}
}

// clearsAll reports whether an event clears every medium: Mooncake's master then names none.
func (p *Publisher) clearsAll(ev *kvevents.Event) bool {
	return p.Type == Mooncake && ev.Kind == kvevents.Cleared && ev.Medium == ""
}

func (p *Publisher) clearAll(m *member, env *kvevents.Envelope) {
	for i := range m.owner.mediumSlots {
		p.clearMedium(m, i)
	}
	p.noteLastEventID(env)
}

// fold converts hashes on the wire to hashes of a namespace.
func (p *Publisher) fold(hashes []uint64, ns *namespace) {
	p.folded = p.folded[:0]
	for _, h := range hashes {
		p.folded = append(p.folded, h^ns.seed)
	}
}

// checkBase counts an event whose base index is not the depth of its first block.
func (p *Publisher) checkBase(ev *kvevents.Event, m *member, s *diagnose.MediumSlot) {
	if !ev.Envelope.HasBase {
		return
	}
	depth, known := m.ns.space.index.DepthOf(s.Slot, s.Tier, p.folded[0])
	if known && depth != ev.Envelope.Base {
		p.counts.add(baseMismatches, 1)
	}
}

// storeEnvelope stores blocks. With tokens they are hashed here and named by the event's
// hashes; without tokens the event's hashes are assumed to be the standard's.
func (p *Publisher) storeEnvelope(ev *kvevents.Event, dp uint32, n *[kvevents.NumBlockOutcomes]uint64) kvevents.Reason {
	m, reason := p.join(p.envelopeKey(ev, dp))
	if reason != kvevents.Applied {
		return reason
	}
	i, reason := p.mediumSlotFor(m.owner, ev)
	if reason != kvevents.Applied {
		return reason
	}
	if reason := p.checkEventID(m, i, ev.Envelope); reason != kvevents.Applied {
		return reason
	}
	env := ev.Envelope
	if ev.LoRA != "" || env.Salt != "" {
		m.ns.space.index.ShowKeys()
	}
	deeper := env.HasBase && env.Base > 0
	if ev.HasParent && ev.Parent == 0 && !deeper { // the root (decision K10)
		ev.HasParent = false
		env.Base, env.HasBase = 0, true
	}
	p.fold(ev.Hashes, m.ns)
	if len(ev.Tokens) > 0 && (ev.HasParent || env.HasBase && !deeper) {
		p.storeTokens(ev, m, &m.owner.mediumSlots[i], n)
	} else {
		out := p.storeHashes(ev, m, &m.owner.mediumSlots[i], n)
		p.countHashed(out)
		if out.Unverified == len(ev.Hashes) && m.ns == p.namespace && !ev.HasParent && env.HasBase && !deeper {
			p.unconfirmed.add(ev.Hashes[0])
		}
	}
	return kvevents.Applied
}

func (p *Publisher) storeTokens(ev *kvevents.Event, m *member, s *diagnose.MediumSlot, n *[kvevents.NumBlockOutcomes]uint64) {
	p.hash(m.ns.space, ev, n)
	p.counts.add(fromTokens, uint64(len(p.folded)))
	if ev.HasParent && p.isStandardChain(ev, m) {
		p.tokenEvidence.Store(evidenceStandard)
		p.storeHashes(ev, m, s, n)
		return
	}
	p.store = indexer.Store{
		Slot: s.Slot, Tier: s.Tier,
		Parent: ev.Parent ^ m.ns.seed, HasParent: ev.HasParent,
		EngineHashes: p.folded, Local: p.local,
		Seed: m.ns.seed, SeedKnown: true,
	}
	countStore(m.ns.space.index.Store(&p.store), n)
	if ev.HasParent {
		p.checkBase(ev, m, s)
		return
	}
	// The rolling hash of a first block is its local hash.
	if ev.Hashes[0] == p.local[0] {
		p.tokenEvidence.Store(evidenceStandard)
	} else {
		p.tokenEvidence.Store(evidenceOwn)
	}
}

// isStandardChain reports whether an event's hashes give the position of its blocks, because
// its parent is unknown here: it is another owner's, or still to come. They do if they are the
// standard's hashes of the tokens (p.local) behind the parent.
func (p *Publisher) isStandardChain(ev *kvevents.Event, m *member) bool {
	if _, known := m.owner.seedOf(ev.Parent ^ m.ns.seed); known {
		return false
	}
	chain := slices.Concat([]uint64{ev.Parent}, p.local)
	chain = hashing.AppendSequenceSeed(nil, chain, m.ns.space.key.HashSeed)
	return slices.Equal(chain[1:], ev.Hashes)
}

func (p *Publisher) storeHashes(ev *kvevents.Event, m *member, s *diagnose.MediumSlot, n *[kvevents.NumBlockOutcomes]uint64) indexer.SequenceOutcome {
	env := ev.Envelope
	p.hashed = indexer.SequenceStore{
		Slot: s.Slot, Tier: s.Tier, Seed: m.ns.seed,
		PublisherHashes: p.folded, Hashes: ev.Hashes,
		Parent: ev.Parent, HasParent: ev.HasParent,
		Base: env.Base, HasBase: env.HasBase,
	}
	if name, ok := env.EngineHash(); ok { // engine hash of the last block
		p.local = append(p.local[:0], ev.Hashes...)
		p.local[len(p.local)-1] = name
		p.hashed.EngineHashes = p.local
	}
	out := m.ns.space.index.StoreSequence(&p.hashed)
	countStore(out.Outcome, n)
	if out.BaseMismatch {
		p.counts.add(baseMismatches, 1)
	}
	return out
}

// countHashed counts what is known of hashes that came without tokens.
func (p *Publisher) countHashed(out indexer.SequenceOutcome) {
	p.counts.add(confirmed, uint64(out.Confirmed))
	p.counts.add(resolved, uint64(out.Resolved))
	p.counts.add(unverified, uint64(out.Unverified))
}

// eventSequence tracks the event_id numbers of one stream: of one owner's medium in one
// namespace. It starts with its first event.
type eventSequence struct {
	started bool
	last    uint64 // number of the last applied event, if started
	// hasLate: the previous event was late, with the number late. A restart of the numbers
	// shows as a late number followed by its successor.
	hasLate bool
	late    uint64
	stale   bool // events are missing since the last clear
}

// sequenceStep is what an event's number means for its stream.
type sequenceStep uint8

// The steps.
const (
	stepInOrder   sequenceStep = iota
	stepAfterGap               // events before this one are missing
	stepLate                   // not above the last number: later events have been applied
	stepRestarted              // the stream has restarted its numbers
)

// advance moves the sequence to an event. before is the highest number that other streams of
// the publisher have used, 0 if each stream has its own numbers. missing is how many events are
// missing before a stepAfterGap.
func (s *eventSequence) advance(id, before uint64) (v sequenceStep, missing uint64) {
	last := s.last
	if before > last && before < id {
		last = before
	}
	switch {
	case !s.started:
	case id > s.last:
		if missing = id - last - 1; missing > 0 {
			v, s.stale = stepAfterGap, true
		}
	case s.hasLate && id == s.late+1:
		v, s.stale = stepRestarted, true
	default:
		s.late, s.hasLate = id, true
		return stepLate, 0
	}
	s.last, s.started, s.hasLate = id, true, false
	return v, missing
}
