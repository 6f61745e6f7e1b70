package diagnose

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/kvevents"
)

// Request asks for the diagnosis of a prompt in a selection scope. Its slices are
// borrowed.
type Request struct {
	Scope  catalog.Scope
	Tokens []uint32
	// LocalHashes has the prompt's local hashes if ByHash; they include LoRA and salt.
	LocalHashes []uint64
	ByHash      bool
	LoRA, Salt  string
	// OwnScopeOnly: the caller must not see other models and tenants.
	OwnScopeOnly bool
}

// Selection is the part of the selection service that Scopes reads.
type Selection interface {
	// Closing reports whether the service is shutting down: it accepts no new work.
	Closing() bool
	// Scope returns the workers and the index of a scope.
	Scope(sc catalog.Scope) ScopeView
	// Unavailable returns why a scope cannot serve requests. It is never nil.
	Unavailable(sc catalog.Scope) error
}

// ScopeView is a scope of the selection service at one moment.
type ScopeView struct {
	// Snapshot has the scope's workers, nil if there are none.
	*catalog.Snapshot
	// Index has the blocks of the scope's ranks by the slots of Snapshot, nil if no worker is
	// attached. Events keep changing it.
	Index *indexer.Space
	Seeds SeedLookup // adapters and salts of the index's seeds
	// State.Gone becomes true when the scope has lost all workers. Blocks read from the index
	// while it was false belong to the ranks of Snapshot.
	State interface{ Gone() bool }
}

// SeedLookup returns the adapter and salt from which a block seed of an index is made.
type SeedLookup interface {
	// SeedName returns the adapter of a seed and whether there is a salt; ok is
	// false if no event has named them.
	SeedName(seed uint64) (lora string, salted, ok bool)
}

// Scopes diagnoses prompts on the selection service's workers. Its answer has the form
// of the Conductor's: an instance is a worker's decimal id, and the hash seed is that of the local
// hashes, which includes LoRA and salt.
type Scopes struct {
	selection Selection
	streams   *kvevents.Subscribers // of the workers; nil if KV events are off
}

// NewScopes returns a diagnoser. streams are those of the workers, nil if
// KV events are off.
func NewScopes(selection Selection, streams *kvevents.Subscribers) *Scopes {
	return &Scopes{selection: selection, streams: streams}
}

// scopeDiagnosis makes the diagnosis of one prompt in one scope.
type scopeDiagnosis struct {
	*Diagnosis
	req    *Request
	scope  ScopeView
	layout hashing.Layout
	local  []uint64
	probe  indexer.Match
}

// Diagnose returns which of the scope's ranks hold each block of a prompt, where each rank's
// chain breaks and why, and whether the prompt would match under another LoRA or salt. It shows
// at most maxBlocks blocks; 0: DefaultBlocks.
func (sd *Scopes) Diagnose(req *Request, maxBlocks int) (*Diagnosis, error) {
	scope := sd.selection.Scope(req.Scope)
	if scope.Index == nil || sd.selection.Closing() {
		return nil, sd.selection.Unavailable(req.Scope)
	}
	if req.LoRA != "" || req.Salt != "" {
		scope.Index.ShowKeys()
	}
	d := newScopeDiagnosis(req, scope)
	d.Show(d.local, hashing.AppendSequence(nil, d.local), maxBlocks)
	d.examine()
	d.findScope(sd.streams != nil)
	d.FindKeys(scope.Index)
	if sd.streams != nil && scope.Index.Stats().Unique == 0 {
		d.findUnused(sd.streams.Tally())
	}
	if req.ByHash {
		var local, rolling indexer.Match
		d.scope.Index.Match(d.local, &local)
		d.scope.Index.MatchSequence(d.local, &rolling)
		d.FindForm(LocalHashes, RollingHashes, local.Blocks(), rolling.Blocks())
	} else {
		d.lookElsewhere()
	}
	if sd.streams != nil {
		d.FindStreams(sd.streams.Streams(), d.owner)
	}
	return d.Diagnosis, nil
}

func newScopeDiagnosis(req *Request, scope ScopeView) *scopeDiagnosis {
	d := &scopeDiagnosis{
		Diagnosis: &Diagnosis{
			Tenant: req.Scope.Tenant, Model: req.Scope.Model, LoRA: req.LoRA, Salt: req.Salt, BlockSize: scope.BlockSize,
			HashSeed:   hashing.LocalSeed(req.LoRA, req.Salt),
			Registered: scope.NumRanks > 0,
		},
		req:    req,
		scope:  scope,
		layout: hashing.Layout{BlockSize: int(scope.BlockSize), Eagle: scope.Eagle},
	}
	if d.local = req.LocalHashes; !req.ByHash {
		d.local = d.layout.AppendLocal(nil, req.Tokens, d.HashSeed, nil)
	}
	return d
}

