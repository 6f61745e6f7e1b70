package main

import (
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// entry is a key of a mapping with its value.
type entry struct{ key, value *yaml.Node }

func entries(mapping *yaml.Node) []entry {
	var list []entry
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		list = append(list, entry{mapping.Content[i], mapping.Content[i+1]})
	}
	return list
}

func add(mapping *yaml.Node, e entry) { mapping.Content = append(mapping.Content, e.key, e.value) }

func scalar(text string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Value: text} }

// child returns the value of a key, or nil.
func child(mapping *yaml.Node, key string) *yaml.Node {
	for _, e := range entries(mapping) {
		if e.key.Value == key {
			return e.value
		}
	}
	return nil
}

// like returns an empty node with the form of n.
func like(n *yaml.Node) *yaml.Node {
	c := *n
	c.Content = nil
	return &c
}

// only returns n as it is in a dialect, nil if nothing of it is.
func only(n *yaml.Node, d dialect) *yaml.Node {
	c := like(n)
	switch n.Kind {
	case yaml.MappingNode:
		for _, e := range entries(n) {
			key, ok := named(e.key, d)
			if !ok {
				continue
			}
			if value := only(e.value, d); value != nil {
				add(c, entry{key, value})
			}
		}
	case yaml.SequenceNode:
		for _, item := range n.Content {
			if item.Kind == yaml.ScalarNode {
				var ok bool
				if item, ok = named(item, d); !ok {
					continue
				}
			}
			if item = only(item, d); item != nil {
				c.Content = append(c.Content, item)
			}
		}
	case yaml.DocumentNode, yaml.ScalarNode, yaml.AliasNode:
		return c
	}
	if len(c.Content) == 0 && len(n.Content) > 0 {
		return nil
	}
	return c
}

// named returns a key or an item without the version behind it; ok is false if
// it is of another dialect.
func named(n *yaml.Node, d dialect) (_ *yaml.Node, ok bool) {
	for _, other := range dialects {
		if name, tagged := strings.CutSuffix(n.Value, "@"+other.version); tagged {
			c := *n
			c.Value = name
			return &c, other == d
		}
	}
	return n, true
}

// same reports whether two nodes say the same.
func same(a, b *yaml.Node) bool {
	if a.Kind != b.Kind || a.Value != b.Value || len(a.Content) != len(b.Content) {
		return false
	}
	for i := range a.Content {
		if !same(a.Content[i], b.Content[i]) {
			return false
		}
	}
	return true
}

// component is a place under #/components.
type component struct{ kind, name string }

const refPrefix = "#/components/"

func (c component) String() string { return refPrefix + c.kind + "/" + c.name }

// refs calls visit with every reference below n. Only keys called $ref count:
// no example has such a member.
func refs(n *yaml.Node, visit func(target *yaml.Node, c component) error) error {
	if n.Kind == yaml.MappingNode {
		for _, e := range entries(n) {
			if e.key.Value != "$ref" || e.value.Kind != yaml.ScalarNode {
				continue
			}
			place, ok := strings.CutPrefix(e.value.Value, refPrefix)
			kind, name, whole := strings.Cut(place, "/")
			if !ok || !whole {
				return fmt.Errorf("line %d: unexpected reference %s", e.value.Line, e.value.Value)
			}
			if err := visit(e.value, component{kind, name}); err != nil {
				return err
			}
		}
	}
	for _, c := range n.Content {
		if err := refs(c, visit); err != nil {
			return err
		}
	}
	return nil
}
