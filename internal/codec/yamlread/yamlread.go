package yamlread

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Root returns the root of the only document of a file, nil if there is none. A
// second document is an error, and so is text that is not YAML.
func Root(content []byte) (*yaml.Node, error) {
	dec := yaml.NewDecoder(bytes.NewReader(content))
	var doc, second yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil, nil
	case err != nil:
		return nil, err
	}
	switch err := dec.Decode(&second); {
	case err == nil:
		return nil, errors.New("more than one document")
	case !errors.Is(err, io.EOF):
		return nil, err
	}
	return doc.Content[0], nil
}

// IsNull reports whether a node is null or has no value at all.
func IsNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// IsString reports whether a node is a string. A plain 7, true or 2024-01-01 is not.
func IsString(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!str" }

// IsIdentifier reports whether a name matches [A-Za-z0-9_.-]+, as names in policy files do
// (dynamo-kv-router 1.6.1).
func IsIdentifier(name string) bool {
	for _, c := range []byte(name) {
		isLetter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		isDigit := '0' <= c && c <= '9'
		if !isLetter && !isDigit && c != '_' && c != '.' && c != '-' {
			return false
		}
	}
	return name != ""
}

// The faults that a Reader finds by itself.
var (
	ErrNotMapping = errors.New("want keys with values")
	ErrNotList    = errors.New("want a list")
	ErrKeyKind    = errors.New("want a plain key")
	ErrKeyTwice   = errors.New("given twice")
	ErrUnknownKey = errors.New("unknown key")
	ErrAlias      = errors.New("aliases are not supported")
	ErrMergeKey   = errors.New("merge keys are not supported")
)

// Reader walks the tree of one file and collects its faults. The zero value
// refuses aliases and merge keys (<<) and keeps every fault.
type Reader struct {
	// Format formats a fault; nil: Describe. n is the node at fault, path the path of its keys,
	// "" at the top level.
	Format func(path string, n *yaml.Node, what error) error
	// Aliases makes the Reader replace aliases by their anchors' values. A merge key is then an
	// ordinary key with an unknown name.
	Aliases bool
	// MaxFaults bounds the faults that are kept, 0 for no bound.
	MaxFaults int

	faults  []error
	omitted int // faults beyond MaxFaults
}

// Describe formats a fault as "path (line 3): what".
func Describe(path string, n *yaml.Node, what error) error {
	if path == "" {
		path = "top level"
	}
	return fmt.Errorf("%s (line %d): %w", path, n.Line, what)
}

// Fault records a fault of a node.
func (r *Reader) Fault(path string, n *yaml.Node, what error) {
	switch {
	case r.Aliases:
	case n.Kind == yaml.AliasNode:
		what = ErrAlias
	case n.Tag == "!!merge":
		what = ErrMergeKey
	}
	if r.MaxFaults > 0 && len(r.faults) >= r.MaxFaults {
		r.omitted++
		return
	}
	format := r.Format
	if format == nil {
		format = Describe
	}
	r.faults = append(r.faults, format(path, n, what))
}

// Count returns the number of faults so far, including those that were not kept.
func (r *Reader) Count() int { return len(r.faults) + r.omitted }

// Faults returns the faults that were kept, in the order of the file.
func (r *Reader) Faults() []error { return r.faults }

// Err returns the faults in one line, nil if there are none.
func (r *Reader) Err() error {
	if r.Count() == 0 {
		return nil
	}
	texts := make([]string, len(r.faults))
	for i, fault := range r.faults {
		texts[i] = fault.Error()
	}
	if r.omitted > 0 {
		texts = append(texts, fmt.Sprintf("and %d more faults", r.omitted))
	}
	return errors.New(strings.Join(texts, "; "))
}

// Key is a key of a mapping.
type Key struct {
	Name string
	Path string // with the keys above it: "workers[2].worker_id"
	Node *yaml.Node
}

// Pairs yields the keys of the mapping at path with their values, each key once. A node that is
// no mapping, a key that is no scalar, and a repeated key are faults.
func (r *Reader) Pairs(path string, n *yaml.Node) iter.Seq2[Key, *yaml.Node] {
	return func(yield func(Key, *yaml.Node) bool) {
		n := r.resolve(n)
		if n.Kind != yaml.MappingNode {
			r.Fault(path, n, ErrNotMapping)
			return
		}
		seen := make(map[string]bool, len(n.Content)/2)
		for i := 0; i+1 < len(n.Content); i += 2 {
			node := r.resolve(n.Content[i])
			if node.Kind != yaml.ScalarNode {
				r.Fault(path, node, ErrKeyKind)
				continue
			}
			key := Key{Name: node.Value, Path: Join(path, node.Value), Node: node}
			if seen[key.Name] {
				r.Fault(key.Path, node, ErrKeyTwice)
				continue
			}
			seen[key.Name] = true
			if !yield(key, r.resolve(n.Content[i+1])) {
				return
			}
		}
	}
}

// Fields are the keys that a mapping may have, each with the function that reads
// its value.
type Fields map[string]func(path string, value *yaml.Node)

// Mapping reads a mapping whose keys are all in known. A null value counts as an
// absent key.
func (r *Reader) Mapping(path string, n *yaml.Node, known Fields) {
	for key, value := range r.Pairs(path, n) {
		read, ok := known[key.Name]
		switch {
		case !ok:
			r.Fault(key.Path, key.Node, ErrUnknownKey)
		case !IsNull(value):
			read(key.Path, value)
		}
	}
}

// List yields the items of the list at path, each with its own path.
func (r *Reader) List(path string, n *yaml.Node) iter.Seq2[string, *yaml.Node] {
	return func(yield func(string, *yaml.Node) bool) {
		n := r.resolve(n)
		if n.Kind != yaml.SequenceNode {
			r.Fault(path, n, ErrNotList)
			return
		}
		for i, item := range n.Content {
			if !yield(fmt.Sprintf("%s[%d]", path, i), r.resolve(item)) {
				return
			}
		}
	}
}

// resolve follows aliases to their anchor if the file may have them.
func (r *Reader) resolve(n *yaml.Node) *yaml.Node {
	for r.Aliases && n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

// Join returns the path of a key below another; the top level is "".
func Join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
