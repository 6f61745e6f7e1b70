package statefile

import (
	"bufio"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"slices"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/reservations"
)

const (
	// chunkBytes is the size of a section of a rank's blocks.
	chunkBytes = 32 << 10
	// maxBuffered bounds the unwritten blocks of all ranks, in bytes.
	maxBuffered = 256 << 10
	// maxFree bounds the unused buffers that are kept.
	maxFree = 4
	// writerMemory is the memory of a writer, in bytes, apart from a worker with unusually long
	// fields. Buffers may grow to twice their content.
	writerMemory = 1 << 20
)

// errTooLarge is the error for an item that does not fit into a section. The item is left out;
// the file stays valid.
var errTooLarge = errors.New("too large for a snapshot")

// writer writes the sections of a file. After the first error of the underlying file, every
// method returns that error, and the file cannot be completed.
type writer struct {
	out      *bufio.Writer
	header   header
	digest   hash.Hash
	sections uint32
	bytes    int64
	err      error

	ranks    []rankBuffer
	buffered int
	free     [][]byte // unused buffers
	piece    piece
	scratch  []byte
	part     []byte // scratch memory of eachPart
}

// rankBuffer has the unwritten blocks of a rank.
type rankBuffer struct {
	blocks   []byte
	previous uint64 // the last engine hash in blocks, if any
}

// newWriter begins a file.
func newWriter(out io.Writer, h header) (*writer, error) {
	w := &writer{out: bufio.NewWriterSize(out, 64<<10), header: h}
	w.digest = digest(&w.header)
	w.write(w.header.bytes())
	return w, w.err
}

// newHeader returns the header of a file that is written at a time.
func newHeader(written time.Time) header {
	h := header{written: written}
	_, _ = rand.Read(h.id[:]) // never fails
	return h
}

func (w *writer) write(b []byte) {
	if w.err == nil {
		_, w.err = w.out.Write(b)
	}
	w.bytes += int64(len(b))
}

// section writes a section whose payload is text followed by numbers. The numbers are encoded a
// few at a time, once for the checksum and once for the file.
func (w *writer) section(k kind, text []byte, numbers ...uint64) error {
	length := len(text) + 8*len(numbers)
	if length > maxSection || w.sections == maxSections-1 && k != endKind {
		return errTooLarge
	}
	h := head{kind: k, number: w.sections, length: uint32(length)}
	h.crc = h.checksum(w.header.id, text)
	w.eachPart(numbers, func(part []byte) { h.crc = crc32.Update(h.crc, castagnoli, part) })
	w.sections++
	if k != endKind {
		w.digest.Write(h.bytes())
	}
	w.write(h.bytes())
	w.write(text)
	w.eachPart(numbers, w.write)
	return w.err
}

// eachPart calls use with the encoded numbers, a few at a time.
func (w *writer) eachPart(numbers []uint64, use func([]byte)) {
	for part := range slices.Chunk(numbers, 512) {
		w.part = appendNumbers(w.part[:0], part)
		use(w.part)
	}
}

func (w *writer) json(k kind, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	return w.section(k, text)
}

// Rank begins a rank and returns its number in the file.
func (w *writer) Rank(r rankHead) (number int, err error) {
	if err := w.json(rankKind, r); err != nil {
		return 0, err
	}
	w.ranks = append(w.ranks, rankBuffer{})
	return len(w.ranks) - 1, nil
}

// Run adds the blocks of a run in a tier to a rank. Parents must come before their children.
func (w *writer) Run(number int, tier indexer.Tier, run *indexer.Run) error {
	p := &w.piece
	*p = piece{Tier: tier, Parent: run.Parent, HasParent: run.HasParent, Seed: run.Seed}
	for names, local := run.EngineHashes, run.Local; len(names) > 0; {
		n := min(maxPieceBlocks, len(names))
		if n > 1 && n < len(names) && names[n-1] == 0 {
			n-- // 0 as a parent may mean the root
		}
		p.EngineHashes, p.Local = names[:n], local[:n]
		if err := w.add(number, p); err != nil {
			return err
		}
		p.Parent, p.HasParent = names[n-1], true
		names, local = names[n:], local[n:]
	}
	return nil
}

func (w *writer) add(number int, p *piece) error {
	b := &w.ranks[number]
	if n := len(w.free); b.blocks == nil && n > 0 {
		b.blocks, w.free = w.free[n-1], w.free[:n-1]
	}
	before := len(b.blocks)
	b.blocks = appendPiece(b.blocks, p, b.previous, before > 0)
	b.previous = p.EngineHashes[len(p.EngineHashes)-1]
	w.buffered += len(b.blocks) - before
	switch {
	case w.buffered >= maxBuffered:
		return w.flushAll()
	case len(b.blocks) >= chunkBytes:
		return w.flush(number)
	}
	return w.err
}

// flush writes a rank's buffered blocks.
func (w *writer) flush(number int) error {
	b := &w.ranks[number]
	if len(b.blocks) == 0 {
		return w.err
	}
	w.buffered -= len(b.blocks)
	err := w.Blocks(number, b.blocks)
	if len(w.free) < maxFree {
		w.free = append(w.free, b.blocks[:0])
	}
	b.blocks = nil
	return err
}

func (w *writer) flushAll() error {
	for i := range w.ranks {
		if err := w.flush(i); err != nil {
			return err
		}
	}
	return w.err
}

// Blocks adds encoded blocks of another file to a rank; see file.RawBlocks.
func (w *writer) Blocks(number int, encoded []byte) error {
	w.scratch = binary.LittleEndian.AppendUint32(w.scratch[:0], uint32(number))
	w.scratch = append(w.scratch, encoded...)
	return w.section(blocksKind, w.scratch)
}

// Void marks that the blocks of a rank must not be used.
func (w *writer) Void(number int) error {
	return w.section(voidKind, binary.LittleEndian.AppendUint32(nil, uint32(number)))
}

// Worker adds a worker.
func (w *writer) Worker(r *catalog.Record) error { return w.json(workerKind, r) }

// Tracked adds a worker of the slot tracker.
func (w *writer) Tracked(r *catalog.TrackedRecord) error { return w.json(trackedKind, r) }

// Learned adds the learned model of a scope.
func (w *writer) Learned(l *learned) error { return w.json(learnedKind, l) }

// KeysShown adds a scope that has shown keys: see indexer.Space.KeysShown.
func (w *writer) KeysShown(sc catalog.Scope) error { return w.json(keysKind, sc) }

// Reservation adds a reservation as it is now.
func (w *writer) Reservation(r *reservations.Reservation, now time.Time) error {
	w.scratch = encodeReservation(w.scratch[:0], r, now)
	return w.section(reservationKind, w.scratch, r.Hashes...)
}

// end writes the buffered blocks and the end of the file.
func (w *writer) end() error {
	if err := w.flushAll(); err != nil {
		return err
	}
	if err := w.section(endKind, w.digest.Sum(nil)); err != nil {
		return err
	}
	return w.out.Flush()
}

// Bytes returns how much has been written so far.
func (w *writer) Bytes() int64 { return w.bytes }
