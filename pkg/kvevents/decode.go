package kvevents

import (
	"errors"
	"slices"

	"github.com/select-service/select-service/internal/wire/msgpack"
)

// Why a whole message cannot be used.
var (
	// ErrMalformed: the bytes are not one whole msgpack value, or nest absurdly.
	ErrMalformed = errors.New("message is not a whole msgpack value")
	// ErrNotABatch: the value is no batch of events in any known layout.
	ErrNotABatch = errors.New("message is not a batch of events")
	// ErrRank: the batch's rank is neither nil nor an integer in [0, 2^32).
	ErrRank = errors.New("batch has no usable data-parallel rank")
)

// Decoder reads messages into batches. It owns the memory behind the batch's
// slices and reuses it, so it belongs to one goroutine. The zero value is ready.
type Decoder struct {
	r    reader
	kind Kind // of the event at hand, as soon as its tag is known
	// numbered is the event at hand if it is a bad envelope with stream and number.
	numbered *Event

	// Slabs that the events of one batch share; see mark.
	tokens    []uint32
	hashes    []uint64
	objects   [][]uint64
	envelopes []Envelope

	strings map[string]string // see intern
}

// mark is the fill of the slabs, to take back what a bad event left there.
type mark struct{ tokens, hashes, objects, envelopes int }

func (d *Decoder) mark() mark {
	return mark{len(d.tokens), len(d.hashes), len(d.objects), len(d.envelopes)}
}

func (d *Decoder) release(m mark) {
	d.tokens, d.hashes = d.tokens[:m.tokens], d.hashes[:m.hashes]
	d.objects, d.envelopes = d.objects[:m.objects], d.envelopes[:m.envelopes]
}

// Decode reads the first msgpack value of payload into b; bytes after it are
// ignored. It returns ErrMalformed, ErrNotABatch or ErrRank when no event of
// the message may be used; then b is empty. Events that are bad one by one are
// skipped and listed in b.Bad. Memory allocated is bounded by a constant times
// len(payload); payload may be reused afterwards.
func (d *Decoder) Decode(payload []byte, b *Batch) error {
	d.release(mark{})
	d.r = reader{msgpack.Reader{Data: payload}}
	b.clear()
	err := d.batch(b)
	d.r.Data = nil
	if err != nil {
		b.clear()
	}
	return err
}

func (b *Batch) clear() {
	b.Rank, b.HasRank, b.Time = 0, false, 0
	b.Events, b.Bad = b.Events[:0], b.Bad[:0]
	b.outcome.reset()
}

// batch reads [ts, events, rank, …], {ts, events, rank} or a bare envelope.
func (d *Decoder) batch(b *Batch) error {
	if d.r.IsMap() {
		return d.mapBatch(b)
	}
	n, ok := d.r.ArrayLen()
	if !ok || n < 2 {
		return ErrNotABatch
	}
	if err := d.time(b); err != nil {
		return err
	}
	if err := d.events(b); err != nil {
		return err
	}
	if n == 2 { // vLLM 0.9
		return nil
	}
	return d.rank(b)
}

// mapBatch finds the fields first, because their order is free.
func (d *Decoder) mapBatch(b *Batch) error {
	start := d.r.Pos
	n, ok := d.r.MapLen()
	if !ok {
		return ErrNotABatch
	}
	var ts, events, rank int // offsets of values; none is at 0
	for range n {
		key, isText := d.r.Text()
		if !isText {
			return ErrNotABatch
		}
		switch string(key) {
		case "ts":
			ts = d.r.Pos
		case "events":
			events = d.r.Pos
		case "data_parallel_rank", "attn_dp_rank":
			rank = d.r.Pos
		case "event_type":
			d.r.Pos = start
			return d.event(b)
		}
		if !d.r.Skip() {
			return ErrMalformed
		}
	}
	if events == 0 {
		return ErrNotABatch
	}
	if ts != 0 {
		d.r.Pos = ts
		if err := d.time(b); err != nil {
			return err
		}
	}
	d.r.Pos = events
	if err := d.events(b); err != nil {
		return err
	}
	if rank == 0 {
		return nil
	}
	d.r.Pos = rank
	return d.rank(b)
}

