package workersfile

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/select-service/select-service/internal/codec/yamlread"
	"github.com/select-service/select-service/pkg/catalog"
)

// fields are the keys of a worker that are fields of its record.
var fields = func() map[string]*catalog.Field {
	all := make(map[string]*catalog.Field)
	for i, f := range catalog.Fields() {
		if !f.EngineOnly {
			all[f.Name] = &catalog.Fields()[i]
		}
	}
	return all
}()

// drainSet is the reason of a worker that the file drains.
const drainSet = "the workers file says drain"

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
		case "tenant_id":
			tenant = readName(r, key.Path, value)
			refuseContradiction(r, key.Path, value, tenant, cmp.Or(set.Tenant, group))
		case "routing_group":
			group = readName(r, key.Path, value)
			refuseContradiction(r, key.Path, value, group, cmp.Or(set.Tenant, tenant))
		case "worker_id":
			hasID = true
			r.Decode(key.Path, value, &w.ID)
		case "describe":
			w.Describe = readDescribe(r, key.Path, value)
		case "drain":
			var drain *bool
			if r.Decode(key.Path, value, &drain); drain != nil && *drain {
				w.Draining = drainSet
			}
		case catalog.ServerKeyField:
			if !yamlread.IsNull(value) {
				r.Fault(key.Path, value, errors.New(catalog.NoServerKey))
			}
		default:
			readField(r, key, value, &w)
		}
	}
	if !hasID && n.Kind == yaml.MappingNode {
		r.Fault(path, n, errors.New("worker_id is missing"))
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

// readField reads a field of a record.
func readField(r *yamlread.Reader, key yamlread.Key, n *yaml.Node, w *catalog.Record) {
	f := fields[key.Name]
	if f == nil {
		r.Fault(key.Path, key.Node, yamlread.ErrUnknownKey)
		return
	}
	read := r.Decode(key.Path, n, f.Of.Variable(w))
	if of, isText := f.Of.(catalog.Pointer[string]); isText && read && f.Words != nil {
		if word := *of(w); word != nil && !slices.Contains(f.Words, *word) {
			r.Fault(key.Path, n, errors.New("want "+catalog.AnyOf(f.Words)))
		}
	}
}

// readDescribe reads whether the engine fills in what a record leaves out: true, or the engine's kind.
func readDescribe(r *yamlread.Reader, path string, n *yaml.Node) *catalog.Describe {
	switch engine := n.Value; {
	case yamlread.IsNull(n) || n.ShortTag() == "!!bool" && strings.EqualFold(engine, "false"):
		return nil
	case n.ShortTag() == "!!bool":
		return new(catalog.Describe)
	case yamlread.IsString(n) && catalog.EngineNamed(engine).Name != "":
		return &catalog.Describe{Engine: engine}
	}
	r.Fault(path, n, errors.New("want true, "+catalog.AnyOf(catalog.Engines())))
	return nil
}

// readName reads a name of a scope; nil on a fault.
func readName(r *yamlread.Reader, path string, n *yaml.Node) *string {
	name := new(string)
	if !r.Decode(path, n, name) {
		return nil
	}
	return name
}

// refuseContradiction refuses a name that differs from one given elsewhere.
func refuseContradiction(r *yamlread.Reader, path string, n *yaml.Node, got, want *string) {
	if got != nil && want != nil && *got != *want {
		r.Fault(path, n, fmt.Errorf("%q is given elsewhere as %q", catalog.Clip(*got), catalog.Clip(*want)))
	}
}
