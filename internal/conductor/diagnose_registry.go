package conductor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/select-service/select-service/internal/selection/diagnose"
	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/kvevents"
)

// maxConfirmed bounds the publishers whose hashes a query examines.
const maxConfirmed = 256

// diagnoser makes the diagnosis of one query. No lock is held all the time, so the answer may
// reflect a part of concurrent changes.
type diagnoser struct {
	diagnose.Diagnosis
	registry         *Registry
	query            *Query
	publishers       []*Publisher // the publishers of the identity that the query asks about
	matched          int          // leading blocks that any owner holds under the query's identity
	unqueryable      bool         // some other identity cannot be named by a query
	matchesElsewhere bool         // block 0 is held under another identity of the tenant and model
	instances        []string     // some of the instances registered for the identity
}

// diagnose is API.Diagnose without what the selection service and the streams know.
func (r *Registry) diagnose(q *Query, maxBlocks int) *diagnose.Diagnosis {
	c := &diagnoser{registry: r, query: q}
	c.Tenant, c.Model, c.LoRA, c.Salt, c.BlockSize = q.Tenant, q.Model, q.LoRA, q.Salt, q.BlockSize
	r.noteKeys(q.Identity)
	c.confirmHashes()
	ns, e := c.match(maxBlocks)
	for ns != nil && e == nil { // the namespace has been replaced meanwhile
		ns, e = c.match(maxBlocks)
	}
	if e != nil {
		c.Examine(e)
	}
	c.find(ns)
	for _, sp := range r.spacesOf(q.Identity) {
		c.FindKeys(sp.index)
	}
	c.lookElsewhere(ns)
	if e != nil {
		c.findFirst(ns, e)
	}
	if c.unqueryable {
		c.Find("events state a cache salt beside another one of their registration: no query finds blocks under both")
	}
	return &c.Diagnosis
}

// hashes returns the prompt's hashes for a space of that block size and seed.
func (q *Query) hashes(blockSize uint32, seed uint64) (local, rolling []uint64) {
	if q.ByHash {
		return nil, q.Hashes
	}
	local = hashing.Layout{BlockSize: int(blockSize)}.AppendLocal(nil, q.Tokens, seed, nil)
	return local, hashing.AppendSequenceSeed(nil, local, seed)
}

// chain returns rolling hashes folded with the namespace's seed, as its space has them.
func (ns *namespace) chain(rolling []uint64) []uint64 {
	chain := make([]uint64, len(rolling))
	for i, h := range rolling {
		chain[i] = h ^ ns.seed
	}
	return chain
}

// match follows the prompt in its namespace. ns is nil if the identity is not in use; e is nil
// if the namespace is no longer in use.
func (d *diagnoser) match(maxBlocks int) (ns *namespace, e *diagnose.Examination) {
	r := d.registry
	d.HashSeed = hashing.Seed
	if ns = r.lookup(d.query.Identity); ns != nil {
		d.HashSeed = ns.space.key.HashSeed
	}
	local, rolling := d.query.hashes(d.BlockSize, d.HashSeed)
	d.Show(local, rolling, maxBlocks)
	if ns == nil {
		return nil, nil
	}
	e = &diagnose.Examination{Space: ns.space.index, Chain: ns.chain(rolling), Local: local, Seed: ns.seed}
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.namespaces[ns.key] != ns {
		return ns, nil
	}
	e.Subjects = ns.subjects(d.query.Instance)
	e.Follow(len(d.Blocks))
	d.matched = e.Matched()
	d.Registered = len(ns.publishers) > 0
	for _, p := range ns.publishers {
		if d.query.Instance == "" || p.Instance == d.query.Instance {
			d.publishers = append(d.publishers, p)
		}
		if !slices.Contains(d.instances, p.Instance) && len(d.instances) <= maxNamed {
			d.instances = append(d.instances, p.Instance)
		}
	}
	return ns, e
}

// confirmHashes determines the source of the hashes of the identity's publishers, if nothing
// was known when they came: a prompt's tokens can confirm them too.
func (d *diagnoser) confirmHashes() {
	r := d.registry
	r.mu.RLock()
	ns := r.namespaces[nsKey{Identity: d.query.Identity}]
	var publishers []*Publisher
	if ns != nil {
		publishers = slices.Clone(ns.publishers[:min(len(ns.publishers), maxConfirmed)])
	}
	r.mu.RUnlock()
	if ns == nil {
		return
	}
	var known []uint64
	if !d.query.ByHash {
		q := *d.query
		q.Tokens = q.Tokens[:min(uint64(len(q.Tokens)), uint64(d.BlockSize))]
		_, known = q.hashes(d.BlockSize, ns.space.key.HashSeed)
	}
	for _, p := range publishers {
		p.confirmHashes(known...)
	}
}

