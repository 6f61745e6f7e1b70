package conductor

import (
	"cmp"
	"math/bits"
	"slices"
	"strings"
	"sync"

	"github.com/select-service/select-service/internal/container/slotset"
	"github.com/select-service/select-service/internal/selection/diagnose"
	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/indexer"
)

// Query is a prompt, as tokens or, with ByHash, as rolling hashes. Its slices are borrowed.
type Query struct {
	Identity
	Instance string   // "" is all
	Tokens   []uint32 // only complete blocks count
	Hashes   []uint64 // rolling, with ByHash
	ByHash   bool
	// OwnScopeOnly: the caller must not see other models and tenants.
	OwnScopeOnly bool
}

// queryScratch is the memory of one query.
type queryScratch struct {
	local, chain []uint64
	match        indexer.Match

	// instanceIndex and rankIndex map the numbers of instances and ranks in the space to
	// positions in instances and ranks, counted from 1. They are zero between queries.
	instanceIndex, rankIndex []uint32
	instances                []instanceRow
	ranks                    []rankRow
	media                    []mediumPrefix // per instance, one for each medium of the space
}

// instanceRow is an instance in the answer.
type instanceRow struct {
	number uint32
	blocks uint64 // length of its prefix in blocks
}

// rankRow is a rank in the answer.
type rankRow struct {
	number   uint32
	instance uint32 // counted from 0
	blocks   uint64
}

// mediumPrefix is how much of its prefix an instance has in one medium.
type mediumPrefix struct {
	blocks uint64
	end    uint64 // end of the counted blocks, in blocks of the prompt
}

// maxPooledBytes bounds, in bytes, a query's chain and its match each, above which their
// memory is not pooled.
const maxPooledBytes = 2 << 20

var queries = sync.Pool{New: func() any { return new(queryScratch) }}

// release returns q to the pool. It must not be deferred: after a panic q's content is undefined.
func (q *queryScratch) release() {
	if 8*cap(q.chain) <= maxPooledBytes && q.match.Bytes() <= maxPooledBytes {
		queries.Put(q)
	}
}

// queryTokens answers how much of a prompt each instance holds, or just the named one. The answer
// has the instances registered for the identity, whether they hold any of it or not, and further
// ones known from events only if they hold the first block. An unknown identity has no instances.
func (r *Registry) queryTokens(id Identity, tokens []uint32, instance string, a *Answer) {
	q := queries.Get().(*queryScratch)
	r.query(id, instance, a, q, func(ns *namespace) {
		sp := ns.space
		q.local = sp.layout().AppendLocal(q.local[:0], tokens, sp.key.HashSeed, nil)
		q.chain = hashing.AppendSequenceSeed(q.chain[:0], q.local, sp.key.HashSeed)
		for i := range q.chain {
			q.chain[i] ^= ns.seed
		}
	})
	q.release()
}

// queryHashes is queryTokens for a prompt given as its rolling hashes from the
// first block on.
func (r *Registry) queryHashes(id Identity, rolling []uint64, instance string, a *Answer) {
	q := queries.Get().(*queryScratch)
	r.query(id, instance, a, q, func(ns *namespace) {
		q.chain = q.chain[:0]
		for _, h := range rolling {
			q.chain = append(q.chain, h^ns.seed)
		}
	})
	q.release()
}

// query answers the chain that prepare computes into q.chain. That happens without a lock; if
// the namespace is replaced meanwhile, it is done again.
func (r *Registry) query(id Identity, instance string, a *Answer, q *queryScratch, prepare func(*namespace)) {
	a.Reset()
	r.noteKeys(id)
	for {
		ns := r.lookup(id)
		if ns == nil {
			return
		}
		prepare(ns)
		if r.answer(ns, instance, a, q) {
			return
		}
	}
}

// noteKeys tells the indexes of an identity's tenant, model and block size that its adapter or salt,
// if it has one, is in use: copies that engines announce without keys may be under it. The identity
// need not be known.
func (r *Registry) noteKeys(id Identity) {
	if id.LoRA == "" && id.Salt == "" {
		return
	}
	base := id
	base.LoRA, base.Salt = "", ""
	for _, id := range []Identity{id, base} { // as a rule, all have one space
		if ns := r.lookup(id); ns != nil {
			ns.space.index.ShowKeys()
			return
		}
	}
	for _, sp := range r.spacesOf(id) {
		sp.index.ShowKeys()
	}
}

