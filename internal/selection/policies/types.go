package policies

import (
	"errors"
	"fmt"
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

// weights are parameters that replace weights of the service.
type weights struct {
	Host        *quantity `yaml:"host_cache_hit_weight"`
	Disk        *quantity `yaml:"disk_cache_hit_weight"`
	Temperature *quantity `yaml:"router_temperature"`
}

func weightsOf(w *selector.Weights) weights {
	return weights{(*quantity)(&w.Host), (*quantity)(&w.Disk), (*quantity)(&w.Temperature)}
}

func makeCostFunction(p *parameters, w selector.Weights) (selector.Policy, error) {
	w.PrefixOnly = true // as in dynamo-kv-router 1.6.1, in every contract
	err := p.read(&struct {
		OverlapCredit  *quantity `yaml:"overlap_score_credit"`
		CreditDecay    *quantity `yaml:"overlap_score_credit_decay"`
		PrefillScale   *quantity `yaml:"prefill_load_scale"`
		ActiveRequests *quantity `yaml:"decode_active_request_weight"`
		weights
		Shared *quantity `yaml:"shared_cache_multiplier"` // there is no shared cache
	}{
		(*quantity)(&w.OverlapCredit), (*quantity)(&w.CreditDecay), (*quantity)(&w.PrefillScale),
		(*quantity)(&w.ActiveRequests), weightsOf(&w), nil,
	})
	return selector.CostFunction{Own: &w}, err
}

func makeTwoTier(p *parameters, _ selector.Weights) (selector.Policy, error) {
	t := selector.DefaultTwoTier()
	if err := p.read(&t); err != nil {
		return nil, err
	}
	return t, nil
}

func makeLMetric(p *parameters, _ selector.Weights) (selector.Policy, error) {
	given := struct {
		Guard bool `yaml:"hotspot_detection"`
	}{true}
	err := p.read(&given)
	return selector.LMetric{WithoutGuard: !given.Guard}, err
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
	err := p.read(&struct {
		weights
		Hold    *quantity `yaml:"hold_seconds"`
		Longest *quantity `yaml:"hold_max_seconds"`
	}{weightsOf(&f.Own), (*quantity)(&f.Hold), (*quantity)(&f.Longest)})
	if err == nil && f.Longest > mostDelay {
		err = fmt.Errorf("parameters: hold_max_seconds must be at most %d", mostDelay)
	}
	return &f, err
}

// without is a type without parameters.
func without(policy selector.Policy) func(*parameters, selector.Weights) (selector.Policy, error) {
	return func(p *parameters, _ selector.Weights) (selector.Policy, error) { return policy, p.read(new(struct{})) }
}

// parameters has the parameters of an instance, a mapping or nil.
type parameters struct{ node *yaml.Node }

// read reads the parameters into a struct, see yamlread.
func (p *parameters) read(into any) error {
	if p.node == nil {
		return nil
	}
	r := yamlread.Reader{Aliases: true}
	r.Decode("parameters", p.node, into)
	return r.Err()
}

// quantity is a finite number that is not negative.
type quantity float64

// Check refuses what is negative.
func (q quantity) Check() error {
	if q < 0 {
		return errors.New("must be finite and non-negative")
	}
	return nil
}
