package selection

import (
	"slices"
	"sync"

	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/scopes"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/reservations"
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

	// pinned has the hashes of a long prompt that has waited (see pin); nil: they are in the lists
	// above or the request's. loaded has a list of them while there is one.
	pinned *reservations.Pin
	loaded *hashLists
	// tokens: the pinned prompt came as tokens. layout is how they were hashed, rest the digest of
	// those in no complete block.
	tokens bool
	layout hashing.Layout
	rest   uint64
}

// hashLists is the memory of the hashes of a prompt.
type hashLists struct{ local, sequence []uint64 }

var hashListPool = sync.Pool{New: func() any { return new(hashLists) }}

// reset empties the prompt, but for its memory.
func (p *prompt) reset() { p.local, p.sequence, p.tokens = nil, nil, false }

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

// read fills in the prompt for the workers of a scope, unless it is pinned: then only its hashes
// are left. Slices of the hash form are borrowed from the caller.
func (p *prompt) read(of *Prompt, snap *catalog.Snapshot) error {
	if p.pinned != nil {
		if p.tokens && of.layout(snap) != p.layout {
			return errPromptGone
		}
		p.load()
		p.size.BlockSize = snap.BlockSize
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

// isLong reports whether a prompt that was read has many tokens, or many blocks if only these are
// known.
func (p *prompt) isLong(of *Prompt) bool {
	if tokens, _, ok := of.tokens(); ok {
		return len(tokens) > maxKeptTokens
	}
	return len(p.sequence) > maxKeptBlocks
}

// pin pins the hashes of a prompt that was read for the workers of snap in the ledger, and drops
// them and what they were made from. It must be undone by unpin.
func (p *prompt) pin(of *Prompt, snap *catalog.Snapshot, l *reservations.Ledger) {
	if _, _, p.tokens = of.tokens(); p.tokens {
		p.layout, p.rest = of.layout(snap), digestRest(of, len(p.sequence), int(p.size.BlockSize))
	}
	p.pinned = l.Pin(snap.Scope, p.local, p.sequence)
	of.TokenIDs, of.MM, of.BlockHashes, of.SequenceHashes = nil, nil, nil, nil
	if of.Routing != nil {
		*of.Routing = Routing{}
	}
	of.Routing = nil
	of.HasTokenIDs = of.HasTokenIDs || p.tokens // also those of Routing, for who checks the request again
	p.local, p.sequence, p.localMem, p.sequenceMem = nil, nil, nil, nil
}

// load lists the hashes of a pinned prompt, until unload.
func (p *prompt) load() {
	if p.pinned != nil && p.loaded == nil {
		l := hashListPool.Get().(*hashLists)
		l.local, l.sequence = p.pinned.AppendTo(l.local[:0], l.sequence[:0])
		p.loaded, p.local, p.sequence = l, l.local, l.sequence
	}
}

func (p *prompt) unload() {
	if p.loaded != nil {
		if cap(p.loaded.sequence) <= maxPooledBlocks {
			hashListPool.Put(p.loaded)
		}
		p.loaded, p.local, p.sequence = nil, nil, nil
	}
}

func (p *prompt) unpin() {
	p.unload()
	if p.pinned != nil {
		p.pinned.Unpin()
		p.pinned = nil
	}
}

// bytes returns the memory of the prompt's hashes.
func (p *prompt) bytes() int64 {
	if p.pinned != nil {
		return int64(p.pinned.Bytes())
	}
	return int64(8 * (len(p.local) + len(p.sequence)))
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
