package admission

import (
	"errors"
	"fmt"
	"math"

	yaml "go.yaml.in/yaml/v3"

	"github.com/select-service/select-service/internal/codec/yamlread"
	"github.com/select-service/select-service/internal/selection/fairness"
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
	r := policyReader{yamlread.Reader{Format: describeFault, Aliases: true}}
	file := r.file(root)
	if r.Count() > 0 {
		return nil, errors.Join(r.Faults()...)
	}
	for _, p := range file.models {
		file.fair = file.fair || p.fair()
	}
	file.fair = file.fair || file.root != nil && file.root.fair()
	return file, nil
}

// file reads the root profile, which may be left out, and those of the models.
func (r *policyReader) file(n *yaml.Node) *PolicyFile {
	file := &PolicyFile{models: map[string]*Policy{}}
	var root profile
	named := 0
	if n != nil {
		known := root.fields(r)
		known["models"] = func(path string, n *yaml.Node) {
			for key, value := range r.Pairs(path, n) {
				named++
				if key.Name == "" {
					r.faultf(key.Path, value, "the name of a model must not be empty")
				}
				p := profile{node: value, path: key.Path}
				r.Mapping(key.Path, value, p.fields(r))
				file.models[key.Name] = p.policy(r)
			}
		}
		r.Mapping("", n, known)
		root.node = n
	}
	if root.given > 0 {
		file.root = root.policy(r)
	} else if named == 0 && r.Count() == 0 {
		r.faultf("", n, "neither policy_classes nor models is given")
	}
	return file
}

// profile is one set of classes as in the file.
type profile struct {
	node    *yaml.Node
	path    string
	given   int // how many of its keys are given
	family  string
	buckets []bucket
	entries []entry
}

type bucket struct {
	node  *yaml.Node
	path  string
	name  string
	least *uint64
}

// entry is one policy class with its place in the matrix of families and
// buckets; both are "" for an explicit class.
type entry struct {
	Class
	node           *yaml.Node
	path           string
	quantum        *uint64
	family, bucket string
}

func (p *profile) fields(r *policyReader) yamlread.Fields {
	counted := func(read readValue) readValue {
		return func(path string, n *yaml.Node) {
			p.given++
			read(path, n)
		}
	}
	return yamlread.Fields{
		"default_policy_family": counted(r.identifier(&p.family)),
		"uncached_isl_buckets": counted(func(path string, n *yaml.Node) {
			for path, n := range r.List(path, n) {
				b := bucket{node: n, path: path}
				r.Mapping(path, n, yamlread.Fields{"min_tokens": r.whole(&b.least, 0), "bucket": r.identifier(&b.name)})
				p.buckets = append(p.buckets, b)
			}
		}),
		"policy_classes": counted(func(path string, n *yaml.Node) {
			for path, n := range r.List(path, n) {
				e := entry{node: n, path: path}
				r.Mapping(path, n, e.fields(r))
				p.entries = append(p.entries, e)
			}
		}),
	}
}

func (e *entry) fields(r *policyReader) yamlread.Fields {
	return yamlread.Fields{
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
		"fairness":                             r.fairness(&e.Fair),
	}
}

