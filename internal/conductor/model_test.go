package conductor_test

import (
	"cmp"
	"encoding/binary"
	"maps"
	"slices"

	"github.com/select-service/select-service/internal/conductor"
)

// The naive owner model: for every owner of a cache the set of chains that it
// holds, medium by medium, walked block by block. A chain is its tokens as
// text behind the name of its world; the model knows no hash but takes the
// names of blocks to be one to one with chains. It shares no code with the
// index, and serves both contracts.
type cacheModel struct {
	owners []*cacheOwner
}

// cacheOwner is one rank of one selection worker, or one rank of a Conductor
// instance as one backend reports it.
type cacheOwner struct {
	instance string
	rank     uint32
	backend  string
	held     map[string]map[chain]bool // by medium
	waiting  map[waitingBlock]bool
}

// chain is all tokens from the root on, behind the identity.
type chain struct {
	world  string
	tokens string
}

type waitingBlock struct {
	medium string
	chain  chain
	parent chain
}

// cut makes blocks of tokens and returns the chain of each.
func cut(world string, tokens []uint32, size int) []chain {
	var out []chain
	var text []byte
	for i, token := range tokens {
		text = binary.BigEndian.AppendUint32(text, token)
		if (i+1)%size == 0 {
			out = append(out, chain{world, string(text)})
		}
	}
	return out
}

// tokenIDs is what a chain was made of.
func (c chain) tokenIDs() []uint32 {
	var tokens []uint32
	for text := []byte(c.tokens); len(text) > 0; text = text[4:] {
		tokens = append(tokens, binary.BigEndian.Uint32(text))
	}
	return tokens
}

func (m *cacheModel) owner(instance string, rank uint32, backend string) *cacheOwner {
	for _, o := range m.owners {
		if o.instance == instance && o.rank == rank && o.backend == backend {
			return o
		}
	}
	o := &cacheOwner{instance: instance, rank: rank, backend: backend, held: map[string]map[chain]bool{}, waiting: map[waitingBlock]bool{}}
	m.owners = append(m.owners, o)
	return o
}

func (o *cacheOwner) anywhere(c chain) bool {
	for _, set := range o.held {
		if set[c] {
			return true
		}
	}
	return false
}

func (o *cacheOwner) put(medium string, c chain) {
	if o.held[medium] == nil {
		o.held[medium] = map[chain]bool{}
	}
	o.held[medium][c] = true
}

// store adds the blocks of a chain from depth from on. Blocks known by tokens
// wait until the block before them is known; sure ones are known by themselves.
func (o *cacheOwner) store(medium string, all []chain, from int, sure bool) {
	known := sure || from == 0 || o.anywhere(all[from-1])
	for i := from; i < len(all); i++ {
		known = known || o.anywhere(all[i])
		if known {
			o.put(medium, all[i])
			continue
		}
		w := waitingBlock{medium: medium, chain: all[i], parent: all[i-1]}
		o.waiting[w] = true
	}
	for joined := true; joined; {
		joined = false
		for w := range o.waiting {
			if o.anywhere(w.parent) || o.anywhere(w.chain) {
				o.put(w.medium, w.chain)
				delete(o.waiting, w)
				joined = true
			}
		}
	}
}

func (o *cacheOwner) remove(medium string, c chain) {
	delete(o.held[medium], c)
	for w := range o.waiting {
		if w.medium == medium && w.chain == c {
			delete(o.waiting, w)
		}
	}
}

// clear forgets everything of a world in a medium; "" stands for all.
func (o *cacheOwner) clear(world, medium string) {
	hit := func(c chain, in string) bool {
		return (world == "" || world == c.world) && (medium == "" || medium == in)
	}
	for in, set := range o.held {
		maps.DeleteFunc(set, func(c chain, _ bool) bool { return hit(c, in) })
	}
	maps.DeleteFunc(o.waiting, func(w waitingBlock, _ bool) bool { return hit(w.chain, w.medium) })
}

// query is what the Conductor has to answer: of the prefix in which every block
// is on some medium of some rank of the instance, the blocks on each medium, and
// each rank's own prefix. Instances without a hit are left out.
func (m *cacheModel) query(prompt []chain, size int, media []string) []conductor.InstanceMatch {
	var out []conductor.InstanceMatch
	for _, name := range m.instances() {
		ranks := map[uint32][]*cacheOwner{}
		var all []*cacheOwner
		for _, o := range m.owners {
			if o.instance == name {
				ranks[o.rank] = append(ranks[o.rank], o)
				all = append(all, o)
			}
		}
		row := conductor.InstanceMatch{Instance: name, Longest: prefix(all, prompt, size), Media: make([]uint64, len(media))}
		if row.Longest == 0 {
			continue
		}
		for _, c := range prompt[:row.Longest/uint64(size)] {
			for i, medium := range media {
				if slices.ContainsFunc(all, func(o *cacheOwner) bool { return o.held[medium][c] }) {
					row.Media[i] += uint64(size)
				}
			}
		}
		for rank, owners := range ranks {
			if n := prefix(owners, prompt, size); n > 0 {
				row.Ranks = append(row.Ranks, conductor.RankMatch{Rank: rank, Tokens: n})
			}
		}
		slices.SortFunc(row.Ranks, func(a, b conductor.RankMatch) int { return cmp.Compare(a.Rank, b.Rank) })
		out = append(out, row)
	}
	return out
}

// prefix is the tokens of the prefix that the owners hold together.
func prefix(owners []*cacheOwner, prompt []chain, size int) (tokens uint64) {
	for _, c := range prompt {
		if !slices.ContainsFunc(owners, func(o *cacheOwner) bool { return o.anywhere(c) }) {
			break
		}
		tokens += uint64(size)
	}
	return tokens
}

func (m *cacheModel) instances() []string {
	var names []string
	for _, o := range m.owners {
		names = append(names, o.instance)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// overlap is what selection has to answer for one rank: how far its device
// reaches, how much further the host goes from there, and then disk and external
// storage together.
func (o *cacheOwner) overlap(prompt []chain) (device, host, disk uint32) {
	at := 0
	follow := func(medium string) (n uint32) {
		for at < len(prompt) && o.held[medium][prompt[at]] {
			at++
			n++
		}
		return n
	}
	device, host = follow("GPU"), follow("CPU")
	return device, host, follow("DISK") + follow("EXTERNAL")
}
