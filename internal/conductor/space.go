package conductor

import (
	"cmp"
	"math/rand/v2"
	"slices"

	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/indexer"
)

// Bounds of a process.
const (
	maxNamespaces = 65536
	maxSpaces     = 16384
	// maxNameBytes bounds the strings of all namespaces, in bytes: events name them, each
	// string up to kvevents.MaxKey.
	maxNameBytes = 32 << 20
	// maxFurtherMedia bounds the media of a space without a tier of their own (decision C9).
	maxFurtherMedia = 16
)

// spaceKey is what all blocks of one space have in common.
type spaceKey struct {
	Tenant, Model string
	BlockSize     uint32
	HashSeed      uint64
}

// space is an index with the owners of its slots. Registry.mu guards it; the index has a lock
// of its own.
type space struct {
	key   spaceKey
	index *indexer.Space

	namespaces map[uint64]*namespace // by seed
	ownerCount int

	slots   []slot
	free    []uint32 // free slots
	visible []uint64 // bit set of the slots of active publishers

	// instanceNumbers and rankNumbers assign numbers to the instances, and their ranks, of
	// registrations and slots.
	instanceNumbers numbering[string]
	rankNumbers     numbering[instanceRank]

	media        []string // GPU, CPU, DISK, then further ones in order of arrival
	shown        []string // media in the order of answers
	columns      []int    // index in shown of each of media
	furtherMedia int      // number of media without a tier of their own
}

// slot is one slot of the index.
type slot struct {
	owner          *owner // nil: free
	instance, rank uint32
	media          [indexer.NumTiers]uint8 // number of the medium kept in each tier
}

type instanceRank struct {
	instance, rank uint32
}

// nsKey is the key of a namespace. inner is a salt in an event in addition to another one in
// its registration; no query can name both.
type nsKey struct {
	Identity
	innerSalt string
}

// bytes returns the size of the key's strings.
func (k *nsKey) bytes() int {
	return len(k.Tenant) + len(k.Model) + len(k.LoRA) + len(k.Salt) + len(k.innerSalt)
}

// namespace is one identity within its space. Registry.mu guards refs and publishers; the
// rest does not change.
type namespace struct {
	key   nsKey
	space *space
	seed  uint64 // folded into the hashes of its blocks
	refs  int    // users: registrations and members of owners
	// publishers are the publishers registered for the identity.
	publishers []*Publisher
}

// The media that every answer shows.
var naturalMedia = []string{"GPU", "CPU", "DISK"}

func newSpace(key spaceKey) *space {
	sp := &space{
		key: key, index: indexer.NewSequence(key.HashSeed),
		namespaces: make(map[uint64]*namespace),
		media:      slices.Clone(naturalMedia),
	}
	sp.arrange()
	return sp
}

func (sp *space) layout() hashing.Layout {
	return hashing.Layout{BlockSize: int(sp.key.BlockSize)}
}

// addNamespace creates a namespace without users.
func (sp *space) addNamespace(key nsKey) *namespace {
	seed := rand.Uint64()
	for seed == hashing.Seed || sp.namespaces[seed] != nil { // hashing.Seed has a special meaning in the index
		seed = rand.Uint64()
	}
	ns := &namespace{key: key, space: sp, seed: seed}
	sp.namespaces[seed] = ns
	return ns
}

// medium returns the number of a medium, and assigns one if it is new. ok is false if
// there are too many.
func (sp *space) medium(name string, natural bool) (number uint8, ok bool) {
	if i := slices.Index(sp.media, name); i >= 0 {
		return uint8(i), true
	}
	if !natural {
		if sp.furtherMedia == maxFurtherMedia {
			return 0, false
		}
		sp.furtherMedia++
	}
	sp.media = append(sp.media, name)
	sp.arrange()
	return uint8(len(sp.media) - 1), true
}

