package reservations

import "math/bits"

// Prefix says that a prompt begins with the first blocks of another reservation's prompt in the
// same scope, so that they need not be listed between replicas.
type Prefix struct {
	// Origin and ID name the other reservation, which must be live. The zero Origin stands
	// for no prefix.
	Origin Origin
	ID     string
	// Blocks is how many blocks are the same.
	Blocks int
	// Digest is DigestOf these blocks. The ledger does not fill it in for its observer.
	Digest uint64
}

const (
	// minPrefix is the least number of blocks that are worth a Prefix.
	minPrefix = 16
	// maxCandidates is how many reservations of a rank are looked at for a Prefix.
	maxCandidates = 64
)

// DigestOf returns a digest of a list of hashes. Different lists have different digests, unless
// somebody has made them to collide. It is the same in all replicas.
func DigestOf(hashes []uint64) uint64 {
	const prime = 0x9e3779b97f4a7c15
	// Four sums, because each step of one waits for the one before.
	sums := [4]uint64{1, 2, 3, 4}
	n := uint64(len(hashes))
	for ; len(hashes) >= len(sums); hashes = hashes[len(sums):] {
		four := hashes[:len(sums)]
		for i, h := range four {
			sums[i] = (bits.RotateLeft64(sums[i], 29) ^ h) * prime
		}
	}
	for i, h := range hashes {
		sums[i] = (bits.RotateLeft64(sums[i], 29) ^ h) * prime
	}
	for _, s := range sums {
		n = (bits.RotateLeft64(n, 29) ^ s ^ s>>32) * prime
	}
	return n ^ n>>32
}

// prefix returns a reservation of this process whose prompt begins like the one whose walk is m.
// It looks among the last reservations of one rank only. That is the rank of slot if it has these
// blocks: a replica that does not know the rank then needs neither reservation. It needs s.mu.
func (s *scope) prefix(m match, slot uint32) (p Prefix) {
	if m.n < minPrefix {
		return Prefix{}
	}
	if nd := &s.blocks.nodes[m.node]; !s.blocks.holders.has(&nd.owners, slot) {
		slot = s.blocks.holders.any(&nd.owners)
	}
	held := s.loads[slot].held
	for i := len(held) - 1; i >= max(0, len(held)-maxCandidates); i-- {
		if r := held[i]; r.origin.Process == s.ledger.process && s.blocks.passes(r.tail, m.node) {
			return Prefix{Origin: r.origin, ID: r.id, Blocks: m.n}
		}
	}
	return Prefix{}
}

// locate returns where the blocks of a prefix end in the tree. It is false if the reservation is
// not live or does not begin with these blocks. A process's own word about its own reservations
// needs no digest, but that word of them, too. It needs s.mu.
func (s *scope) locate(b *Reservation) (m match, ok bool) {
	p := &b.Prefix
	if p.Origin == (Origin{}) {
		return match{}, true
	}
	r, _ := s.ledger.ids.byOrigin(p.Origin, s, p.ID)
	if r == nil || p.Blocks <= 0 || p.Blocks > int(r.blocks) || r.relayed && b.Authority == ByOwner {
		return match{}, false
	}
	m = s.blocks.at(s.match(r), p.Blocks)
	if b.Authority == ByOwner && p.Origin.Process == b.Origin.Process {
		return m, true
	}
	s.hashBuf = s.blocks.appendAfter(s.hashBuf[:0], m, 0)
	ok = DigestOf(s.hashBuf) == p.Digest
	if cap(s.hashBuf) > maxHashBuf {
		s.hashBuf = nil
	}
	return m, ok
}

// maxHashBuf is the largest scope.hashBuf that is kept, in hashes.
const maxHashBuf = 1 << 15
