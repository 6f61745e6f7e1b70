package admission

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	yaml "go.yaml.in/yaml/v3"

	"github.com/select-service/select-service/internal/codec/yamlread"
)

// ParsePolicy reads a policy file, the YAML of DYN_ROUTER_POLICY_CONFIG. The
// error lists every fault by line and key; unknown keys are faults.
func ParsePolicy(data []byte) (*PolicyFile, error) {
	root, err := yamlread.Root(data)
	if err != nil {
		return nil, fmt.Errorf("read yaml: %w", err)
	}
	return ReadPolicy(root)
}

// ReadPolicy is ParsePolicy for the root of a document, nil for an empty one.
func ReadPolicy(root *yaml.Node) (*PolicyFile, error) {
	r := policyReader{yamlread.Reader{Aliases: true}}
	var f struct {
		profile
		Models map[modelName]profile `yaml:"models,null"`
	}
	if root == nil {
		return nil, errNoPolicy
	}
	r.Decode("", root, &f)
	file := &PolicyFile{models: make(map[string]*Policy, len(f.Models))}
	for _, model := range slices.Sorted(maps.Keys(f.Models)) {
		p := f.Models[model]
		file.models[string(model)] = p.policy(&r)
	}
	if f.Family != nil || f.Buckets != nil || f.Entries != nil {
		file.root = f.policy(&r)
	} else if len(f.Models) == 0 && r.Count() == 0 {
		r.Fault("", root, errNoPolicy)
	}
	if r.Count() > 0 {
		return nil, errors.Join(r.Faults()...)
	}
	return file, nil
}

var errNoPolicy = errors.New("neither policy_classes nor models is given")

// profile is one set of classes as in the file.
type profile struct {
	yamlread.Place
	Family  *identifier `yaml:"default_policy_family"`
	Buckets []bucket    `yaml:"uncached_isl_buckets,null"`
	Entries []entry     `yaml:"policy_classes,null"`
}

type bucket struct {
	yamlread.Place
	Least *uint64    `yaml:"min_tokens,required"`
	Name  identifier `yaml:"bucket,required"`
}

// entry is one policy class with its place in the matrix of families and
// buckets; both are "" for an explicit class.
type entry struct {
	yamlread.Place
	Name         identifier `yaml:"name,required"`
	Family       identifier `yaml:"policy_family,null"`
	Bucket       identifier `yaml:"cache_bucket,null"`
	Order        Order      `yaml:"queue_policy,null"`
	Quantum      quantum    `yaml:"quantum,required"`
	BusyTokens   *uint64    `yaml:"prefill_busy_threshold"`
	BusyFraction *fraction  `yaml:"prefill_busy_threshold_frac"`
	RequestLimit *uint64    `yaml:"request_queue_limit_per_worker"`
	RawLimit     *uint64    `yaml:"raw_isl_token_queue_limit_per_worker"`
	CachedLimit  *uint64    `yaml:"cached_token_queue_limit_per_worker"`
}

// class returns the class at an index.
func (e *entry) class(index int) *Class {
	c := &Class{
		Name: string(e.Name), Order: e.Order, Quantum: uint64(e.Quantum), index: index,
		BusyTokens: e.BusyTokens, BusyFraction: (*float64)(e.BusyFraction),
		RequestLimit: e.RequestLimit, RawLimit: e.RawLimit, CachedLimit: e.CachedLimit,
	}
	if c.BusyTokens == nil && c.BusyFraction == nil {
		c.BusyFraction = new(DefaultBusyFraction)
	}
	return c
}

// policy checks the profile as a whole and builds the policy from it. The result is valid only
// if there are no faults.
func (p *profile) policy(r *policyReader) *Policy {
	if p.Family == nil {
		r.faultf(yamlread.Join(p.Path, "default_policy_family"), p.Node, "is missing")
		p.Family = new(identifier)
	}
	policy := &Policy{
		explicit:      map[string]*Class{},
		families:      map[string][]*Class{},
		defaultFamily: string(*p.Family),
	}
	indices := p.checkBuckets(r, policy)
	if len(p.Entries) == 0 {
		r.faultf(yamlread.Join(p.Path, "policy_classes"), p.Node, "must not be empty")
	}
	names := map[identifier]bool{}
	for i := range p.Entries {
		e := &p.Entries[i]
		if names[e.Name] && e.Name != "" {
			r.faultf(e.Path, e.Node, "a second policy class %q", e.Name)
		}
		names[e.Name] = true
		class := e.class(i)
		policy.classes = append(policy.classes, class)
		p.place(r, policy, e, class, indices)
	}
	p.checkMatrix(r, policy)
	return policy
}

