package kvevents

import "bytes"

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

// skipColumns skips n values. If it fails, so will the skip of the whole event,
// which then decides that the message is malformed.
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

// mapEvent reads {"type": tag, field: value, …} in any order. It reads on after a
// bad field, because a later key may make the map an envelope.
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

// fields records which fields of a map event have been read.
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
		return d.readSalt(ev)
	case "group_idx":
		return d.readGroup(ev)
	case "kv_cache_spec_kind":
		return d.readString(&ev.SpecKind)
	case "kv_cache_spec_sliding_window":
		return d.readWindow(ev)
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
	default: // session_id, lookahead_token_ids, fields of later versions
		return d.skipColumns(1)
	}
	return Applied
}

// The fields of engine events, wherever their layout has them.

func (d *Decoder) readTag(ev *Event, seen *fields) Reason {
	tag, ok := d.r.Text()
	if !ok {
		return BadTag
	}
	switch string(tag) {
	case tagStored:
		ev.Kind = Stored
	case tagRemoved:
		ev.Kind = Removed
	case tagCleared:
		ev.Kind = Cleared
	case tagIgnored:
		seen.ignored = true
	default:
		return BadTag
	}
	seen.tag, d.kind = true, ev.Kind
	return Applied
}

func (d *Decoder) readHashes(ev *Event) Reason {
	have, ok := len(d.hashes), false
	if d.hashes, ok = d.r.appendHashes(d.hashes); !ok {
		return BadHash
	}
	ev.Hashes = d.hashes[have:len(d.hashes):len(d.hashes)]
	return Applied
}

func (d *Decoder) readParent(ev *Event) Reason {
	var ok bool
	if ev.Parent, ev.HasParent, ok = d.r.optionalHash(); !ok {
		return BadHash
	}
	return Applied
}

// readTokens reads a list of token ids or of pairs of them (SGLang's EAGLE).
func (d *Decoder) readTokens(ev *Event) Reason {
	n, ok := d.r.ArrayLen()
	if !ok {
		return BadToken
	}
	have := len(d.tokens)
	ev.Eagle = false
	if n > 0 && d.r.IsArray() {
		ev.Eagle = true
		d.tokens, ok = d.r.appendPairs(d.tokens, n)
	} else {
		d.tokens, ok = d.r.appendTokens(d.tokens, n)
	}
	if !ok {
		return BadToken
	}
	ev.Tokens = d.tokens[have:len(d.tokens):len(d.tokens)]
	return Applied
}

func (d *Decoder) readBlockSize(ev *Event) Reason {
	n, ok := d.r.optionalInt()
	if !ok || n < 0 {
		return BadBlockSize
	}
	ev.BlockSize = int(n)
	return Applied
}

func (d *Decoder) readMedium(ev *Event) Reason {
	text, ok := d.r.optionalText()
	if !ok {
		return BadMedium
	}
	ev.Medium, ev.Tier, ev.TierKnown = ParseMedium(text)
	return Applied
}

func (d *Decoder) readGroup(ev *Event) Reason {
	var ok bool
	if ev.Group, ok = d.r.optionalInt(); !ok {
		return BadField
	}
	return Applied
}

// readWindow reads the size of a window. A value of another type is ignored.
func (d *Decoder) readWindow(ev *Event) Reason {
	at := d.r.Pos
	n, ok := d.r.optionalInt()
	if !ok {
		d.r.Pos = at
		return d.skipColumns(1)
	}
	ev.Window = n
	return Applied
}

// readString reads a string or nil, which is "".
func (d *Decoder) readString(s *string) Reason {
	text, ok := d.r.optionalText()
	if !ok {
		return BadField
	}
	*s = d.intern(text)
	return Applied
}

// readSalt reads a cache salt, with the tag or without.
func (d *Decoder) readSalt(ev *Event) Reason {
	text, ok := d.r.optionalText()
	if !ok {
		return BadField
	}
	ev.Salt = d.intern(bytes.TrimPrefix(text, []byte(saltTag)))
	return Applied
}

