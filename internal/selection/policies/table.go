package policies

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/select-service/select-service/pkg/selector"
)

// Instance is a configured policy.
type Instance struct {
	Name   string // BuiltIn for the built-in one
	Type   string // "" for the built-in one
	Policy selector.Policy
}

var builtIn = &Instance{Name: BuiltIn, Policy: selector.CostFunction{}}

// Table maps models to their deciding policies. A nil Table has the built-in policy for all
// models. It does not change.
type Table struct {
	deciding *Instance
	models   map[string]*Instance
	shadows  []*Instance
}

// Resolve creates the instances that are in use. service has the weights of the service.
// override, if not "", replaces all names of the section except those of shadows. s may be nil;
// the table is nil if nothing is configured.
func (s *Section) Resolve(override string, service selector.Weights) (*Table, error) {
	if s == nil && override == "" {
		return nil, nil
	}
	if s == nil {
		s = &Section{}
	}
	made := map[string]*Instance{BuiltIn: builtIn}
	find := func(name string) (*Instance, error) {
		if i := made[name]; i != nil {
			return i, nil
		}
		at := slices.IndexFunc(s.instances, func(i instance) bool { return i.name == name })
		if at < 0 {
			return nil, s.unknown(name)
		}
		i, err := s.instances[at].resolve(service)
		made[name] = i
		return i, err
	}
	var t Table
	var err error
	name := override
	if name == "" {
		name = s.names[aggregated]
	}
	if name != "" {
		if t.deciding, err = find(name); err != nil {
			return nil, err
		}
	}
	if override == "" {
		for _, model := range slices.Sorted(maps.Keys(s.models)) {
			i, err := find(s.models[model])
			if err != nil {
				return nil, err
			}
			if t.models == nil {
				t.models = make(map[string]*Instance)
			}
			t.models[model] = i
		}
	}
	for _, name := range s.shadow {
		i, err := find(name)
		if err != nil {
			return nil, err
		}
		t.shadows = append(t.shadows, i)
	}
	return &t, nil
}

func (i instance) resolve(service selector.Weights) (*Instance, error) {
	kind, err := typeOf(i.kind)
	if err != nil {
		return nil, err
	}
	policy, err := kind.make(&parameters{i.parameters}, service)
	if err != nil {
		return nil, fmt.Errorf("invalid parameters for worker-selection policy type %q: %w", i.kind, err)
	}
	return &Instance{Name: i.name, Type: kind.name, Policy: policy}, nil
}

// ErrUnknownInstance is in the error chain if the override names no instance.
var ErrUnknownInstance = errors.New("unknown worker-selection instance")

func (s *Section) unknown(name string) error {
	configured := "<none>"
	if len(s.instances) > 0 {
		var names []string
		for _, i := range s.instances {
			names = append(names, i.name)
		}
		slices.Sort(names)
		configured = strings.Join(names, ", ")
	}
	return fmt.Errorf("%w %q; configured instances: %s", ErrUnknownInstance, name, configured)
}

// ForModel returns the instance that decides for a model.
func (t *Table) ForModel(model string) *Instance {
	if t == nil {
		return builtIn
	}
	if i := t.models[model]; i != nil {
		return i
	}
	if t.deciding != nil {
		return t.deciding
	}
	return builtIn
}

// Shadows returns the instances that are evaluated for each decision but do not decide.
func (t *Table) Shadows() []*Instance {
	if t == nil {
		return nil
	}
	return t.shadows
}

// IsBuiltIn reports whether i is the built-in policy.
func (i *Instance) IsBuiltIn() bool { return i == builtIn }

// PredictedTTFT returns the policy if it predicts times to first token, else nil.
func (i *Instance) PredictedTTFT() *selector.PredictedTTFT {
	f, _ := i.Policy.(*selector.PredictedTTFT)
	return f
}

// Delays reports whether any deciding instance delays requests.
func (t *Table) Delays() bool {
	if t == nil {
		return false
	}
	for _, i := range t.models {
		if i.delays() {
			return true
		}
	}
	return t.deciding != nil && t.deciding.delays()
}

func (i *Instance) delays() bool {
	f := i.PredictedTTFT()
	return f != nil && f.Hold > 0
}
