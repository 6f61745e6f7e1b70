package workersfile

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"

	"go.yaml.in/yaml/v3"

	"github.com/select-service/select-service/pkg/catalog"
)

// MaxSize is the largest file in bytes: that of a body of PUT /workers.
const MaxSize = 8 << 20

// File is the content of a workers file.
type File struct {
	// Scope is that of the set: with names only workers of matching scopes are
	// replaced.
	Scope   catalog.ScopeFilter
	Records []catalog.Record
	lines   []int // of each record
	sum     [sha256.Size]byte
}

// Load reads a file once. The error names every fault with its line, in one line.
func Load(path string) (*File, error) {
	content, err := readFile(path)
	if err != nil {
		return nil, err
	}
	return decode(path, content)
}

func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() { // opening a pipe would wait for a writer
		return nil, fmt.Errorf("%s: not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	content, err := io.ReadAll(io.LimitReader(f, MaxSize+1))
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	if len(content) > MaxSize {
		return nil, fmt.Errorf("%s: the file has more than %d bytes", path, MaxSize)
	}
	return content, nil
}

// Locate adds the line of the worker to an error of applying the file.
func (f *File) Locate(err error) error {
	entry, ok := errors.AsType[*catalog.EntryError](err)
	if !ok || entry.Index >= len(f.lines) {
		return err
	}
	return fmt.Errorf("workers[%d] (line %d): %w", entry.Index, f.lines[entry.Index], entry.Err)
}

const topLevel = "top level"

// decode reads the content of a file.
func decode(path string, content []byte) (*File, error) {
	root, err := parse(content)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	r, f := new(reader), &File{sum: sha256.Sum256(content)}
	var workers *yaml.Node
	var named string
	for key, value := range r.pairs(topLevel, root) {
		switch key.Value {
		case "model_name":
			f.Scope.Model = name(r, key.Value, value)
		case "tenant_id", "routing_group":
			tenant := name(r, key.Value, value)
			if named != "" && tenant != nil && f.Scope.Tenant != nil && *tenant != *f.Scope.Tenant {
				r.fault(key.Value, key, "differs from "+named)
			}
			named, f.Scope.Tenant = key.Value, tenant
		case "workers":
			workers = value
		default:
			r.fault(key.Value, key, "unknown key")
		}
	}
	switch {
	case workers == nil:
		if root.Kind == yaml.MappingNode {
			r.fault(topLevel, root, "the key workers is missing")
		}
	case workers.Kind != yaml.SequenceNode: // null, too: only [] is nobody
		r.fault("workers", workers, "want a list")
	default:
		set := catalog.NewSetCheck(f.Scope)
		for i, n := range workers.Content {
			path, before := fmt.Sprintf("workers[%d]", i), r.count()
			w := r.worker(path, n, f.Scope)
			if r.count() == before { // what could not be read is told already
				if err := set.Add(&w); err != nil {
					r.fault(path, n, err.Error())
				}
			}
			f.Records = append(f.Records, w)
			f.lines = append(f.lines, n.Line)
		}
	}
	if err := r.err(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

func name(r *reader, path string, n *yaml.Node) *string {
	v, err := text(n)
	if err != nil {
		r.fault(path, n, err.Error())
		return nil
	}
	return &v
}
