package service

import (
	"fmt"
	"strconv"

	"github.com/select-service/select-service/internal/conductor"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/indexer"
)

// Diagnosis is the hash doctor's answer, of the same form for Conductor spaces
// and for selection scopes. There an instance is a worker's decimal id, and the
// hash seed is that of the local hashes, with LoRA and salt in it.
type Diagnosis = conductor.Diagnosis

// DiagnoseRequest asks the hash doctor about a prompt in a selection scope. Its
// slices are borrowed.
type DiagnoseRequest struct {
	Scope  catalog.Scope
	Tokens []uint32
	// LocalHashes are the prompt's with ByHash; LoRA and Salt are in them.
	LocalHashes []uint64
	ByHash      bool
	LoRA, Salt  string
}

// checkup is one prompt on its way through a scope's index.
type checkup struct {
	*Diagnosis
	req    *DiagnoseRequest
	pool   *pool
	snap   *catalog.Snapshot
	layout hashing.Layout
	local  []uint64
	probe  indexer.Match
}

// Diagnose tells for each block of a prompt which of the scope's ranks hold it,
// where each rank's chain breaks and why, and whether the prompt would match
// under another LoRA or salt. At most maxBlocks blocks are shown; 0 is
// conductor.DefaultDiagnosedBlocks.
func (s *Service) Diagnose(req *DiagnoseRequest, maxBlocks int) (*Diagnosis, error) {
	p := (*s.pools.Load())[req.Scope]
	snap := s.catalog.Snapshot(req.Scope)
	if p == nil || snap == nil || s.closing.Load() {
		_, _, err := s.schedulable(req.Scope)
		if err == nil { // it came just now
			err = noWorkers(req.Scope)
		}
		return nil, err
	}
	c := checkup{
		Diagnosis: &Diagnosis{
			Identity: conductor.Identity{
				Tenant: req.Scope.Tenant, Model: req.Scope.Model, LoRA: req.LoRA, Salt: req.Salt, BlockSize: snap.BlockSize,
			},
			HashSeed:   hashing.LocalSeed(req.LoRA, req.Salt),
			Registered: len(snap.Ranks) > 0,
		},
		req:    req,
		pool:   p,
		snap:   snap,
		layout: hashing.Layout{BlockSize: int(snap.BlockSize), Eagle: snap.Eagle},
	}
	if c.local = req.LocalHashes; !req.ByHash {
		c.local = c.layout.AppendLocal(nil, req.Tokens, c.HashSeed, nil)
	}
	c.Show(c.local, hashing.AppendSequence(nil, c.local), maxBlocks)
	c.examine()
	c.findScope(s.config.KVEvents)
	if s.config.KVEvents && p.space.Stats().Unique == 0 {
		c.findUnused(s.streams.Tally())
	}
	if req.ByHash {
		c.findRolling()
	} else {
		c.lookElsewhere()
	}
	c.FindElsewhere()
	if s.config.KVEvents {
		findStreams(c.Diagnosis, s.streams.Streams(), c.owner)
	}
	return c.Diagnosis, nil
}

// examine follows the prompt for every rank of the scope.
func (c *checkup) examine() {
	subjects := make([]conductor.Subject, 0, len(c.snap.Known))
	for _, e := range c.snap.Known {
		subject := conductor.Subject{
			CacheOwner: conductor.CacheOwner{Instance: strconv.FormatUint(e.Worker.ID, 10), Rank: e.DP},
			Hashes:     conductor.HashesNone,
			Places:     conductor.SlotPlaces(e.Slot),
			Shown:      c.snap.IsCandidate(e),
		}
		if c.pool.space.Held(e.Slot) != [indexer.NumTiers]int{} {
			subject.Hashes = conductor.HashesTokens
		}
		subjects = append(subjects, subject)
	}
	e := conductor.Examination{Space: c.pool.space, Chain: c.local, Local: c.local, Subjects: subjects}
	e.Follow(len(c.Blocks))
	c.Examine(&e)
}

// owner names a candidate of the scope.
func (c *checkup) owner(rank catalog.Rank) (who conductor.CacheOwner, ok bool) {
	for _, e := range c.snap.Known {
		if e.Rank == rank && c.snap.IsCandidate(e) {
			return conductor.CacheOwner{Instance: strconv.FormatUint(rank.Worker, 10), Rank: rank.DP}, true
		}
	}
	return who, false
}

// findScope says what concerns the scope as a whole.
func (c *checkup) findScope(kvEvents bool) {
	switch {
	case !kvEvents:
		c.Find("KV events are off: no blocks are indexed")
	case c.pool.space.Stats().Unique == 0:
		c.Find("no blocks indexed for this model and tenant")
	case !c.req.ByHash && !c.pool.space.HasSeed(c.HashSeed):
		c.Find("no blocks indexed for this lora_name and cache_salt")
	}
	if c.NumBlocks == 0 {
		if c.req.ByHash {
			c.Find("the prompt has no block")
			return
		}
		needs := ""
		if c.layout.Eagle {
			needs = " and the token behind it"
		}
		c.Find(fmt.Sprintf("the prompt has fewer tokens than one block%s: %d of %d", needs, len(c.req.Tokens), c.BlockSize))
	}
}

// findRolling notices rolling hashes where local ones are due. One block alone
// has the same hash both ways.
func (c *checkup) findRolling() {
	var local, rolling indexer.Match
	c.pool.space.Match(c.local, &local)
	c.pool.space.MatchSequence(c.local, &rolling)
	if n := rolling.Blocks(); n > local.Blocks() {
		c.Find(fmt.Sprintf("the hashes are rolling sequence hashes, not local block hashes: as such they would match %d blocks", n))
	}
}
