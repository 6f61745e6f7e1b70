package conductor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/select-service/select-service/pkg/kvevents"
)

// maxOthers bounds the other identities that one sentence names.
const maxOthers = 4

// findPublisher says what a publisher's events and hashes suffer from.
func (c *diagnoser) findPublisher(p *Publisher) {
	who := CacheOwner{Instance: p.Instance, Rank: p.Rank}
	if n := p.counts[undecodable].Load(); n > 0 {
		c.Find(fmt.Sprintf("%s: %s could not be read: not KV events, or in a form that is not known", who, count(n, "message")))
	}
	source := p.hashSource()
	if source == HashesNone {
		c.findNothing(p, who)
	} else {
		if text := p.unused.describe(&p.Registration, false); text != "" {
			c.Find(fmt.Sprintf("%s: %s", who, text))
		}
		if others := p.statedIdentities(); len(others) > 0 {
			c.Find(fmt.Sprintf("%s: none of its events is for the registered identity: they name %s", who, strings.Join(others, "; ")))
		}
	}
	switch source {
	case HashesUnverified:
		if slices.ContainsFunc(c.Ranks, func(r DiagnosedRank) bool { return r.Instance == p.Instance && r.Matched > 0 }) {
			break // they match
		}
		c.Find(fmt.Sprintf("%s: hashes come without tokens and none is confirmed by tokens: they match only if they are XXH3-64 with seed %d", who, p.HashSeed))
	case HashesOwn:
		c.Find(fmt.Sprintf("%s: hashes are the engine's own, not XXH3-64 with seed %d: what comes without tokens matches only where the same block has come with tokens", who, p.HashSeed))
	}
	if p.stale.Load() > 0 {
		c.Find(fmt.Sprintf("%s: events are missing since the last clear (%d so far): some blocks may be missing, others long gone", who, p.counts[missed].Load()))
	}
}

// findNothing says why a publisher has announced no block that was used.
func (c *diagnoser) findNothing(p *Publisher, who CacheOwner) {
	text := p.unused.describe(&p.Registration, true)
	named := p.counts[unresolved].Load()
	if text != "" {
		c.Find(fmt.Sprintf("%s: %s", who, text))
	}
	if named > 0 {
		c.Find(fmt.Sprintf("%s: %s came without tokens, under names that have never come with tokens: "+
			"the stream began too late or lost events", who, count(named, "block")))
	}
	if text == "" && named == 0 && p.counts[undecodable].Load() == 0 {
		c.Find(fmt.Sprintf("%s: no blocks have been announced yet on %s", who, p.Endpoint))
	}
}

// statedIdentities lists in what the identities of a publisher's events differ
// from its registration, if all do. Salts of events are not shown.
func (p *Publisher) statedIdentities() []string {
	r := p.registry
	r.mu.RLock()
	defer r.mu.RUnlock()
	differences := make(map[string]bool)
	for key, m := range p.members {
		if m.ns == p.namespace {
			return nil
		}
		differences[p.differenceOf(&key.nsKey)] = true
	}
	return first(differences, maxOthers)
}

// differenceOf says in what an identity differs from the registered one.
func (g *Registration) differenceOf(key *nsKey) string {
	var parts []string
	if key.Tenant != g.Tenant {
		parts = append(parts, fmt.Sprintf("tenant %q", key.Tenant))
	}
	if key.Model != g.Model {
		parts = append(parts, fmt.Sprintf("model %q", key.Model))
	}
	if key.BlockSize != g.BlockSize {
		parts = append(parts, fmt.Sprintf("block_size %d", key.BlockSize))
	}
	if key.LoRA != g.LoRA {
		parts = append(parts, fmt.Sprintf("lora_name %q", key.LoRA))
	}
	if key.Salt != g.Salt || key.innerSalt != "" {
		parts = append(parts, "another cache_salt, which is not shown")
	}
	return strings.Join(parts, " and ")
}

// first returns the first n texts in their order, and says if there are more.
func first(texts map[string]bool, n int) []string {
	all := make([]string, 0, len(texts))
	for text := range texts {
		all = append(all, text)
	}
	slices.Sort(all)
	if len(all) > n {
		all = append(all[:n], "and others")
	}
	return all
}

// describe says what was not used and why, "" for nothing. all is to include what
// is ordinary.
func (u *unused) describe(reg *Registration, all bool) string {
	list := u.list()
	if !all {
		list = slices.DeleteFunc(list, func(e UnusedEvents) bool { return e.Reason.Ordinary() })
	}
	sum := uint64(0)
	for _, e := range list {
		sum += e.Events
	}
	if sum == 0 {
		return ""
	}
	parts := make([]string, len(list))
	for i, e := range list {
		if len(list) > 1 {
			parts[i] = fmt.Sprintf("%d ", e.Events)
		}
		parts[i] += e.Reason.String()
		switch e.Reason {
		case kvevents.BlockSizeMismatch:
			parts[i] += fmt.Sprintf(" (events of block_size %d, %d is registered)", u.blockSize.Load(), reg.BlockSize)
		case kvevents.UnknownRank:
			parts[i] += fmt.Sprintf(" (events of rank %d, %d is registered)", u.rank.Load(), reg.Rank)
		}
	}
	verb := "were"
	if sum == 1 {
		verb = "was"
	}
	return fmt.Sprintf("%s %s not used: %s", count(sum, "event"), verb, strings.Join(parts, ", "))
}