// examine follows the prompt for every rank of the scope.
func (d *scopeDiagnosis) examine() {
	subjects := make([]Subject, 0, len(d.scope.Known()))
	for _, e := range d.scope.Known() {
		subject := Subject{
			CacheOwner: CacheOwner{Instance: strconv.FormatUint(e.Worker.ID, 10), Rank: e.DP},
			Hashes:     HashesNone,
			Media:      NaturalMedia(e.Slot),
			Shown:      d.scope.IsCandidate(e),
		}
		if d.scope.Index.Held(e.Slot) != [indexer.NumTiers]int{} {
			subject.Hashes = HashesTokens
		}
		subjects = append(subjects, subject)
	}
	e := Examination{Space: d.scope.Index, Chain: d.local, Local: d.local, Subjects: subjects}
	e.Follow(len(d.Blocks))
	d.Examine(&e)
}

// owner returns a rank of the scope as an owner; ok is false if it is no candidate.
func (d *scopeDiagnosis) owner(rank catalog.Rank) (who CacheOwner, ok bool) {
	for _, e := range d.scope.Known() {
		if e.Rank == rank && d.scope.IsCandidate(e) {
			return CacheOwner{Instance: strconv.FormatUint(rank.Worker, 10), Rank: rank.DP}, true
		}
	}
	return who, false
}

// findScope adds findings about the scope as a whole.
func (d *scopeDiagnosis) findScope(kvEvents bool) {
	switch {
	case !kvEvents:
		d.Find("KV events are off: no blocks are indexed")
	case d.scope.Index.Stats().Unique == 0:
		d.Find("no blocks indexed for this model and tenant")
	case !d.req.ByHash && !d.scope.Index.HasSeed(d.HashSeed):
		d.Find("no blocks indexed for this lora_name and cache_salt")
	}
	needs := ""
	if d.layout.Eagle {
		needs = " and the token behind it"
	}
	d.FindShort(d.req.ByHash, len(d.req.Tokens), needs)
}

// findUnused adds findings about workers' events that were not used. They are not counted per
// scope.
func (d *scopeDiagnosis) findUnused(t kvevents.Tally) {
	if d.req.OwnScopeOnly {
		return
	}
	var parts []string
	for r, n := range t.ByReason() {
		if reason := kvevents.Reason(r); n > 0 && reason != kvevents.Applied {
			parts = append(parts, fmt.Sprintf("%d %s", n, reason))
		}
	}
	if len(parts) > 0 {
		d.Find("events that were not used, of the workers of all models and tenants: " + strings.Join(parts, ", "))
	}
}

// lookElsewhere tries the prompt under the other block seeds in use. There may be one per
// customer, so only those that match its first blocks are followed.
func (d *scopeDiagnosis) lookElsewhere() {
	if d.NumBlocks == 0 {
		return
	}
	head := d.req.Tokens[:min(len(d.req.Tokens), ProbeBlocks*d.layout.BlockSize+1)]
	var found []Probe[uint64]
	var chain []uint64
	seeds := d.scope.Index.Seeds(nil)
	slices.Sort(seeds)
	for _, seed := range seeds {
		if seed == d.HashSeed {
			continue
		}
		chain = d.layout.AppendLocal(chain[:0], head, seed, nil)
		if d.scope.Index.Match(chain, &d.probe); d.probe.Blocks() > 0 {
			found = append(found, Probe[uint64]{seed, uint64(d.probe.Blocks()) * uint64(d.BlockSize)})
		}
	}
	LookElsewhere(d.Diagnosis, found, func(seed uint64) (Elsewhere, bool) { return d.underSeed(seed), true })
}

// underSeed follows the prompt under another block seed.
func (d *scopeDiagnosis) underSeed(seed uint64) Elsewhere {
	e := Examination{
		Space:    d.scope.Index,
		Chain:    d.layout.AppendLocal(nil, d.req.Tokens, seed, nil),
		Subjects: d.workers(),
	}
	e.Follow(0)
	out := Elsewhere{BlockSize: d.BlockSize, Registered: d.Registered}
	out.Matched, out.Instances = e.Best()
	if lora, salted, ok := d.scope.Seeds.SeedName(seed); ok {
		out.LoRA = &lora
		if !salted {
			out.Salt = new(string)
		}
	}
	return out
}

// workers lists the scope's workers, each with all its ranks.
func (d *scopeDiagnosis) workers() []Subject {
	var all []Subject
	for i, e := range d.scope.Known() {
		if i == 0 || e.Rank.Worker != d.scope.Known()[i-1].Rank.Worker {
			id := strconv.FormatUint(e.Rank.Worker, 10)
			all = append(all, Subject{CacheOwner: CacheOwner{Instance: id}})
		}
		last := &all[len(all)-1]
		last.Media = append(last.Media, NaturalMedia(e.Slot)...)
	}
	return all
}
