package kvevents

import (
	"encoding/binary"
	"errors"
	"math"
	"slices"

	"github.com/select-service/select-service/internal/codec/msgpack"
)

// Why a whole message cannot be used.
var (
	// ErrMalformed: the bytes are not one whole msgpack value, or nest absurdly.
	ErrMalformed = errors.New("message is not a whole msgpack value")
	// ErrNotABatch: the value is no batch of events in any known layout.
	ErrNotABatch = errors.New("message is not a batch of events")
	// ErrRank: the batch's rank is neither nil nor an integer in [0, 2^32).
	ErrRank = errors.New("batch has no usable data-parallel rank")
	// ErrTooManyEvents: the batch has more than maxEvents.
	ErrTooManyEvents = errors.New("batch has more than 131072 events")
)

const (
	// maxEvents bounds the events of a batch: in memory each takes some 300 bytes, of a
	// message perhaps 16.
	maxEvents = 1 << 17
	// keptEvents and keptSlab are how many events, and elements of a slab, the memory has
	// room for that is kept for the next batch.
	keptEvents = 1 << 13
	keptSlab   = 1 << 17
)

// Decoder reads messages into batches. It owns the memory behind the batch's
// slices and reuses it, so it belongs to one goroutine. The zero value is ready.
type Decoder struct {
	r    reader
	kind Kind // of the event being read, as soon as its tag is known
	// numbered is the event being read if it is a bad envelope whose stream and
	// event_id are good.
	numbered *Event

	// Slabs that the events of one batch share; see mark.
	tokens    []uint32
	hashes    []uint64
	objects   [][]uint64
	envelopes []Envelope

	strings map[string]string // see intern
}

// mark is the length of the slabs, to take back what a bad event left there.
type mark struct{ tokens, hashes, objects, envelopes int }

func (d *Decoder) mark() mark {
	return mark{len(d.tokens), len(d.hashes), len(d.objects), len(d.envelopes)}
}

func (d *Decoder) release(m mark) {
	d.tokens, d.hashes = d.tokens[:m.tokens], d.hashes[:m.hashes]
	d.objects, d.envelopes = d.objects[:m.objects], d.envelopes[:m.envelopes]
}

// trim gives up the memory of an unusual batch, which is used no more.
func (w *Workspace) trim() {
	if cap(w.Batch.Events) > keptEvents {
		w.Batch.Events = nil
	}
	if cap(w.Batch.Bad) > keptEvents {
		w.Batch.Bad = nil
	}
	d := &w.Decoder
	if max(cap(d.tokens), cap(d.hashes), cap(d.objects), cap(d.envelopes)) > keptSlab {
		d.tokens, d.hashes, d.objects, d.envelopes = nil, nil, nil, nil
	}
}

// Decode reads the first msgpack value of payload into b; bytes after it are
// ignored. It returns ErrMalformed, ErrNotABatch, ErrTooManyEvents or ErrRank when no event of
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

