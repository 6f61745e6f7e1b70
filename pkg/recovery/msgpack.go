package recovery

import (
	"context"
	"encoding/binary"

	"github.com/select-service/select-service/internal/codec/msgpack"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/indexer"
)

// In msgpack a dump is a sequence of maps, each like the whole JSON object but with only
// the next events of one scope. The reason is that msgpack states lengths in front, and
// those of a whole dump are not known in advance. A scope without events has one map.
// Blocks are two byte strings of little-endian 8-byte words, block_hashes and
// tokens_hashes.

// appendPackedBlocks appends the two members of "stored" that hold the blocks.
func appendPackedBlocks(text []byte, names, local []uint64) []byte {
	text = appendWords(msgpack.AppendText(text, "block_hashes"), names)
	return appendWords(msgpack.AppendText(text, "tokens_hashes"), local)
}

func appendWords(text []byte, words []uint64) []byte {
	text = msgpack.AppendBytesLen(text, 8*len(words))
	for _, w := range words {
		text = binary.LittleEndian.AppendUint64(text, w)
	}
	return text
}

// packScope is Scope in msgpack.
func (d *Writer) packScope(ctx context.Context, s Source) error {
	d.key, d.blockSize, d.keysShown = s.Scope.Model+":"+s.Scope.Tenant, s.BlockSize, s.KeysShown
	first := d.event
	for run := range s.Runs {
		if d.writeRun(ctx, &s, run, first); d.err != nil {
			return d.err
		}
	}
	if d.events > 0 || d.event == first { // a scope without events has one map
		d.flushPart()
	}
	return d.err
}

// packStored is writeStored in msgpack.
func (d *Writer) packStored(r catalog.Rank, t indexer.Tier, parent uint64, hasParent bool, seed uint64) {
	text := func(s string) { d.chunk = msgpack.AppendText(d.chunk, s) }
	length := func(n int) { d.chunk = msgpack.AppendMapLen(d.chunk, n) }
	number := func(name string, v uint64) {
		text(name)
		d.chunk = msgpack.AppendUint(d.chunk, v)
	}
	null := func(name string) {
		text(name)
		d.chunk = msgpack.AppendNil(d.chunk)
	}
	members := 3
	if d.ResidencyDomain {
		members++
	}
	length(members)
	number("worker_id", r.Worker)
	text("storage_tier")
	text(t.String())
	if d.ResidencyDomain {
		text("residency_domain")
		text("worker")
	}
	text("event")
	length(3)
	number("event_id", d.event)
	d.event++
	d.events++
	number("dp_rank", uint64(r.DP))
	text("data")
	length(1)
	text("stored")
	if members = 4; seed != hashing.Seed {
		members++
	}
	length(members)
	if hasParent {
		number("parent_hash", parent)
	} else {
		null("parent_hash")
	}
	null("start_position")
	if seed != hashing.Seed {
		number("seed", seed)
	}
	d.chunk = append(d.chunk, d.blocks...)
}

// flushPart writes the events of the chunk as one map.
func (d *Writer) flushPart() {
	if d.err != nil {
		return
	}
	d.head = msgpack.AppendText(msgpack.AppendMapLen(d.head[:0], 1), d.key)
	members := 2
	if d.keysShown {
		members++
	}
	d.head = msgpack.AppendText(msgpack.AppendMapLen(d.head, members), "block_size")
	d.head = msgpack.AppendUint(d.head, uint64(d.blockSize))
	if d.keysShown {
		d.head = msgpack.AppendBool(msgpack.AppendText(d.head, "keys_shown"), true)
	}
	d.head = msgpack.AppendText(d.head, "events")
	d.head = msgpack.AppendArrayLen(d.head, d.events)
	if _, d.err = d.w.Write(d.head); d.err == nil && len(d.chunk) > 0 {
		_, d.err = d.w.Write(d.chunk)
	}
	d.chunk, d.events = d.chunk[:0], 0
}