// checkBuckets returns the index of each bucket.
func (p *profile) checkBuckets(r *policyReader, policy *Policy) map[identifier]int {
	if len(p.Buckets) == 0 {
		r.faultf(yamlread.Join(p.Path, "uncached_isl_buckets"), p.Node, "must not be empty")
	}
	indices := map[identifier]int{}
	for i, b := range p.Buckets {
		if _, found := indices[b.Name]; found && b.Name != "" {
			r.faultf(b.Path+".bucket", b.Node, "a second bucket %q", b.Name)
		}
		indices[b.Name] = i
		switch {
		case b.Least == nil:
			b.Least = new(uint64)
		case i == 0 && *b.Least != 0:
			r.faultf(b.Path+".min_tokens", b.Node, "must be 0 in the first bucket")
		case i > 0 && *b.Least <= policy.buckets[i-1]:
			r.faultf(b.Path+".min_tokens", b.Node, "must be above that of the bucket before, %d", policy.buckets[i-1])
		}
		policy.buckets = append(policy.buckets, *b.Least)
	}
	return indices
}

// place puts a class into the matrix, or among the explicit ones.
func (p *profile) place(r *policyReader, policy *Policy, e *entry, class *Class, buckets map[identifier]int) {
	if e.Family == "" && e.Bucket == "" {
		policy.explicit[class.Name] = class
		return
	}
	if e.Family == "" || e.Bucket == "" {
		r.faultf(e.Path, e.Node, "policy_family and cache_bucket must be given together or not at all")
		return
	}
	row, found := policy.families[string(e.Family)]
	if !found {
		row = make([]*Class, len(p.Buckets))
		policy.families[string(e.Family)] = row
	}
	i, found := buckets[e.Bucket]
	switch {
	case !found:
		r.faultf(e.Path+".cache_bucket", e.Node, "unknown bucket %q", e.Bucket)
	case row[i] != nil:
		r.faultf(e.Path, e.Node, "a second class for family %q and bucket %q", e.Family, e.Bucket)
	default:
		row[i] = class
	}
}

// checkMatrix reports holes in the matrix, and names that are ambiguous or refer to nothing.
func (p *profile) checkMatrix(r *policyReader, policy *Policy) {
	if _, found := policy.families[policy.defaultFamily]; !found && *p.Family != "" {
		r.faultf(yamlread.Join(p.Path, "default_policy_family"), p.Node, "no policy class has the family %q", *p.Family)
	}
	reported := map[identifier]bool{}
	for i := range p.Entries {
		e := &p.Entries[i]
		if e.Family == "" {
			if _, found := policy.families[string(e.Name)]; found {
				r.faultf(e.Path+".name", e.Node, "the explicit class %q has the name of a policy family", e.Name)
			}
			continue
		}
		if reported[e.Family] {
			continue
		}
		reported[e.Family] = true
		for j, class := range policy.families[string(e.Family)] {
			if class == nil {
				r.faultf(yamlread.Join(p.Path, "policy_classes"), e.Node, "no class for family %q and bucket %q", e.Family, p.Buckets[j].Name)
			}
		}
	}
}

// policyReader reads a policy file.
type policyReader struct{ yamlread.Reader }

func (r *policyReader) faultf(path string, n *yaml.Node, format string, args ...any) {
	r.Fault(path, n, fmt.Errorf(format, args...))
}

// modelName is the key of a model: a scalar as it is written.
type modelName string

// UnmarshalText takes any text but an empty one.
func (m *modelName) UnmarshalText(text []byte) error {
	*m = modelName(text)
	if *m == "" {
		return errors.New("the name of a model must not be empty")
	}
	return nil
}

// identifier is a name that can also be a metric's label.
type identifier string

// Check refuses what is no identifier.
func (i identifier) Check() error {
	if !yamlread.IsIdentifier(string(i)) {
		return fmt.Errorf("%q must match [A-Za-z0-9_.-]+", i)
	}
	return nil
}

// UnmarshalText reads an order that a class can have.
func (o *Order) UnmarshalText(text []byte) error {
	order, found := ParseOrder(string(text))
	if !found || order == LCFS {
		return errors.New("want fcfs or wspt")
	}
	*o = order
	return nil
}

// quantum is what a class may serve per round.
type quantum uint64

// Check refuses a class that would never serve anything.
func (q quantum) Check() error {
	if q == 0 {
		return errors.New("want at least 1")
	}
	return nil
}

// fraction is not negative.
type fraction float64

// Check refuses what is negative.
func (f fraction) Check() error {
	if f < 0 {
		return errors.New("want at least 0")
	}
	return nil
}