// answer fills in a, and reports whether the namespace was still in use.
func (r *Registry) answer(ns *namespace, instance string, a *Answer, q *queryScratch) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.namespaces[ns.key] != ns {
		return false
	}
	sp := ns.space
	a.begin(sp.shown)
	q.begin(sp)
	for _, p := range ns.publishers {
		if instance == "" || p.Instance == instance {
			q.addRank(sp, p.instanceNumber, p.rankNumber)
		}
	}
	sp.index.Match(q.chain, &q.match)
	q.count(sp, instance)
	q.render(sp, a)
	q.end()
	return true
}

func (q *queryScratch) begin(sp *space) {
	q.instanceIndex, q.rankIndex = growZeroed(q.instanceIndex, sp.instanceNumbers.size()), growZeroed(q.rankIndex, sp.rankNumbers.size())
	q.instances, q.ranks, q.media = q.instances[:0], q.ranks[:0], q.media[:0]
}

// growZeroed extends s to length n with zeros.
func growZeroed(s []uint32, n int) []uint32 {
	if len(s) >= n {
		return s
	}
	return make([]uint32, n+n/4)
}

func (q *queryScratch) end() {
	for i := range q.instances {
		q.instanceIndex[q.instances[i].number] = 0
	}
	for i := range q.ranks {
		q.rankIndex[q.ranks[i].number] = 0
	}
}

// addRank adds an instance and a rank of it, by their numbers, if they are new.
func (q *queryScratch) addRank(sp *space, instance, rank uint32) {
	if q.instanceIndex[instance] == 0 {
		q.instances = append(q.instances, instanceRow{number: instance})
		q.instanceIndex[instance] = uint32(len(q.instances))
		for range sp.media {
			q.media = append(q.media, mediumPrefix{})
		}
	}
	if q.rankIndex[rank] == 0 {
		q.ranks = append(q.ranks, rankRow{number: rank, instance: q.instanceIndex[instance] - 1})
		q.rankIndex[rank] = uint32(len(q.ranks))
	}
}

// count walks the pieces of the match. A piece counts for a holder only if the holder has all
// pieces before it, that is, if its counted prefix ends there.
func (q *queryScratch) count(sp *space, instance string) {
	if len(q.match.Steps) == 0 {
		return
	}
	q.addHolders(sp, &q.match.Steps[0], instance)
	begin := uint64(0)
	for i := range q.match.Steps {
		step := &q.match.Steps[i]
		end := begin + uint64(step.Blocks)
		if !q.countStep(sp, step, begin, end) {
			return
		}
		begin = end
	}
}

// addHolders adds the instances and ranks that hold the first piece but are not
// registered for the identity.
func (q *queryScratch) addHolders(sp *space, first *indexer.Step, instance string) {
	only, one := sp.instanceNumbers.of[instance]
	for n := range holders(sp, first) {
		s := &sp.slots[n]
		if instance == "" || one && s.instance == only {
			q.addRank(sp, s.instance, s.rank)
		}
	}
}

// holders yields the slots of active publishers that hold a piece in any tier.
func holders(sp *space, step *indexer.Step) func(yield func(uint32) bool) {
	return func(yield func(uint32) bool) {
		for w, visible := range sp.visible {
			set := uint64(0)
			for _, h := range step.Holders {
				if w < len(h) {
					set |= h[w]
				}
			}
			for set &= visible; set != 0; set &= set - 1 {
				if !yield(uint32(w*64 + bits.TrailingZeros64(set))) {
					return
				}
			}
		}
	}
}

// countStep counts the piece from begin to end, and reports whether any instance's prefix grew.
func (q *queryScratch) countStep(sp *space, step *indexer.Step, begin, end uint64) (moved bool) {
	for tier, holders := range step.Holders {
		for w := range min(len(holders), len(sp.visible)) {
			for set := holders[w] & sp.visible[w]; set != 0; set &= set - 1 {
				s := &sp.slots[w*64+bits.TrailingZeros64(set)]
				place := q.instanceIndex[s.instance]
				if place == 0 {
					continue
				}
				row := &q.instances[place-1]
				if row.blocks == begin {
					row.blocks, moved = end, true
				}
				if row.blocks != end {
					continue // its prefix ended earlier
				}
				m := &q.media[int(place-1)*len(sp.media)+int(s.media[tier])]
				if m.end != end {
					m.blocks, m.end = m.blocks+end-begin, end
				}
				if place := q.rankIndex[s.rank]; place != 0 && q.ranks[place-1].blocks == begin {
					q.ranks[place-1].blocks = end
				}
			}
		}
	}
	return moved
}

