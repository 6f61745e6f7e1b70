package kvevents

import (
	"math"
	"slices"
)

// aliases are the legacy fields of an envelope; where there are any they have to
// say the same as the standard ones (Mooncake Conductor, C++).
type aliases struct {
	tag    []byte
	hashes int // offset of block_hashes, 0 = absent
	parent int // offset of parent_block_hash, 0 = absent
}

// envelopeEvent reads a standard envelope: a map with event_type.
func (d *Decoder) envelopeEvent(ev *Event) Reason {
	n, ok := d.r.dict()
	if !ok {
		return NotAnEvent
	}
	d.envelopes = append(d.envelopes, Envelope{})
	*ev = Event{Group: NoGroup, TierKnown: true, Envelope: &d.envelopes[len(d.envelopes)-1]}
	var hasHashes bool
	var old aliases
	d.kind = Unreadable
	for range n {
		key, isText := d.r.text()
		if !isText {
			return BadField
		}
		switch string(key) {
		case "event_type":
			if reason := d.readEventType(ev); reason != Applied {
				return reason
			}
			continue
		case "seq_hashes":
			if d.r.takeNil() {
				continue
			}
			hasHashes = true
		}
		if reason := d.envelopeField(key, ev, &old); reason != Applied {
			return reason
		}
	}
	if ev.Kind != Cleared && !hasHashes {
		return MissingField
	}
	if ev.Kind == Stored && !ev.Envelope.HasBase && !ev.HasParent {
		return NoAnchor
	}
	if !d.agree(ev, old) {
		return AliasMismatch
	}
	return Applied
}

func (d *Decoder) readEventType(ev *Event) Reason {
	text, ok := d.r.text()
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

// envelopeField reads the value of any key but event_type. The hashes of
// Cleared events and unknown keys do not matter.
func (d *Decoder) envelopeField(key []byte, ev *Event, old *aliases) Reason {
	env := ev.Envelope
	switch string(key) {
	case "seq_hashes":
		return d.readHashes(ev)
	case "parent_hash":
		return d.readParent(ev)
	case "token_ids":
		if d.r.takeNil() {
			return Applied
		}
		env.HasTokens = true
		return d.readTokens(ev)
	case "block_size":
		if d.r.takeNil() {
			return Applied
		}
		return d.readBlockSize(ev)
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
		old.tag = tag
	case "block_hashes":
		old.hashes = d.r.i
		return d.skipColumns(1)
	case "parent_block_hash":
		old.parent = d.r.i
		return d.skipColumns(1)
	default: // timestamp (informational), what comes next
		return d.skipColumns(1)
	}
	return Applied
}

func (d *Decoder) envelopeNumber(key []byte, env *Envelope) Reason {
	if d.r.takeNil() {
		return Applied
	}
	v, negative, ok := d.r.integer()
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

// readUnique reads a string that hardly comes twice.
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
	at := d.r.i
	if text, ok := d.r.optionalText(); ok {
		env.Group = string(text)
		return Applied
	}
	d.r.i = at
	if !d.r.skip() {
		return BadField
	}
	env.Group = string(d.r.b[at:d.r.i]) // opaque: only equality counts
	return Applied
}

// agree compares an envelope with its legacy fields.
func (d *Decoder) agree(ev *Event, old aliases) bool {
	if old.tag != nil && string(old.tag) != ev.Kind.String() && string(old.tag) != engineTag(ev.Kind) {
		return false
	}
	end, have := d.r.i, len(d.hashes)
	defer func() { d.r.i, d.hashes = end, d.hashes[:have] }()
	if old.parent != 0 {
		d.r.i = old.parent
		parent, present, ok := d.r.optionalHash()
		if !ok || present != ev.HasParent || parent != ev.Parent {
			return false
		}
	}
	if old.hashes != 0 {
		d.r.i = old.hashes
		if d.r.takeNil() {
			return len(ev.Names) == 0
		}
		var ok bool
		if d.hashes, ok = d.r.appendHashes(d.hashes); !ok {
			return false
		}
		return slices.Equal(d.hashes[have:], ev.Names)
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
