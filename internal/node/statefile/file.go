package statefile

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/reservations"
)

// readerMemory is the memory, in bytes, to open a file or read from it, apart from a few bytes
// for each section and, for a moment, the longest section.
const readerMemory = 512 << 10

// file is a snapshot that has been checked from beginning to end. Its content is read from
// disk, and checked again, when it is asked for. A file is not safe for concurrent use.
type file struct {
	in       *os.File
	header   header
	bytes    int64
	ranks    []rankHead
	blocks   [][]ref // sections of blocks by rank; nil if they are void
	entries  []uint64
	workers  []ref
	tracked  []ref
	booked   []ref
	learned  []ref
	sessions []ref
	pauses   []ref
	links    []ref
	keys     []ref
	payload  []byte // scratch
	piece    piece
}

// usualSection is the usual maximum of a section of blocks, in bytes.
const usualSection = chunkBytes + 17*maxPieceBlocks

// ref is the place of a section.
type ref struct {
	at int64 // offset of the section's head
	head
}

// open checks a file. Without an error it takes over the descriptor. The error is a
// *RefusedError if the content is bad.
func open(in *os.File) (*file, error) {
	info, err := in.Stat()
	if err != nil {
		return nil, err
	}
	f := &file{in: in, bytes: info.Size()}
	if err := f.check(); err != nil {
		return nil, err
	}
	return f, nil
}

func (f *file) check() error {
	var first [headerBytes]byte
	if f.bytes < headerBytes {
		if n, _ := f.in.ReadAt(first[:8], 0); n < 8 || string(first[:8]) != magic {
			return refuse(Foreign, "it is no snapshot of this program")
		}
		return refuse(Cut, "it ends within its header")
	}
	if _, err := f.in.ReadAt(first[:], 0); err != nil {
		return fmt.Errorf("read snapshot: %w", err)
	}
	var err error
	if f.header, err = parseHeader(first[:]); err != nil {
		return err
	}
	sum := digest(&f.header)
	known := make(map[string]struct{})
	at := int64(headerBytes)
	for number := uint32(0); ; number++ {
		s, err := f.section(at)
		if err != nil {
			return err
		}
		if s.number != number || number >= maxSections {
			return refuse(Corrupt, "section %d at offset %d has the number %d", number, at, s.number)
		}
		at += headBytes + int64(s.length)
		if s.kind == endKind {
			switch {
			case !bytes.Equal(f.payload, sum.Sum(nil)):
				return refuse(Corrupt, "the sections are not those that were written")
			case at != f.bytes:
				return refuse(Corrupt, "%d bytes after its end", f.bytes-at)
			}
			return nil
		}
		sum.Write(s.bytes())
		if !f.note(s, known) {
			return refuse(Corrupt, "content of section %d at offset %d", number, s.at)
		}
	}
}

// section reads the section at an offset into f.payload and checks it.
func (f *file) section(at int64) (s ref, err error) {
	var b [headBytes]byte
	if at+headBytes > f.bytes {
		return s, refuse(Cut, "it ends at offset %d, before its end section", f.bytes)
	}
	if _, err := f.in.ReadAt(b[:], at); err != nil {
		return s, fmt.Errorf("read snapshot: %w", err)
	}
	s = ref{at, parseHead(b[:])}
	switch {
	case !bytes.Equal(b[:], s.bytes()): // reserved bytes
		return s, refuse(Corrupt, "head of the section at offset %d", at)
	case s.length > maxSection:
		return s, refuse(Corrupt, "section at offset %d claims %d bytes, at most %d are possible", at, s.length, maxSection)
	case at+headBytes+int64(s.length) > f.bytes:
		return s, refuse(Cut, "it ends at offset %d, within a section", f.bytes)
	}
	if n := int(s.length); cap(f.payload) < n || n <= usualSection && cap(f.payload) > usualSection {
		f.payload = make([]byte, max(n, usualSection))
	}
	f.payload = f.payload[:s.length]
	if _, err := f.in.ReadAt(f.payload, at+headBytes); err != nil && (s.length > 0 || !errors.Is(err, io.EOF)) {
		return s, fmt.Errorf("read snapshot: %w", err)
	}
	if s.checksum(f.header.id, f.payload) != s.crc {
		return s, refuse(Corrupt, "checksum of the section at offset %d", at)
	}
	return s, nil
}