// subjects lists the owners in a namespace's space; the publishers registered for the namespace
// are marked as shown. The caller holds Registry.mu.
func (ns *namespace) subjects(instance string) []diagnose.Subject {
	byOwner := make(map[diagnose.CacheOwner]*diagnose.Subject)
	put := func(id diagnose.CacheOwner, p *Publisher) *diagnose.Subject {
		s := byOwner[id]
		if s == nil {
			s = &diagnose.Subject{CacheOwner: id}
			byOwner[id] = s
		}
		s.Hashes = max(s.Hashes, p.hashSource()) // the worst of several
		s.Shown = s.Shown || p.namespace == ns
		return s
	}
	present := make(map[*Publisher]bool)
	for _, o := range ns.space.owners() {
		if p := o.publisher; instance == "" || p.Instance == instance {
			s := put(diagnose.CacheOwner{Instance: p.Instance, Rank: o.rank, Backend: o.backend}, p)
			s.Media = append(s.Media, o.mediumSlots...)
			present[p] = present[p] || o.rank == p.Rank
		}
	}
	for _, p := range ns.publishers { // publishers that have announced nothing yet
		if (instance == "" || p.Instance == instance) && !present[p] {
			put(diagnose.CacheOwner{Instance: p.Instance, Rank: p.Rank}, p)
		}
	}
	return ns.space.ordered(byOwner)
}

// ordered sorts subjects, and the media of each, into the order of answers.
func (sp *space) ordered(byOwner map[diagnose.CacheOwner]*diagnose.Subject) []diagnose.Subject {
	subjects := make([]diagnose.Subject, 0, len(byOwner))
	for _, s := range byOwner {
		slices.SortFunc(s.Media, func(a, b diagnose.MediumSlot) int {
			return cmp.Compare(slices.Index(sp.shown, a.Medium), slices.Index(sp.shown, b.Medium))
		})
		subjects = append(subjects, *s)
	}
	slices.SortFunc(subjects, func(a, b diagnose.Subject) int { return a.Compare(b.CacheOwner) })
	return subjects
}

// instances lists the instances in a space, each with all that it has. The caller holds
// Registry.mu.
func (sp *space) instances(instance string) []diagnose.Subject {
	byOwner := make(map[diagnose.CacheOwner]*diagnose.Subject)
	for _, o := range sp.owners() {
		id := diagnose.CacheOwner{Instance: o.publisher.Instance}
		if instance != "" && instance != id.Instance {
			continue
		}
		if byOwner[id] == nil {
			byOwner[id] = &diagnose.Subject{CacheOwner: id}
		}
		byOwner[id].Media = append(byOwner[id].Media, o.mediumSlots...)
	}
	return sp.ordered(byOwner)
}

// find adds findings about the prompt, the identity and its publishers.
func (d *diagnoser) find(ns *namespace) {
	d.FindShort(d.query.ByHash, len(d.query.Tokens), "")
	if ns == nil {
		d.Find("nobody is registered for this identity and no event has named it: no blocks indexed for this identity")
		return
	}
	if !ns.space.index.HasSeed(ns.seed) {
		d.Find("no blocks indexed for this identity")
	}
	if !d.Registered {
		d.Find("nobody is registered for this identity: its blocks come from events alone")
	}
	d.findInstance()
	for _, p := range d.publishers {
		if len(d.Findings) > diagnose.MaxFindings {
			break
		}
		d.findPublisher(p)
	}
	if d.query.ByHash {
		d.findHashes(ns)
	}
}

// findInstance adds a finding about who is registered for the identity, if the instance
// asked about is not.
func (d *diagnoser) findInstance() {
	if !d.Registered || len(d.publishers) > 0 {
		return
	}
	names := make([]string, 0, len(d.instances))
	for _, name := range d.instances[:min(len(d.instances), maxNamed)] {
		names = append(names, fmt.Sprintf("%q", name))
	}
	slices.Sort(names)
	if len(d.instances) > maxNamed {
		names = append(names, "and others")
	}
	d.Find(fmt.Sprintf("instance %q is not registered for this identity; registered are: %s", d.query.Instance, strings.Join(names, ", ")))
}

// findFirst adds a finding if no owner has, or had, the first block although other blocks are
// announced for the identity.
func (d *diagnoser) findFirst(ns *namespace, e *diagnose.Examination) {
	if d.NumBlocks == 0 || d.matched > 0 || d.matchesElsewhere || !ns.space.index.HasSeed(ns.seed) {
		return
	}
	if e.Explains(0) {
		return
	}
	switch {
	case d.query.ByHash:
		d.Find("block 0 is held by nobody under any LoRA or salt of this tenant, model and block size: unless nobody has cached this prompt, " +
			"the hashes are not those of what is announced (other tokens, another hash seed, an engine's own names)")
	case slices.ContainsFunc(e.Subjects, func(s diagnose.Subject) bool {
		return s.Hashes != diagnose.HashesNone && s.Hashes != diagnose.HashesUnverified
	}):
		d.Find("block 0 is held by nobody under any LoRA, salt or block size of this tenant and model: unless nobody has cached this prompt, " +
			"the tokens differ from those that engines have announced (tokenizer, chat template, a token in front), or the hash seed does")
	}
}