func (d *Decoder) time(b *Batch) error {
	if d.r.Nil() {
		return nil
	}
	ts, ok := d.r.Float()
	if !ok {
		return ErrNotABatch
	}
	b.Time = ts
	return nil
}

func (d *Decoder) rank(b *Batch) error {
	if d.r.Nil() {
		return nil
	}
	rank, ok := d.r.Uint32()
	if !ok {
		return ErrRank
	}
	b.Rank, b.HasRank = rank, true
	return nil
}

func (d *Decoder) events(b *Batch) error {
	n, ok := d.r.ArrayLen()
	if !ok {
		return ErrNotABatch
	}
	// Room for as many events as there can be, at once.
	b.Events = slices.Grow(b.Events, min(n, (len(d.r.Data)-d.r.Pos)/minEventSize))
	for range n {
		if err := d.event(b); err != nil {
			return err
		}
	}
	return nil
}

// event reads one event and leaves the cursor after it, bad or not.
func (d *Decoder) event(b *Batch) error {
	start, have, slabs := d.r.Pos, len(b.Events), d.mark()
	d.kind, d.numbered = Unreadable, nil
	reason := d.anyEvent(b)
	if reason == Applied {
		return nil
	}
	bad := BadEvent{Kind: d.kind, Reason: reason, Before: uint32(have)}
	if d.numbered != nil {
		bad.Numbered = d.keepNumbered()
	}
	b.Events = b.Events[:have]
	d.release(slabs)
	d.r.Pos = start
	if !d.r.Skip() {
		return ErrMalformed
	}
	b.Bad = append(b.Bad, bad)
	return nil
}

// keepNumbered copies the bad envelope at hand without its blocks. They are rare:
// no slab is kept for them.
func (d *Decoder) keepNumbered() *Event {
	ev, env := d.numbered, *d.numbered.Envelope
	return &Event{
		Kind: d.kind, Medium: ev.Medium, Tier: ev.Tier, TierKnown: ev.TierKnown,
		BlockSize: ev.BlockSize, LoRA: ev.LoRA, Group: NoGroup, Envelope: &env,
	}
}

func (d *Decoder) anyEvent(b *Batch) Reason {
	switch {
	case d.r.IsArray():
		return d.arrayEvent(b)
	case d.r.IsMap():
		return d.mapEvent(b)
	}
	return NotAnEvent
}

// add appends an empty event to b.
func (b *Batch) add(k Kind) *Event {
	b.Events = append(b.Events, Event{Kind: k, Group: NoGroup, TierKnown: true})
	return &b.Events[len(b.Events)-1]
}

// The tags of engine events.
const (
	tagStored  = "BlockStored"
	tagRemoved = "BlockRemoved"
	tagCleared = "AllBlocksCleared"
	tagIgnored = "Ignored" // accepted by dynamo-kv-router, does nothing
)

// minEventSize is the size of the shortest event, an array of tagCleared alone.
const minEventSize = 2 + len(tagCleared)

// Limits of intern: above them a string is an allocation per message.
const (
	maxInterned   = 1024
	maxInternedSz = 256
)

// intern returns b as a string, the same one for the same bytes: adapters,
// salts and kinds come again with every event.
func (d *Decoder) intern(b []byte) string {
	if len(b) == 0 {
		return ""
	}
	if s, ok := d.strings[string(b)]; ok { // no allocation
		return s
	}
	s := string(b)
	if len(b) <= maxInternedSz && len(d.strings) < maxInterned {
		if d.strings == nil {
			d.strings = make(map[string]string)
		}
		d.strings[s] = s
	}
	return s
}
