package policies

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/select-service/select-service/internal/codec/yamlread"
	"github.com/select-service/select-service/pkg/selector"
)

// policyType creates a policy from the parameters of an instance. service has the weights for
// parameters that are not given.
type policyType struct {
	name string
	make func(p *parameters, service selector.Weights) (selector.Policy, error)
}

// dynamoPrefix may precede the name of a type.
const dynamoPrefix = "dynamo-"

var types = []policyType{
	{"dynamo-default-cost-fn", makeCostFunction},
	{"dynamo-two-tier-cost-fn", makeTwoTier},
	{"least-loaded", without(selector.LeastLoaded{})},
	{"lmetric", makeLMetric},
	{"power-of-two-choices", without(selector.PowerOfTwoChoices{})},
	{PredictedTTFT, makePredictedTTFT},
	{"random", without(selector.Random{})},
	{"round-robin", without(selector.RoundRobin{})},
}

// TypeName returns the canonical name of a type of policies; the error lists all.
func TypeName(name string) (string, error) {
	t, err := typeOf(name)
	return t.name, err
}

// typeOf returns the type of a name; the type has its canonical name.
func typeOf(name string) (policyType, error) {
	var names []string
	for _, t := range types {
		if name == t.name || name == dynamoPrefix+t.name {
			return t, nil
		}
		names = append(names, t.name)
	}
	return policyType{}, fmt.Errorf("unknown worker-selection policy type %q; linked policy types: %s", name, strings.Join(names, ", "))
}

func makeCostFunction(p *parameters, service selector.Weights) (selector.Policy, error) {
	w := service
	w.PrefixOnly = true // as in dynamo-kv-router 1.6.1, in every contract
	shared := 0.0       // there is no shared cache
	err := p.readQuantities(
		quantity{"overlap_score_credit", &w.OverlapCredit, optional},
		quantity{"overlap_score_credit_decay", &w.CreditDecay, optional},
		quantity{"prefill_load_scale", &w.PrefillScale, optional},
		quantity{"decode_active_request_weight", &w.ActiveRequests, optional},
		quantity{"host_cache_hit_weight", &w.Host, optional},
		quantity{"disk_cache_hit_weight", &w.Disk, optional},
		quantity{"shared_cache_multiplier", &shared, optional},
		quantity{"router_temperature", &w.Temperature, optional},
	)
	return selector.CostFunction{Own: &w}, err
}

func makeTwoTier(p *parameters, _ selector.Weights) (selector.Policy, error) {
	t := selector.DefaultTwoTier()
	err := p.read(
		field{"cache_threshold", number(&t.CacheThreshold)},
		field{"balance_abs_threshold", unsigned(&t.BalanceAbs)},
		field{"balance_rel_threshold", number(&t.BalanceRel)},
		field{"respect_soft_affinity", boolean(&t.RespectSoftAffinity)},
	)
	if err != nil {
		return nil, err
	}
	return t, t.Check()
}

func makeLMetric(p *parameters, _ selector.Weights) (selector.Policy, error) {
	guard := true
	err := p.read(field{"hotspot_detection", boolean(&guard)})
	return selector.LMetric{WithoutGuard: !guard}, err
}

// PredictedTTFT is the type of the policy that predicts times to first token.
const PredictedTTFT = "predicted-ttft"

// The default and the highest value, in seconds, of the longest delay of a request.
const (
	defaultLongestDelay = 10
	mostDelay           = 3600
)

func makePredictedTTFT(p *parameters, service selector.Weights) (selector.Policy, error) {
	f := selector.PredictedTTFT{Own: service, Longest: defaultLongestDelay}
	err := p.readQuantities(
		quantity{"host_cache_hit_weight", &f.Own.Host, optional},
		quantity{"disk_cache_hit_weight", &f.Own.Disk, optional},
		quantity{"router_temperature", &f.Own.Temperature, optional},
		quantity{"hold_seconds", &f.Hold, number},
		quantity{"hold_max_seconds", &f.Longest, number},
	)
	if err == nil && f.Longest > mostDelay {
		err = fmt.Errorf("hold_max_seconds must be at most %d", mostDelay)
	}
	return &f, err
}

// without is a type without parameters.
func without(policy selector.Policy) func(*parameters, selector.Weights) (selector.Policy, error) {
	return func(p *parameters, _ selector.Weights) (selector.Policy, error) { return policy, p.read() }
}

// parameters has the parameters of an instance, a mapping or nil.
type parameters struct{ node *yaml.Node }

// field is a parameter of a type, with the function that reads its value.
type field struct {
	name string
	read func(*yaml.Node) error
}

// read reads the parameters. The error is that of the first faulty one in the order of the
// file, as in dynamo-kv-router 1.6.1.
func (p *parameters) read(known ...field) error {
	if p.node == nil {
		return nil
	}
	var names []string
	for _, f := range known {
		names = append(names, f.name)
	}
	var r yamlread.Reader
	r.Aliases = true
	for key, value := range r.Pairs("parameters", p.node) {
		i := slices.Index(names, key.Name)
		switch {
		case i >= 0:
			if err := known[i].read(value); err != nil {
				return err
			}
		case len(names) == 0:
			return fmt.Errorf("unknown field `%s`, there are no fields", key.Name)
		case len(names) == 1:
			return fmt.Errorf("unknown field `%s`, expected `%s`", key.Name, names[0])
		default:
			return unknownField(key.Name, names)
		}
	}
	return errors.Join(r.Faults()...)
}

// quantity is a finite parameter that is not negative. read is number or optional.
type quantity struct {
	name string
	dst  *float64
	read func(dst *float64) func(*yaml.Node) error
}

// readQuantities is read for a type all of whose parameters are quantities.
func (p *parameters) readQuantities(known ...quantity) error {
	fields := make([]field, len(known))
	for i, q := range known {
		fields[i] = field{q.name, q.read(q.dst)}
	}
	if err := p.read(fields...); err != nil {
		return err
	}
	for _, q := range known {
		if !(*q.dst >= 0 && *q.dst <= math.MaxFloat64) {
			return errors.New(q.name + " must be finite and non-negative")
		}
	}
	return nil
}

func number(dst *float64) func(*yaml.Node) error {
	return func(n *yaml.Node) error {
		if tag := n.ShortTag(); n.Kind != yaml.ScalarNode || tag != "!!int" && tag != "!!float" || n.Decode(dst) != nil {
			return wrongType(n, "f64")
		}
		return nil
	}
}

// optional is number; null means not given.
func optional(dst *float64) func(*yaml.Node) error {
	read := number(dst)
	return func(n *yaml.Node) error {
		if yamlread.IsNull(n) {
			return nil
		}
		return read(n)
	}
}

func unsigned(dst *uint64) func(*yaml.Node) error {
	return func(n *yaml.Node) error {
		if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!int" {
			return wrongType(n, "usize")
		}
		if n.Decode(dst) != nil {
			return fmt.Errorf("invalid value: integer `%s`, expected usize", n.Value)
		}
		return nil
	}
}

func boolean(dst *bool) func(*yaml.Node) error {
	return func(n *yaml.Node) error {
		if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!bool" || n.Decode(dst) != nil {
			return wrongType(n, "a boolean")
		}
		return nil
	}
}
