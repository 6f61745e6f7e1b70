package workersfile

import (
	"bytes"
	"encoding/json"
	"strings"

	"go.yaml.in/yaml/v3"
)

// parseJSON returns the tree that the YAML parser would return for the same values.
func parseJSON(content []byte) (*yaml.Node, error) {
	d := json.NewDecoder(bytes.NewReader(content))
	d.UseNumber()
	return (&jsonTree{Decoder: d, content: content, line: 1}).next()
}

// jsonTree reads valid JSON token by token.
type jsonTree struct {
	*json.Decoder
	content []byte
	line    int // line of offset at
	at      int // an offset
}

func (t *jsonTree) next() (*yaml.Node, error) {
	token, err := t.Token()
	if err != nil {
		return nil, err
	}
	end := int(t.InputOffset())
	t.line += bytes.Count(t.content[t.at:end], []byte{'\n'})
	t.at = end
	n := &yaml.Node{Kind: yaml.ScalarNode, Line: t.line}
	switch v := token.(type) {
	case json.Delim:
		n.Kind, n.Tag = yaml.MappingNode, "!!map"
		if v == '[' {
			n.Kind, n.Tag = yaml.SequenceNode, "!!seq"
		}
		for t.More() {
			child, err := t.next()
			if err != nil {
				return nil, err
			}
			n.Content = append(n.Content, child)
		}
		_, err = t.Token() // the closing bracket
		return n, err
	case string:
		n.Tag, n.Value = "!!str", v
	case json.Number:
		n.Tag, n.Value = "!!int", v.String()
		if strings.ContainsAny(n.Value, ".eE") {
			n.Tag = "!!float"
		}
	case bool:
		n.Tag, n.Value = "!!bool", "false"
		if v {
			n.Value = "true"
		}
	default:
		n.Tag = "!!null"
	}
	return n, nil
}
