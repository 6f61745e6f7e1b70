package main

import (
	"errors"
	"fmt"

	"go.yaml.in/yaml/v3"
)

// dialect is a version of the contract.
type dialect struct {
	version string // in paths and behind keys of the source
	suffix  string // of operations and components
	file    string // the document whose unprefixed names it decides
}

var dialects = []dialect{
	{version: "1.3", suffix: "V13", file: "openapi.yaml"},
	{version: "1.6", suffix: "V16", file: "openapi-1.6.yaml"},
}

// unprefixed marks paths without twins under the prefixes.
const unprefixed = "x-unprefixed"

// assemble makes the document of a contract out of the source.
func assemble(source *yaml.Node, contract dialect) (*yaml.Node, error) {
	v := views{}
	for _, d := range dialects {
		v[d] = only(source, d)
		for _, part := range []string{"paths", "components"} {
			if n := child(v[d], part); n == nil || n.Kind != yaml.MappingNode {
				return nil, errors.New("the source has no " + part)
			}
		}
		if err := guard(child(v[d], "paths")); err != nil {
			return nil, err
		}
	}
	differing, err := v.differing()
	if err != nil {
		return nil, err
	}
	if err := v.redirect(differing); err != nil {
		return nil, err
	}
	root := like(source)
	for _, e := range entries(v[contract]) {
		switch e.key.Value {
		case "paths":
			e.value = v.joinPaths(contract)
		case "components":
			e.value = v.joinComponents(differing)
		}
		add(root, e)
	}
	return root, nil
}

// views are the source as each dialect has it.
type views map[dialect]*yaml.Node

// joinPaths returns the paths of all prefixes.
func (v views) joinPaths(contract dialect) *yaml.Node {
	paths := like(child(v[contract], "paths"))
	for _, e := range entries(child(v[contract], "paths")) {
		add(paths, entry{e.key, withoutKey(e.value, unprefixed)})
	}
	for _, d := range dialects {
		for _, e := range entries(child(v[d], "paths")) {
			if child(e.value, unprefixed) == nil {
				add(paths, entry{scalar("/v" + d.version + e.key.Value), renamedOperations(e.value, d)})
			}
		}
	}
	return paths
}

func withoutKey(mapping *yaml.Node, key string) *yaml.Node {
	c := like(mapping)
	for _, e := range entries(mapping) {
		if e.key.Value != key {
			add(c, e)
		}
	}
	return c
}

// renamedOperations returns a path item whose operations have names of their own.
func renamedOperations(item *yaml.Node, d dialect) *yaml.Node {
	c := like(item)
	for _, method := range entries(item) {
		if method.value.Kind == yaml.MappingNode {
			operation := like(method.value)
			for _, e := range entries(method.value) {
				if e.key.Value == "operationId" {
					e.value = scalar(e.value.Value + d.suffix)
				}
				add(operation, e)
			}
			method.value = operation
		}
		add(c, method)
	}
	return c
}

// component returns what a dialect has at a place, or nil.
func (v views) component(d dialect, c component) *yaml.Node {
	kind := child(child(v[d], "components"), c.kind)
	if kind == nil {
		return nil
	}
	return child(kind, c.name)
}

// differing returns the components that the dialects have differently: in
// themselves, or because they refer to such a one. What only one dialect has
// needs no other name.
func (v views) differing() (map[component]bool, error) {
	differing := map[component]bool{}
	users := map[component][]component{} // by what they refer to
	for _, d := range dialects {
		for _, kind := range entries(child(v[d], "components")) {
			for _, e := range entries(kind.value) {
				c := component{kind.key.Value, e.key.Value}
				for _, other := range dialects {
					if n := v.component(other, c); n != nil && !same(n, e.value) {
						differing[c] = true
					}
				}
				err := refs(e.value, func(target *yaml.Node, used component) error {
					if v.component(d, used) == nil {
						return fmt.Errorf("line %d: nothing is at %s in dialect %s", target.Line, used, d.version)
					}
					users[used] = append(users[used], c)
					return nil
				})
				if err != nil {
					return nil, err
				}
			}
		}
	}
	var spread func(c component)
	spread = func(c component) {
		for _, user := range users[c] {
			if !differing[user] {
				differing[user] = true
				spread(user)
			}
		}
	}
	for c := range differing {
		spread(c)
	}
	return differing, nil
}

// redirect makes the references of each dialect lead to its own components.
func (v views) redirect(differing map[component]bool) error {
	for _, d := range dialects {
		err := refs(v[d], func(target *yaml.Node, c component) error {
			if v.component(d, c) == nil {
				return fmt.Errorf("line %d: nothing is at %s in dialect %s", target.Line, c, d.version)
			}
			if differing[c] {
				target.Value = c.String() + d.suffix
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// joinComponents returns the components of all dialects.
func (v views) joinComponents(differing map[component]bool) *yaml.Node {
	joined := like(child(v[dialects[0]], "components"))
	for _, d := range dialects {
		for _, kind := range entries(child(v[d], "components")) {
			into := child(joined, kind.key.Value)
			if into == nil {
				into = like(kind.value)
				add(joined, entry{kind.key, into})
			}
			for _, e := range entries(kind.value) {
				if differing[component{kind.key.Value, e.key.Value}] {
					e.key = scalar(e.key.Value + d.suffix)
				}
				if child(into, e.key.Value) == nil {
					add(into, e)
				}
			}
		}
	}
	return joined
}
