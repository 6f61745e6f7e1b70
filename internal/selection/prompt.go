package selection

import (
	"slices"
	"sync"

	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/scopes"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/selector"
)

// prompt is a Prompt in the form of the core packages, with its overlap.
type prompt struct {
	local    []uint64 // local hashes of the complete blocks
	sequence []uint64 // rolling hashes, which the ledger counts
	size     selector.Prompt

	overlap   indexer.Overlap
	predicted indexer.Overlap // memory for lookUp

	localMem, sequenceMem []uint64

	// dropped: the prompt came as tokens, which dropTokens has dropped. layout is how they were
	// hashed, rest the digest of those in no complete block.
	dropped bool
	layout  hashing.Layout
	rest    uint64
}

// reset empties the prompt, but for its memory.
func (p *prompt) reset() { p.local, p.sequence, p.dropped = nil, nil, false }

// prompts has prompts of requests that are no attempts.
var prompts = sync.Pool{New: func() any { return new(prompt) }}

// maxPooledBlocks is the largest prompt, in blocks, whose memory is pooled.
const maxPooledBlocks = 1 << 17

func newPrompt() *prompt { return prompts.Get().(*prompt) }

func (p *prompt) recycle() {
	if cap(p.localMem) <= maxPooledBlocks {
		p.reset()
		prompts.Put(p)
	}
}

// errPromptGone ends a request with a long prompt if the scope's block size changed while it
// waited: its hashes are of the old block size, and its tokens are gone.
var errPromptGone = &contract.Error{Kind: contract.Unavailable, Text: "the block size of the workers changed while the request waited"}

// read fills in the prompt for the workers of a scope, unless the request has waited and only its
// hashes are left. Slices of the hash form are borrowed from the caller.
func (p *prompt) read(of *Prompt, snap *catalog.Snapshot) error {
	if p.dropped {
		if of.layout(snap) != p.layout {
			return errPromptGone
		}
		return nil
	}
	if err := of.check(); err != nil {
		return err
	}
	p.size = selector.Prompt{BlockSize: snap.BlockSize}
	if tokens, mm, ok := of.tokens(); ok {
		p.localMem = of.layout(snap).AppendLocal(p.localMem[:0], tokens, hashing.LocalSeed(of.LoRA, of.CacheSalt), mm)
		p.sequenceMem = hashing.AppendSequence(p.sequenceMem[:0], p.localMem)
		p.local, p.sequence = p.localMem, p.sequenceMem
		p.size.Tokens = uint64(len(tokens))
	} else {
		p.local, p.sequence = of.BlockHashes, of.SequenceHashes
		p.size.Tokens = of.ISLTokens
	}
	p.size.Blocks = len(p.sequence)
	return nil
}

// readReserve reads a prompt that is booked but not looked up, so that it needs no block hashes.
func (p *prompt) readReserve(of *Prompt, snap *catalog.Snapshot) error {
	if _, _, ok := of.tokens(); ok {
		return p.read(of, snap)
	}
	if err := of.checkReserve(); err != nil {
		return err
	}
	p.sequence = of.SequenceHashes
	if len(of.BlockHashes) == len(of.SequenceHashes) {
		p.local = of.BlockHashes
	}
	p.size.BlockSize, p.size.Tokens, p.size.Blocks = snap.BlockSize, of.ISLTokens, len(of.SequenceHashes)
	return nil
}

// lookUp finds which ranks have how much of the prompt, or of an empty one.
func (p *prompt) lookUp(state *scopes.State, empty bool) {
	local := p.local
	if empty {
		local = nil
	}
	state.Overlap(local, &p.overlap, &p.predicted)
}

// cachedBlocks returns how many leading blocks of the prompt a rank has on all tiers together.
func (p *prompt) cachedBlocks(slot uint32) uint64 {
	device, host, disk := p.overlap.At(slot)
	return uint64(device) + uint64(host) + uint64(disk)
}

// dropTokens drops the tokens of a prompt that was read for the workers of snap: a waiting request
// has the hashes only, unless there are few tokens.
func (p *prompt) dropTokens(of *Prompt, snap *catalog.Snapshot) {
	if tokens, _, ok := of.tokens(); p.dropped || !ok || len(tokens) <= maxKeptTokens {
		return
	}
	p.dropped, p.layout, p.rest = true, of.layout(snap), digestRest(of, len(p.sequence), int(p.size.BlockSize))
	// Pooled memory is often larger than this prompt needs, and other requests can use it.
	p.localMem, p.sequenceMem = slices.Clone(p.local), slices.Clone(p.sequence)
	p.local, p.sequence = p.localMem, p.sequenceMem
	of.TokenIDs, of.MM = nil, nil
	if of.Routing != nil {
		*of.Routing = Routing{}
	}
	of.Routing = nil
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