// readLoRAID reads the adapter's number. A value of another type does not make the
// event bad, since the number does not matter where adapters are known by name.
func (d *Decoder) readLoRAID(ev *Event) Reason {
	ev.HasLoRAID, ev.badLoRAID = false, false
	if d.r.Nil() {
		return Applied
	}
	at := d.r.Pos
	if v, negative, ok := d.r.Integer(); ok {
		// Adapters are numbered from 1: below that there is none (vllm 0.33).
		if ev.HasLoRAID = v > 0 && !negative; ev.HasLoRAID {
			ev.LoRAID = v
		}
		return Applied
	}
	ev.badLoRAID = true
	d.r.Pos = at
	return d.skipColumns(1)
}

// readLoRAColumn reads the array column that holds the adapter's name, or, from
// SGLang, a map with the cache salt.
func (d *Decoder) readLoRAColumn(ev *Event) Reason {
	if !d.r.IsMap() {
		return d.readString(&ev.LoRA)
	}
	n, ok := d.r.MapLen()
	if !ok {
		return BadField
	}
	for range n {
		key, isText := d.r.Text()
		if !isText {
			return BadField
		}
		var reason Reason
		if string(key) == "cache_salt" {
			reason = d.readSalt(ev)
		} else {
			reason = d.skipColumns(1)
		}
		if reason != Applied {
			return reason
		}
	}
	return Applied
}

// remote reports whether a locality is anything but the sender's own.
func remote(locality []byte) bool {
	return locality != nil && string(locality) != "LOCAL"
}

// foreignOwner reports whether an ownership is anything but the framework's
// (for example "kvcr", a cache agent beside the engine).
func foreignOwner(owner []byte) bool {
	return owner != nil && string(owner) != "framework"
}

// column is one column of an array event's tail.
type column struct {
	form columnForm
	num  int32
	text []byte
	at   int // where a list starts
}

type columnForm uint8

const (
	columnNil columnForm = iota
	columnInt
	columnText
	columnList
	columnOther
)

func (c *column) is(form columnForm) bool { return c.form == columnNil || c.form == form }

// tailColumns is how many columns of a tail mean something (dynamo-kv-router
// 1.6.1).
const tailColumns = 5

// readTail reads the n columns after the ones with a fixed place, by the rules
// of dynamo-kv-router 1.6.1: four or more columns of the right types are group,
// kind, window, locality, ownership; otherwise the first integer is the group,
// the second the window, the last text the kind, and a list the multimodal infos.
func (d *Decoder) readTail(ev *Event, n int, later *deferred) Reason {
	var cols [tailColumns]column
	used := min(n, tailColumns)
	for i := range used {
		if !d.readColumn(&cols[i]) {
			return NotAnEvent
		}
	}
	if used >= 4 && cols[0].is(columnInt) && cols[1].is(columnText) &&
		cols[2].is(columnInt) && cols[3].is(columnText) && cols[4].is(columnText) {
		if cols[0].form == columnInt {
			ev.Group = cols[0].num
		}
		ev.SpecKind, ev.Window = d.intern(cols[1].text), cols[2].num
		ev.Remote = remote(cols[3].text)
		ev.ForeignOwner = foreignOwner(cols[4].text)
		return d.skipColumns(n - used)
	}
	for i := range used {
		switch c := &cols[i]; c.form {
		case columnInt:
			if ev.Group == NoGroup {
				ev.Group = c.num
			} else if ev.Window == 0 {
				ev.Window = c.num
			}
		case columnText:
			ev.SpecKind = d.intern(c.text)
		case columnList:
			later.mmInfos = c.at
		}
	}
	return d.skipColumns(n - used)
}

func (d *Decoder) readColumn(c *column) bool {
	if d.r.Nil() {
		return true
	}
	at := d.r.Pos
	if n, ok := d.r.optionalInt(); ok {
		c.form, c.num = columnInt, n
		return true
	}
	d.r.Pos = at
	if text, ok := d.r.Text(); ok {
		c.form, c.text = columnText, text
		return true
	}
	d.r.Pos = at
	c.form = columnOther
	if _, ok := d.r.ArrayLen(); ok {
		c.form, c.at = columnList, at
	}
	d.r.Pos = at
	return d.r.Skip()
}
