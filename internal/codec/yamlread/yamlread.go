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
	ErrUnknownKey = errors.New("unknown key")

	errNotMapping = errors.New("want keys with values")
	errNotList    = errors.New("want a list")
	errKeyKind    = errors.New("want a plain key")
	errKeyTwice   = errors.New("given twice")
	errMissing    = errors.New("is missing")
	errAlias      = errors.New("aliases are not supported")
	errMergeKey   = errors.New("merge keys are not supported")
)

// Reader reads the tree of one file and collects its faults. The zero value
// refuses aliases and merge keys (<<) and keeps every fault.
type Reader struct {
	// Aliases makes the Reader replace aliases by their anchors' values. A merge key is then an
	// ordinary key with an unknown name.
	Aliases bool
	// MaxFaults bounds the faults that are kept, 0 for no bound.
	MaxFaults int

	faults  []error
	omitted int // faults beyond MaxFaults
}

// maxClipped is the longest path in a fault, in bytes.
const maxClipped = 256

// Fault records a fault of a node: "path (line 3): what". The path has the keys above the node, ""
// at the top level.
func (r *Reader) Fault(path string, n *yaml.Node, what error) {
	switch {
	case r.Aliases:
	case n.Kind == yaml.AliasNode:
		what = errAlias
	case n.Tag == "!!merge":
		what = errMergeKey
	}
	if r.MaxFaults > 0 && len(r.faults) >= r.MaxFaults {
		r.omitted++
		return
	}
	if path == "" {
		path = "top level"
	}
	r.faults = append(r.faults, fmt.Errorf("%s (line %d): %w", clip(path), n.Line, what))
}

// clip shortens the text of a key, which may be as long as the file.
func clip(text string) string {
	if len(text) <= maxClipped {
		return text
	}
	return strings.ToValidUTF8(text[:maxClipped], "") + "…"
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
			r.Fault(path, n, errNotMapping)
			return
		}
		seen := make(map[string]bool, len(n.Content)/2)
		for i := 0; i+1 < len(n.Content); i += 2 {
			node := r.resolve(n.Content[i])
			if node.Kind != yaml.ScalarNode {
				r.Fault(path, node, errKeyKind)
				continue
			}
			key := Key{Name: node.Value, Path: Join(path, node.Value), Node: node}
			if seen[key.Name] {
				r.Fault(key.Path, node, errKeyTwice)
				continue
			}
			seen[key.Name] = true
			if !yield(key, r.resolve(n.Content[i+1])) {
				return
			}
		}
	}
}

// List yields the items of the list at path, each with its own path.
func (r *Reader) List(path string, n *yaml.Node) iter.Seq2[string, *yaml.Node] {
	return func(yield func(string, *yaml.Node) bool) {
		n := r.resolve(n)
		if n.Kind != yaml.SequenceNode {
			r.Fault(path, n, errNotList)
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
