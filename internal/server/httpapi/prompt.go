package httpapi

import (
	"errors"
	"fmt"
	"strings"

	"github.com/select-service/select-service/internal/codec/bodyscan"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/selector"
)

// promptBody points to the members that all bodies about a prompt have.
type promptBody struct {
	scope    *catalog.Scope
	prompt   *selection.Prompt
	override *selector.Override
	routing  *selection.Routing // memory for Prompt.Routing, kept while the prompt has none
}

// reset empties everything and sets the defaults, but keeps the memory of slices.
func (b promptBody) reset() {
	p, r := *b.prompt, *b.routing
	clear(p.MM) // keep the list, drop the blocks' own slices
	clear(r.MM)
	*b.scope = catalog.Scope{Model: catalog.DefaultName, Tenant: catalog.DefaultName}
	*b.override = selector.Override{}
	*b.routing = selection.Routing{TokenIDs: r.TokenIDs[:0], MM: r.MM[:0]}
	*b.prompt = selection.Prompt{
		TokenIDs:       p.TokenIDs[:0],
		MM:             p.MM[:0],
		BlockHashes:    p.BlockHashes[:0],
		SequenceHashes: p.SequenceHashes[:0],
	}
}

// size returns the bytes of memory that reset keeps.
func (b promptBody) size() int {
	p, r := b.prompt, b.routing
	return 4*(cap(p.TokenIDs)+cap(r.TokenIDs)) +
		8*(cap(p.BlockHashes)+cap(p.SequenceHashes)) +
		24*(cap(p.MM)+cap(r.MM))
}

// promptFields are the members of a body about a prompt.
func promptFields[T any](d dialect, of func(*T) promptBody) []bodyscan.Field[T] {
	// unlessNull reads members whose null means the same as their absence.
	unlessNull := func(read func(*bodyscan.Scanner, promptBody)) func(*bodyscan.Scanner, *T) {
		return func(s *bodyscan.Scanner, t *T) {
			if !s.Null() {
				read(s, of(t))
			}
		}
	}
	return append(scopeFields(d, func(t *T) *catalog.Scope { return of(t).scope }), []bodyscan.Field[T]{
		{Name: "token_ids", Read: unlessNull(readTokenIDs), Late: true},
		{Name: "mm_routing_info", Read: unlessNull(readRouting)},
		{Name: "block_mm_infos", Read: unlessNull(func(s *bodyscan.Scanner, q promptBody) {
			q.prompt.MM = appendBlockMM(s, q.prompt.MM)
		})},
		{Name: "block_hashes", Read: unlessNull(readBlockHashes)},
		{Name: "sequence_hashes", Read: unlessNull(readSequenceHashes)},
		{Name: "isl_tokens", Read: unlessNull(func(s *bodyscan.Scanner, q promptBody) {
			q.prompt.ISLTokens, q.prompt.HasISLTokens = readISLTokens(s), true
		})},
		{Name: "lora_name", Read: unlessNull(func(s *bodyscan.Scanner, q promptBody) { q.prompt.LoRA = readText(s) })},
		{Name: "cache_salt", Read: unlessNull(func(s *bodyscan.Scanner, q promptBody) { q.prompt.CacheSalt = readText(s) })},
		{Name: "is_eagle", Read: unlessNull(func(s *bodyscan.Scanner, q promptBody) {
			eagle := s.Bool()
			q.prompt.Eagle = &eagle
		})},
		{Name: "router_config_override", Read: unlessNull(d.readOverride)},
	}...)
}

// tokenScope is what prompts must have in common to be known from each other.
type tokenScope struct {
	scope catalog.Scope
	salt  string
}

func readTokenIDs(s *bodyscan.Scanner, q promptBody) {
	q.prompt.TokenIDs = bodyscan.AppendUint32sUnder(s, q.prompt.TokenIDs, tokenScope{*q.scope, q.prompt.CacheSalt})
	q.prompt.HasTokenIDs = true
}

func readBlockHashes(s *bodyscan.Scanner, q promptBody) {
	q.prompt.BlockHashes, q.prompt.HasBlockHashes = s.AppendHash64s(q.prompt.BlockHashes), true
}

func readSequenceHashes(s *bodyscan.Scanner, q promptBody) {
	q.prompt.SequenceHashes, q.prompt.HasSequenceHashes = s.AppendHash64s(q.prompt.SequenceHashes), true
}

