package main

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// schemes are the ways to say who calls.
var schemes = []string{"bearer", "mutualTLS"}

// refusals are the answers to a caller who may not, by status.
var refusals = []struct{ status, response string }{
	{"401", "Unauthorized"}, {"403", "Forbidden"}, {"429", "TooManyFailures"},
}

// guard gives every operation the security that its x-role stands for, and the
// answers of those who are refused.
func guard(paths *yaml.Node) error {
	for _, path := range entries(paths) {
		for _, method := range entries(path.value) {
			if method.value.Kind != yaml.MappingNode { // the path's own parameters
				continue
			}
			role, responses := child(method.value, "x-role"), child(method.value, "responses")
			if role == nil || responses == nil {
				return fmt.Errorf("line %d: %s %s has no x-role or no responses", method.key.Line, method.key.Value, path.key.Value)
			}
			add(method.value, entry{scalar("security"), security(role.Value)})
			prefix := refPrefix + "responses/"
			if strings.HasPrefix(path.key.Value, "/conductor/") {
				prefix += "Conductor"
			}
			for _, r := range refusals {
				if child(responses, r.status) == nil {
					ref := &yaml.Node{Kind: yaml.MappingNode, Style: yaml.FlowStyle}
					add(ref, entry{scalar("$ref"), quoted(prefix + r.response)})
					add(responses, entry{quoted(r.status), ref})
				}
			}
			sortEntries(responses)
		}
	}
	return nil
}

// security is a requirement of OpenAPI 3.1: one of the schemes, with the role.
func security(role string) *yaml.Node {
	list := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
	if role == "public" {
		return list
	}
	for _, scheme := range schemes {
		roles := &yaml.Node{Kind: yaml.SequenceNode, Content: []*yaml.Node{scalar(role)}}
		one := &yaml.Node{Kind: yaml.MappingNode}
		add(one, entry{scalar(scheme), roles})
		list.Content = append(list.Content, one)
	}
	return list
}

func quoted(text string) *yaml.Node {
	n := scalar(text)
	n.Style = yaml.DoubleQuotedStyle
	return n
}

func sortEntries(mapping *yaml.Node) {
	sorted := entries(mapping)
	slices.SortStableFunc(sorted, func(a, b entry) int { return strings.Compare(a.key.Value, b.key.Value) })
	mapping.Content = nil
	for _, e := range sorted {
		add(mapping, e)
	}
}
