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
	instances []instance
	// names has the name of the deciding instance by the role of workers. This service knows
	// only the role aggregated.
	names  map[string]string
	models map[string]string // name of the instance by model; takes precedence over names
	shadow []string
}

// instance is a policy type with its parameters.
type instance struct {
	name, kind string
	parameters *yaml.Node // a mapping; nil: none
}

const aggregated = "aggregated"

// unserved has the roles in Dynamo's frontend of workers that do a part of each request.
var unserved = []string{"prefill", "decode", "encode"}

// ParseSection reads the section. The error lists every fault.
func ParseSection(n *yaml.Node) (*Section, error) {
	s := &Section{names: map[string]string{}, models: map[string]string{}}
	r := sectionReader{Reader: yamlread.Reader{Format: describe, Aliases: true}}
	r.section(n, s)
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
func (s *Section) Names() bool { return s != nil && (s.names[aggregated] != "" || len(s.models) > 0) }

// Parse reads a section that comes at run time, and creates its instances that are in use. It goes before the
// settings' Name, and before their Type where it names an instance.
func Parse(section []byte, settings Settings) (*Table, error) {
	n, err := yamlread.Root(section)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", sectionPath, err)
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

type sectionReader struct{ yamlread.Reader }

const sectionPath = "worker_selection"

func (r *sectionReader) section(n *yaml.Node, s *Section) {
	keys := append(append([]string{aggregated}, unserved...), "instances", "models", "shadow")
	for key, value := range r.Pairs(sectionPath, n) {
		switch {
		case !slices.Contains(keys, key.Name):
			r.Fault(sectionPath, key.Node, unknownField(key.Name, keys))
		case yamlread.IsNull(value):
		case key.Name == "instances":
			for path, item := range r.List(key.Path, value) {
				s.instances = append(s.instances, r.instance(path, item))
			}
		case key.Name == "models":
			for model, name := range r.Pairs(key.Path, value) {
				s.models[model.Name] = r.text(model.Path, name)
			}
		case key.Name == "shadow":
			for path, item := range r.List(key.Path, value) {
				s.shadow = append(s.shadow, r.text(path, item))
			}
		default:
			s.names[key.Name] = r.text(key.Path, value)
		}
	}
}

func (r *sectionReader) instance(path string, n *yaml.Node) (i instance) {
	known := []string{"name", "type", "parameters"}
	given := map[string]bool{}
	for key, value := range r.Pairs(path, n) {
		given[key.Name] = true
		switch key.Name {
		case "name":
			i.name = r.text(key.Path, value)
		case "type":
			i.kind = r.text(key.Path, value)
		case "parameters":
			i.parameters = value
		default:
			r.Fault(path, key.Node, unknownField(key.Name, known))
		}
	}
	for _, key := range known[:2] {
		if !given[key] && n.Kind == yaml.MappingNode {
			r.Fault(path, n, fmt.Errorf("missing field `%s`", key))
		}
	}
	return i
}

// text returns a plain value as it is written.
func (r *sectionReader) text(path string, n *yaml.Node) string {
	if n.Kind != yaml.ScalarNode || yamlread.IsNull(n) {
		r.Fault(path, n, wrongType(n, "a string"))
	}
	return n.Value
}

// check returns the faults of the section as a whole.
func (s *Section) check() (faults []error) {
	add := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	known := map[string]bool{BuiltIn: true}
	for _, i := range s.instances {
		switch {
		case i.name == BuiltIn:
			add("instance name '%s' is reserved for Dynamo's built-in selector", BuiltIn)
		case !yamlread.IsIdentifier(i.name):
			add("instance name %q must match [A-Za-z0-9_.-]+", i.name)
		case known[i.name]:
			add("contains duplicate instance %q", i.name)
		case !yamlread.IsIdentifier(i.kind):
			add("policy type name %q must match [A-Za-z0-9_.-]+", i.kind)
		case i.parameters != nil && i.parameters.Kind != yaml.MappingNode:
			add("instance %q parameters must be a YAML mapping", i.name)
		}
		known[i.name] = true
	}
	if len(s.instances)+len(s.names)+len(s.models)+len(s.shadow) == 0 {
		add("must define an instance or an aggregated, prefill, decode, or encode selection")
	}
	refer := func(from, name string) {
		if !known[name] {
			add("%s %q does not name a configured instance", from, name)
		}
	}
	for _, role := range append([]string{aggregated}, unserved...) {
		if name, given := s.names[role]; given {
			refer(role, name)
		}
	}
	for _, model := range slices.Sorted(maps.Keys(s.models)) {
		refer("models."+model, s.models[model])
	}
	for i, name := range s.shadow {
		refer("shadow", name)
		if slices.Contains(s.shadow[:i], name) {
			add("shadow contains duplicate instance %q", name)
		}
	}
	return faults
}

// Warnings lists the parts of the section that have no effect. override is the name of an
// instance that takes precedence over those of the section, "" for none.
func (s *Section) Warnings(override string) (warnings []string) {
	var roles, unnamed []string
	for _, role := range unserved {
		if _, given := s.names[role]; given {
			roles = append(roles, role)
		}
	}
	if len(roles) > 0 {
		warnings = append(warnings, "worker-selection policies configured for unserved worker types are ignored: "+strings.Join(roles, ", "))
	}
	named := append(slices.Collect(maps.Values(s.names)), s.shadow...)
	named = append(append(named, slices.Collect(maps.Values(s.models))...), override)
	for _, i := range s.instances {
		if !slices.Contains(named, i.name) {
			unnamed = append(unnamed, i.name)
		}
	}
	if len(unnamed) > 0 {
		warnings = append(warnings, "worker_selection instances that nothing names are ignored: "+strings.Join(unnamed, ", "))
	}
	return warnings
}

func unknownField(name string, known []string) error {
	return fmt.Errorf("unknown field `%s`, expected one of `%s`", name, strings.Join(known, "`, `"))
}

// wrongType returns the error for a value of another type than expected.
func wrongType(n *yaml.Node, expected string) error {
	what := ""
	switch n.Kind {
	case yaml.MappingNode:
		what = "map"
	case yaml.SequenceNode:
		what = "sequence"
	default:
		switch n.ShortTag() {
		case "!!null":
			what = "unit value"
		case "!!bool":
			what = "boolean `" + n.Value + "`"
		case "!!int":
			what = "integer `" + n.Value + "`"
		case "!!float":
			what = "floating point `" + n.Value + "`"
		default:
			what = fmt.Sprintf("string %q", n.Value)
		}
	}
	return fmt.Errorf("invalid type: %s, expected %s", what, expected)
}

// describe returns the error for a fault of the file's structure.
func describe(path string, n *yaml.Node, what error) error {
	switch {
	case errors.Is(what, yamlread.ErrNotMapping):
		what = wrongType(n, "a mapping")
	case errors.Is(what, yamlread.ErrNotList):
		what = wrongType(n, "a sequence")
	case errors.Is(what, yamlread.ErrKeyTwice):
		parent, key := path[:strings.LastIndexByte(path, '.')], n.Value
		path, what = parent, fmt.Errorf("duplicate entry with key %q", key)
	}
	return fmt.Errorf("%s: %w at line %d column %d", path, what, n.Line, n.Column)
}
