package admission

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"

	yaml "go.yaml.in/yaml/v3"
)

// reader reads YAML nodes and collects every fault with its line and key. The
// library's own decoder stops short of the key in type errors.
type reader struct {
	faults []error
}

// fields are the keys that a mapping may have, each with what reads its value.
type fields map[string]func(value *yaml.Node, key string)

func (r *reader) fault(at *yaml.Node, key, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if key != "" {
		text = key + ": " + text
	}
	if at != nil && at.Line > 0 {
		text = fmt.Sprintf("line %d: %s", at.Line, text)
	}
	r.faults = append(r.faults, errors.New(text))
}

// document returns the only document of data, nil if data is empty.
func document(data []byte) (*yaml.Node, error) {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, more yaml.Node
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	if err := dec.Decode(&more); err == nil {
		return nil, fmt.Errorf("line %d: more than one document", more.Line)
	} else if !errors.Is(err, io.EOF) {
		return nil, err
	}
	return doc.Content[0], nil
}

// object reads a mapping. A null value is an absent one.
func (r *reader) object(n *yaml.Node, path string, known fields) {
	r.entries(n, path, func(name string, value *yaml.Node, key string) {
		read, found := known[name]
		switch {
		case !found:
			r.fault(value, key, "unknown key")
		case value.ShortTag() != "!!null":
			read(value, key)
		}
	})
}

// entries reads the keys of a mapping of any names.
func (r *reader) entries(n *yaml.Node, path string, read func(name string, value *yaml.Node, key string)) {
	if n.Kind != yaml.MappingNode {
		r.fault(n, path, "must be a mapping")
		return
	}
	seen := make(map[string]bool, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, value := resolve(n.Content[i]), resolve(n.Content[i+1])
		key := join(path, name.Value)
		switch {
		case name.Kind != yaml.ScalarNode:
			r.fault(name, path, "a key must be a text")
		case seen[name.Value]:
			r.fault(name, key, "given twice")
		default:
			seen[name.Value] = true
			read(name.Value, value, key)
		}
	}
}

// list reads a sequence.
func (r *reader) list(n *yaml.Node, path string, read func(value *yaml.Node, key string)) {
	if n.Kind != yaml.SequenceNode {
		r.fault(n, path, "must be a list")
		return
	}
	for i, value := range n.Content {
		read(resolve(value), fmt.Sprintf("%s[%d]", path, i))
	}
}

// text reads a string into dst.
func (r *reader) text(dst *string) func(*yaml.Node, string) {
	return func(n *yaml.Node, key string) {
		if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!str" {
			r.fault(n, key, "must be a text")
		}
		*dst = n.Value // if wrong, it is given all the same
	}
}

// identifier reads a name that may also label a metric into dst.
func (r *reader) identifier(dst *string) func(*yaml.Node, string) {
	return func(n *yaml.Node, key string) {
		before := len(r.faults)
		r.text(dst)(n, key)
		if len(r.faults) == before && !isIdentifier(*dst) {
			r.fault(n, key, "%q must match [A-Za-z0-9_.-]+", *dst)
		}
	}
}

// order reads the order of a class into dst.
func (r *reader) order(dst *Order) func(*yaml.Node, string) {
	return func(n *yaml.Node, key string) {
		switch n.Value {
		case "fcfs":
			*dst = FCFS
		case "wspt":
			*dst = WSPT
		default:
			r.fault(n, key, "must be fcfs or wspt")
		}
	}
}

// whole reads a whole number of at least least into *dst.
func (r *reader) whole(dst **uint64, least uint64) func(*yaml.Node, string) {
	return func(n *yaml.Node, key string) {
		var v uint64
		if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!int" || n.Decode(&v) != nil || v < least {
			r.fault(n, key, "must be a whole number, at least %d", least)
			v = least // it is given, if wrong
		}
		*dst = &v
	}
}

// fraction reads a finite number of at least 0 into *dst.
func (r *reader) fraction(dst **float64) func(*yaml.Node, string) {
	return func(n *yaml.Node, key string) {
		var v float64
		tag := n.ShortTag()
		isNumber := n.Kind == yaml.ScalarNode && (tag == "!!int" || tag == "!!float")
		if !isNumber || n.Decode(&v) != nil || !(v >= 0 && v <= math.MaxFloat64) {
			r.fault(n, key, "must be a finite number, at least 0")
			v = 0
		}
		*dst = &v
	}
}

func isIdentifier(name string) bool {
	for _, c := range []byte(name) {
		isLetter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		isDigit := '0' <= c && c <= '9'
		if !isLetter && !isDigit && c != '_' && c != '.' && c != '-' {
			return false
		}
	}
	return name != ""
}

// resolve follows an alias to its anchor.
func resolve(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}
