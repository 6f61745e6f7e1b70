package indexer

import (
	"math/bits"

	"github.com/select-service/select-service/internal/container/offheap"
)

// A cell is one block: its number is its address for life. The cells of a run
// are neighbours in one segment, so that a run is compared as one array and
// splitting or rejoining it moves nothing.
const (
	segmentBits  = 14
	segmentCells = 1 << segmentBits // 16,384 blocks, 320 KiB
	segmentMask  = segmentCells - 1
	// maxRun keeps one run inside a segment; longer chains are several nodes.
	maxRun = segmentCells - 1
	// smallCells is the size of the first segment of an index whose first run
	// is short: 5 KiB on the heap.
	smallCells = 256
)

// freeCell in the node column marks the first and the last cell of a free
// extent. The local column of both has the extent's length, the name column of
// the first has its links in the free list.
const freeCell = ^uint32(0)

// segment holds the columns of its cells.
type segment struct {
	local []uint64 // local block hash; in a sequence Space the block's value
	name  []uint64 // the name in the table: the engine hash first announced
	node  []uint32 // the node whose run the cell is part of
	used  int
}

// arena allocates extents of cells with boundary tags: free neighbours are
// merged into one extent, and a segment without used cells is freed.
type arena struct {
	mem      *offheap.Memory
	segments []segment
	spare    []uint32 // numbers of freed segments
	released uint64   // times that cells were freed
	bins     [binCount]uint32
	filled   [(binCount + 63) / 64]uint64 // which bins have an extent
}

// Extents below 64 cells have a bin each, longer ones four bins per power of
// two. Cell 0 of segment 0 is never handed out, so 0 ends a list.
const (
	exactBins = 64
	binCount  = exactBins + 4*(segmentBits-5)
)

func binOf(n uint32) uint32 {
	if n < exactBins {
		return n
	}
	top := uint32(bits.Len32(n)) - 1
	return exactBins + (top-6)*4 + (n>>(top-2))&3
}

func (a *arena) at(cell uint32) (*segment, uint32) {
	return &a.segments[cell>>segmentBits], cell & segmentMask
}

func (a *arena) locals(off, n uint32) []uint64 {
	s, i := a.at(off)
	return s.local[i : i+n : i+n]
}

func (a *arena) names(off, n uint32) []uint64 {
	s, i := a.at(off)
	return s.name[i : i+n : i+n]
}

func (a *arena) local(cell uint32) uint64 {
	s, i := a.at(cell)
	return s.local[i]
}

func (a *arena) name(cell uint32) uint64 {
	s, i := a.at(cell)
	return s.name[i]
}

func (a *arena) nodeOf(cell uint32) uint32 {
	s, i := a.at(cell)
	return s.node[i]
}

// label writes node to the node column of n cells from off on.
func (a *arena) label(off, n, node uint32) {
	s, i := a.at(off)
	col := s.node[i : i+n]
	for k := range col {
		col[k] = node
	}
}

// alloc returns the first of n neighbouring cells, 0 < n <= maxRun.
func (a *arena) alloc(n uint32) uint32 {
	off, size := a.find(n)
	if off == 0 {
		off, size = a.grow(n)
	} else {
		a.unlist(off, size)
	}
	if size > n {
		a.list(off+n, size-n)
	}
	s, _ := a.at(off)
	s.used += int(n)
	return off
}

// find returns a listed extent of at least n cells, or 0.
func (a *arena) find(n uint32) (off, size uint32) {
	b := binOf(n)
	// In its own bin an extent may be shorter than n: look at a few.
	for c, tries := a.bins[b], 0; c != 0 && tries < 8; tries++ {
		s, i := a.at(c)
		if l := uint32(s.local[i]); l >= n {
			return c, l
		}
		c = uint32(s.name[i])
	}
	for w := (b + 1) / 64; int(w) < len(a.filled); w++ {
		set := a.filled[w]
		if w == (b+1)/64 {
			set &= ^uint64(0) << ((b + 1) % 64)
		}
		if set != 0 {
			c := a.bins[w*64+uint32(bits.TrailingZeros64(set))]
			s, i := a.at(c)
			return c, uint32(s.local[i])
		}
	}
	return 0, 0
}

