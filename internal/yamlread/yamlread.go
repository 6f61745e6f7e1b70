// Package yamlread reads the files that people write for this service, as trees of
// which every node knows its line.
package yamlread

import (
	"bytes"
	"errors"
	"io"

	"go.yaml.in/yaml/v3"
)

// Root returns the root of the only document of a file, nil if there is none. A
// second document is an error, and so is what is no YAML.
func Root(content []byte) (*yaml.Node, error) {
	dec := yaml.NewDecoder(bytes.NewReader(content))
	var doc, further yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil, nil
	case err != nil:
		return nil, err
	}
	switch err := dec.Decode(&further); {
	case err == nil:
		return nil, errors.New("more than one document")
	case !errors.Is(err, io.EOF):
		return nil, err
	}
	return doc.Content[0], nil
}

// IsNull tells whether a node says null, or nothing at all.
func IsNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }
