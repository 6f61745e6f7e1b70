package hashing

import (
	"encoding/binary"
	"math/bits"
	"slices"
	"unsafe"

	"github.com/zeebo/xxh3"
)

// Seed is the base seed of local hashes, and the seed of sequence hashes
// (dynamo-kv-router 1.3.1: XXH3_SEED).
const Seed uint64 = 1337

// unmatchedSeed separates Unmatched from the hashes that a prompt can have: it
// is not Seed, and no LoRA name or salt is known that results in it.
const unmatchedSeed uint64 = 0x9fb21c651e98df25

// littleEndian says that tokens in memory already have the byte order that the
// hash needs, so that blocks are hashed in place.
var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

// LocalSeed returns the seed of local hashes for prompts under a LoRA adapter
// and a cache salt; an empty name adds nothing. The sum wraps modulo 2^64.
func LocalSeed(lora, salt string) uint64 {
	seed := Seed
	if lora != "" {
		seed += xxh3.HashStringSeed(lora, 0)
	}
	if salt != "" {
		seed += xxh3.HashStringSeed(salt, 1)
	}
	return seed
}

// Layout says how a token sequence is divided into blocks.
type Layout struct {
	// BlockSize is in tokens; at 0 or below there are no blocks.
	BlockSize int
	// Eagle blocks look one token ahead: the window is BlockSize+1 tokens, the
	// stride BlockSize.
	Eagle bool
}

// window is how many tokens one block's hash covers.
func (l Layout) window() int {
	if l.Eagle {
		return l.BlockSize + 1
	}
	return l.BlockSize
}

// Blocks returns how many complete blocks n tokens make.
func (l Layout) Blocks(n int) int {
	if l.Eagle {
		n--
	}
	if n < 0 || l.BlockSize <= 0 {
		return 0
	}
	return n / l.BlockSize
}

// AppendLocal appends to dst the local hash of every complete block of tokens;
// an incomplete tail is ignored. mm, if not nil, has the multimodal object
// hashes of each block in any order; blocks beyond len(mm) have none.
func (l Layout) AppendLocal(dst []uint64, tokens []uint32, seed uint64, mm [][]uint64) []uint64 {
	n, w := l.Blocks(len(tokens)), l.window()
	dst = slices.Grow(dst, n)
	for i := range n {
		block := tokens[i*l.BlockSize : i*l.BlockSize+w]
		if i < len(mm) && len(mm[i]) > 0 {
			dst = append(dst, multimodal(block, seed, mm[i]))
		} else {
			dst = append(dst, plain(block, seed))
		}
	}
	return dst
}

// plain returns the local hash of a block (at least one token) without
// multimodal objects.
func plain(block []uint32, seed uint64) uint64 {
	if littleEndian {
		return xxh3.HashSeed(unsafe.Slice((*byte)(unsafe.Pointer(&block[0])), 4*len(block)), seed)
	}
	return multimodal(block, seed, nil)
}

// multimodal returns the local hash of a block with multimodal objects: the
// tokens and then the objects' hashes in ascending order, all little-endian.
func multimodal(block []uint32, seed uint64, objects []uint64) uint64 {
	var tokens [1024]byte // blocks of 64 tokens and 96 objects stay off the heap
	var order [32]uint64
	buf := tokens[:0]
	for _, t := range block {
		buf = binary.LittleEndian.AppendUint32(buf, t)
	}
	sorted := append(order[:0], objects...)
	slices.Sort(sorted)
	for _, h := range sorted {
		buf = binary.LittleEndian.AppendUint64(buf, h)
	}
	return xxh3.HashSeed(buf, seed)
}

// AppendSequence appends to dst the sequence hashes of a chain of local hashes
// that starts at the root: the first equals its local hash, every other hashes
// the sequence hash before it and its local hash.
func AppendSequence(dst, local []uint64) []uint64 {
	return AppendSequenceSeed(dst, local, Seed)
}

// AppendSequenceSeed is AppendSequence with another seed than Seed: a Conductor
// space may have its own.
func AppendSequenceSeed(dst, local []uint64, seed uint64) []uint64 {
	dst = slices.Grow(dst, len(local))
	var prev uint64
	for i, h := range local {
		if i == 0 {
			prev = h
		} else {
			prev = hashPair(prev, h, seed)
		}
		dst = append(dst, prev)
	}
	return dst
}

// NextSequence returns the sequence hash of a block with the given local hash,
// where prev is the sequence hash of the block before it.
func NextSequence(prev, local uint64) uint64 {
	return hashPair(prev, local, Seed)
}

// Unmatched replaces the local hash of a block whose content depends on a key
// that no prompt can express (digest stands for the key): equal blocks stay
// equal, and no prompt's block has the same hash.
func Unmatched(local, digest uint64) uint64 {
	return hashPair(local, digest, unmatchedSeed)
}

// The words of XXH3's secret for inputs of 9 to 16 bytes, and the factor of its avalanche (xxhash.h of
// xxHash 0.8: XXH3_len_9to16_64b, XXH3_avalanche).
const (
	flipLow   uint64 = 0x1f67b3b7a4a44072 ^ 0x78e5c0cc4ee679cb
	flipHigh  uint64 = 0x2172ffcc7dd05a82 ^ 0x8e2443f7744608b8
	avalanche uint64 = 0x165667919e3779f9
)

// hashPair returns XXH3-64 of 16 bytes: two numbers, little-endian. Each block of a chain waits for the
// hash of the one before, so it is written out here, which takes half the time of the library.
func hashPair(a, b, seed uint64) uint64 {
	low := a ^ (flipLow + seed)
	high, folded := bits.Mul64(low, b^(flipHigh-seed))
	h := 16 + bits.ReverseBytes64(low) + (b ^ (flipHigh - seed)) + (high ^ folded)
	h = (h ^ h>>37) * avalanche
	return h ^ h>>32
}
