package httpapi

import (
	"net/http"

	"github.com/select-service/select-service/internal/codec/bodyscan"
	"github.com/select-service/select-service/internal/selection/diagnose"
	"github.com/select-service/select-service/pkg/catalog"
)

// diagnoser explains why a prompt does not match on the selection service's
// workers. It must not keep the request after the call.
type diagnoser interface {
	// Diagnose looks at the first maxBlocks blocks of the prompt.
	Diagnose(req *diagnose.Request, maxBlocks int) (*diagnose.Diagnosis, error)
}

type diagnoseRoutes struct {
	svc diagnoser
	d   dialect
}

func (r diagnoseRoutes) diagnose(c request, b *diagnoseBody, out []byte) (int, []byte, error) {
	if !b.hasTokens && !b.hasHashes {
		return 0, nil, errNoPrompt
	}
	b.req.OwnScopeOnly = c.who.Scoped()
	b.req.ByHash = !b.hasTokens // as for a selection, tokens override hashes
	d, err := r.svc.Diagnose(&b.req, b.maxBlocks)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, r.d.appendDiagnosis(out, d), nil
}

var errNoPrompt = badRequest("token_ids or block_hashes is required")

// diagnoseBody is the body of /diagnose on the selection service.
type diagnoseBody struct {
	req                  diagnose.Request
	hasTokens, hasHashes bool
	maxBlocks            int
}

func newDiagnoseBody(d dialect) *body[diagnoseBody] {
	return newBody(newDiagnoseShape(d), resetDiagnose, func(b *diagnoseBody) int {
		return 4*cap(b.req.Tokens) + 8*cap(b.req.LocalHashes)
	}).perRank().permit(inScope(func(b *diagnoseBody) *catalog.Scope { return &b.req.Scope }))
}

func resetDiagnose(b *diagnoseBody) {
	*b = diagnoseBody{
		req: diagnose.Request{
			Scope:       catalog.Scope{Model: catalog.DefaultName, Tenant: catalog.DefaultName},
			Tokens:      b.req.Tokens[:0],
			LocalHashes: b.req.LocalHashes[:0],
		},
		maxBlocks: diagnose.DefaultBlocks,
	}
}

func newDiagnoseShape(d dialect) *bodyscan.Object[diagnoseBody] {
	return bodyscan.NewObject(append(scopeFields(d, func(b *diagnoseBody) *catalog.Scope { return &b.req.Scope }),
		bodyscan.Field[diagnoseBody]{Name: "token_ids", Read: func(s *bodyscan.Scanner, b *diagnoseBody) {
			if !s.Null() {
				b.req.Tokens, b.hasTokens = s.AppendUint32s(b.req.Tokens), true
			}
		}},
		bodyscan.Field[diagnoseBody]{Name: "block_hashes", Read: func(s *bodyscan.Scanner, b *diagnoseBody) {
			if !s.Null() {
				b.req.LocalHashes, b.hasHashes = s.AppendHash64s(b.req.LocalHashes), true
			}
		}},
		field("lora_name", func(b *diagnoseBody) *string { return &b.req.LoRA }, readText),
		field("cache_salt", func(b *diagnoseBody) *string { return &b.req.Salt }, readText),
		field("max_blocks", func(b *diagnoseBody) *int { return &b.maxBlocks }, readMaxBlocks),
	)...)
}

func readMaxBlocks(s *bodyscan.Scanner) int {
	return int(readRange(s, 1, diagnose.MaxBlocks))
}

func (d dialect) appendDiagnosis(out []byte, x *diagnose.Diagnosis) []byte {
	out = append(out, '{')
	out = appendStringField(out, "model", x.Model)
	out = appendStringField(out, d.tenantKey(), x.Tenant)
	out = appendUintField(out, "block_size", x.BlockSize)
	out = appendStringField(out, "lora_name", x.LoRA)
	out = appendStringField(out, "cache_salt", x.Salt)
	out = appendUintField(out, "hash_seed", x.HashSeed)
	out = appendBoolField(out, "registered", x.Registered)
	if x.KeysShown {
		out = appendBoolField(out, "keys_shown", true)
	}
	out = appendUintField(out, "num_blocks", uint64(x.NumBlocks))
	out = append(appendKey(out, "blocks"), '[')
	for i := range x.Blocks {
		if i > 0 {
			out = append(out, ',')
		}
		out = appendDiagnosedBlock(out, uint64(i), &x.Blocks[i])
	}
	out = append(out, ']')
	out = appendBoolField(out, "truncated", x.Truncated)
	out = appendList(appendKey(out, "ranks"), x.Ranks, appendDiagnosedRank)
	out = appendList(appendKey(out, "elsewhere"), x.Elsewhere, appendElsewhere)
	out = appendList(appendKey(out, "findings"), x.Findings, appendString)
	return append(out, '}')
}

func appendDiagnosedBlock(out []byte, index uint64, b *diagnose.Block) []byte {
	out = append(out, '{')
	out = appendUintField(out, "index", index)
	out = appendUintIf(out, "local_hash", b.Local, b.HasLocal)
	out = appendUintField(out, "seq_hash", b.Sequence)
	out = appendList(appendKey(out, "owners"), b.Owners, appendBlockOwner)
	return append(out, '}')
}

func appendBlockOwner(out []byte, o diagnose.BlockOwner) []byte {
	out = appendCacheOwner(append(out, '{'), o.CacheOwner)
	out = appendStringField(out, "medium", o.Medium)
	return append(out, '}')
}

func appendCacheOwner(out []byte, o diagnose.CacheOwner) []byte {
	out = appendStringField(out, "instance_id", o.Instance)
	out = appendUintField(out, "dp_rank", o.Rank)
	return appendStringField(out, "backend_id", o.Backend)
}

func appendDiagnosedRank(out []byte, r diagnose.Rank) []byte {
	out = appendCacheOwner(append(out, '{'), r.CacheOwner)
	out = appendUintField(out, "matched_blocks", uint64(r.Matched))
	if b := r.Break; b == nil {
		out = appendNull(out, "break")
	} else {
		out = append(appendKey(out, "break"), '{')
		out = appendUintField(out, "index", uint64(b.Index))
		out = appendStringField(out, "reason", b.Reason.String())
		out = appendList(appendKey(out, "media"), b.Media, appendString)
		out = append(out, '}')
	}
	out = appendStringField(out, "hashes", r.Hashes.String())
	return append(out, '}')
}

func appendElsewhere(out []byte, e diagnose.Elsewhere) []byte {
	out = append(out, '{')
	out = appendOptString(out, "lora_name", e.LoRA)
	out = appendOptString(out, "cache_salt", e.Salt)
	out = appendUintField(out, "block_size", e.BlockSize)
	out = appendBoolField(out, "registered", e.Registered)
	out = appendUintField(out, "matched_blocks", uint64(e.Matched))
	out = appendList(appendKey(out, "instances"), e.Instances, appendString)
	return append(out, '}')
}
