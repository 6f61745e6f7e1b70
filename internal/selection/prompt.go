package selection

import (
	"slices"
	"sync"

	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/pkg/selector"
)

// query is one prompt in the form of the core packages, with the scratch memory to answer it.
// Queries are pooled.
type query struct {
	local    []uint64 // local hashes of the complete blocks
	sequence []uint64 // rolling hashes, which the ledger counts
	size     selector.Prompt

	overlap   indexer.Overlap
	predicted indexer.Overlap // scratch memory for overlap
	scores

	localMem, sequenceMem []uint64
}

// scores is the memory of a choice.
type scores struct {
	eligible   []catalog.Entry // the ranks that pass the request's filters; in eligibleMem, or the snapshot's own list
	responding []catalog.Entry // the ranks of eligible that give signs of life, if others do not
	free       []catalog.Entry // the ranks of these whose workers are not overloaded
	candidates []selector.Candidate
	costs      []float64
	foreign    []reservations.Foreign // of the candidates, if an engine of the scope reports
	queues     []selector.Queue       // queues of the candidates, if the policy needs them
	decision   selector.Decision      // the policy's input, if a policy is configured
	scored     []catalog.Entry        // ranks of the candidates once one is chosen: a part of eligible or free; nil: in byLoad.scored
	byLoad     byLoad
	shadows    []ShadowChoice

	eligibleMem []catalog.Entry
}

var queries = sync.Pool{New: func() any { return new(query) }}

// maxPooledBlocks is the largest prompt, in blocks, whose scratch memory is pooled.
const maxPooledBlocks = 1 << 17

func newQuery() *query { return queries.Get().(*query) }

func (q *query) recycle() {
	if cap(q.localMem) > maxPooledBlocks {
		return
	}
	q.local, q.sequence = nil, nil
	clear(q.eligibleMem)
	clear(q.responding)
	clear(q.free)
	clear(q.byLoad.scored)
	q.eligible, q.free, q.scored, q.shadows = nil, q.free[:0], nil, q.shadows[:0]
	q.foreign = q.foreign[:0]
	queries.Put(q)
}

// read fills in the prompt for the workers of a scope. Slices of the hash form are
// borrowed from the caller.
func (q *query) read(p *Prompt, snap *catalog.Snapshot) error {
	if err := p.check(); err != nil {
		return err
	}
	q.size = selector.Prompt{BlockSize: snap.BlockSize}
	if tokens, mm, ok := p.tokens(); ok {
		q.localMem = p.layout(snap).AppendLocal(q.localMem[:0], tokens, hashing.LocalSeed(p.LoRA, p.CacheSalt), mm)
		q.sequenceMem = hashing.AppendSequence(q.sequenceMem[:0], q.localMem)
		q.local, q.sequence = q.localMem, q.sequenceMem
		q.size.Tokens = uint64(len(tokens))
	} else {
		q.local, q.sequence = p.BlockHashes, p.SequenceHashes
		q.size.Tokens = p.ISLTokens
	}
	q.size.Blocks = len(q.sequence)
	return nil
}

// layout returns how the prompt's tokens form blocks for the workers of a scope.
func (p *Prompt) layout(snap *catalog.Snapshot) hashing.Layout {
	layout := hashing.Layout{BlockSize: int(snap.BlockSize), Eagle: snap.Eagle}
	if p.Eagle != nil {
		layout.Eagle = *p.Eagle
	}
	return layout
}

// tokens returns the prompt's tokens and multimodal objects, if it has the
// token form.
func (p *Prompt) tokens() ([]uint32, [][]uint64, bool) {
	if p.Routing != nil && len(p.Routing.TokenIDs) > 0 {
		return p.Routing.TokenIDs, p.Routing.MM, true
	}
	return p.TokenIDs, p.MM, p.HasTokenIDs
}

// noteKeys tells the scope's index if the prompt has keys beside its tokens: an adapter, a salt
// or multimodal objects. Copies that engines announce without keys may then have some.
func (p *Prompt) noteKeys(index *indexer.Space) {
	_, mm, _ := p.tokens()
	if p.LoRA != "" || p.CacheSalt != "" || slices.ContainsFunc(mm, func(objects []uint64) bool { return len(objects) > 0 }) {
		index.ShowKeys()
	}
}

// check returns what is wrong with the prompt. It is cheap: it checks the hash form only, since
// any tokens are valid.
func (p *Prompt) check() error {
	if _, _, ok := p.tokens(); ok {
		return nil
	}
	switch {
	case !p.HasBlockHashes:
		return contract.Errorf(contract.BadRequest, "block_hashes is required without token_ids")
	case !p.HasSequenceHashes:
		return contract.Errorf(contract.BadRequest, "sequence_hashes is required without token_ids")
	case !p.HasISLTokens:
		return contract.Errorf(contract.BadRequest, "isl_tokens is required without token_ids")
	case p.ISLTokens == 0:
		return contract.Errorf(contract.BadRequest, "isl_tokens must be greater than 0")
	case len(p.BlockHashes) != len(p.SequenceHashes):
		return contract.Errorf(contract.BadRequest, "block_hashes length %d must match sequence_hashes length %d",
			len(p.BlockHashes), len(p.SequenceHashes))
	}
	return nil
}

// checkReserve checks the members of the hash form that /reservations needs: its blocks are
// booked but not looked up.
func (p *Prompt) checkReserve() error {
	switch {
	case !p.HasSequenceHashes:
		return contract.Errorf(contract.BadRequest, "sequence_hashes is required without token_ids")
	case !p.HasISLTokens:
		return contract.Errorf(contract.BadRequest, "isl_tokens is required without token_ids")
	}
	return nil
}

// readReserve reads a prompt that is booked but not looked up, so that it needs no block hashes.
func (q *query) readReserve(p *Prompt, snap *catalog.Snapshot) error {
	if _, _, ok := p.tokens(); ok {
		return q.read(p, snap)
	}
	if err := p.checkReserve(); err != nil {
		return err
	}
	q.sequence = p.SequenceHashes
	if len(p.BlockHashes) == len(p.SequenceHashes) {
		q.local = p.BlockHashes
	}
	q.size.BlockSize, q.size.Tokens, q.size.Blocks = snap.BlockSize, p.ISLTokens, len(p.SequenceHashes)
	return nil
}
