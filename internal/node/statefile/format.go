package statefile

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash"
	"hash/crc32"
	"time"

	"github.com/select-service/select-service/internal/selection/pauses"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/kvevents"
)

const (
	magic   = "selstate"
	version = 1

	headerBytes = 64
	headBytes   = 16 // head of a section

	// maxSection bounds the bytes of a section. Larger items cannot be saved: a reservation of
	// more than half a million blocks, or a worker with very long fields.
	maxSection = 4 << 20
	// maxSections bounds the sections of a file, which a reader remembers.
	maxSections = 16 << 20
	// maxPieceBlocks bounds the blocks of one piece.
	maxPieceBlocks = 1024
)

// kind is the type of a section's content.
type kind uint8

const (
	rankKind kind = 1 + iota
	blocksKind
	voidKind
	workerKind
	trackedKind
	reservationKind
	endKind
	learnedKind
	keysKind
	sessionKind
	pausesKind
	linkKind
)

// rankHead is the description of a rank in a file, besides its blocks.
type rankHead struct {
	Scope     catalog.Scope
	BlockSize uint32 // tokens
	Eagle     bool
	Rank      catalog.Rank
	// From is the position of the rank's stream.
	From kvevents.Checkpoint
}

// learned is the learned model of a scope's engines, as JSON of the learner.
type learned struct {
	Scope catalog.Scope
	State json.RawMessage
}

// learnedLink is what is learned of a link between workers of a scope, as JSON of Links.
type learnedLink struct {
	Scope catalog.Scope
	State json.RawMessage
}

// learnedPauses is what is known of the sessions of a scope.
type learnedPauses struct {
	Scope catalog.Scope
	State pauses.State
}

// header is the beginning of a file.
type header struct {
	written time.Time
	id      [16]byte
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// hashProbe is the hash of a fixed block. It differs in files whose hashes were made by another
// function.
func hashProbe() uint64 {
	local := hashing.Layout{BlockSize: 4}.AppendLocal(nil, []uint32{1, 2, 3, 4}, hashing.Seed, nil)
	return hashing.AppendSequence(nil, local)[0]
}

func (h *header) bytes() []byte {
	b := make([]byte, 0, headerBytes)
	b = append(b, magic...)
	b = binary.LittleEndian.AppendUint32(b, version)
	b = binary.LittleEndian.AppendUint64(b, hashing.Seed)
	b = binary.LittleEndian.AppendUint64(b, hashProbe())
	b = binary.LittleEndian.AppendUint64(b, uint64(h.written.UnixNano()))
	b = append(b, h.id[:]...)
	b = append(b, make([]byte, headerBytes-4-len(b))...)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// parseHeader reads a header of headerBytes.
func parseHeader(b []byte) (h header, err error) {
	le := binary.LittleEndian
	switch {
	case string(b[:8]) != magic:
		return h, refuse(Foreign, "it is no snapshot of this program")
	case le.Uint32(b[8:]) != version:
		return h, refuse(OtherVersion, "its version is %d, this program reads %d", le.Uint32(b[8:]), version)
	case le.Uint32(b[headerBytes-4:]) != crc32.Checksum(b[:headerBytes-4], castagnoli):
		return h, refuse(Corrupt, "checksum of the header")
	case le.Uint64(b[12:]) != hashing.Seed:
		return h, refuse(OtherHashes, "its hash seed is %d, this program's %d", le.Uint64(b[12:]), hashing.Seed)
	case le.Uint64(b[20:]) != hashProbe():
		return h, refuse(OtherHashes, "its blocks are hashed in another way")
	}
	h.written = time.Unix(0, int64(le.Uint64(b[28:])))
	copy(h.id[:], b[36:])
	return h, nil
}

// head is the head of a section.
type head struct {
	kind   kind
	number uint32 // number of the section, from 0
	length uint32
	crc    uint32
}

func (h *head) bytes() []byte {
	b := make([]byte, headBytes)
	b[0] = byte(h.kind)
	binary.LittleEndian.PutUint32(b[4:], h.number)
	binary.LittleEndian.PutUint32(b[8:], h.length)
	binary.LittleEndian.PutUint32(b[12:], h.crc)
	return b
}

func parseHead(b []byte) head {
	return head{
		kind: kind(b[0]), number: binary.LittleEndian.Uint32(b[4:]), length: binary.LittleEndian.Uint32(b[8:]),
		crc: binary.LittleEndian.Uint32(b[12:]),
	}
}

// checksum returns the CRC of a section with that head.
func (h *head) checksum(id [16]byte, payload []byte) uint32 {
	sum := crc32.Checksum(id[:], castagnoli)
	sum = crc32.Update(sum, castagnoli, h.bytes()[:12])
	return crc32.Update(sum, castagnoli, payload)
}

// digest returns a hash of the header, for adding all heads.
func digest(h *header) hash.Hash {
	sum := sha256.New()
	sum.Write(h.bytes())
	return sum
}

// Reason is why a file is refused.
type Reason string

// The reasons to refuse a file.
const (
	Foreign      Reason = "foreign"
	OtherVersion Reason = "version"
	OtherHashes  Reason = "hashes"
	Cut          Reason = "cut"
	Corrupt      Reason = "corrupt"
)

// RefusedError refuses a file.
type RefusedError struct {
	Reason Reason
	Detail string
}

// Error says what is wrong.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("snapshot refused (%s): %s", e.Reason, e.Detail)
}

func refuse(why Reason, format string, args ...any) error {
	return &RefusedError{why, fmt.Sprintf(format, args...)}
}
