package conductor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/select-service/select-service/internal/selection/diagnose"
	"github.com/select-service/select-service/pkg/indexer"
)

// probesAtOnce is how many identities are probed while the registry's lock is held once:
// about ten microseconds.
const probesAtOnce = 64

// lookElsewhere tries the prompt under the other identities of the tenant and model. There may
// be one per customer, so it follows only those that match the prompt's first blocks best.
func (d *diagnoser) lookElsewhere(own *namespace) {
	r := d.registry
	r.mu.RLock()
	all := r.namespacesOf(d.Tenant, d.Model)
	var registered []*namespace
	for _, ns := range all {
		if len(ns.publishers) > 0 {
			registered = append(registered, ns)
		}
	}
	r.mu.RUnlock()
	slices.SortFunc(all, (*namespace).compare)
	slices.SortFunc(registered, (*namespace).compare)
	salts := make(map[string]bool)
	for _, ns := range registered {
		salts[ns.key.Salt] = true
	}
	d.findRegistered(registered)

	found := d.probe(slices.DeleteFunc(all, func(ns *namespace) bool {
		return ns == own || d.query.ByHash && ns.key.BlockSize != d.BlockSize
	}))
	d.matchesElsewhere = len(found) > 0
	diagnose.LookElsewhere(&d.Diagnosis, found, func(ns *namespace) (diagnose.Elsewhere, bool) {
		e, ok := d.matchUnder(ns)
		if ok && ns.key.innerSalt != "" {
			d.unqueryable = true
		}
		if key := &ns.key; key.innerSalt == "" && (key.Salt == "" || key.Salt == d.Salt || salts[key.Salt]) {
			e.Salt = &key.Salt
		}
		return e, ok
	})
}

// maxNamed bounds the identities that one sentence names.
const maxNamed = 8

// findRegistered adds findings about registrations of other identities than the query's.
func (d *diagnoser) findRegistered(registered []*namespace) {
	if d.Registered {
		return
	}
	var names []string
	for _, ns := range registered {
		if len(names) == maxNamed {
			names = append(names, "and others")
			break
		}
		names = append(names, fmt.Sprintf("block_size %d lora_name %q cache_salt %q", ns.key.BlockSize, ns.key.LoRA, ns.key.Salt))
	}
	if len(names) == 0 {
		d.Find("nobody is registered for this tenant and model" + d.nearbyRegistrations())
		return
	}
	d.Find("registered for this tenant and model: " + strings.Join(names, "; "))
}

// nearbyRegistrations names registrations that share either the tenant or the model with the
// query.
func (d *diagnoser) nearbyRegistrations() string {
	if d.query.OwnScopeOnly {
		return ""
	}
	r := d.registry
	tenants, models := make(map[string]bool), make(map[string]bool)
	r.mu.RLock()
	for _, p := range r.publishers {
		switch {
		case p.Model == d.Model:
			tenants[fmt.Sprintf("tenant %q model %q", p.Tenant, p.Model)] = true
		case p.Tenant == d.Tenant:
			models[fmt.Sprintf("tenant %q model %q", p.Tenant, p.Model)] = true
		}
	}
	r.mu.RUnlock()
	names := first(tenants, maxOthers)
	if len(names) < maxOthers {
		names = append(names, first(models, maxOthers-len(names))...)
	}
	if len(names) == 0 {
		return ""
	}
	return "; registered are: " + strings.Join(names, "; ")
}

// probe returns the identities that hold the first blocks.
func (d *diagnoser) probe(all []*namespace) []diagnose.Probe[*namespace] {
	var found []diagnose.Probe[*namespace]
	var m indexer.Match
	var chain []uint64
	hashes := d.headBySpace()
	r := d.registry
	for part := range slices.Chunk(all, probesAtOnce) {
		for _, ns := range part {
			hashes(ns.space) // computed outside the lock
		}
		r.mu.RLock()
		for _, ns := range part {
			if r.namespaces[ns.key] != ns {
				continue
			}
			chain = chain[:0]
			for _, h := range hashes(ns.space) {
				chain = append(chain, h^ns.seed)
			}
			if ns.space.index.Match(chain, &m); m.Blocks() > 0 {
				found = append(found, diagnose.Probe[*namespace]{Identity: ns, Tokens: uint64(m.Blocks()) * uint64(ns.key.BlockSize)})
			}
		}
		r.mu.RUnlock()
	}
	return found
}

// headBySpace returns a function that returns the rolling hashes of the prompt's first blocks
// in a space, computed once per space.
func (d *diagnoser) headBySpace() func(*space) []uint64 {
	type recipe struct {
		blockSize uint32
		seed      uint64
	}
	known := make(map[recipe][]uint64)
	return func(sp *space) []uint64 {
		at := recipe{sp.key.BlockSize, sp.key.HashSeed}
		rolling, ok := known[at]
		if !ok {
			head := *d.query
			head.Tokens = head.Tokens[:min(uint64(len(head.Tokens)), diagnose.ProbeBlocks*uint64(at.blockSize))]
			head.Hashes = head.Hashes[:min(len(head.Hashes), diagnose.ProbeBlocks)]
			_, rolling = head.hashes(at.blockSize, at.seed)
			known[at] = rolling
		}
		return rolling
	}
}

// matchUnder follows the prompt under another identity. ok is false if the identity is no
// longer in use, or no active publisher holds anything there.
func (d *diagnoser) matchUnder(ns *namespace) (out diagnose.Elsewhere, ok bool) {
	_, rolling := d.query.hashes(ns.key.BlockSize, ns.space.key.HashSeed)
	e := diagnose.Examination{Space: ns.space.index, Chain: ns.chain(rolling)}
	r := d.registry
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.namespaces[ns.key] != ns {
		return out, false
	}
	e.Subjects = ns.space.instances(d.query.Instance)
	e.Follow(0)
	out = diagnose.Elsewhere{LoRA: &ns.key.LoRA, BlockSize: ns.key.BlockSize, Registered: len(ns.publishers) > 0}
	out.Matched, out.Instances = e.Best()
	return out, out.Matched > 0
}