// grow adds a segment that has room for a run of n cells.
func (a *arena) grow(n uint32) (off, size uint32) {
	size = segmentCells
	if len(a.segments) == len(a.spare) && n < smallCells {
		size = smallCells
	}
	seg := segment{
		local: offheap.Make[uint64](a.mem, int(size)),
		name:  offheap.Make[uint64](a.mem, int(size)),
		node:  offheap.Make[uint32](a.mem, int(size)),
	}
	var no uint32
	if l := len(a.spare); l > 0 {
		no = a.spare[l-1]
		a.spare = a.spare[:l-1]
		a.segments[no] = seg
	} else {
		no = uint32(len(a.segments))
		a.segments = append(a.segments, seg)
	}
	// The first cell of a segment is never used, so that every extent has a cell
	// before it, and cell 0 does not exist.
	return no<<segmentBits + 1, size - 1
}

// extend takes up to n free cells that follow the extent ending before end and
// returns how many it got.
func (a *arena) extend(end, n uint32) uint32 {
	if end&segmentMask == 0 { // the next segment
		return 0
	}
	s, i := a.at(end)
	if int(i) == len(s.node) || s.node[i] != freeCell {
		return 0
	}
	size := uint32(s.local[i])
	a.unlist(end, size)
	n = min(n, size)
	if size > n {
		a.list(end+n, size-n)
	}
	s.used += int(n)
	return n
}

// release frees n cells from off on and joins them with free neighbours.
func (a *arena) release(off, n uint32) {
	a.released++
	s, i := a.at(off)
	s.used -= int(n)
	if s.used == 0 {
		a.freeSegment(off >> segmentBits)
		return
	}
	if end := i + n; int(end) < len(s.node) && s.node[end] == freeCell {
		size := uint32(s.local[end])
		a.unlist(off+n, size)
		n += size
	}
	if s.node[i-1] == freeCell && i > 1 {
		size := uint32(s.local[i-1])
		a.unlist(off-size, size)
		off -= size
		n += size
	}
	a.list(off, n)
}

// freeSegment frees a segment without used cells.
func (a *arena) freeSegment(no uint32) {
	s := &a.segments[no]
	for i := uint32(1); int(i) < len(s.node); {
		if s.node[i] != freeCell {
			i++ // the extent that was just released: not listed
			continue
		}
		size := uint32(s.local[i])
		a.unlist(no<<segmentBits+i, size)
		i += size
	}
	offheap.Free(a.mem, s.local)
	offheap.Free(a.mem, s.name)
	offheap.Free(a.mem, s.node)
	*s = segment{}
	a.spare = append(a.spare, no)
	if len(a.spare) == len(a.segments) {
		a.segments, a.spare = nil, nil
	}
}

// list adds an extent to its bin and tags both its ends.
func (a *arena) list(off, n uint32) {
	s, i := a.at(off)
	b := binOf(n)
	next := a.bins[b]
	s.local[i], s.local[i+n-1] = uint64(n), uint64(n)
	s.node[i], s.node[i+n-1] = freeCell, freeCell
	s.name[i] = uint64(next) // the upper half is the previous extent: none
	if next != 0 {
		ns, ni := a.at(next)
		ns.name[ni] = ns.name[ni]&0xffffffff | uint64(off)<<32
	}
	a.bins[b] = off
	a.filled[b/64] |= 1 << (b % 64)
}

func (a *arena) unlist(off, n uint32) {
	s, i := a.at(off)
	b := binOf(n)
	next, prev := uint32(s.name[i]), uint32(s.name[i]>>32)
	if next != 0 {
		ns, ni := a.at(next)
		ns.name[ni] = ns.name[ni]&0xffffffff | uint64(prev)<<32
	}
	if prev != 0 {
		ps, pi := a.at(prev)
		ps.name[pi] = ps.name[pi]&^uint64(0xffffffff) | uint64(next)
	} else {
		a.bins[b] = next
		if next == 0 {
			a.filled[b/64] &^= 1 << (b % 64)
		}
	}
	s.node[i], s.node[i+n-1] = 0, 0
}