// policy checks the profile as a whole and builds the policy from it. The result is valid only
// if there are no faults.
func (p *profile) policy(r *policyReader) *Policy {
	if p.family == "" {
		r.faultf(yamlread.Join(p.path, "default_policy_family"), p.node, "is required")
	}
	policy := &Policy{
		explicit:      map[string]*Class{},
		families:      map[string][]*Class{},
		defaultFamily: p.family,
	}
	indices := p.checkBuckets(r, policy)
	if len(p.entries) == 0 {
		r.faultf(yamlread.Join(p.path, "policy_classes"), p.node, "must not be empty")
	}
	names := map[string]bool{}
	for i := range p.entries {
		e := &p.entries[i]
		e.check(r)
		if names[e.Name] && e.Name != "" {
			r.faultf(e.path, e.node, "a second policy class %q", e.Name)
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
func (p *profile) checkBuckets(r *policyReader, policy *Policy) map[string]int {
	if len(p.buckets) == 0 {
		r.faultf(yamlread.Join(p.path, "uncached_isl_buckets"), p.node, "must not be empty")
	}
	indices := map[string]int{}
	for i, b := range p.buckets {
		if b.name == "" {
			r.faultf(b.path+".bucket", b.node, "is required")
		} else if _, found := indices[b.name]; found {
			r.faultf(b.path+".bucket", b.node, "a second bucket %q", b.name)
		}
		indices[b.name] = i
		least := uint64(0)
		switch {
		case b.least == nil:
			r.faultf(b.path+".min_tokens", b.node, "is required")
		case i == 0 && *b.least != 0:
			r.faultf(b.path+".min_tokens", b.node, "must be 0 in the first bucket")
		case i > 0 && *b.least <= policy.buckets[i-1]:
			r.faultf(b.path+".min_tokens", b.node, "must be above that of the bucket before, %d", policy.buckets[i-1])
		}
		if b.least != nil {
			least = *b.least
		}
		policy.buckets = append(policy.buckets, least)
	}
	return indices
}

// check completes the class of an entry from its own keys.
func (e *entry) check(r *policyReader) {
	if e.Name == "" {
		r.faultf(e.path+".name", e.node, "is required")
	}
	if e.quantum == nil {
		r.faultf(e.path+".quantum", e.node, "is required")
	} else {
		e.Quantum = *e.quantum
	}
	if e.BusyTokens == nil && e.BusyFraction == nil {
		fraction := DefaultBusyFraction
		e.BusyFraction = &fraction
	}
}

// place puts a class into the matrix, or among the explicit ones.
func (p *profile) place(r *policyReader, policy *Policy, e *entry, buckets map[string]int) {
	if e.family == "" && e.bucket == "" {
		policy.explicit[e.Name] = &e.Class
		return
	}
	if e.family == "" || e.bucket == "" {
		r.faultf(e.path, e.node, "policy_family and cache_bucket must be given together or not at all")
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
		r.faultf(e.path+".cache_bucket", e.node, "unknown bucket %q", e.bucket)
	case row[i] != nil:
		r.faultf(e.path, e.node, "a second class for family %q and bucket %q", e.family, e.bucket)
	default:
		row[i] = &e.Class
	}
}

// checkMatrix reports holes in the matrix, and names that are ambiguous or refer to nothing.
func (p *profile) checkMatrix(r *policyReader, policy *Policy) {
	if _, found := policy.families[p.family]; !found && p.family != "" {
		r.faultf(yamlread.Join(p.path, "default_policy_family"), p.node, "no policy class has the family %q", p.family)
	}
	reported := map[string]bool{}
	for i := range p.entries {
		e := &p.entries[i]
		if e.family == "" {
			if _, found := policy.families[e.Name]; found {
				r.faultf(e.path+".name", e.node, "the explicit class %q has the name of a policy family", e.Name)
			}
			continue
		}
		if reported[e.family] {
			continue
		}
		reported[e.family] = true
		for j, class := range policy.families[e.family] {
			if class == nil {
				r.faultf(yamlread.Join(p.path, "policy_classes"), e.node, "no class for family %q and bucket %q", e.family, p.buckets[j].name)
			}
		}
	}
}

// policyReader reads the values of a policy file.
type policyReader struct{ yamlread.Reader }

// readValue reads the value at path into its destination.
type readValue = func(path string, n *yaml.Node)

func (r *policyReader) faultf(path string, n *yaml.Node, format string, args ...any) {
	r.Fault(path, n, fmt.Errorf(format, args...))
}

// faults maps a Reader's faults to the texts for policy files.
var faults = map[error]error{
	yamlread.ErrNotMapping: errors.New("must be a mapping"),
	yamlread.ErrNotList:    errors.New("must be a list"),
	yamlread.ErrKeyKind:    errors.New("a key must be a text"),
}

// describeFault formats a fault as "line 3: path: what".
func describeFault(path string, n *yaml.Node, what error) error {
	if own, found := faults[what]; found {
		what = own
	}
	if path != "" {
		what = fmt.Errorf("%s: %w", path, what)
	}
	if n != nil && n.Line > 0 {
		what = fmt.Errorf("line %d: %w", n.Line, what)
	}
	return what
}

// text reads a string into dst.
func (r *policyReader) text(dst *string) readValue {
	return func(path string, n *yaml.Node) {
		if !yamlread.IsString(n) {
			r.faultf(path, n, "must be a text")
		}
		*dst = n.Value // a wrong value still counts as given
	}
}

// identifier reads a name that can also be a metric's label into dst.
func (r *policyReader) identifier(dst *string) readValue {
	return func(path string, n *yaml.Node) {
		before := r.Count()
		r.text(dst)(path, n)
		if r.Count() == before && !yamlread.IsIdentifier(*dst) {
			r.faultf(path, n, "%q must match [A-Za-z0-9_.-]+", *dst)
		}
	}
}

// order reads the order of a class into dst.
func (r *policyReader) order(dst *Order) readValue {
	return func(path string, n *yaml.Node) {
		switch n.Value {
		case "fcfs":
			*dst = FCFS
		case "wspt":
			*dst = WSPT
		default:
			r.faultf(path, n, "must be fcfs or wspt")
		}
	}
}

// fairness reads between whom a class is fair into dst.
func (r *policyReader) fairness(dst *fairness.Rules) readValue {
	return func(path string, n *yaml.Node) {
		*dst = fairness.Rules{HalfLife: fairness.DefaultHalfLife, HeadWait: fairness.DefaultHeadWait}
		r.Mapping(path, n, yamlread.Fields{
			"by": func(path string, n *yaml.Node) {
				by, found := map[string]fairness.By{"none": fairness.None, "tenant": fairness.Tenant, "program": fairness.Program}[n.Value]
				if !found || !yamlread.IsString(n) {
					r.faultf(path, n, "must be none, tenant or program")
				}
				dst.By = by
			},
			"half_life_seconds": r.between(&dst.HalfLife, 1, 86400),
			"head_wait_weight":  r.between(&dst.HeadWait, 0.01, 0.99),
			"weights": func(path string, n *yaml.Node) {
				dst.Weights = make(map[string]float64)
				for key, value := range r.Pairs(path, n) {
					weight := 1.0
					r.between(&weight, 0.001, 1000)(key.Path, value)
					dst.Weights[key.Name] = weight
				}
			},
		})
	}
}

// between reads a number within bounds into dst.
func (r *policyReader) between(dst *float64, least, most float64) readValue {
	return func(path string, n *yaml.Node) {
		var v *float64
		before := r.Count()
		r.fraction(&v)(path, n)
		switch {
		case r.Count() > before:
		case *v < least || *v > most:
			r.faultf(path, n, "must be between %v and %v", least, most)
		default:
			*dst = *v
		}
	}
}

// whole reads a whole number of at least least into *dst.
func (r *policyReader) whole(dst **uint64, least uint64) readValue {
	return func(path string, n *yaml.Node) {
		var v uint64
		if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!int" || n.Decode(&v) != nil || v < least {
			r.faultf(path, n, "must be a whole number, at least %d", least)
			v = least // a wrong value still counts as given
		}
		*dst = &v
	}
}

// fraction reads a finite number of at least 0 into *dst.
func (r *policyReader) fraction(dst **float64) readValue {
	return func(path string, n *yaml.Node) {
		var v float64
		tag := n.ShortTag()
		isNumber := n.Kind == yaml.ScalarNode && (tag == "!!int" || tag == "!!float")
		if !isNumber || n.Decode(&v) != nil || !(v >= 0 && v <= math.MaxFloat64) {
			r.faultf(path, n, "must be a finite number, at least 0")
			v = 0
		}
		*dst = &v
	}
}