// findHashes adds findings about the hashes of the query.
func (d *diagnoser) findHashes(ns *namespace) {
	if d.HashSeed != hashing.Seed {
		d.Find(fmt.Sprintf("the blocks of this identity are hashed with seed %d: hashes made with another seed match nothing", d.HashSeed))
	}
	var m indexer.Match
	ns.space.index.Match(ns.chain(hashing.AppendSequenceSeed(nil, d.query.Hashes, d.HashSeed)), &m)
	d.FindForm(diagnose.RollingHashes, diagnose.LocalHashes, d.matched, m.Blocks())
}

// maxOthers bounds the other identities that one sentence names.
const maxOthers = 4

// findPublisher adds findings about a publisher's events and hashes.
func (d *diagnoser) findPublisher(p *Publisher) {
	who := diagnose.CacheOwner{Instance: p.Instance, Rank: p.Rank}
	if n := p.counts[undecodable].Load(); n > 0 {
		d.Find(fmt.Sprintf("%s: %s could not be read: not KV events, or in a form that is not known", who, diagnose.Count(n, "message")))
	}
	source := p.hashSource()
	if source == diagnose.HashesNone {
		d.findNothing(p, who)
	} else {
		if text := p.unused.describe(&p.Registration, false); text != "" {
			d.Find(fmt.Sprintf("%s: %s", who, text))
		}
		if others := p.statedIdentities(); len(others) > 0 {
			d.Find(fmt.Sprintf("%s: none of its events is for the registered identity: they name %s", who, strings.Join(others, "; ")))
		}
	}
	switch source {
	case diagnose.HashesUnverified:
		if slices.ContainsFunc(d.Ranks, func(r diagnose.Rank) bool { return r.Instance == p.Instance && r.Matched > 0 }) {
			break // they match
		}
		d.Find(fmt.Sprintf("%s: hashes come without tokens and none is confirmed by tokens: they match only if they are XXH3-64 with seed %d", who, p.HashSeed))
	case diagnose.HashesOwn:
		d.Find(fmt.Sprintf("%s: hashes are the engine's own, not XXH3-64 with seed %d: what comes without tokens matches only where the same block has come with tokens", who, p.HashSeed))
	}
	if p.stale.Load() > 0 {
		d.Find(fmt.Sprintf("%s: events are missing since the last clear (%d so far): some blocks may be missing, others long gone", who, p.counts[missed].Load()))
	}
}

// findNothing adds a finding about why none of a publisher's blocks was used.
func (d *diagnoser) findNothing(p *Publisher, who diagnose.CacheOwner) {
	text := p.unused.describe(&p.Registration, true)
	named := p.counts[unresolved].Load()
	if text != "" {
		d.Find(fmt.Sprintf("%s: %s", who, text))
	}
	if named > 0 {
		d.Find(fmt.Sprintf("%s: %s came without tokens, under names that have never come with tokens: "+
			"the stream began too late or lost events", who, diagnose.Count(named, "block")))
	}
	if text == "" && named == 0 && p.counts[undecodable].Load() == 0 {
		d.Find(fmt.Sprintf("%s: no blocks have been announced yet on %s", who, p.Endpoint))
	}
}

// statedIdentities lists how the identities of a publisher's events differ from its
// registration, if all do. Salts of events are not shown.
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

// differenceOf returns how an identity differs from the registered one, in words.
func (r *Registration) differenceOf(key *nsKey) string {
	var parts []string
	if key.Tenant != r.Tenant {
		parts = append(parts, fmt.Sprintf("tenant %q", key.Tenant))
	}
	if key.Model != r.Model {
		parts = append(parts, fmt.Sprintf("model %q", key.Model))
	}
	if key.BlockSize != r.BlockSize {
		parts = append(parts, fmt.Sprintf("block_size %d", key.BlockSize))
	}
	if key.LoRA != r.LoRA {
		parts = append(parts, fmt.Sprintf("lora_name %q", key.LoRA))
	}
	if key.Salt != r.Salt || key.innerSalt != "" {
		parts = append(parts, "another cache_salt, which is not shown")
	}
	return strings.Join(parts, " and ")
}

// first returns the first n texts in sorted order, and "and others" if there are more.
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

// describe returns which events were not used and why, "" for none. all: include ordinary reasons.
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
	return fmt.Sprintf("%s %s not used: %s", diagnose.Count(sum, "event"), verb, strings.Join(parts, ", "))
}