// arrange sorts the media for answers: the natural ones, then by name.
func (sp *space) arrange() {
	sp.shown = slices.Clone(sp.media)
	slices.Sort(sp.shown[len(naturalMedia):])
	sp.columns = sp.columns[:0]
	for _, name := range sp.media {
		sp.columns = append(sp.columns, slices.Index(sp.shown, name))
	}
}

// takeSlot assigns a further slot to an owner.
func (sp *space) takeSlot(o *owner) uint32 {
	var n uint32
	if l := len(sp.free); l > 0 {
		n = sp.free[l-1]
		sp.free = sp.free[:l-1]
	} else {
		n = uint32(len(sp.slots))
		sp.slots = append(sp.slots, slot{})
		if int(n/64) == len(sp.visible) {
			sp.visible = append(sp.visible, 0)
		}
	}
	instance, rank := sp.takeNumbers(o.publisher.Instance, o.rank)
	sp.slots[n] = slot{owner: o, instance: instance, rank: rank}
	sp.visible[n/64] |= 1 << (n % 64)
	return n
}

// freeSlot frees a slot. The index must have dropped its content.
func (sp *space) freeSlot(n uint32) {
	sp.hide(n)
	sp.releaseNumbers(sp.slots[n].instance, sp.slots[n].rank)
	sp.slots[n] = slot{}
	sp.free = append(sp.free, n)
}

func (sp *space) hide(n uint32) { sp.visible[n/64] &^= 1 << (n % 64) }

// isVisible reports whether the slot's publisher is active.
func (sp *space) isVisible(n uint32) bool {
	return int(n/64) < len(sp.visible) && sp.visible[n/64]>>(n%64)&1 == 1
}

func (sp *space) takeNumbers(name string, dpRank uint32) (instance, rank uint32) {
	instance = sp.instanceNumbers.take(name)
	return instance, sp.rankNumbers.take(instanceRank{instance, dpRank})
}

func (sp *space) releaseNumbers(instance, rank uint32) {
	sp.rankNumbers.release(rank)
	sp.instanceNumbers.release(instance)
}

// owners returns the owners that have slots and whose publishers are active.
func (sp *space) owners() []*owner {
	var found []*owner
	for n := range sp.slots {
		if o := sp.slots[n].owner; o != nil && sp.isVisible(uint32(n)) && o.slots[0] == uint32(n) {
			found = append(found, o)
		}
	}
	return found
}

// compare orders namespaces for reading.
func (ns *namespace) compare(other *namespace) int {
	a, b := &ns.key, &other.key
	return cmp.Or(cmp.Compare(a.BlockSize, b.BlockSize), cmp.Compare(a.LoRA, b.LoRA),
		cmp.Compare(a.Salt, b.Salt), cmp.Compare(a.innerSalt, b.innerSalt))
}

// numbering assigns dense numbers to keys; a key keeps its number while it is in use. The
// zero value is ready.
type numbering[K comparable] struct {
	of   map[K]uint32
	rows []numberRow[K]
	free []uint32
}

type numberRow[K comparable] struct {
	key  K
	refs int
}

// take returns the number of a key, and adds a user.
func (n *numbering[K]) take(key K) uint32 {
	i, ok := n.of[key]
	if !ok {
		if l := len(n.free); l > 0 {
			i = n.free[l-1]
			n.free = n.free[:l-1]
		} else {
			i = uint32(len(n.rows))
			n.rows = append(n.rows, numberRow[K]{})
		}
		if n.of == nil {
			n.of = make(map[K]uint32)
		}
		n.of[key] = i
		n.rows[i].key = key
	}
	n.rows[i].refs++
	return i
}

// release ends one use of a number.
func (n *numbering[K]) release(i uint32) {
	row := &n.rows[i]
	if row.refs--; row.refs > 0 {
		return
	}
	delete(n.of, row.key)
	*row = numberRow[K]{}
	n.free = append(n.free, i)
}

func (n *numbering[K]) key(i uint32) K { return n.rows[i].key }

// size is an upper bound of all numbers in use, plus 1.
func (n *numbering[K]) size() int { return len(n.rows) }
