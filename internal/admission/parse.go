package admission

import (
	"errors"
	"fmt"

	yaml "go.yaml.in/yaml/v3"
)

// ParsePolicy reads a policy file, the YAML of DYN_ROUTER_POLICY_CONFIG. The
// error lists every fault by line and key; unknown keys are faults.
func ParsePolicy(data []byte) (*PolicyFile, error) {
	doc, err := document(data)
	if err != nil {
		return nil, fmt.Errorf("read yaml: %w", err)
	}
	var r reader
	file := r.file(doc)
	if len(r.faults) > 0 {
		return nil, errors.Join(r.faults...)
	}
	return file, nil
}

// file reads the root profile, which may be left out, and those of the models.
func (r *reader) file(n *yaml.Node) *PolicyFile {
	file := &PolicyFile{models: map[string]*Policy{}}
	var root profile
	named := 0
	if n != nil {
		known := root.fields(r)
		known["models"] = func(n *yaml.Node, key string) {
			r.entries(n, key, func(name string, value *yaml.Node, key string) {
				named++
				if name == "" {
					r.fault(value, key, "the name of a model must not be empty")
				}
				p := profile{node: value, path: key}
				r.object(value, key, p.fields(r))
				file.models[name] = p.policy(r)
			})
		}
		r.object(n, "", known)
		root.node = n
	}
	if root.given > 0 {
		file.root = root.policy(r)
	} else if named == 0 && len(r.faults) == 0 {
		r.fault(n, "", "neither policy_classes nor models is given")
	}
	return file
}

// profile is one set of classes as the file has it.
type profile struct {
	node    *yaml.Node
	path    string
	given   int // how many of its keys
	family  string
	buckets []bucket
	entries []entry
}

type bucket struct {
	node  *yaml.Node
	key   string
	name  string
	least *uint64
}

// entry is one policy class with its place in the matrix of families and
// buckets; both are "" for an explicit class.
type entry struct {
	Class
	node           *yaml.Node
	key            string
	quantum        *uint64
	family, bucket string
}

func (p *profile) fields(r *reader) fields {
	note := func(read func(*yaml.Node, string)) func(*yaml.Node, string) {
		return func(n *yaml.Node, key string) {
			p.given++
			read(n, key)
		}
	}
	return fields{
		"default_policy_family": note(r.identifier(&p.family)),
		"uncached_isl_buckets": note(func(n *yaml.Node, key string) {
			r.list(n, key, func(n *yaml.Node, key string) {
				b := bucket{node: n, key: key}
				r.object(n, key, fields{"min_tokens": r.whole(&b.least, 0), "bucket": r.identifier(&b.name)})
				p.buckets = append(p.buckets, b)
			})
		}),
		"policy_classes": note(func(n *yaml.Node, key string) {
			r.list(n, key, func(n *yaml.Node, key string) {
				e := entry{node: n, key: key}
				r.object(n, key, e.fields(r))
				p.entries = append(p.entries, e)
			})
		}),
	}
}

func (e *entry) fields(r *reader) fields {
	return fields{
		"name":                                 r.identifier(&e.Name),
		"policy_family":                        r.identifier(&e.family),
		"cache_bucket":                         r.identifier(&e.bucket),
		"queue_policy":                         r.order(&e.Order),
		"quantum":                              r.whole(&e.quantum, 1),
		"prefill_busy_threshold":               r.whole(&e.BusyTokens, 0),
		"prefill_busy_threshold_frac":          r.fraction(&e.BusyFraction),
		"request_queue_limit_per_worker":       r.whole(&e.RequestLimit, 0),
		"raw_isl_token_queue_limit_per_worker": r.whole(&e.RawLimit, 0),
		"cached_token_queue_limit_per_worker":  r.whole(&e.CachedLimit, 0),
	}
}

