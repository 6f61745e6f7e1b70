package policies

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/select-service/select-service/internal/codec/yamlread"
)

// BuiltIn is the name of the cost function that decides if nothing is configured.
const BuiltIn = "default"

// Section is the section worker_selection of a policy file: instances of policy types, and the
// names of the deciding ones.
type Section struct {
	roles
	Instances []instance    `yaml:"instances,null"`
	Models    map[text]text `yaml:"models,null"` // name of the instance by model; takes precedence over roles
	Shadow    []text        `yaml:"shadow,null"`
}

// roles has the name of the deciding instance by the role of workers. This service knows only the
// role aggregated. The others are in Dynamo's frontend those of workers that do a part of each request.
type roles struct {
	Aggregated *text `yaml:"aggregated"`
	Prefill    *text `yaml:"prefill"`
	Decode     *text `yaml:"decode"`
	Encode     *text `yaml:"encode"`
}

// instance is a policy type with its parameters.
type instance struct {
	Name       text       `yaml:"name,required"`
	Kind       text       `yaml:"type,required"`
	Parameters *yaml.Node `yaml:"parameters"` // a mapping; nil: none
}

// text is a scalar as it is written.
type text string

// UnmarshalText takes any text.
func (t *text) UnmarshalText(written []byte) error {
	*t = text(written)
	return nil
}

// named are the roles that have a name, in order.
func (ro *roles) named() (all []role) {
	for _, r := range []struct {
		role string
		name *text
	}{{"aggregated", ro.Aggregated}, {"prefill", ro.Prefill}, {"decode", ro.Decode}, {"encode", ro.Encode}} {
		if r.name != nil {
			all = append(all, role{r.role, *r.name})
		}
	}
	return all
}

// role is a role of workers with the name of its deciding instance.
type role struct {
	role string
	name text
}

// ParseSection reads the section. The error lists every fault.
func ParseSection(n *yaml.Node) (*Section, error) {
	r := yamlread.Reader{Aliases: true}
	s := new(Section)
	r.Decode("worker_selection", n, s)
	if r.Count() > 0 {
		return nil, errors.Join(r.Faults()...)
	}
	var faults []error
	for _, err := range s.check() {
		faults = append(faults, fmt.Errorf("invalid router policy config: worker_selection %w", err))
	}
	return s, errors.Join(faults...)
}

// Names reports whether the section names an instance that decides, for all models or for some.
func (s *Section) Names() bool { return s != nil && (s.Aggregated != nil || len(s.Models) > 0) }

// Parse reads a section that comes at run time, and creates its instances that are in use. It goes before the
// settings' Name, and before their Type where it names an instance.
func Parse(section []byte, settings Settings) (*Table, error) {
	n, err := yamlread.Root(section)
	if err != nil {
		return nil, fmt.Errorf("worker_selection: %w", err)
	}
	if n == nil {
		n = &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null"}
	}
	s, err := ParseSection(n)
	if err != nil {
		return nil, err
	}
	settings.Name = ""
	return s.resolve(settings, BySection)
}

// check returns the faults of the section as a whole.
func (s *Section) check() (faults []error) {
	add := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	known := map[text]bool{BuiltIn: true}
	for _, i := range s.Instances {
		switch {
		case i.Name == BuiltIn:
			add("instance name '%s' is reserved for Dynamo's built-in selector", BuiltIn)
		case !yamlread.IsIdentifier(string(i.Name)):
			add("instance name %q must match [A-Za-z0-9_.-]+", i.Name)
		case known[i.Name]:
			add("contains duplicate instance %q", i.Name)
		case !yamlread.IsIdentifier(string(i.Kind)):
			add("policy type name %q must match [A-Za-z0-9_.-]+", i.Kind)
		case i.Parameters != nil && i.Parameters.Kind != yaml.MappingNode:
			add("instance %q parameters must be a YAML mapping", i.Name)
		}
		known[i.Name] = true
	}
	if len(s.Instances)+len(s.named())+len(s.Models)+len(s.Shadow) == 0 {
		add("must define an instance or an aggregated, prefill, decode, or encode selection")
	}
	refer := func(from string, name text) {
		if !known[name] {
			add("%s %q does not name a configured instance", from, name)
		}
	}
	for _, r := range s.named() {
		refer(r.role, r.name)
	}
	for _, model := range slices.Sorted(maps.Keys(s.Models)) {
		refer("models."+string(model), s.Models[model])
	}
	for i, name := range s.Shadow {
		refer("shadow", name)
		if slices.Contains(s.Shadow[:i], name) {
			add("shadow contains duplicate instance %q", name)
		}
	}
	return faults
}

// Warnings lists the parts of the section that have no effect. override is the name of an
// instance that takes precedence over those of the section, "" for none.
func (s *Section) Warnings(override string) (warnings []string) {
	var unserved, unnamed []string
	named := append(slices.Collect(maps.Values(s.Models)), s.Shadow...)
	named = append(named, text(override))
	for _, r := range s.named() {
		named = append(named, r.name)
		if r.role != "aggregated" {
			unserved = append(unserved, r.role)
		}
	}
	if len(unserved) > 0 {
		warnings = append(warnings, "worker-selection policies configured for unserved worker types are ignored: "+strings.Join(unserved, ", "))
	}
	for _, i := range s.Instances {
		if !slices.Contains(named, i.Name) {
			unnamed = append(unnamed, string(i.Name))
		}
	}
	if len(unnamed) > 0 {
		warnings = append(warnings, "worker_selection instances that nothing names are ignored: "+strings.Join(unnamed, ", "))
	}
	return warnings
}
