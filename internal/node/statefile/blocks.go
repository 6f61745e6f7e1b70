package statefile

import (
	"encoding/binary"

	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/indexer"
)

// piece is a run of consecutive blocks that a rank holds in a tier.
type piece struct {
	Tier         indexer.Tier
	Parent       uint64 // the engine's hash of the block before the first
	HasParent    bool
	Seed         uint64 // the block seed of Local
	EngineHashes []uint64
	Local        []uint64
}

// On disk a piece is a byte of flags, the number of blocks (16 bits), parent and seed if the
// flags say so, the engine's hashes and the local hashes.
const (
	tierFlags   = 3 << 0
	parentFlag  = 1 << 2 // there is a parent
	followsFlag = 1 << 3 // the parent is the last block of the previous piece in this section
	seedFlag    = 1 << 4 // the seed is not hashing.Seed
	allFlags    = tierFlags | parentFlag | followsFlag | seedFlag
)

// appendPiece appends a piece of 1 to maxPieceBlocks blocks. previous is the last engine hash
// of the piece before; any: there is one.
func appendPiece(b []byte, p *piece, previous uint64, any bool) []byte {
	flags := byte(p.Tier)
	if p.HasParent {
		flags |= parentFlag
		if any && p.Parent == previous {
			flags |= followsFlag
		}
	}
	if p.Seed != hashing.Seed {
		flags |= seedFlag
	}
	b = append(b, flags)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(p.EngineHashes)))
	if flags&(parentFlag|followsFlag) == parentFlag {
		b = binary.LittleEndian.AppendUint64(b, p.Parent)
	}
	if flags&seedFlag != 0 {
		b = binary.LittleEndian.AppendUint64(b, p.Seed)
	}
	return appendNumbers(appendNumbers(b, p.EngineHashes), p.Local)
}

func appendNumbers(b []byte, numbers []uint64) []byte {
	for _, n := range numbers {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	return b
}

// eachPiece calls f with every piece of a section's blocks; p is reused. It returns false if
// the blocks are malformed, or f returned false.
func eachPiece(b []byte, p *piece, f func(*piece) bool) bool {
	var previous uint64
	for first := true; len(b) > 0; first = false {
		var ok bool
		if b, ok = p.read(b, previous, first); !ok || !f(p) {
			return false
		}
		previous = p.EngineHashes[len(p.EngineHashes)-1]
	}
	return true
}

// read reads the piece at the beginning of b and returns the rest.
func (p *piece) read(b []byte, previous uint64, first bool) (rest []byte, ok bool) {
	if len(b) < 3 {
		return nil, false
	}
	flags, n := b[0], int(binary.LittleEndian.Uint16(b[1:]))
	b = b[3:]
	numbers := 2 * n
	*p = piece{
		Tier: indexer.Tier(flags & tierFlags), HasParent: flags&parentFlag != 0, Seed: hashing.Seed,
		EngineHashes: p.EngineHashes[:0], Local: p.Local[:0],
	}
	ownParent := flags&(parentFlag|followsFlag) == parentFlag
	if ownParent {
		numbers++
	}
	if flags&seedFlag != 0 {
		numbers++
	}
	follows := flags&followsFlag != 0
	if flags&^allFlags != 0 || n == 0 || n > maxPieceBlocks || len(b) < 8*numbers || follows && (first || !p.HasParent) {
		return nil, false
	}
	if follows {
		p.Parent = previous
	}
	if ownParent {
		p.Parent, b = binary.LittleEndian.Uint64(b), b[8:]
	}
	if flags&seedFlag != 0 {
		p.Seed, b = binary.LittleEndian.Uint64(b), b[8:]
	}
	p.EngineHashes, b = readNumbers(p.EngineHashes, b, n)
	p.Local, b = readNumbers(p.Local, b, n)
	return b, true
}

// readNumbers appends n numbers to dst and returns the bytes after them.
func readNumbers(dst []uint64, b []byte, n int) (numbers []uint64, rest []byte) {
	for i := range n {
		dst = append(dst, binary.LittleEndian.Uint64(b[8*i:]))
	}
	return dst, b[8*n:]
}
