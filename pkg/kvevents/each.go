package kvevents

import "github.com/select-service/select-service/pkg/hashing"

// Sink takes the events of one stream where adapter, salt and medium are keys
// (the Conductor) and where standard envelopes count as engine events do.
type Sink interface {
	// Event takes an accepted event of a rank and adds what became of its blocks
	// to t. Each counts the event under the reason that it returns.
	Event(ev *Event, dp uint32, t *Tally) Reason
	// Skipped tells of a standard envelope that is not for the index, but whose
	// event_id, which it has, still moves the order of its stream on. Its blocks
	// mean nothing.
	Skipped(ev *Event, dp uint32)
}

// MaxKey bounds each text that is a part of an event's identity, in bytes: whoever
// keeps identities keeps no more than that.
const MaxKey = 4096

// Each gives the events of b that are for an index to sink, in order, and counts
// every one in t, bad ones included. Stores with tokens are cut to complete
// blocks: an engine's of the registered size, an envelope's of its own. An
// envelope's BlockSize, if nil, becomes the registered one, and its rank is its
// own, else the registered one: stores publish batches of rank 0 whatever they
// hold. Media are the sink's to judge: the tier may be unknown.
func (c *Converter) Each(b *Batch, sink Sink, t *Tally) {
	engine := b.RankOr(c.rank)
	_, known := c.slot(engine)
	bad := b.Bad
	b.outcome.reset()
	for i := range b.Events {
		for len(bad) > 0 && int(bad[0].Before) <= i {
			c.eachBad(b, &bad[0], sink, t)
			bad = bad[1:]
		}
		ev := &b.Events[i]
		var reason Reason
		switch {
		case ev.Envelope != nil:
			reason = c.eachEnvelope(ev, sink, &b.work, t)
		case !known:
			reason = UnknownRank
		default:
			if reason = c.acceptKeyed(ev, engine, &b.work); reason == Applied {
				reason = sink.Event(ev, engine, t)
			}
		}
		if reason == Applied {
			t.Blocks[ev.tierLabel()][BlocksIncomplete] += uint64(ev.incomplete)
			b.outcome.cleared = b.outcome.cleared || ev.Kind == Cleared && ev.Envelope == nil
		} else {
			b.outcome.count(reason)
		}
		t.Events[ev.Kind][ev.tierLabel()][reason]++
	}
	for i := range bad {
		c.eachBad(b, &bad[i], sink, t)
	}
}

func (c *Converter) eachBad(b *Batch, bad *BadEvent, sink Sink, t *Tally) {
	t.Events[bad.Kind][NoTier][bad.Reason]++
	b.outcome.count(bad.Reason)
	if bad.Numbered != nil && !bad.Numbered.overlong() {
		sink.Skipped(bad.Numbered, c.completeEnvelope(bad.Numbered))
	}
}

// eachEnvelope deals with a standard envelope.
func (c *Converter) eachEnvelope(ev *Event, sink Sink, work *scratch, t *Tally) Reason {
	if ev.overlong() {
		return BadField
	}
	dp := c.completeEnvelope(ev)
	reason := c.acceptEnvelope(ev, work)
	if reason == Applied {
		return sink.Event(ev, dp, t)
	}
	if ev.Envelope.HasEventID {
		sink.Skipped(ev, dp)
	}
	return reason
}

// completeEnvelope completes an envelope by what is registered, and returns its rank.
func (c *Converter) completeEnvelope(ev *Event) (dp uint32) {
	if ev.BlockSize == 0 {
		ev.BlockSize = c.layout.BlockSize
	}
	if ev.Envelope.HasDPRank {
		return ev.Envelope.DPRank
	}
	return c.rank
}

// acceptEnvelope decides whether a standard envelope is for an index, and cuts a
// store with tokens to its complete blocks. An empty list of tokens says no more
// than none.
func (c *Converter) acceptEnvelope(ev *Event, work *scratch) Reason {
	switch {
	case ev.Kind == Cleared:
		return Applied
	case len(ev.Hashes) == 0:
		return Empty
	case ev.Kind == Removed:
		return Applied
	case len(ev.Tokens) > 0:
		return acceptStore(ev, hashing.Layout{BlockSize: ev.BlockSize, Eagle: c.layout.Eagle}, work)
	case work.seen.ChainRepeats(ev.Parent, ev.HasParent, ev.Hashes):
		return RepeatedHash
	}
	return Applied
}

// acceptKeyed decides about an engine event where adapter and medium are keys.
func (c *Converter) acceptKeyed(ev *Event, dp uint32, work *scratch) Reason {
	if ev.overlong() || ev.badLoRAID && ev.LoRA == "" {
		return BadField
	}
	return c.accept(ev, dp, work, true)
}

// overlong reports whether a part of the event's identity is beyond MaxKey.
func (ev *Event) overlong() bool {
	if len(ev.LoRA) > MaxKey || len(ev.Salt) > MaxKey || len(ev.Medium) > MaxKey {
		return true
	}
	env := ev.Envelope
	return env != nil && (len(env.Model) > MaxKey || len(env.Tenant) > MaxKey ||
		len(env.Backend) > MaxKey || len(env.Salt) > MaxKey)
}
