package selecting

import (
	"slices"

	"github.com/select-service/select-service/internal/admission"
	"github.com/select-service/select-service/internal/contract"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/hashing"
)

// A waiting request keeps the hashes of its prompt, but neither its text nor, if there
// are many, its tokens.

// kept is the state that a selection keeps while it waits.
type kept struct {
	bytes int64 // reserved from Config.Waiting
	// detached: the prompt came as tokens, and these have been dropped. layout is how they were
	// hashed, rest the digest of those in no complete block.
	detached bool
	layout   hashing.Layout
	rest     uint64
}

// The memory of a waiting request besides its hashes and lists, in bytes.
const (
	// keptOverhead covers its goroutine, its connection, the selection and maxKeptTokens tokens.
	keptOverhead = 24 << 10
	// maxKeptTokens is how many tokens a prompt may have to keep them, so that it can be hashed
	// again if the block size changes.
	maxKeptTokens = 2048
	// keptPerRank is for each rank that it considers: a catalog entry, a candidate with its
	// cost, and the overlap on three tiers.
	keptPerRank = 160
)

// errPromptGone ends a request with a long prompt if the scope's block size changed while it
// waited: its hashes are of the old block size, and its tokens are gone.
var errPromptGone = &contract.Error{Kind: contract.Unavailable, Text: "the block size of the workers changed while the request waited"}

// keepHashes prepares a parsed request to wait in a class. The error says that the account of
// waiting requests is full.
func (c *selection) keepHashes(class string) error {
	if c.wait.kept == nil {
		c.wait.kept = new(kept)
	}
	req, k := c.request, c.wait.kept
	account := c.api.config.Waiting
	n := int64(keptOverhead + keptPerRank*c.snapshot.NumRanks + 8*(len(c.local)+len(c.sequence)) + 16*len(req.AllowedWorkers))
	for _, taint := range req.RequiredTaints {
		n += int64(16 + 2*len(taint))
	}
	for taint := range req.PreferredTaints {
		n += int64(64 + len(taint))
	}
	for _, text := range []*string{req.SelectionID, req.ReservationID, &req.PolicyClass, &req.Session, &req.Scope.Model, &req.Scope.Tenant} {
		if text != nil {
			n += int64(len(*text))
		}
	}
	if more := n - k.bytes; more > 0 {
		if !account.Reserve(more) {
			return queueError(&admission.LimitError{
				PolicyClass: class, LimitKind: admission.LimitBytes,
				Current: uint64(account.Used()), Limit: uint64(account.Limit()),
			})
		}
		k.bytes = n
	}
	if req.Text == nil {
		return nil
	}
	p := &req.Prompt
	if tokens, _, ok := p.tokens(); ok && len(tokens) > maxKeptTokens && !k.detached {
		k.layout, k.rest = p.layout(c.snapshot), digestRest(p, len(c.sequence), int(c.size.BlockSize))
		k.detached = true
		// Scratch memory is often larger than this prompt needs, and other requests can use it.
		c.localMem, c.sequenceMem = slices.Clone(c.local), slices.Clone(c.sequence)
		c.local, c.sequence = c.localMem, c.sequenceMem
		p.TokenIDs, p.MM = nil, nil
		if p.Routing != nil {
			*p.Routing = Routing{}
		}
		p.Routing = nil
	}
	req.Text.ReleaseText()
	return nil
}

// readPrompt reads the prompt for the workers of a scope, unless the request has waited and
// only the hashes are left.
func (c *selection) readPrompt(snap *catalog.Snapshot) error {
	if k := c.wait.kept; k == nil || !k.detached {
		return c.read(&c.request.Prompt, snap)
	} else if c.request.Prompt.layout(snap) != k.layout {
		return errPromptGone
	}
	return nil
}

// identity is identify for a request that may have waited.
func (c *selection) identity(sequence []uint64) promptIdentity {
	if k := c.wait.kept; k != nil && k.detached {
		return promptIdentity{sequence: sequence, tokens: c.size.Tokens, rest: k.rest, hasRest: true}
	}
	return c.identify(&c.request.Prompt, sequence)
}

// releaseKept releases the memory reserved for waiting.
func (c *selection) releaseKept() {
	if k := c.wait.kept; k != nil {
		c.api.config.Waiting.Release(k.bytes)
		k.bytes = 0
	}
}
