package workersfile

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"

	"go.yaml.in/yaml/v3"

	"github.com/select-service/select-service/internal/codec/yamlread"
	"github.com/select-service/select-service/internal/transport/filewatch"
	"github.com/select-service/select-service/internal/workers/enginelist"
	"github.com/select-service/select-service/pkg/catalog"
)

// MaxSize is the largest file in bytes, as for a body of PUT /workers.
const MaxSize = 8 << 20

// File is the content of a workers file.
type File struct {
	// Scope is the scope of the set: only workers of matching scopes are replaced.
	Scope   catalog.ScopeFilter
	Records []catalog.Record
	lines   []int    // line of each record
	engines []string // of another list
	sum     [sha256.Size]byte
}

// Load reads a file once. engines are listed elsewhere: they belong to the set of any file at the
// path (see enginelist). The error names every fault with its line, in one line.
func Load(path string, engines ...string) (*File, error) {
	content, err := filewatch.Read(path, MaxSize)
	if err != nil {
		return nil, err
	}
	return decode(path, content, engines...)
}

// set returns the workers of the file.
func (f *File) set() catalog.Set { return catalog.Set{Records: f.Records, Scope: f.Scope} }

// Locate adds the worker's line to an error of applying the file.
func (f *File) Locate(err error) error {
	entry, ok := errors.AsType[*catalog.EntryError](err)
	if !ok || entry.Index >= len(f.lines) {
		return err
	}
	return fmt.Errorf("workers[%d] (line %d): %w", entry.Index, f.lines[entry.Index], entry.Err)
}

// parse returns the root of the only document. JSON has a parser of its own, since not all JSON
// is YAML (tabs, surrogate escapes).
func parse(content []byte) (*yaml.Node, error) {
	if json.Valid(content) { // also bounds the depth
		return parseJSON(content)
	}
	root, err := yamlread.Root(content)
	if err == nil && root == nil {
		err = errors.New("the file is empty")
	}
	return root, err
}

// decode reads the content of a file.
func decode(path string, content []byte, engines ...string) (*File, error) {
	root, err := parse(content)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	r := &yamlread.Reader{Format: describe, MaxFaults: maxFaults}
	f := &File{engines: engines, sum: sha256.Sum256(content)}
	f.read(r, root)
	if err := r.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

var errNoWorkers = errors.New("the key workers is missing")

// read fills in the file from its root; faults are recorded in r.
func (f *File) read(r *yamlread.Reader, root *yaml.Node) {
	var workers, engines *yaml.Node
	var tenantKey string
	for key, value := range r.Pairs("", root) {
		switch key.Name {
		case "model_name":
			f.Scope.Model = readName(r, key.Path, value)
		case "tenant_id", "routing_group":
			tenant := readName(r, key.Path, value)
			if tenantKey != "" && tenant != nil && f.Scope.Tenant != nil && *tenant != *f.Scope.Tenant {
				r.Fault(key.Path, key.Node, fmt.Errorf("differs from %s", tenantKey))
			}
			tenantKey, f.Scope.Tenant = key.Name, tenant
		case "workers":
			workers = value
		case "engines":
			engines = value
		default:
			r.Fault(key.Path, key.Node, yamlread.ErrUnknownKey)
		}
	}
	if workers == nil && engines == nil {
		if root.Kind == yaml.MappingNode {
			r.Fault("", root, errNoWorkers)
		}
		return
	}
	set := catalog.NewSetCheck(f.Scope)
	add := func(w catalog.Record, line int) error {
		f.Records = append(f.Records, w)
		f.lines = append(f.lines, line)
		return set.Add(&w)
	}
	if workers != nil {
		for path, n := range r.List("workers", workers) { // null is not a list: an empty set is []
			before := r.Count()
			w := readWorker(r, path, n, f.Scope)
			w.Source.Kind = catalog.SourceFile
			if r.Count() > before { // a fault in the entry itself
				continue
			}
			if err := add(w, n.Line); err != nil {
				r.Fault(path, n, err)
			}
		}
	}
	if engines != nil {
		for path, n := range r.List("engines", engines) {
			entry, err := text(n)
			if err == nil {
				err = f.addEngine(entry, n.Line, add)
			}
			if err != nil {
				r.Fault(path, n, err)
			}
		}
	}
	for _, entry := range f.engines {
		if err := f.addEngine(entry, root.Line, add); err != nil {
			r.Fault("engines", root, err)
		}
	}
}

// addEngine adds the worker of an engine that is listed by its URL.
func (f *File) addEngine(entry string, line int, add func(catalog.Record, int) error) error {
	w, err := enginelist.Record(entry, f.Scope)
	if err != nil {
		return err
	}
	return add(w, line)
}

// maxFaults bounds the reported faults of one file.
const maxFaults = 20

// describe is yamlread.Describe with long paths shortened: a key may be as long as the file.
func describe(path string, n *yaml.Node, what error) error {
	return yamlread.Describe(catalog.Clip(path), n, what)
}