func readRouting(s *bodyscan.Scanner, q promptBody) {
	routingShape.Read(s, q.routing)
	q.prompt.Routing = q.routing
}

// routingShape is mm_routing_info: the expanded tokens of a multimodal prompt.
var routingShape = bodyscan.NewObject(
	bodyscan.Field[selection.Routing]{Name: "routing_token_ids", Required: true, Read: func(s *bodyscan.Scanner, r *selection.Routing) {
		r.TokenIDs = s.AppendUint32s(r.TokenIDs)
	}},
	bodyscan.Field[selection.Routing]{Name: "block_mm_infos", Read: func(s *bodyscan.Scanner, r *selection.Routing) {
		r.MM = appendBlockMM(s, r.MM)
	}},
)

// appendBlockMM reads block_mm_infos: per block null or its multimodal objects.
func appendBlockMM(s *bodyscan.Scanner, mm [][]uint64) [][]uint64 {
	return bodyscan.AppendArray(s, mm, func(s *bodyscan.Scanner) (objects []uint64) {
		if !s.Null() {
			blockMMShape.Read(s, &objects)
		}
		return objects
	})
}

// blockMMShape fills the hashes of a block's multimodal objects.
var blockMMShape = bodyscan.NewObject(
	bodyscan.Field[[]uint64]{Name: "mm_objects", Required: true, Read: func(s *bodyscan.Scanner, hashes *[]uint64) {
		for range s.Array() {
			var hash uint64
			mmObjectShape.Read(s, &hash)
			*hashes = append(*hashes, hash)
		}
	}},
)

// mmObjectShape describes a multimodal object; only its hash is used. Its position in the block
// does not change the block's hash, but must be given.
var mmObjectShape = bodyscan.NewObject(
	bodyscan.Field[uint64]{Name: "mm_hash", Required: true, Read: func(s *bodyscan.Scanner, hash *uint64) { *hash = s.Uint64() }},
	bodyscan.Field[uint64]{Name: "offsets", Required: true, Read: func(s *bodyscan.Scanner, _ *uint64) {
		for range s.Array() {
			readPair(s)
		}
	}},
)

func readPair(s *bodyscan.Scanner) {
	n := 0
	for range s.Array() {
		s.Uint64()
		n++
	}
	if n != 2 {
		s.Fail("invalid length, expected a pair of offsets")
	}
}

// overrideShape is router_config_override.
var overrideShape = bodyscan.NewObject(
	overrideFloat("overlap_score_credit", func(o *selector.Override) **float64 { return &o.OverlapCredit }),
	overrideFloat("prefill_load_scale", func(o *selector.Override) **float64 { return &o.PrefillScale }),
	overrideFloat("overlap_score_weight", func(o *selector.Override) **float64 { return &o.OverlapWeight }),
	overrideFloat("router_temperature", func(o *selector.Override) **float64 { return &o.Temperature }),
	overrideFloat("shared_cache_multiplier", func(o *selector.Override) **float64 { return &o.SharedCacheMultiplier }),
	overrideBool("track_prefill_tokens", func(o *selector.Override) **bool { return &o.TrackPrefill }),
	overrideBool("assume_kv_reuse", func(o *selector.Override) **bool { return &o.AssumeKVReuse }),
)

func overrideFloat(name string, of func(*selector.Override) **float64) bodyscan.Field[selector.Override] {
	return bodyscan.Field[selector.Override]{Name: name, Read: bodyscan.Optional(of, (*bodyscan.Scanner).Float64)}
}

func overrideBool(name string, of func(*selector.Override) **bool) bodyscan.Field[selector.Override] {
	return bodyscan.Field[selector.Override]{Name: name, Read: bodyscan.Optional(of, (*bodyscan.Scanner).Bool)}
}

// readOverride also checks ranges: in the contract a value out of range is a body of the wrong
// shape.
func (d dialect) readOverride(s *bodyscan.Scanner, q promptBody) {
	overrideShape.Read(s, q.override)
	if s.Err() != nil {
		return
	}
	_, err := selector.DefaultWeights().With(*q.override)
	if credit := q.override.OverlapCredit; d == dialect13 && credit != nil && *credit > selector.MaxCredit13 {
		err = errors.Join(err, fmt.Errorf("%w: overlap_score_credit: %w", selector.ErrOverride, selector.CheckWeight(*credit, selector.MaxCredit13)))
	}
	if err != nil {
		s.Fail(strings.ReplaceAll(err.Error(), "\n", "; "))
	}
}
