package kvevents

import (
	"bytes"
	"slices"

	"github.com/cespare/xxhash/v2"

	"github.com/select-service/select-service/pkg/hashing"
)

// saltTag marks a cache salt: always among the extra keys, perhaps in a field of its own
// (dynamo-kv-router 1.6.1).
const saltTag = "dynamo-cache-salt:"

// extras reads the keys that an event's blocks have beyond their tokens: multimodal
// objects, a cache salt, and keys that no prompt can express. block_mm_infos takes
// precedence over the multimodal keys among extra_keys.
func (d *Decoder) extras(ev *Event, later deferred) Reason {
	if later == (deferred{}) {
		return Applied
	}
	end := d.r.Pos
	defer func() { d.r.Pos = end }()
	hasInfos := false
	if later.mmInfos != 0 {
		d.r.Pos = later.mmInfos
		if hasInfos = !d.r.Nil(); hasInfos && !d.readMMInfos(ev) {
			return BadField
		}
	}
	if later.extraKeys != 0 {
		d.r.Pos = later.extraKeys
		if ev.HasExtraKeys = !d.r.Nil(); ev.HasExtraKeys && !d.readExtraKeys(ev, hasInfos) {
			return BadField
		}
	}
	return Applied
}

// readMMInfos reads, per block, nil or {mm_objects: [{mm_hash, offsets}]}.
func (d *Decoder) readMMInfos(ev *Event) bool {
	n, ok := d.r.ArrayLen()
	if !ok {
		return false
	}
	for i := range n {
		if d.r.Nil() {
			continue
		}
		have := len(d.hashes)
		if !d.eachField("mm_objects", d.readMMObjects) {
			return false
		}
		d.setMM(ev, i, have)
	}
	return true
}

func (d *Decoder) readMMObjects() bool {
	n, ok := d.r.ArrayLen()
	if !ok {
		return false
	}
	for range n {
		if !d.eachField("mm_hash", d.readMMHash) {
			return false
		}
	}
	return true
}

func (d *Decoder) readMMHash() bool {
	bits, _, ok := d.r.Integer()
	d.hashes = append(d.hashes, bits)
	return ok
}

// eachField reads a map and calls read at the value of every key that is name.
func (d *Decoder) eachField(name string, read func() bool) bool {
	n, ok := d.r.MapLen()
	if !ok {
		return false
	}
	for range n {
		key, ok := d.r.Text()
		if !ok {
			return false
		}
		if string(key) == name {
			ok = read()
		} else {
			ok = d.r.Skip()
		}
		if !ok {
			return false
		}
	}
	return true
}

// setMM sets the objects of block i to the end of the hash slab, from index have on.
func (d *Decoder) setMM(ev *Event, i, have int) {
	if len(d.hashes) == have || i >= len(ev.Hashes) {
		return
	}
	if ev.MM == nil {
		at := len(d.objects)
		d.objects = slices.Grow(d.objects, len(ev.Hashes))[:at+len(ev.Hashes)]
		ev.MM = d.objects[at:len(d.objects):len(d.objects)]
		clear(ev.MM)
	}
	ev.MM[i] = d.hashes[have:len(d.hashes):len(d.hashes)]
}

// setOpaque adds a digest to block i.
func (d *Decoder) setOpaque(ev *Event, i int, digest uint64) {
	if i >= len(ev.Hashes) {
		return
	}
	if ev.Opaque == nil {
		at := len(d.hashes)
		d.hashes = slices.Grow(d.hashes, len(ev.Hashes))[:at+len(ev.Hashes)]
		ev.Opaque = d.hashes[at:len(d.hashes):len(d.hashes)]
		clear(ev.Opaque)
	}
	ev.Opaque[i] = max(1, hashing.Unmatched(ev.Opaque[i], digest))
}

// readExtraKeys reads, per block, nil or a list of keys.
func (d *Decoder) readExtraKeys(ev *Event, hasInfos bool) bool {
	n, ok := d.r.ArrayLen()
	if !ok {
		return false
	}
	for i := range n {
		if d.r.Nil() {
			continue
		}
		have := len(d.hashes)
		digest, ok := d.readBlockKeys(ev, i == 0, hasInfos)
		if !ok {
			return false
		}
		if hasInfos {
			d.hashes = d.hashes[:have]
		}
		d.setMM(ev, i, have)
		if digest != 0 {
			d.setOpaque(ev, i, digest)
		}
	}
	return true
}

