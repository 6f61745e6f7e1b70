package kvevents

import (
	"math"
	"slices"
)

// envelopeKeys records which keys of an envelope have been read. Legacy fields, if
// there are any, have to agree with the standard ones (Mooncake Conductor, C++).
type envelopeKeys struct {
	hashes       bool   // there are seq_hashes
	legacyType   []byte // of type, nil = absent
	legacyHashes int    // offset of block_hashes, 0 = absent
	legacyParent int    // offset of parent_block_hash, 0 = absent
}

// envelopeEvent reads a standard envelope: a map with event_type. It reads on after
// a bad field, to find the event's stream and number all the same.
func (d *Decoder) envelopeEvent(ev *Event) Reason {
	n, ok := d.r.MapLen()
	if !ok {
		return NotAnEvent
	}
	d.envelopes = append(d.envelopes, Envelope{})
	*ev = Event{Group: NoGroup, TierKnown: true, Envelope: &d.envelopes[len(d.envelopes)-1]}
	var seen envelopeKeys
	known, bad := true, Applied
	d.kind = Unreadable
	for range n {
		at := d.r.Pos
		key, isText := d.r.Text()
		reason := BadField
		if isText {
			at = d.r.Pos
			reason = d.envelopeField(key, ev, &seen)
		}
		if reason == Applied {
			continue
		}
		if bad == Applied {
			bad = reason
		}
		known = known && (!isText || !identifies(key))
		d.r.Pos = at
		if !isText && !d.r.Skip() || !d.r.Skip() {
			return reason // the value is broken, and so is the message
		}
	}
	if bad == Applied {
		bad = d.checkEnvelope(ev, seen)
	}
	if bad != Applied && known && ev.Envelope.HasEventID {
		d.numbered = ev
	}
	return bad
}

// identifies reports whether a field is a part of the stream's identity, or the
// event's number in it.
func identifies(key []byte) bool {
	switch string(key) {
	case "event_id", "model_name", "block_size", "additional_salt", "lora_name",
		"tenant_id", "backend_id", "medium", "dp_rank":
		return true
	}
	return false
}

// checkEnvelope checks that the fields of an envelope, each good by itself, fit together.
func (d *Decoder) checkEnvelope(ev *Event, seen envelopeKeys) Reason {
	if ev.Kind != Cleared && !seen.hashes {
		return MissingField
	}
	if ev.Kind == Stored && !ev.Envelope.HasBase && !ev.HasParent {
		// Mooncake's master knows neither; the connector's hash then identifies a
		// block that an engine has announced.
		if _, ok := ev.Envelope.EngineHash(); !ok {
			return NoAnchor
		}
	}
	if !d.matchesLegacy(ev, seen) {
		return AliasMismatch
	}
	return Applied
}

func (d *Decoder) readEventType(ev *Event) Reason {
	text, ok := d.r.Text()
	if !ok {
		return BadTag
	}
	switch string(text) {
	case "stored":
		ev.Kind = Stored
	case "removed":
		ev.Kind = Removed
	case "cleared":
		ev.Kind = Cleared
	default:
		return BadTag
	}
	d.kind = ev.Kind
	return Applied
}

// envelopeField reads the value of any key. Unknown keys do not matter.
func (d *Decoder) envelopeField(key []byte, ev *Event, seen *envelopeKeys) Reason {
	env := ev.Envelope
	switch string(key) {
	case "event_type":
		return d.readEventType(ev)
	case "seq_hashes":
		if d.r.Nil() {
			return Applied
		}
		seen.hashes = true
		return d.readHashes(ev)
	case "parent_hash":
		return d.readParent(ev)
	case "token_ids":
		if d.r.Nil() {
			return Applied
		}
		reason := d.readTokens(ev)
		env.HasTokens = reason == Applied
		return reason
	case "block_size":
		if d.r.Nil() {
			return Applied
		}
		if reason := d.readBlockSize(ev); reason != Applied || ev.BlockSize > 0 {
			return reason
		}
		return BadBlockSize
	case "medium":
		return d.readMedium(ev)
	case "lora_name":
		return d.readString(&ev.LoRA)
	case "model_name":
		return d.readString(&env.Model)
	case "tenant_id":
		return d.readString(&env.Tenant)
	case "backend_id":
		return d.readString(&env.Backend)
	case "additional_salt":
		return d.readString(&env.Salt)
	case "object_key":
		return d.readUnique(&env.ObjectKey)
	case "connector_block_hash":
		return d.readUnique(&env.ConnectorHash)
	case "group_id":
		return d.readGroupID(env)
	case "event_id", "dp_rank", "base_block_idx":
		return d.envelopeNumber(key, env)
	case "type":
		tag, ok := d.r.optionalText()
		if !ok {
			return BadField
		}
		seen.legacyType = tag
	case "block_hashes":
		seen.legacyHashes = d.r.Pos
		return d.skipColumns(1)
	case "parent_block_hash":
		seen.legacyParent = d.r.Pos
		return d.skipColumns(1)
	default: // timestamp (informational), fields of later versions
		return d.skipColumns(1)
	}
	return Applied
}

