package admission

import (
	"slices"
	"sort"

	"github.com/select-service/select-service/internal/selection/fairness"
)

// Defaults of dynamo-kv-router 1.3.1.
const (
	// DefaultMaxBatchedTokens is used for a worker whose max_num_batched_tokens is unknown.
	DefaultMaxBatchedTokens = 10_000_000
	// DefaultBusyFraction is the threshold of a policy class that has none.
	DefaultBusyFraction = 16.0
)

// MaxWaiting bounds the requests in one queue of classes without a request limit (decision D15).
const MaxWaiting = 100_000

// thresholdClass is the name of the only class of a queue without policy file,
// as it appears in error answers.
const thresholdClass = "default"

// Config configures whether requests wait. The zero Config turns queueing off.
type Config struct {
	// Threshold is the prefill load above which a rank is busy, as a multiple
	// of its max_num_batched_tokens; nil for none. Finite and not negative.
	Threshold *float64
	// Order is the order of the class for Threshold (DYN_ROUTER_QUEUE_POLICY of
	// dynamo-kv-router 1.6.1).
	Order Order
	// File, if not nil, replaces the threshold for the models that it names.
	File *PolicyFile
}

// Enabled reports whether any model may have a queue.
func (c Config) Enabled() bool {
	return c.Threshold != nil || c.File != nil
}

// Fair reports whether a class of any model is fair between tenants.
func (c Config) Fair() bool { return c.File != nil && c.File.fair }

// ForModel returns the policy of a model: the file's own policy for it, else the file's root,
// else one class with the threshold. It is nil if requests of the model never wait.
func (c Config) ForModel(model string) *Policy {
	if c.File != nil {
		if policy, found := c.File.models[model]; found {
			return policy
		}
		if c.File.root != nil {
			return c.File.root
		}
	}
	if c.Threshold == nil {
		return nil
	}
	class := &Class{Name: thresholdClass, Order: c.Order, Quantum: 1, BusyFraction: c.Threshold}
	return &Policy{
		classes:       []*Class{class},
		buckets:       []uint64{0},
		families:      map[string][]*Class{thresholdClass: {class}},
		defaultFamily: thresholdClass,
	}
}

// PolicyFile is the valid content of a policy file, from [ParsePolicy].
type PolicyFile struct {
	root   *Policy            // nil if the file has single models only
	models map[string]*Policy // replace the root as a whole
	fair   bool               // a class is fair between tenants
}

// Policy is a model's set of policy classes. It does not change.
type Policy struct {
	classes       []*Class            // in the file's order, each at its index
	explicit      map[string]*Class   // classes that a request chooses by name
	families      map[string][]*Class // one class per bucket
	defaultFamily string
	buckets       []uint64 // least uncached tokens of each bucket, rising from 0
}

func (p *Policy) fair() bool {
	return slices.ContainsFunc(p.classes, func(c *Class) bool { return c.Fair.By != fairness.None })
}

// Class returns the class of a request: the explicit class that header names, else the class of
// the family (header's, or the default one) for the bucket of its uncached tokens. Matrix
// classes cannot be chosen by name.
func (p *Policy) Class(header string, uncached uint64) *Class {
	if class, found := p.explicit[header]; found {
		return class
	}
	family, found := p.families[header]
	if !found {
		family = p.families[p.defaultFamily]
	}
	above := sort.Search(len(p.buckets), func(i int) bool { return p.buckets[i] > uncached })
	return family[above-1]
}

// Order is the order of a class's requests with the same strict priority.
type Order uint8

// The orders of a class.
const (
	FCFS Order = iota // first come first served; a priority jump is a head start in seconds
	WSPT              // weighted shortest processing time: priority per uncached token
	LCFS              // last come first served; a priority jump is a head start in seconds
)

// String returns the order's name, as in a policy file.
func (o Order) String() string { return [...]string{FCFS: "fcfs", WSPT: "wspt", LCFS: "lcfs"}[o] }

// ParseOrder returns the order of that name.
func ParseOrder(name string) (Order, bool) {
	for o := FCFS; o <= LCFS; o++ {
		if o.String() == name {
			return o, true
		}
	}
	return FCFS, false
}

// Class is one policy class. It does not change.
type Class struct {
	Name    string
	Order   Order
	Quantum uint64 // uncached tokens that the class may serve per round, at least 1
	Fair    fairness.Rules

	// A rank is busy if it has more prefill tokens than either threshold; nil: no threshold.
	BusyTokens   *uint64
	BusyFraction *float64 // of the rank's max_num_batched_tokens

	// Limits of the waiting requests, per schedulable worker; nil: none.
	RequestLimit *uint64
	RawLimit     *uint64 // prompt tokens
	CachedLimit  *uint64 // prompt tokens that were cached somewhere on arrival

	index int // in Policy.classes
}

// Busy reports whether a rank with this much unfinished prefill is too busy for
// the class. maxBatched is its worker's max_num_batched_tokens, 0 if unknown.
func (c *Class) Busy(prefillTokens, maxBatched uint64) bool {
	if c.BusyTokens != nil && prefillTokens > *c.BusyTokens {
		return true
	}
	if maxBatched == 0 {
		maxBatched = DefaultMaxBatchedTokens
	}
	return c.BusyFraction != nil && float64(prefillTokens) > *c.BusyFraction*float64(maxBatched)
}