// readBlockKeys reads the keys of one block: it appends multimodal hashes to
// the hash slab, takes the salt from the event's first block, and returns a
// digest of the keys that no prompt can express, 0 if there are none.
func (d *Decoder) readBlockKeys(ev *Event, first, hasInfos bool) (digest uint64, ok bool) {
	n, ok := d.r.ArrayLen()
	if !ok {
		return 0, false
	}
	lora := ev.LoRA // the first key that equals it is the adapter's name
	for range n {
		at := d.r.Pos
		form, text := d.readKey()
		named := form == keyText || form == keyPair
		hash, isMM := mmHash(text)
		switch {
		case form == keyBroken:
			return 0, false
		case form == keyNil:
		case form == keyText && lora != "" && string(text) == lora:
			lora = ""
		case form == keyText && first && d.taggedSalt(ev, text):
		case named && isMM:
			d.hashes = append(d.hashes, hash)
		case form == keyText && first && d.plainSalt(ev, text):
		case named && hasInfos: // a multimodal key; the infos have its hash
		default:
			digest = hashing.Unmatched(digest, xxhash.Sum64(d.r.Data[at:d.r.Pos]))
		}
	}
	return digest, true
}

type keyForm uint8

const (
	keyBroken keyForm = iota
	keyNil
	keyText
	keyPair  // [text, offset]: a multimodal identifier (vLLM 0.19 and later)
	keyOther // bytes (prompt embeddings), numbers, anything else
)

// readKey reads one extra key and its text, if it has one.
func (d *Decoder) readKey() (keyForm, []byte) {
	if d.r.Nil() {
		return keyNil, nil
	}
	at := d.r.Pos
	if text, ok := d.r.Text(); ok {
		return keyText, text
	}
	d.r.Pos = at
	if n, ok := d.r.ArrayLen(); ok && n == 2 {
		if text, ok := d.r.Text(); ok && d.r.Skip() {
			return keyPair, text
		}
	}
	d.r.Pos = at
	if !d.r.Skip() {
		return keyBroken, nil
	}
	return keyOther, nil
}

// taggedSalt takes a salt that carries the tag; an empty one adds nothing.
func (d *Decoder) taggedSalt(ev *Event, text []byte) bool {
	salt, ok := bytes.CutPrefix(text, []byte(saltTag))
	if ok && len(salt) > 0 && (ev.Salt == "" || ev.SaltSeen) {
		ev.Salt, ev.SaltSeen = d.intern(salt), false
	}
	return ok
}

// plainSalt takes an untagged text of the first block as the salt (decision K11)
// unless the event already has one. It reports whether the text is the salt.
func (d *Decoder) plainSalt(ev *Event, text []byte) bool {
	if ev.Salt == "" && len(text) > 0 {
		ev.Salt, ev.SaltSeen = d.intern(text), true
	}
	return string(text) == ev.Salt
}

// mmHash reads a multimodal identifier that the frontend made from a hash: 16
// hex digits and 48 zeros (dynamo-kv-router 1.6.1). An engine's own identifier
// has another tail, and no prompt can name it.
func mmHash(text []byte) (hash uint64, ok bool) {
	if len(text) != 64 || string(text[16:]) != mmTail {
		return 0, false
	}
	for _, c := range text[:16] {
		digit, isHex := hexDigit(c)
		if !isHex {
			return 0, false
		}
		hash = hash<<4 | digit
	}
	return hash, true
}

func hexDigit(c byte) (digit uint64, ok bool) {
	switch {
	case '0' <= c && c <= '9':
		return uint64(c - '0'), true
	case 'a' <= c|0x20 && c|0x20 <= 'f':
		return uint64(c|0x20) - 'a' + 10, true
	}
	return 0, false
}

const mmTail = "000000000000000000000000000000000000000000000000"
