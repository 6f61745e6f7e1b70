package policies

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/selector"
)

// Instance is a configured policy.
type Instance struct {
	Name   string // BuiltIn for the built-in one
	Type   string // "" for the built-in one
	Policy selector.Policy
}

var builtIn = &Instance{Name: BuiltIn, Policy: selector.CostFunction{}}

// Reason says why an instance decides for a scope.
type Reason string

// The reasons, the strongest first.
const (
	BySection  Reason = "section"  // worker_selection of PUT /policies names it, for all models or for this one
	ByOption   Reason = "option"   // an option names the instance, or its type
	ByFile     Reason = "file"     // worker_selection of the policy file names it, for all models or for this one
	ByFront    Reason = "front"    // a gateway or proxy port serves the scope
	ByWeight   Reason = "weight"   // such a port serves the scope, but a weight of Dynamo's cost is given
	ByContract Reason = "contract" // nothing else is said: Dynamo's cost
)

// Settings are what decides beside a section worker_selection.
type Settings struct {
	// Name is the instance of a policy file that decides for all models, instead of those that its section names;
	// "": none. Type is the type of an instance with default parameters that decides where no section names one;
	// "": none. Sections that come at run time go before both.
	Name, Type string
	// Weights are the service's, for instances that have none of their own.
	Weights selector.Weights
	// Served has the scopes that a port of this process for requests to engines, the gateway's or the proxy's, can
	// name. Such a port sees the first tokens, so predicted-ttft is the built-in policy of these scopes; nil: there
	// is no such port.
	Served *Served
	// Weight names the option that gives a weight of Dynamo's cost, so that this cost decides in served scopes
	// too; "": none is given.
	Weight string
}

// Table maps scopes to their deciding policies. A nil Table has the built-in cost for all
// scopes. It does not change.
type Table struct {
	deciding *Instance
	models   map[string]*Instance
	shadows  []*Instance
	named    Reason // of deciding and models

	typed    *Instance // nil: no type is given
	front    *Instance // of served scopes
	settings Settings
}

// Settings returns what the table was made by.
func (t *Table) Settings() (s Settings) {
	if t != nil {
		s = t.settings
	}
	return s
}

// Resolve creates the instances of a policy file's section that are in use. s may be nil; the table is nil if
// neither it nor the settings name any policy.
func (s *Section) Resolve(settings Settings) (*Table, error) {
	if s == nil && settings.Name == "" && settings.Type == "" && settings.Served == nil {
		return nil, nil
	}
	return s.resolve(settings, ByFile)
}

func (s *Section) resolve(settings Settings, named Reason) (*Table, error) {
	override, service := settings.Name, settings.Weights
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
	t := Table{named: named, settings: settings}
	var err error
	if settings.Type != "" {
		if t.typed, err = (instance{name: settings.Type, kind: settings.Type}).resolve(service); err != nil {
			return nil, err
		}
	}
	if t.front, err = (instance{name: PredictedTTFT, kind: PredictedTTFT}).resolve(service); err != nil {
		return nil, err
	}
	name := override
	if name == "" {
		name = s.names[aggregated]
	} else {
		t.named = ByOption
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

// Of returns the instance that decides for a scope, and why it does.
func (t *Table) Of(sc catalog.Scope) (*Instance, Reason) {
	if t == nil {
		return builtIn, ByContract
	}
	if i := t.models[sc.Model]; i != nil {
		return i, t.named
	}
	switch {
	case t.deciding != nil:
		return t.deciding, t.named
	case t.typed != nil:
		return t.typed, ByOption
	case !t.settings.Served.Has(sc):
		return builtIn, ByContract
	case t.settings.Weight != "":
		return builtIn, ByWeight
	}
	return t.front, ByFront
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
	return t.deciding != nil && t.deciding.delays() // the instances that have default parameters hold nothing
}

func (i *Instance) delays() bool {
	f := i.PredictedTTFT()
	return f != nil && f.Hold > 0
}
