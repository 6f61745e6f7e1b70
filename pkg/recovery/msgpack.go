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
func (w *Writer) packScope(ctx context.Context, s Source) error {
	w.key, w.blockSize, w.keysShown = s.Scope.Model+":"+s.Scope.Tenant, s.BlockSize, s.KeysShown
	first := w.event
	for run := range s.Runs {
		if w.writeRun(ctx, &s, run, first); w.err != nil {
			return w.err
		}
	}
	if w.events > 0 || w.event == first { // a scope without events has one map
		w.flushPart()
	}
	return w.err
}

// packStored is writeStored in msgpack.
func (w *Writer) packStored(r catalog.Rank, t indexer.Tier, parent uint64, hasParent bool, seed uint64) {
	text := func(s string) { w.chunk = msgpack.AppendText(w.chunk, s) }
	length := func(n int) { w.chunk = msgpack.AppendMapLen(w.chunk, n) }
	number := func(name string, v uint64) {
		text(name)
		w.chunk = msgpack.AppendUint(w.chunk, v)
	}
	null := func(name string) {
		text(name)
		w.chunk = msgpack.AppendNil(w.chunk)
	}
	members := 3
	if w.ResidencyDomain {
		members++
	}
	length(members)
	number("worker_id", r.Worker)
	text("storage_tier")
	text(t.String())
	if w.ResidencyDomain {
		text("residency_domain")
		text("worker")
	}
	text("event")
	length(3)
	number("event_id", w.event)
	w.event++
	w.events++
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
	w.chunk = append(w.chunk, w.blocks...)
}

// flushPart writes the events of the chunk as one map.
func (w *Writer) flushPart() {
	if w.err != nil {
		return
	}
	w.head = msgpack.AppendText(msgpack.AppendMapLen(w.head[:0], 1), w.key)
	members := 2
	if w.keysShown {
		members++
	}
	w.head = msgpack.AppendText(msgpack.AppendMapLen(w.head, members), "block_size")
	w.head = msgpack.AppendUint(w.head, uint64(w.blockSize))
	if w.keysShown {
		w.head = msgpack.AppendBool(msgpack.AppendText(w.head, "keys_shown"), true)
	}
	w.head = msgpack.AppendText(w.head, "events")
	w.head = msgpack.AppendArrayLen(w.head, w.events)
	if _, w.err = w.w.Write(w.head); w.err == nil && len(w.chunk) > 0 {
		_, w.err = w.w.Write(w.chunk)
	}
	w.chunk, w.events = w.chunk[:0], 0
}
