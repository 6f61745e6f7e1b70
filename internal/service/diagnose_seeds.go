package service

import (
	"cmp"
	"slices"
	"strconv"
	"sync"

	"github.com/select-service/select-service/internal/conductor"
	"github.com/select-service/select-service/pkg/hashing"
)

// maxSeedNames bounds the block seeds of a pool whose names are kept.
const maxSeedNames = 4096

// seedNames remembers what the block seeds of a pool stand for, as events tell
// it. Salts keep customers apart: only that there is one is kept.
type seedNames struct {
	mu sync.Mutex // guards of
	of map[uint64]seedName
}

type seedName struct {
	lora   string
	salted bool
}

// NameSeed notes a seed; see kvevents.SeedNames. Once there are too many it
// notes no more.
func (n *seedNames) NameSeed(seed uint64, lora, salt string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.of) >= maxSeedNames {
		return
	}
	if n.of == nil {
		n.of = make(map[uint64]seedName)
	}
	n.of[seed] = seedName{lora: lora, salted: salt != ""}
}

func (n *seedNames) name(seed uint64) (seedName, bool) {
	if seed == hashing.Seed {
		return seedName{}, true
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	name, ok := n.of[seed]
	return name, ok
}

// lookElsewhere tries the prompt under the other block seeds in use. There may
// be one per customer: its first blocks tell which are worth following.
func (c *checkup) lookElsewhere() {
	if c.NumBlocks == 0 {
		return
	}
	head := c.req.Tokens[:min(len(c.req.Tokens), conductor.ProbeBlocks*c.layout.BlockSize+1)]
	type probe struct {
		seed   uint64
		blocks int
	}
	var found []probe
	var chain []uint64
	for _, seed := range c.pool.space.Seeds(nil) {
		if seed == c.HashSeed {
			continue
		}
		chain = c.layout.AppendLocal(chain[:0], head, seed, nil)
		if c.pool.space.Match(chain, &c.probe); c.probe.Blocks() > 0 {
			found = append(found, probe{seed, c.probe.Blocks()})
		}
	}
	slices.SortFunc(found, func(a, b probe) int {
		return cmp.Or(cmp.Compare(b.blocks, a.blocks), cmp.Compare(a.seed, b.seed))
	})
	if len(found) > conductor.MaxElsewhere {
		found, c.Truncated = found[:conductor.MaxElsewhere], true
	}
	for _, p := range found {
		if e := c.under(p.seed); e.Matched > 0 {
			c.Elsewhere = append(c.Elsewhere, e)
		}
	}
	c.SortElsewhere()
}

// under follows the prompt under another block seed.
func (c *checkup) under(seed uint64) conductor.Elsewhere {
	e := conductor.Examination{
		Space:    c.pool.space,
		Chain:    c.layout.AppendLocal(nil, c.req.Tokens, seed, nil),
		Subjects: c.workers(),
	}
	e.Follow(0)
	out := conductor.Elsewhere{BlockSize: c.BlockSize, Registered: c.Registered}
	out.Matched, out.Instances = e.Best()
	if name, ok := c.pool.seeds.name(seed); ok {
		out.LoRA = &name.lora
		if !name.salted {
			out.Salt = new(string)
		}
	}
	return out
}

// workers lists the scope's workers, each with all its ranks.
func (c *checkup) workers() []conductor.Subject {
	var all []conductor.Subject
	for i, e := range c.snap.Known {
		if i == 0 || e.Rank.Worker != c.snap.Known[i-1].Rank.Worker {
			id := strconv.FormatUint(e.Rank.Worker, 10)
			all = append(all, conductor.Subject{CacheOwner: conductor.CacheOwner{Instance: id}})
		}
		last := &all[len(all)-1]
		last.Places = append(last.Places, conductor.SlotPlaces(e.Slot)...)
	}
	return all
}