// note checks the section in f.payload and remembers its place. known has the ranks so far.
func (f *file) note(s ref, known map[string]struct{}) bool {
	switch s.kind {
	case rankKind:
		var r rankHead
		if json.Unmarshal(f.payload, &r) != nil || r.BlockSize == 0 || r.From.Since > r.From.Last {
			return false
		}
		key := fmt.Sprintf("%q %q %v", r.Scope.Model, r.Scope.Tenant, r.Rank)
		if _, twice := known[key]; twice {
			return false
		}
		known[key] = struct{}{}
		f.ranks, f.blocks, f.entries = append(f.ranks, r), append(f.blocks, []ref{}), append(f.entries, 0)
	case blocksKind:
		n, ok := f.rankNumber()
		if !ok || f.blocks[n] == nil {
			return false
		}
		f.blocks[n] = append(f.blocks[n], s)
		return eachPiece(f.payload[4:], &f.piece, func(p *piece) bool {
			f.entries[n] += uint64(len(p.Local))
			return true
		})
	case voidKind:
		n, ok := f.rankNumber()
		if !ok || len(f.payload) != 4 {
			return false
		}
		f.blocks[n] = nil
	case workerKind:
		f.workers = append(f.workers, s)
		return json.Unmarshal(f.payload, new(catalog.Record)) == nil
	case trackedKind:
		f.tracked = append(f.tracked, s)
		return json.Unmarshal(f.payload, new(catalog.TrackedRecord)) == nil
	case learnedKind:
		f.learned = append(f.learned, s)
		return json.Unmarshal(f.payload, new(learned)) == nil
	case sessionKind:
		f.sessions = append(f.sessions, s)
		var one session
		return json.Unmarshal(f.payload, &one) == nil && one.ok()
	case pausesKind:
		f.pauses = append(f.pauses, s)
		return json.Unmarshal(f.payload, new(learnedPauses)) == nil
	case linkKind:
		f.links = append(f.links, s)
		return json.Unmarshal(f.payload, new(learnedLink)) == nil
	case keysKind:
		f.keys = append(f.keys, s)
		return json.Unmarshal(f.payload, new(catalog.Scope)) == nil
	case reservationKind:
		f.booked = append(f.booked, s)
		_, ok := decodeReservation(f.payload, f.header.written)
		return ok
	default:
		return false
	}
	return true
}

func (f *file) rankNumber() (n int, ok bool) {
	if len(f.payload) < 4 {
		return 0, false
	}
	n = int(binary.LittleEndian.Uint32(f.payload))
	return n, n < len(f.ranks)
}

// again reads a section again into f.payload.
func (f *file) again(was ref) error {
	s, err := f.section(was.at)
	if err == nil && s != was {
		err = refuse(Corrupt, "the file has changed at offset %d", was.at)
	}
	return err
}

// Written is when the file was written.
func (f *file) Written() time.Time { return f.header.written }

// Bytes is the size of the file.
func (f *file) Bytes() int64 { return f.bytes }

// Ranks returns how many ranks the file has, numbered from 0.
func (f *file) Ranks() int { return len(f.ranks) }

// Rank returns a rank, its number of (tier, block) entries, and whether they can be used.
func (f *file) Rank(number int) (r *rankHead, entries uint64, ok bool) {
	return &f.ranks[number], f.entries[number], f.blocks[number] != nil
}

// Blocks calls use with the blocks of a rank, parents first. A piece is valid until use returns.
func (f *file) Blocks(number int, use func(*piece)) error {
	return f.RawBlocks(number, func(encoded []byte) error {
		eachPiece(encoded, &f.piece, func(p *piece) bool { use(p); return true })
		return nil
	})
}

// RawBlocks calls use with the sections of a rank's blocks, in order and in the form for
// Writer.Blocks, until use fails.
func (f *file) RawBlocks(number int, use func(encoded []byte) error) error {
	for _, s := range f.blocks[number] {
		if err := f.again(s); err != nil {
			return err
		}
		if err := use(f.payload[4:]); err != nil {
			return err
		}
	}
	return nil
}

// Workers returns the workers, and those of the slot tracker.
func (f *file) Workers() (workers []catalog.Record, tracked []catalog.TrackedRecord, err error) {
	for _, s := range f.workers {
		var r catalog.Record
		if err := f.decode(s, &r); err != nil {
			return nil, nil, err
		}
		workers = append(workers, r)
	}
	for _, s := range f.tracked {
		var r catalog.TrackedRecord
		if err := f.decode(s, &r); err != nil {
			return nil, nil, err
		}
		tracked = append(tracked, r)
	}
	return workers, tracked, nil
}

// Learned returns the learned models of the scopes.
func (f *file) Learned() (all []learned, err error) {
	for _, s := range f.learned {
		var l learned
		if err := f.decode(s, &l); err != nil {
			return nil, err
		}
		all = append(all, l)
	}
	return all, nil
}

// KeysShown returns the scopes that have shown keys.
func (f *file) KeysShown() (all []catalog.Scope, err error) {
	for _, s := range f.keys {
		var sc catalog.Scope
		if err := f.decode(s, &sc); err != nil {
			return nil, err
		}
		all = append(all, sc)
	}
	return all, nil
}

func (f *file) decode(s ref, v any) error {
	if err := f.again(s); err != nil {
		return err
	}
	return json.Unmarshal(f.payload, v)
}

// Reservations calls use with every reservation, with its age at the time now.
func (f *file) Reservations(now time.Time, use func(reservations.Reservation)) error {
	for _, s := range f.booked {
		if err := f.again(s); err != nil {
			return err
		}
		r, ok := decodeReservation(f.payload, now)
		if !ok {
			return refuse(Corrupt, "content of the section at offset %d", s.at)
		}
		use(r)
	}
	return nil
}

// Close closes the file.
func (f *file) Close() error { return f.in.Close() }

// Store returns the piece as an event of the index for a slot. Its blocks are provisional,
// because a file does not say how many copies there are.
func (p *piece) Store(slot uint32) indexer.Store {
	return indexer.Store{
		Slot: slot, Tier: p.Tier, Parent: p.Parent, HasParent: p.HasParent,
		EngineHashes: p.EngineHashes, Local: p.Local, Seed: p.Seed, SeedKnown: true,
		Provisional: true,
	}
}