// policy checks what was read as a whole and builds the policy from it. It is
// of use only if there are no faults.
func (p *profile) policy(r *reader) *Policy {
	if p.family == "" {
		r.fault(p.node, join(p.path, "default_policy_family"), "is required")
	}
	policy := &Policy{
		explicit:      map[string]*Class{},
		families:      map[string][]*Class{},
		defaultFamily: p.family,
	}
	indices := p.checkBuckets(r, policy)
	if len(p.entries) == 0 {
		r.fault(p.node, join(p.path, "policy_classes"), "must not be empty")
	}
	names := map[string]bool{}
	for i := range p.entries {
		e := &p.entries[i]
		e.check(r)
		if names[e.Name] && e.Name != "" {
			r.fault(e.node, e.key, "a second policy class %q", e.Name)
		}
		names[e.Name] = true
		e.index = i
		policy.classes = append(policy.classes, &e.Class)
		p.place(r, policy, e, indices)
	}
	p.checkMatrix(r, policy)
	return policy
}

// checkBuckets returns the index of each bucket.
func (p *profile) checkBuckets(r *reader, policy *Policy) map[string]int {
	if len(p.buckets) == 0 {
		r.fault(p.node, join(p.path, "uncached_isl_buckets"), "must not be empty")
	}
	indices := map[string]int{}
	for i, b := range p.buckets {
		if b.name == "" {
			r.fault(b.node, b.key+".bucket", "is required")
		} else if _, found := indices[b.name]; found {
			r.fault(b.node, b.key+".bucket", "a second bucket %q", b.name)
		}
		indices[b.name] = i
		least := uint64(0)
		switch {
		case b.least == nil:
			r.fault(b.node, b.key+".min_tokens", "is required")
		case i == 0 && *b.least != 0:
			r.fault(b.node, b.key+".min_tokens", "must be 0 in the first bucket")
		case i > 0 && *b.least <= policy.buckets[i-1]:
			r.fault(b.node, b.key+".min_tokens", "must be above that of the bucket before, %d", policy.buckets[i-1])
		}
		if b.least != nil {
			least = *b.least
		}
		policy.buckets = append(policy.buckets, least)
	}
	return indices
}

// check completes the class of an entry from its own keys.
func (e *entry) check(r *reader) {
	if e.Name == "" {
		r.fault(e.node, e.key+".name", "is required")
	}
	if e.quantum == nil {
		r.fault(e.node, e.key+".quantum", "is required")
	} else {
		e.Quantum = *e.quantum
	}
	if e.BusyTokens == nil && e.BusyFraction == nil {
		fraction := DefaultBusyFraction
		e.BusyFraction = &fraction
	}
}

// place puts a class into the matrix, or among the explicit ones.
func (p *profile) place(r *reader, policy *Policy, e *entry, buckets map[string]int) {
	if e.family == "" && e.bucket == "" {
		policy.explicit[e.Name] = &e.Class
		return
	}
	if e.family == "" || e.bucket == "" {
		r.fault(e.node, e.key, "policy_family and cache_bucket must be given together or not at all")
		return
	}
	row, found := policy.families[e.family]
	if !found {
		row = make([]*Class, len(p.buckets))
		policy.families[e.family] = row
	}
	i, found := buckets[e.bucket]
	switch {
	case !found:
		r.fault(e.node, e.key+".cache_bucket", "unknown bucket %q", e.bucket)
	case row[i] != nil:
		r.fault(e.node, e.key, "a second class for family %q and bucket %q", e.family, e.bucket)
	default:
		row[i] = &e.Class
	}
}

// checkMatrix reports holes in the matrix and names that would be ambiguous or
// lead nowhere.
func (p *profile) checkMatrix(r *reader, policy *Policy) {
	if _, found := policy.families[p.family]; !found && p.family != "" {
		r.fault(p.node, join(p.path, "default_policy_family"), "no policy class has the family %q", p.family)
	}
	reported := map[string]bool{}
	for i := range p.entries {
		e := &p.entries[i]
		if e.family == "" {
			if _, found := policy.families[e.Name]; found {
				r.fault(e.node, e.key+".name", "the explicit class %q has the name of a policy family", e.Name)
			}
			continue
		}
		if reported[e.family] {
			continue
		}
		reported[e.family] = true
		for j, class := range policy.families[e.family] {
			if class == nil {
				r.fault(e.node, join(p.path, "policy_classes"), "no class for family %q and bucket %q", e.family, p.buckets[j].name)
			}
		}
	}
}
