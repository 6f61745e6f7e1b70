package workersfile

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/select-service/select-service/internal/codec/yamlread"
	"github.com/select-service/select-service/pkg/catalog"
)

// field reads the value of a key into a record.
type field func(n *yaml.Node, w *catalog.Record) error

// optional is a field whose null means the same as its absence.
func optional[V any](of func(*catalog.Record) **V, value read[V]) field {
	return func(n *yaml.Node, w *catalog.Record) error {
		if yamlread.IsNull(n) {
			return nil
		}
		v, err := value(n)
		*of(w) = &v
		return err
	}
}

func required[V any](of func(*catalog.Record) *V, value read[V]) field {
	return func(n *yaml.Node, w *catalog.Record) (err error) {
		*of(w), err = value(n)
		return err
	}
}

// fields are the keys of a worker except the names of its scope.
var fields = func() map[string]field {
	all := map[string]field{
		"worker_id":            required(func(w *catalog.Record) *uint64 { return &w.ID }, u64),
		"describe":             wish,
		"drain":                drain,
		catalog.ServerKeyField: removedServerKey,
	}
	for _, f := range catalog.Fields() {
		if !f.EngineOnly {
			all[f.Name] = fieldOf(&f)
		}
	}
	return all
}()

// fieldOf reads a field of the table.
func fieldOf(f *catalog.Field) field {
	switch of := f.Of.(type) {
	case catalog.Pointer[string]:
		if f.Words != nil {
			return optional(of, word(f.Words))
		}
		return optional(of, text)
	case catalog.Pointer[bool]:
		return optional(of, boolean)
	case catalog.Pointer[uint32]:
		return optional(of, u32)
	case catalog.Pointer[uint64]:
		return optional(of, u64)
	case catalog.Pointer[float32]:
		return optional(of, float)
	case catalog.Pointer[catalog.LoadMetrics]:
		return optional(of, loadMetrics)
	case catalog.List:
		return required(of, list)
	case catalog.Map[uint32]:
		return required(of, byRank)
	case catalog.Map[string]:
		return required(of, byName)
	}
	panic("workersfile: the field " + f.Name + " has no known kind")
}

func removedServerKey(n *yaml.Node, _ *catalog.Record) error {
	if yamlread.IsNull(n) {
		return nil
	}
	return errServerKey
}

// drainSet is the reason of a worker that the file drains.
const drainSet = "the workers file says drain"

func drain(n *yaml.Node, w *catalog.Record) error {
	if yamlread.IsNull(n) {
		return nil
	}
	v, err := boolean(n)
	if v {
		w.Draining = drainSet
	}
	return err
}

// readWorker reads an entry of the list. It inherits missing names from the set, and must not
// contradict the set's names.
func readWorker(r *yamlread.Reader, path string, n *yaml.Node, set catalog.ScopeFilter) (w catalog.Record) {
	var model, tenant, group *string
	hasID := false
	for key, value := range r.Pairs(path, n) {
		switch key.Name {
		case "model_name":
			model = readName(r, key.Path, value)
			refuseContradiction(r, key.Path, value, model, set.Model)
			continue
		case "tenant_id":
			tenant = readName(r, key.Path, value)
			refuseContradiction(r, key.Path, value, tenant, cmp.Or(set.Tenant, group))
			continue
		case "routing_group":
			group = readName(r, key.Path, value)
			refuseContradiction(r, key.Path, value, group, cmp.Or(set.Tenant, tenant))
			continue
		case "worker_id":
			hasID = true
		}
		read, known := fields[key.Name]
		if !known {
			r.Fault(key.Path, key.Node, yamlread.ErrUnknownKey)
		} else if err := read(value, &w); err != nil {
			r.Fault(key.Path, value, err)
		}
	}
	if !hasID && n.Kind == yaml.MappingNode {
		r.Fault(path, n, errNoID)
	}
	w.Scope = catalog.Scope{
		Model:  *cmp.Or(model, set.Model, new(catalog.DefaultName)),
		Tenant: *cmp.Or(tenant, group, set.Tenant, new(catalog.DefaultName)),
	}
	if w.Describe != nil {
		w.Describe.Model = w.Scope.Model == catalog.DefaultName && set.Model == nil
	}
	return w
}

// wish reads whether the engine fills in what a record leaves out: true, or the engine's kind.
func wish(n *yaml.Node, w *catalog.Record) error {
	if yamlread.IsNull(n) {
		return nil
	}
	if yes, err := boolean(n); err == nil {
		if yes {
			w.Describe = new(catalog.Describe)
		}
		return nil
	}
	engine, err := text(n)
	if err != nil || catalog.EngineNamed(engine).Name == "" {
		return errDescribe
	}
	w.Describe = &catalog.Describe{Engine: engine}
	return nil
}

// readName reads a name of a scope; nil on a fault.
func readName(r *yamlread.Reader, path string, n *yaml.Node) *string {
	v, err := text(n)
	if err != nil {
		r.Fault(path, n, err)
		return nil
	}
	return &v
}

