package kvevents

import "github.com/select-service/select-service/pkg/hashing"

// SeedNames learns what block seeds stand for: a seed alone does not tell the
// adapter and the salt that it was made of.
type SeedNames interface {
	// NameSeed is called when a stream first uses an adapter or a salt, from that
	// stream's goroutine. A stream that uses very many may name them again.
	NameSeed(seed uint64, lora, salt string)
}

// maxNamedSeeds bounds the seeds that a stream remembers to have named.
const maxNamedSeeds = 4096

// localSeed returns the block seed of an adapter and a salt, and names it.
func (c *Converter) localSeed(lora, salt string) uint64 {
	seed := hashing.LocalSeed(lora, salt)
	if c.Seeds == nil || lora == "" && salt == "" {
		return seed
	}
	if _, done := c.namedSeeds[seed]; !done {
		if c.namedSeeds == nil || len(c.namedSeeds) >= maxNamedSeeds {
			c.namedSeeds = make(map[uint64]struct{})
		}
		c.namedSeeds[seed] = struct{}{}
		c.Seeds.NameSeed(seed, lora, salt)
	}
	return seed
}
