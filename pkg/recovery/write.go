package recovery

import (
	"context"
	"encoding/json"
	"io"
	"iter"
	"strconv"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/indexer"
)

const (
	// eventBlocks bounds the blocks of one event, so that the reader of a dump
	// needs little memory for it.
	eventBlocks = 1024
	// chunkBytes is the size from which on a chunk is written: chunks have this size
	// plus up to one event.
	chunkBytes = 64 << 10
)

// Source is the contents of one scope.
type Source struct {
	Scope     catalog.Scope
	BlockSize uint32 // in tokens
	// Ranks has the ranks by slot, for the time in which Runs is read. Blocks of
	// other slots are left out.
	Ranks map[uint32]catalog.Rank
	// KeysShown: blocks with keys beside their tokens are in use (indexer.Space.KeysShown).
	KeysShown bool
	// Runs yields the scope's index, parents before children. A run is used only
	// until the next one is requested.
	Runs iter.Seq[*indexer.Run]
}

// Writer writes a dump in the recovery format of dynamo-kv-router 1.3.1: an
// object with one entry per scope, blocks as "stored" events, parents before
// children whatever their tiers. The block seed, if it is not hashing.Seed, is
// an extra key of "stored"; keys_shown, if it is true, one of the scope. A Writer keeps no more than one chunk in memory.
type Writer struct {
	// ResidencyDomain adds to each event whose memory its blocks are in, as
	// dynamo-kv-router 1.6.1 does: always the worker's own.
	ResidencyDomain bool

	w       io.Writer
	chunk   []byte // not written yet
	blocks  []byte // the blocks of one event, encoded
	started bool   // a scope was written before
	event   uint64 // number of the next event
	err     error  // the first error

	// For msgpack; key to events are of the scope that is being written.

	msgpack   bool
	key       string
	blockSize uint32
	keysShown bool
	head      []byte // scratch
	events    int    // number of events in the chunk
}

// NewWriter returns a writer of one dump to w.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w, chunk: []byte{'{'}} }

// NewMsgpackWriter returns a writer of one dump to w in msgpack: a sequence of maps, each
// like the whole JSON object but with only the next events of one scope. Blocks are byte
// strings of little-endian 8-byte words, block_hashes and tokens_hashes.
func NewMsgpackWriter(w io.Writer) *Writer { return &Writer{w: w, msgpack: true} }

// Scope writes one scope. It reads the scope's runs to the end, or to the first error
// of w or ctx. It returns that error, as does every later call.
func (w *Writer) Scope(ctx context.Context, s Source) error {
	if w.msgpack {
		return w.packScope(ctx, s)
	}
	if w.started {
		w.text(",")
	}
	w.started = true
	key, _ := json.Marshal(s.Scope.Model + ":" + s.Scope.Tenant) // cannot fail for a string
	w.chunk = append(w.chunk, key...)
	w.text(`:{"block_size":`)
	w.uint(uint64(s.BlockSize))
	if s.KeysShown {
		w.text(`,"keys_shown":true`)
	}
	w.text(`,"events":[`)
	first := w.event
	for run := range s.Runs {
		if w.writeRun(ctx, &s, run, first); w.err != nil {
			return w.err
		}
	}
	w.text("]}")
	return w.err
}

// Close writes the rest and the end of the dump. It returns the first error. It does
// not close the io.Writer.
func (w *Writer) Close() error {
	if w.msgpack {
		return w.err
	}
	w.text("}")
	w.flush()
	return w.err
}

// writeRun writes the events of a run. It writes each part of the run for all ranks in
// turn, so that the blocks are encoded only once.
func (w *Writer) writeRun(ctx context.Context, s *Source, run *indexer.Run, first uint64) {
	parent, hasParent := run.Parent, run.HasParent
	for at := 0; at < len(run.EngineHashes); at += eventBlocks {
		end := min(at+eventBlocks, len(run.EngineHashes))
		if w.msgpack {
			w.blocks = appendPackedBlocks(w.blocks[:0], run.EngineHashes[at:end], run.Local[at:end])
		} else {
			w.blocks = appendBlocks(w.blocks[:0], run.EngineHashes[at:end], run.Local[at:end])
		}
		for tier, slots := range run.Slots {
			for _, slot := range slots {
				rank, ok := s.Ranks[slot]
				if !ok {
					continue
				}
				if w.msgpack {
					w.packStored(rank, indexer.Tier(tier), parent, hasParent, run.Seed)
				} else {
					if w.event > first {
						w.text(",")
					}
					w.writeStored(rank, indexer.Tier(tier), parent, hasParent, run.Seed)
				}
				if len(w.chunk) >= chunkBytes && !w.flushIn(ctx) {
					return
				}
			}
		}
		parent, hasParent = run.EngineHashes[end-1], true
	}
}

// writeStored writes the event that a rank holds d.blocks in a tier.
func (w *Writer) writeStored(r catalog.Rank, t indexer.Tier, parent uint64, hasParent bool, seed uint64) {
	w.text(`{"worker_id":`)
	w.uint(r.Worker)
	w.text(`,"storage_tier":"`)
	w.text(t.String())
	w.text(`",`)
	if w.ResidencyDomain {
		w.text(`"residency_domain":"worker",`)
	}
	w.text(`"event":{"event_id":`)
	w.uint(w.event)
	w.event++
	w.text(`,"dp_rank":`)
	w.uint(uint64(r.DP))
	w.text(`,"data":{"stored":{"parent_hash":`)
	if hasParent {
		w.uint(parent)
	} else {
		w.text("null")
	}
	w.text(`,"start_position":null`)
	if seed != hashing.Seed {
		w.text(`,"seed":`)
		w.uint(seed)
	}
	w.text(`,"blocks":[`)
	w.chunk = append(w.chunk, w.blocks...)
	w.text("]}}}}")
}

func appendBlocks(text []byte, names, local []uint64) []byte {
	for i, name := range names {
		if i > 0 {
			text = append(text, ',')
		}
		text = append(text, `{"block_hash":`...)
		text = strconv.AppendUint(text, name, 10)
		text = append(text, `,"tokens_hash":`...)
		text = strconv.AppendUint(text, local[i], 10)
		text = append(text, `,"mm_extra_info":null}`...)
	}
	return text
}

func (w *Writer) text(s string) { w.chunk = append(w.chunk, s...) }

func (w *Writer) uint(v uint64) { w.chunk = strconv.AppendUint(w.chunk, v, 10) }

// flushIn writes the chunk unless something has failed or ctx is done, and
// reports whether to continue.
func (w *Writer) flushIn(ctx context.Context) bool {
	if w.err == nil {
		w.err = ctx.Err()
	}
	if w.msgpack {
		w.flushPart()
	} else {
		w.flush()
	}
	return w.err == nil
}

func (w *Writer) flush() {
	if w.err == nil {
		_, w.err = w.w.Write(w.chunk)
	}
	w.chunk = w.chunk[:0]
}