// render writes the answer's rows.
func (q *queryScratch) render(sp *space, a *Answer) {
	size := uint64(sp.key.BlockSize)
	for i := range q.instances {
		s := &q.instances[i]
		im := a.add(sp.instanceNumbers.key(s.number))
		im.Longest = s.blocks * size
		for k, m := range q.media[i*len(sp.media) : (i+1)*len(sp.media)] {
			im.Media[sp.columns[k]] = m.blocks * size
		}
	}
	for i := range q.ranks {
		s := &q.ranks[i]
		im := &a.Instances[s.instance]
		im.Ranks = append(im.Ranks, RankMatch{Rank: sp.rankNumbers.key(s.number).rank, Tokens: s.blocks * size})
	}
	a.sort()
}

// Answer is the answer to a query. It can be reused.
type Answer struct {
	// Media are the columns of the instances' rows: GPU, CPU and DISK, then further media
	// named by events, sorted.
	Media     []string
	Instances []InstanceMatch // by name

	sorted int // number of rows that are sorted
}

// InstanceMatch is how much of a prompt an instance holds, in tokens.
type InstanceMatch struct {
	Instance string
	// Longest is the joint prefix: each of its blocks is on some medium of some rank of the
	// instance.
	Longest uint64
	Media   []uint64 // by medium of the Answer: the part of the joint prefix on it
	Ranks   []RankMatch
}

// RankMatch is one rank's own prefix over all its media, in tokens.
type RankMatch struct {
	Rank   uint32
	Tokens uint64
}

// Reset empties an answer: it has no instances, and the media that are always shown.
func (a *Answer) Reset() { a.begin(naturalMedia) }

func (a *Answer) begin(media []string) {
	a.Media = append(a.Media[:0], media...)
	a.Instances, a.sorted = a.Instances[:0], 0
}

// add appends a row of zeros. It reuses the memory of earlier rows.
func (a *Answer) add(instance string) *InstanceMatch {
	n := len(a.Instances)
	if n == cap(a.Instances) {
		a.Instances = slices.Grow(a.Instances, 1)
	}
	a.Instances = a.Instances[:n+1]
	im := &a.Instances[n]
	im.Instance, im.Longest, im.Ranks = instance, 0, im.Ranks[:0]
	im.Media = slices.Grow(im.Media[:0], len(a.Media))[:len(a.Media)]
	clear(im.Media)
	return im
}

// has reports whether an instance had a row when the answer was last sorted, which a
// query does at its end.
func (a *Answer) has(instance string) bool {
	_, ok := slices.BinarySearchFunc(a.Instances[:a.sorted], instance, func(im InstanceMatch, name string) int {
		return strings.Compare(im.Instance, name)
	})
	return ok
}

// sort orders the rows by instance and their ranks by number.
func (a *Answer) sort() {
	slices.SortFunc(a.Instances, func(x, y InstanceMatch) int { return strings.Compare(x.Instance, y.Instance) })
	for i := range a.Instances {
		a.Instances[i].sortRanks()
	}
	a.sorted = len(a.Instances)
}

func (im *InstanceMatch) sortRanks() {
	slices.SortFunc(im.Ranks, func(x, y RankMatch) int { return cmp.Compare(x.Rank, y.Rank) })
}

// column returns the number of a medium's column, and adds it if needed.
func (a *Answer) column(medium string) int {
	if i := slices.Index(a.Media, medium); i >= 0 {
		return i
	}
	fixed := len(naturalMedia)
	i, _ := slices.BinarySearch(a.Media[fixed:], medium)
	i += fixed
	a.Media = slices.Insert(a.Media, i, medium)
	for n := range a.Instances {
		a.Instances[n].Media = slices.Insert(a.Instances[n].Media, i, 0)
	}
	return i
}

// holder is a rank of an instance and its slot in an index.
type holder struct{ Slot, Rank uint32 }

// addRanks adds the row of an instance whose ranks are slots of an index in which a prompt was
// followed. Tiers are shown as their natural media (decision C7). blockSize is in tokens.
func (a *Answer) addRanks(instance string, ranks []holder, m *indexer.Match, blockSize uint32) {
	im := a.add(instance)
	for _, r := range ranks {
		im.Ranks = append(im.Ranks, RankMatch{Rank: r.Rank})
	}
	for i := range m.Steps {
		step := &m.Steps[i]
		tokens := uint64(step.Blocks) * uint64(blockSize)
		var held [indexer.NumTiers]bool
		any := false
		for k, r := range ranks {
			has := false
			for t := range step.Holders {
				if slotset.Set(step.Holders[t]).Has(r.Slot) {
					held[t], has = true, true
				}
			}
			if has && im.Ranks[k].Tokens == im.Longest { // no gap so far
				im.Ranks[k].Tokens += tokens
			}
			any = any || has
		}
		if !any {
			break
		}
		im.Longest += tokens
		for t, has := range held {
			if has {
				c := a.column(diagnose.Media[t])
				im.Media[c] += tokens
			}
		}
	}
	im.sortRanks()
}