// refuseContradiction refuses a name that differs from one given elsewhere.
func refuseContradiction(r *yamlread.Reader, path string, n *yaml.Node, got, want *string) {
	if got != nil && want != nil && *got != *want {
		r.Fault(path, n, fmt.Errorf("%q is given elsewhere as %q", catalog.Clip(*got), catalog.Clip(*want)))
	}
}

// read reads the value of a key; its error says what is wanted.
type read[V any] func(n *yaml.Node) (V, error)

var (
	errText      = errors.New("want a string; put numbers, dates and words like true in quotes")
	errBool      = errors.New("want true or false")
	errFloat     = errors.New("want a number")
	errList      = errors.New("want a list of strings")
	errMap       = errors.New("want keys with strings")
	errByRank    = errors.New("want ranks with strings")
	errDescribe  = errors.New("want true, " + catalog.AnyOf(catalog.Engines()))
	errMetrics   = errors.New("want a map of url and interval_seconds, both optional")
	errServerKey = errors.New(catalog.NoServerKey)
	errNoID      = errors.New("worker_id is missing")
)

func text(n *yaml.Node) (string, error) {
	if !yamlread.IsString(n) {
		return "", errText
	}
	return n.Value, nil
}

// word reads one of two or more strings.
func word(words []string) read[string] {
	want := errors.New("want " + catalog.AnyOf(words))
	return func(n *yaml.Node) (string, error) {
		v, err := text(n)
		if err == nil && !slices.Contains(words, v) {
			err = want
		}
		return v, err
	}
}

func boolean(n *yaml.Node) (bool, error) {
	if n.Kind != yaml.ScalarNode || n.Tag != "!!bool" {
		return false, errBool
	}
	return strings.EqualFold(n.Value, "true"), nil
}

func u64(n *yaml.Node) (uint64, error) { return unsigned(n, 64) }

func u32(n *yaml.Node) (uint32, error) {
	v, err := unsigned(n, 32)
	return uint32(v), err
}

// unsigned reads decimal digits, so that ids are exact and a leading zero does not mean octal.
func unsigned(n *yaml.Node, bits int) (uint64, error) {
	want := fmt.Errorf("want a whole decimal number of at most %d bits", bits)
	if n.Kind != yaml.ScalarNode || n.Tag == "!!str" || len(n.Value) > 1 && n.Value[0] == '0' {
		return 0, want
	}
	v, err := strconv.ParseUint(n.Value, 10, bits)
	if err != nil {
		return 0, want
	}
	return v, nil
}

func float(n *yaml.Node) (float32, error) {
	v, err := number(n, 32)
	return float32(v), err
}

func number(n *yaml.Node, bits int) (float64, error) {
	if n.Kind != yaml.ScalarNode || n.Tag != "!!float" && n.Tag != "!!int" {
		return 0, errFloat
	}
	v, err := strconv.ParseFloat(n.Value, bits)
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
		return 0, errFloat
	}
	return v, nil
}

func loadMetrics(n *yaml.Node) (m catalog.LoadMetrics, err error) {
	if n.Kind != yaml.MappingNode {
		return m, errMetrics
	}
	for i := 0; i+1 < len(n.Content) && err == nil; i += 2 {
		key, value := n.Content[i].Value, n.Content[i+1]
		switch {
		case key == "url" && m.URL == nil:
			if !yamlread.IsNull(value) {
				m.URL = new(string)
				*m.URL, err = text(value)
			}
		case key == "interval_seconds" && m.IntervalSeconds == nil:
			if !yamlread.IsNull(value) {
				m.IntervalSeconds = new(float64)
				*m.IntervalSeconds, err = number(value, 64)
			}
		default:
			err = errMetrics
		}
	}
	return m, err
}

func list(n *yaml.Node) ([]string, error) {
	if n.Kind != yaml.SequenceNode {
		return nil, errList
	}
	all := make([]string, len(n.Content))
	for i, item := range n.Content {
		var err error
		if all[i], err = text(item); err != nil {
			return nil, errList
		}
	}
	return all, nil
}

func byName(n *yaml.Node) (map[string]string, error) { return mapping(n, text, errMap) }

func byRank(n *yaml.Node) (map[uint32]string, error) { return mapping(n, rank, errByRank) }

// rank reads a rank as a key; in JSON keys are strings.
func rank(n *yaml.Node) (uint32, error) {
	plain := *n
	plain.Tag = "!!int"
	return u32(&plain)
}

func mapping[K comparable](n *yaml.Node, key read[K], want error) (map[K]string, error) {
	if n.Kind != yaml.MappingNode {
		return nil, want
	}
	all := make(map[K]string, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, err := key(n.Content[i])
		if err != nil {
			return nil, want
		}
		if _, twice := all[k]; twice {
			return nil, fmt.Errorf("%s is given twice", catalog.Clip(n.Content[i].Value))
		}
		if all[k], err = text(n.Content[i+1]); err != nil {
			return nil, want
		}
	}
	return all, nil
}
