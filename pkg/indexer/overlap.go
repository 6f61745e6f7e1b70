package indexer

import "math/bits"

// Overlap is the answer of Space.Overlap, in blocks, per slot: the prefix on
// the device (Device), how far the host tier continues it (Host), and how far
// disk and external storage continue that (Disk). Reusing an Overlap saves
// memory. Slots beyond the ends of the slices hold nothing; see At.
type Overlap struct {
	Device, Host, Disk []uint32
	live               [NumTiers][]uint64
	path               []uint32      // scratch: the cells of the prompt's blocks
	prefix             groupedPrefix // scratch
}

// At returns the overlap of one slot in blocks.
func (o *Overlap) At(slot uint32) (device, host, disk uint32) {
	if int(slot) >= len(o.Device) {
		return 0, 0, 0
	}
	return o.Device[slot], o.Host[slot], o.Disk[slot]
}

// RaiseDevice raises the device's prefix of every slot to that of another overlap of
// the same prompt, where that is longer. What the lower tiers add stays.
func (o *Overlap) RaiseDevice(other *Overlap) {
	for slot, device := range other.Device {
		if device == 0 {
			continue
		}
		if more := slot + 1 - len(o.Device); more > 0 {
			o.Device = append(o.Device, make([]uint32, more)...)
			o.Host = append(o.Host, make([]uint32, more)...)
			o.Disk = append(o.Disk, make([]uint32, more)...)
		}
		o.Device[slot] = max(o.Device[slot], device)
	}
}

func (o *Overlap) reset(slots, words int) {
	o.Device, o.Host, o.Disk = zeroed(o.Device, slots), zeroed(o.Host, slots), zeroed(o.Disk, slots)
	for t := range o.live {
		o.live[t] = zeroed(o.live[t], words)
	}
}

func zeroed[T uint32 | uint64](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	s = s[:n]
	clear(s)
	return s
}

// Overlap follows a prompt, given as local block hashes, through the tree and
// fills o. Each rank is followed through the tiers in order, each tier once:
// where its blocks end in one tier, the next tier may continue. The prefix on the
// device of a rank with several attention groups is what all of them can serve.
func (s *Space) Overlap(local []uint64, o *Overlap) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	t := &s.tree
	words := int(t.sets.words)
	o.reset(len(s.ranks), words)
	if t.live == 0 {
		return
	}
	for i := range words {
		o.live[Device][i] = ^s.clearing[i]
	}
	if extra := len(s.ranks) % 64; extra != 0 {
		o.live[Device][len(s.ranks)/64] &= 1<<extra - 1
	}
	clear(o.live[Device][(len(s.ranks)+63)/64:])
	tiers := NumTiers
	if s.blocks[Host]+s.blocks[Disk]+s.blocks[External] == 0 {
		tiers = 1
	}
	depth := t.overlap(local, o, tiers)
	o.finish(depth, tiers)
	if s.hybridSlots > 0 {
		s.endWhereAllGroupsServe(local, o)
	}
}

// overlap follows the prompt and returns the number of blocks that it found.
func (t *tree) overlap(local []uint64, o *Overlap, tiers int) uint32 {
	depth := 0
	for id := uint32(root); depth < len(local); {
		id = t.child(id, local[depth])
		if id == 0 {
			break
		}
		nd := t.node(id)
		if !t.advanceTiers(nd, uint32(depth), o, tiers) {
			break // no rank holds the next block
		}
		m := t.match(position{id, 0}, local[depth:])
		depth += m
		if m < int(nd.n) {
			break
		}
	}
	return uint32(depth)
}

// advanceTiers moves every rank that does not hold the run at depth in its
// present tier to the next tier, and reports whether any rank is left in a tier
// that holds the run.
func (t *tree) advanceTiers(nd *node, depth uint32, o *Overlap, tiers int) bool {
	any := uint64(0)
	for tier := range tiers {
		h := nd.holders[tier]
		var set []uint64
		if h != noHolder && h&single == 0 {
			set = t.sets.set(h)
		}
		for w := range o.live[tier] {
			live := o.live[tier][w]
			if live == 0 {
				continue
			}
			var own uint64
			if set != nil {
				own = set[w]
			} else if h != noHolder {
				if slot := uint32(h &^ single); int(slot/64) == w {
					own = 1 << (slot % 64)
				}
			}
			if gone := live &^ own; gone != 0 {
				o.live[tier][w] = live & own
				o.recordEnd(Tier(tier), w, gone, depth)
				if tier+1 < tiers {
					o.live[tier+1][w] |= gone
				}
			}
			any |= live & own
		}
	}
	return any != 0
}

// recordEnd records that ranks leave a tier at a depth. Until finish, Host and
// Disk have depths.
func (o *Overlap) recordEnd(t Tier, word int, gone uint64, depth uint32) {
	var ends []uint32
	switch t {
	case Device:
		ends = o.Device
	case Host:
		ends = o.Host
	case External:
		ends = o.Disk
	default:
		return // disk and external storage are shown as one
	}
	if depth == 0 {
		return
	}
	for ; gone != 0; gone &= gone - 1 {
		ends[word*64+bits.TrailingZeros64(gone)] = depth
	}
}

// finish ends all tiers of the ranks that are left and turns depths into
// differences.
func (o *Overlap) finish(depth uint32, tiers int) {
	for tier := range tiers {
		for w, live := range o.live[tier] {
			if live == 0 {
				continue
			}
			for below := tier; below < tiers; below++ {
				o.recordEnd(Tier(below), w, live, depth)
			}
		}
	}
	if tiers == 1 {
		return
	}
	for i := range o.Device {
		o.Disk[i] -= o.Host[i]
		o.Host[i] -= o.Device[i]
	}
}