// mapBatch finds the fields first, because they come in any order.
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
	if n > maxEvents {
		return ErrTooManyEvents
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

// keepNumbered copies the bad envelope being read, without its blocks. Such events
// are rare, so no slab is kept for them.
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

// intern returns b as a string, the same one for the same bytes, because
// adapters, salts and kinds are repeated in every event.
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

// reader reads the values that KV events consist of.
type reader struct{ msgpack.Reader }

// Nearly all bytes of a message are token ids and block hashes; these loops are
// what decoding costs.

// tokenForm says how to cut a token out of the 8 bytes at the cursor, by its
// first byte: shift left by drop, then right by keep. Size 0 is any form that
// encoders do not use for tokens. With four bytes a row of the table is found without
// further arithmetic: where the next token begins is what decoding waits for.
type tokenForm struct{ size, drop, keep, _ uint8 }

// tokenForms has the forms of unsigned integers below 2^32. The table takes the
// place of branches, which a mix of two- and four-byte tokens would mispredict.
var tokenForms = func() (forms [256]tokenForm) {
	for c := range 0x80 {
		forms[c] = tokenForm{size: 1, drop: 0, keep: 56}
	}
	forms[msgpack.CodeUint8] = tokenForm{size: 2, drop: 8, keep: 56}
	forms[msgpack.CodeUint16] = tokenForm{size: 3, drop: 8, keep: 48}
	forms[msgpack.CodeUint32] = tokenForm{size: 5, drop: 8, keep: 32}
	return forms
}()

// appendTokens reads the n token ids of a list whose header has been read. Each
// is an integer in [0, 2^32) in any form.
func (r *reader) appendTokens(dst []uint32, n int) ([]uint32, bool) {
	have := len(dst)
	dst = slices.Grow(dst, n)[:have+n]
	out := dst[have:]
	for k := 0; k < len(out); {
		b, i := r.Data, r.Pos
		for ; k < len(out) && i+8 <= len(b); k++ {
			word := binary.BigEndian.Uint64(b[i:])
			form := &tokenForms[b[i]]
			if form.size == 0 {
				break
			}
			out[k] = uint32(word << (form.drop & 63) >> (form.keep & 63))
			i += int(form.size)
		}
		r.Pos = i
		if k == len(out) {
			break
		}
		var ok bool
		if out[k], ok = r.Uint32(); !ok { // the last bytes of the message, or a rare form
			return dst[:have], false
		}
		k++
	}
	return dst, true
}

// appendPairs reads the n token pairs of a list whose header has been read
// (SGLang's bigrams): the first token of every pair and the second of the last,
// which makes n+1 tokens.
func (r *reader) appendPairs(dst []uint32, n int) ([]uint32, bool) {
	have := len(dst)
	dst = slices.Grow(dst, n+1)
	var last uint32
	for range n {
		size, isArray := r.ArrayLen()
		first, ok1 := r.Uint32()
		second, ok2 := r.Uint32()
		if !isArray || size != 2 || !ok1 || !ok2 {
			return dst[:have], false
		}
		dst = append(dst, first)
		last = second
	}
	return append(dst, last), true
}

// appendHashes reads a list of block hashes.
func (r *reader) appendHashes(dst []uint64) ([]uint64, bool) {
	n, ok := r.ArrayLen()
	if !ok {
		return dst, false
	}
	have := len(dst)
	dst = slices.Grow(dst, n)
	for range n {
		var h uint64
		if b := r.Data[r.Pos:]; len(b) >= 9 && b[0] == msgpack.CodeUint64 {
			h = binary.BigEndian.Uint64(b[1:])
			r.Pos += 9
		} else if h, ok = r.hash(); !ok {
			return dst[:have], false
		}
		dst = append(dst, h)
	}
	return dst, true
}

// hash reads one block hash: an integer of either sign, whose 64 bits count, or
// a byte string, whose last 8 bytes count (vLLM's own conversion of its SHA-256
// hashes; decision K2).
func (r *reader) hash() (uint64, bool) {
	if c := r.Peek(); c < msgpack.CodeBin8 || c > msgpack.CodeBin32 {
		bits, _, ok := r.Integer()
		return bits, ok
	}
	b, ok := r.Bytes()
	if !ok || len(b) < 8 {
		return 0, false
	}
	return binary.BigEndian.Uint64(b[len(b)-8:]), true
}

// optionalHash reads a block hash or nil.
func (r *reader) optionalHash() (h uint64, present, ok bool) {
	if r.Nil() {
		return 0, false, true
	}
	h, ok = r.hash()
	return h, true, ok
}

// optionalInt reads an integer in [0, 2^31) or nil, which is -1.
func (r *reader) optionalInt() (int32, bool) {
	if r.Nil() {
		return -1, true
	}
	v, ok := r.Uint32()
	return int32(v), ok && v <= math.MaxInt32
}

// optionalText reads a string or nil, which is empty.
func (r *reader) optionalText() ([]byte, bool) {
	if r.Nil() {
		return nil, true
	}
	return r.Text()
}
