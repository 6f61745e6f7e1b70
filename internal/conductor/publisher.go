package conductor

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/select-service/select-service/internal/selection/diagnose"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/kvevents"
)

// Publisher is an active registration: the stream of one endpoint. It implements
// kvevents.Applier for that stream.
type Publisher struct {
	ID uint64 // never used again
	Registration

	registry                   *Registry
	namespace                  *namespace // namespace of the registration
	instanceNumber, rankNumber uint32     // numbers of the registration in its namespace's space
	withdrawn                  atomic.Bool

	counts        counts
	unused        unused
	unconfirmed   unconfirmed
	lastEventID   atomic.Uint64
	hasEventID    atomic.Bool
	streams       atomic.Int64 // number of event sequences in use
	stale         atomic.Int64 // number of stale event sequences
	tokenEvidence atomic.Uint32

	// mu is held while events are applied, and guards the fields below. It is taken
	// before Registry.mu.
	mu         sync.Mutex
	converter  *kvevents.Converter
	members    map[memberKey]*member // written with Registry.mu held too
	loras      map[uint64]string     // adapters of the members' namespaces, by seed
	lastMember *member               // the last result of find
	highest    uint64                // highest event_id of all streams
	previous   uint64                // event_id of the previous event
	owners     map[ownerKey]*owner   // written with Registry.mu held too
	folded     []uint64              // scratch memory for one event, like the fields below
	local      []uint64
	store      indexer.Store
	hashed     indexer.SequenceStore
}

// How the hashes of a standard publisher compare with the standard's, by the first blocks that
// it sent with tokens.
const (
	evidenceNone uint32 = iota
	evidenceStandard
	evidenceOwn
)

var _ kvevents.Applier = (*Publisher)(nil)

func newPublisher(r *Registry, id uint64, reg Registration, home *namespace) *Publisher {
	return &Publisher{
		ID: id, Registration: reg, registry: r, namespace: home,
		converter: kvevents.NewConverter(home.space.layout(), reg.Rank, nil),
		members:   make(map[memberKey]*member),
		loras:     make(map[uint64]string),
		owners:    make(map[ownerKey]*owner),
	}
}

func (p *Publisher) rankKey(rank uint32) rankKey {
	return rankKey{p.Tenant, p.Model, p.BlockSize, p.Instance, rank}
}

// Apply decodes a batch and applies its events. A withdrawn publisher applies nothing.
func (p *Publisher) Apply(payload []byte, w *kvevents.Workspace) error {
	if err := w.Decoder.Decode(payload, &w.Batch); err != nil {
		p.counts.add(undecodable, 1)
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.withdrawn.Load() {
		return nil
	}
	p.converter.Each(&w.Batch, (*sink)(p), &w.Tally)
	if unused := w.Batch.Unused(); unused != nil {
		p.unused.add(unused, &w.Batch, &p.Registration)
	}
	return nil
}

// Clear drops the blocks of a restarted engine, in all media and namespaces, and its event
// numbers.
func (p *Publisher) Clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reset()
}

func (p *Publisher) reset() {
	for _, o := range p.owners {
		o.clear()
	}
	p.resetSequences()
}

// Rewound is called when applied messages are about to be repeated: their event numbers do not
// continue the last ones.
func (p *Publisher) Rewound() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.resetSequences()
}

// resetSequences resets all event-id streams.
func (p *Publisher) resetSequences() {
	for _, m := range p.members {
		p.forgetSequences(m)
	}
	p.hasEventID.Store(false)
	p.lastEventID.Store(0)
	p.highest = 0
}

// Replayed does nothing: all blocks come from the stream, so a full replay replaces none from
// elsewhere.
func (p *Publisher) Replayed() {}

// clear ends the ownership of all blocks.
func (o *owner) clear() {
	for _, slot := range o.slots {
		o.space.index.Clear(slot)
	}
}

// forget drops the owner's blocks, and what the index remembers of the owner.
func (o *owner) forget() {
	for _, slot := range o.slots {
		o.space.index.Forget(slot)
	}
}

// sink makes a Publisher the kvevents.Sink of its own stream.
type sink Publisher

// Event applies an event.
func (s *sink) Event(ev *kvevents.Event, dp uint32, t *kvevents.Tally) kvevents.Reason {
	p := (*Publisher)(s)
	if ev.Envelope == nil {
		return p.applyEngine(ev, dp, t)
	}
	reason := p.applyEnvelope(ev, dp, t)
	p.noteHighest(ev.Envelope)
	return reason
}

// Skipped advances the sequence of an envelope's stream.
func (s *sink) Skipped(ev *kvevents.Event, dp uint32) {
	p := (*Publisher)(s)
	p.skipEnvelope(ev, dp)
	p.noteHighest(ev.Envelope)
}

