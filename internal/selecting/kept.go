package selecting

import (
	"slices"

	"github.com/select-service/select-service/internal/admission"
	"github.com/select-service/select-service/internal/contract"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/hashing"
)

// A request that waits keeps the hashes of its prompt, and neither its text nor, if
// they are many, its tokens.

// kept is what a selection keeps while it waits.
type kept struct {
	bytes int64 // taken from the account of waiting requests
	// detached: the prompt came as tokens, and these are gone. layout is what they
	// were hashed by, rest the digest of those in no complete block.
	detached bool
	layout   hashing.Layout
	rest     uint64
}

// What a waiting request takes beside its hashes and lists, in bytes.
const (
	// keptOverhead is for its goroutine, its connection, the selection and maxKeptTokens.
	keptOverhead = 24 << 10
	// maxKeptTokens are kept, for the case that the block size changes meanwhile.
	maxKeptTokens = 2048
	// keptPerRank is for each rank that it looks at: an entry of the catalog, a
	// candidate with its cost, and the overlap on three tiers.
	keptPerRank = 160
)

// errPromptGone ends a request with a long prompt that waited while its scope was made
// anew with blocks of another size: its hashes say nothing about those.
var errPromptGone = &contract.Error{Kind: contract.Unavailable, Text: "the block size of the workers changed while the request waited"}

// keepHashes prepares a request that has been read to wait in a class. The error says
// that the waiting requests take all the memory that they may.
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
		// Scratch memory is often larger than this prompt, and others could use it.
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

// readPrompt reads the prompt for the workers of a scope, unless it has waited and
// only its hashes are left.
func (c *selection) readPrompt(snap *catalog.Snapshot) error {
	if k := c.wait.kept; k == nil || !k.detached {
		return c.read(&c.request.Prompt, snap)
	} else if c.request.Prompt.layout(snap) != k.layout {
		return errPromptGone
	}
	return nil
}

// identity is identify for a prompt that may have waited.
func (c *selection) identity(sequence []uint64) promptIdentity {
	if k := c.wait.kept; k != nil && k.detached {
		return promptIdentity{sequence: sequence, tokens: c.size.Tokens, rest: k.rest, hasRest: true}
	}
	return c.identify(&c.request.Prompt, sequence)
}

// releaseKept gives back what waiting took.
func (c *selection) releaseKept() {
	if k := c.wait.kept; k != nil {
		c.api.config.Waiting.Release(k.bytes)
		k.bytes = 0
	}
}
