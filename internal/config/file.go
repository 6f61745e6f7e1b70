package config

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/select-service/select-service/internal/codec/yamlread"
)

// configPath returns the path of the configuration file, and the flag or variable that gave it.
func configPath(line commandLine, getenv func(string) string) (name, path string) {
	if line.configFile != "" {
		return "--" + configFlag, line.configFile
	}
	return envConfig, getenv(envConfig)
}

// applyFile sets the options that the file gives. Without a path there is no file.
func (l *loader) applyFile(name, path string) {
	if path == "" {
		return
	}
	content, err := l.readFile(path)
	if err != nil {
		l.faults = append(l.faults, fmt.Errorf("%s: read file: %w", name, err))
		return
	}
	entries, faults := parseFile(content)
	for _, err := range faults {
		l.faults = append(l.faults, fmt.Errorf("%s: %w", path, err))
	}
	for _, e := range entries {
		where := fmt.Sprintf("%s: %s (line %d)", path, e.option.key, e.line)
		l.apply(e.option, where, e.text)
	}
}

// entry is one key of the file with its value in the text syntax of its option.
type entry struct {
	option option
	text   string // empty: the key stands without a value
	line   int
}

// parseFile reads one YAML document: groups of keys. Unknown and repeated keys and values of
// the wrong type are faults; the rest is still read.
func parseFile(content []byte) (entries []entry, faults []error) {
	root, err := yamlread.Root(content)
	if err != nil {
		return nil, []error{fmt.Errorf("parse: %w", err)}
	}
	if root == nil || yamlread.IsNull(root) {
		return nil, nil // empty, or comments only
	}
	var r yamlread.Reader
	byKey := optionsByKey()
	for group, section := range r.Pairs("", root) {
		switch {
		case !isGroup(group.Name) && !hadGroup(group.Name):
			r.Fault(group.Path, group.Node, yamlread.ErrUnknownKey)
			continue
		case yamlread.IsNull(section):
			continue
		}
		for key, value := range r.Pairs(group.Path, section) {
			o, known := byKey[key.Path]
			if !known {
				removed := removedBy(key.Path, func(o removedOption) string { return o.key })
				r.Fault(key.Path, key.Node, cmp.Or(removed, yamlread.ErrUnknownKey))
				continue
			}
			text, err := valueText(key.Path, value)
			if err != nil {
				r.Fault(key.Path, key.Node, err)
				continue
			}
			entries = append(entries, entry{option: o, text: text, line: key.Node.Line})
		}
	}
	return entries, r.Faults()
}

var (
	errNotPlain = errors.New("want one value")
	errNotList  = errors.New("want a list of plain values")
)

// valueText returns the value of a key as text. That of kubernetes.pools has more than plain values:
// it stays YAML.
func valueText(key string, node *yaml.Node) (string, error) {
	if key != keyKubePools || node.Kind != yaml.SequenceNode {
		return scalarText(node)
	}
	text, err := yaml.Marshal(node)
	return string(text), err
}

// scalarText returns a value as text: a list is joined with commas, null is empty. Aliases are
// refused: the file has no use for them.
func scalarText(node *yaml.Node) (string, error) {
	switch node.Kind {
	case yaml.ScalarNode:
		if yamlread.IsNull(node) {
			return "", nil
		}
		return node.Value, nil
	case yaml.SequenceNode:
		items := make([]string, 0, len(node.Content))
		for _, item := range node.Content {
			if item.Kind != yaml.ScalarNode {
				return "", errNotList
			}
			items = append(items, item.Value)
		}
		return strings.Join(items, ","), nil
	}
	return "", errNotPlain
}

// hadGroup reports whether an earlier release had a section of the file, whose keys are refused by their names.
func hadGroup(name string) bool {
	return slices.ContainsFunc(removedOptions, func(o removedOption) bool { return strings.HasPrefix(o.key, name+".") })
}

func isGroup(name string) bool {
	for _, g := range groups {
		if g.name == name {
			return true
		}
	}
	return false
}

func optionsByKey() map[string]option {
	byKey := make(map[string]option, len(options))
	for _, o := range options {
		if o.key != "" {
			byKey[o.key] = o
		}
	}
	return byKey
}