func (d *Decoder) envelopeNumber(key []byte, env *Envelope) Reason {
	if d.r.Nil() {
		return Applied
	}
	v, negative, ok := d.r.Integer()
	if !ok || negative {
		return BadField
	}
	if string(key) == "event_id" {
		env.EventID, env.HasEventID = v, true
		return Applied
	}
	if v > math.MaxUint32 {
		return BadField
	}
	if string(key) == "dp_rank" {
		env.DPRank, env.HasDPRank = uint32(v), true
	} else {
		env.Base, env.HasBase = uint32(v), true
	}
	return Applied
}

// readUnique reads a string that hardly ever comes twice, without interning it.
func (d *Decoder) readUnique(s *string) Reason {
	text, ok := d.r.optionalText()
	if !ok {
		return BadField
	}
	*s = string(text)
	return Applied
}

// readGroupID reads Mooncake's group_id, an integer or a string.
func (d *Decoder) readGroupID(env *Envelope) Reason {
	at := d.r.Pos
	if text, ok := d.r.optionalText(); ok {
		env.Group = string(text)
		return Applied
	}
	d.r.Pos = at
	if !d.r.Skip() {
		return BadField
	}
	env.Group = string(d.r.Data[at:d.r.Pos]) // opaque: only equality counts
	return Applied
}

// matchesLegacy reports whether the legacy fields of an envelope agree with it.
func (d *Decoder) matchesLegacy(ev *Event, seen envelopeKeys) bool {
	if seen.legacyType != nil && string(seen.legacyType) != ev.Kind.String() && string(seen.legacyType) != engineTag(ev.Kind) {
		return false
	}
	end, have := d.r.Pos, len(d.hashes)
	defer func() { d.r.Pos, d.hashes = end, d.hashes[:have] }()
	if seen.legacyParent != 0 {
		d.r.Pos = seen.legacyParent
		parent, present, ok := d.r.optionalHash()
		if !ok || present != ev.HasParent || parent != ev.Parent {
			return false
		}
	}
	if seen.legacyHashes != 0 {
		d.r.Pos = seen.legacyHashes
		if d.r.Nil() {
			return len(ev.Hashes) == 0
		}
		var ok bool
		if d.hashes, ok = d.r.appendHashes(d.hashes); !ok {
			return false
		}
		return slices.Equal(d.hashes[have:], ev.Hashes)
	}
	return true
}

// engineTag is the tag that engine events of a kind have.
func engineTag(k Kind) string {
	switch k {
	case Stored:
		return tagStored
	case Removed:
		return tagRemoved
	}
	return tagCleared
}

// EngineHash returns the connector's own hash of the (last) block: the last 8 bytes
// of connector_block_hash, as of every hash that is a byte string. ok is false
// if there is none, or none of at least 8 bytes in hex.
func (e *Envelope) EngineHash() (name uint64, ok bool) {
	digits := e.ConnectorHash
	if len(digits) > 2 && digits[0] == '0' && digits[1]|0x20 == 'x' {
		digits = digits[2:]
	}
	if len(digits) < 16 || len(digits)%2 != 0 {
		return 0, false
	}
	for i := range len(digits) {
		digit, isHex := hexDigit(digits[i])
		if !isHex {
			return 0, false
		}
		name = name<<4 | digit // the digits before the last 16 fall out
	}
	return name, true
}
