package kvevents

// deferred holds the offsets of fields that can only be read once the others
// are known; 0 is absent.
type deferred struct {
	extraKeys, mmInfos int
}

// arrayEvent reads [tag, column, …].
func (d *Decoder) arrayEvent(b *Batch) Reason {
	n, ok := d.r.ArrayLen()
	if !ok {
		return NotAnEvent
	}
	if n == 0 {
		return BadTag
	}
	tag, ok := d.r.Text()
	if !ok {
		return BadTag
	}
	n--
	switch string(tag) {
	case tagStored:
		d.kind = Stored
		return d.storedArray(b.add(Stored), n)
	case tagRemoved:
		d.kind = Removed
		return d.removedArray(b.add(Removed), n)
	case tagCleared:
		d.kind = Cleared
		return d.clearedArray(b.add(Cleared), n)
	case tagIgnored:
		return d.skipColumns(n)
	}
	return BadTag
}

// skipColumns passes over n values. Failing, it leaves the verdict to the skip
// of the whole event, which fails as well.
func (d *Decoder) skipColumns(n int) Reason {
	for range n {
		if !d.r.Skip() {
			return NotAnEvent
		}
	}
	return Applied
}

// storedArray reads hashes, parent, tokens, block size | lora id, medium, lora
// name, extra keys, and the tail. Older engines end after any column from the
// block size on.
func (d *Decoder) storedArray(ev *Event, n int) Reason {
	if n < 4 {
		return MissingField
	}
	if reason := d.readHashes(ev); reason != Applied {
		return reason
	}
	if reason := d.readParent(ev); reason != Applied {
		return reason
	}
	if reason := d.readTokens(ev); reason != Applied {
		return reason
	}
	if reason := d.readBlockSize(ev); reason != Applied {
		return reason
	}
	var later deferred
	if n > 4 {
		if reason := d.readLoRAID(ev); reason != Applied {
			return reason
		}
	}
	if n > 5 {
		if reason := d.readMedium(ev); reason != Applied {
			return reason
		}
	}
	if n > 6 {
		if reason := d.readLoRAColumn(ev); reason != Applied {
			return reason
		}
	}
	if n > 7 {
		later.extraKeys = d.r.Pos
		if !d.r.Skip() {
			return NotAnEvent
		}
	}
	if n > 8 {
		if reason := d.readTail(ev, n-8, &later); reason != Applied {
			return reason
		}
	}
	return d.extras(ev, later)
}

// removedArray reads hashes | medium and the tail.
func (d *Decoder) removedArray(ev *Event, n int) Reason {
	if n < 1 {
		return MissingField
	}
	if reason := d.readHashes(ev); reason != Applied {
		return reason
	}
	if n > 1 {
		if reason := d.readMedium(ev); reason != Applied {
			return reason
		}
	}
	if n > 2 {
		var unused deferred
		return d.readTail(ev, n-2, &unused)
	}
	return Applied
}

// clearedArray reads nothing | ownership.
func (d *Decoder) clearedArray(ev *Event, n int) Reason {
	if n == 0 {
		return Applied
	}
	owner, ok := d.r.optionalText()
	if !ok {
		return BadField
	}
	ev.ForeignOwner = foreignOwner(owner)
	return d.skipColumns(n - 1)
}

// mapEvent reads {"type": tag, field: value, …} in any order. A bad field is
// passed over, so that the key that makes the map an envelope is always seen.
func (d *Decoder) mapEvent(b *Batch) Reason {
	start := d.r.Pos
	n, ok := d.r.MapLen()
	if !ok {
		return NotAnEvent
	}
	ev := b.add(Stored)
	var later deferred
	var seen fields
	bad := Applied
	for range n {
		key, isText := d.r.Text()
		if !isText {
			return BadField
		}
		if string(key) == "event_type" {
			d.r.Pos = start
			return d.envelopeEvent(ev)
		}
		at := d.r.Pos
		reason := d.field(key, ev, &seen, &later)
		if reason == Applied {
			continue
		}
		if bad == Applied {
			bad = reason
		}
		d.r.Pos = at
		if !d.r.Skip() {
			return reason
		}
	}
	switch {
	case !seen.tag:
		return BadTag
	case seen.ignored:
		b.Events = b.Events[:len(b.Events)-1]
		return Applied
	case bad != Applied:
		return bad
	case ev.Kind == Stored && (!seen.hashes || !seen.tokens || !seen.blockSize):
		return MissingField
	case ev.Kind == Removed && !seen.hashes:
		return MissingField
	}
	return d.extras(ev, later)
}

// fields says which fields of a map event there were.
type fields struct {
	tag, ignored              bool
	hashes, tokens, blockSize bool
}

// field reads the value of one key of a map event.
func (d *Decoder) field(key []byte, ev *Event, seen *fields, later *deferred) Reason {
	switch string(key) {
	case "type":
		return d.readTag(ev, seen)
	case "block_hashes":
		seen.hashes = true
		return d.readHashes(ev)
	case "parent_block_hash":
		return d.readParent(ev)
	case "token_ids":
		seen.tokens = true
		return d.readTokens(ev)
	case "block_size":
		seen.blockSize = true
		return d.readBlockSize(ev)
	case "medium":
		return d.readMedium(ev)
	case "lora_name":
		return d.readString(&ev.LoRA)
	case "lora_id":
		return d.readLoRAID(ev)
	case "cache_salt":
		return d.readString(&ev.Salt)
	case "group_idx":
		return d.readGroup(ev)
	case "kv_cache_spec_kind":
		return d.readString(&ev.SpecKind)
	case "locality":
		text, ok := d.r.optionalText()
		if !ok {
			return BadField
		}
		ev.Remote = remote(text)
	case "ownership":
		text, ok := d.r.optionalText()
		if !ok {
			return BadField
		}
		ev.ForeignOwner = foreignOwner(text)
	case "extra_keys":
		later.extraKeys = d.r.Pos
		return d.skipColumns(1)
	case "block_mm_infos":
		later.mmInfos = d.r.Pos
		return d.skipColumns(1)
	default: // session_id, lookahead_token_ids, what comes next
		return d.skipColumns(1)
	}
	return Applied
}
