package recovery

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/indexer"
)

// world is a Target whose ranks get slots as they come.
type world struct {
	sizes  map[catalog.Scope]uint32 // block sizes that are fixed
	scopes map[catalog.Scope]*worldScope
	keyed  []catalog.Scope
}

type worldScope struct {
	space *indexer.Space
	gate  *Gate
	slots map[catalog.Rank]uint32
}

func newWorld() *world {
	return &world{sizes: map[catalog.Scope]uint32{}, scopes: map[catalog.Scope]*worldScope{}}
}

func newWorldScope() *worldScope {
	space := indexer.New()
	return &worldScope{space: space, gate: NewGate(space, true), slots: map[catalog.Rank]uint32{}}
}

func (w *world) Fits(sc catalog.Scope, blockSize uint32) bool {
	size, fixed := w.sizes[sc]
	return !fixed || size == blockSize
}

func (w *world) ShowKeys(sc catalog.Scope) { w.keyed = append(w.keyed, sc) }

// noSlot is a worker that gets no place.
const noSlot = 666

func (w *world) Place(sc catalog.Scope, blockSize uint32, r catalog.Rank) (*Gate, uint32, bool) {
	if r.Worker == noSlot {
		return nil, 0, false
	}
	w.sizes[sc] = blockSize
	if w.scopes[sc] == nil {
		w.scopes[sc] = newWorldScope()
	}
	return w.scopes[sc].gate, w.scopes[sc].slot(r), true
}

func (s *worldScope) slot(r catalog.Rank) uint32 {
	slot, ok := s.slots[r]
	if !ok {
		slot = uint32(len(s.slots))
		s.slots[r] = slot
		s.gate.AssignSlot(slot, r)
	}
	return slot
}

// read feeds a dump to a new world.
func read(t testing.TB, dump string) (*world, Report, error) {
	t.Helper()
	w := newWorld()
	report, err := Read(context.Background(), strings.NewReader(dump), w, Options{})
	return w, report, err
}

// overlap returns a rank's blocks of a chain of local hashes: device, and how
// much further host and disk go.
func (s *worldScope) overlap(r catalog.Rank, local []uint64) [3]uint32 {
	slot, ok := s.slots[r]
	if !ok {
		return [3]uint32{}
	}
	var o indexer.Overlap
	s.space.Overlap(local, &o)
	device, host, disk := o.At(slot)
	return [3]uint32{device, host, disk}
}

func tokens(from, n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(from + i)
	}
	return out
}

func locals(toks []uint32) []uint64 {
	return hashing.Layout{BlockSize: 4}.AppendLocal(nil, toks, hashing.Seed, nil)
}

// stored is the JSON of an event that stores blocks name:local, name:local …
// behind a parent, 0 for the root.
func stored(worker uint64, dp uint32, tier string, parent uint64, blocks ...[2]uint64) string {
	var b strings.Builder
	fmt.Fprintf(&b, `{"worker_id":%d,"storage_tier":"%s","event":{"event_id":0,"data":{"stored":{"parent_hash":`, worker, tier)
	if parent == 0 {
		b.WriteString("null")
	} else {
		fmt.Fprint(&b, parent)
	}
	b.WriteString(`,"start_position":null,"blocks":[`)
	for i, block := range blocks {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"block_hash":%d,"tokens_hash":%d,"mm_extra_info":null}`, block[0], block[1])
	}
	fmt.Fprintf(&b, `]}},"dp_rank":%d}}`, dp)
	return b.String()
}

// dumpOf is a dump with one entry, m:t.
func dumpOf(events ...string) string {
	return `{"m:t":{"block_size":4,"events":[` + strings.Join(events, ",") + `]}}`
}

var mt = catalog.Scope{Model: "m", Tenant: "t"}

const maxHash = math.MaxUint64