// find returns a member, nil if there is none.
func (p *Publisher) find(key memberKey) *member {
	if p.lastMember != nil && p.lastMember.key == key {
		return p.lastMember
	}
	m := p.members[key]
	if m != nil {
		p.lastMember = m
	}
	return m
}

// join returns a member, and creates it if needed.
func (p *Publisher) join(key memberKey) (*member, kvevents.Reason) {
	if m := p.find(key); m != nil {
		return m, kvevents.Applied
	}
	r := p.registry
	r.mu.Lock()
	defer r.mu.Unlock()
	if p.withdrawn.Load() || len(p.members) >= maxMembers {
		return nil, kvevents.TooMany
	}
	ns, err := r.namespace(key.nsKey, p.HashSeed)
	if err != nil {
		if errors.Is(err, errFull) {
			return nil, kvevents.TooMany
		}
		return nil, kvevents.SeedMismatch
	}
	at := ownerKey{ns.space, key.backend, key.rank}
	o := p.owners[at]
	if o == nil {
		if len(p.owners) >= maxOwners {
			r.collect(ns)
			return nil, kvevents.TooMany
		}
		o = &owner{publisher: p, space: ns.space, backend: key.backend, rank: key.rank}
		p.owners[at] = o
		ns.space.ownerCount++
	}
	key.nsKey, key.backend = ns.key, o.backend // share these strings, drop the event's copies
	m := &member{key: key, ns: ns, owner: o}
	p.members[key], p.lastMember = m, m
	p.loras[ns.seed] = ns.key.LoRA
	o.members++
	ns.refs++
	return m, kvevents.Applied
}

// mediumSlotFor returns the index of the slot of an event's medium, and creates the slot if
// needed.
func (p *Publisher) mediumSlotFor(o *owner, ev *kvevents.Event) (int, kvevents.Reason) {
	name, natural := mediumOf(ev)
	if i := o.mediumSlotIndex(name); i >= 0 {
		return i, kvevents.Applied
	}
	r := p.registry
	r.mu.Lock()
	defer r.mu.Unlock()
	if p.withdrawn.Load() {
		return 0, kvevents.TooMany
	}
	number, ok := o.space.medium(name, natural)
	if !ok {
		return 0, kvevents.TooManyMedia
	}
	return o.addMediumSlot(name, natural, ev.Tier, number), kvevents.Applied
}

// sweep drops members and owners without blocks.
func (p *Publisher) sweep() {
	p.mu.Lock()
	defer p.mu.Unlock()
	var members []*member
	empty := make(map[*owner]bool)
	for _, o := range p.owners {
		if !o.isEngine() && o.isEmpty() {
			o.forget()
			empty[o] = true
		}
	}
	for _, m := range p.members {
		if empty[m.owner] || !m.ns.space.index.HasSeed(m.ns.seed) {
			members = append(members, m)
		}
	}
	if len(members)+len(empty) == 0 {
		return
	}
	r := p.registry
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range members {
		r.leave(m)
	}
	for o := range empty {
		r.dropOwner(o)
	}
}

// blocksOf returns the counters of a tally for the blocks of an event.
func blocksOf(ev *kvevents.Event, t *kvevents.Tally) *[kvevents.NumBlockOutcomes]uint64 {
	if !ev.TierKnown {
		return t.BlocksOf(kvevents.NoTier)
	}
	return t.BlocksOf(int(ev.Tier))
}

// remove removes blocks, by their hashes in the index, from a medium of an owner.
func (p *Publisher) remove(o *owner, s *diagnose.MediumSlot, names []uint64, n *[kvevents.NumBlockOutcomes]uint64) {
	removed, unknown := o.space.index.Remove(s.Slot, s.Tier, names)
	n[kvevents.BlocksRemoved] += uint64(removed)
	n[kvevents.BlocksUnknown] += uint64(unknown)
}

// countStore counts the outcome of stored blocks.
func countStore(out indexer.Outcome, n *[kvevents.NumBlockOutcomes]uint64) {
	n[kvevents.BlocksStored] += uint64(out.Stored)
	n[kvevents.BlocksKnown] += uint64(out.Known)
	n[kvevents.BlocksOrphaned] += uint64(out.Orphaned)
	n[kvevents.BlocksDropped] += uint64(out.Dropped)
	n[kvevents.BlocksRefused] += uint64(out.Refused)
	n[kvevents.BlocksUnidentified] += uint64(out.Unidentified)
}

// forgetSequences drops the event-id streams of a member.
func (p *Publisher) forgetSequences(m *member) {
	for i := range m.sequences {
		if m.sequences[i].started {
			p.streams.Add(-1)
		}
		if m.sequences[i].stale {
			p.stale.Add(-1)
		}
	}
	m.sequences = nil
}
