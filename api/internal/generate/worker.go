package main

import (
	"fmt"
	"math"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/select-service/select-service/pkg/catalog"
)

// fieldsMark stands in the source for the fields of a worker, the rows of catalog.Fields: as a key whose
// value is one of places, and as an item of required members.
const fieldsMark = "x-worker-fields"

// places are what the fields say at the marks of the source: each a schema by name, "" and nil for none.
var places = map[string]func(*catalog.Field) (string, *schema){
	"components": func(f *catalog.Field) (string, *schema) {
		if f.Dynamo {
			return "", nil
		}
		return componentOf(f), collectionOf(f)
	},
	"settings":   settingOf,
	"registered": func(f *catalog.Field) (string, *schema) { return givenOf(f, false) },
	"patched":    func(f *catalog.Field) (string, *schema) { return givenOf(f, true) },
	"shown":      shownOf,
}

// withFields returns a part of the source with the fields of a worker at its marks.
func withFields(n *yaml.Node) (*yaml.Node, error) {
	c := like(n)
	for i := 0; i < len(n.Content); i++ {
		item := n.Content[i]
		if item.Kind != yaml.ScalarNode || item.Value != fieldsMark {
			filled, err := withFields(item)
			if err != nil {
				return nil, err
			}
			c.Content = append(c.Content, filled)
			continue
		}
		if n.Kind == yaml.SequenceNode {
			for _, f := range catalog.Fields() {
				if _, byRank := f.Of.(catalog.Map[uint32]); f.Dynamo && !byRank {
					c.Content = append(c.Content, scalar(f.Name))
				}
			}
			continue
		}
		i++
		place := places[n.Content[i].Value]
		if place == nil {
			return nil, fmt.Errorf("line %d: %s has no fields of workers", item.Line, n.Content[i].Value)
		}
		for _, f := range catalog.Fields() {
			name, s := place(&f)
			if name == "" || s == nil {
				continue
			}
			var value yaml.Node
			if err := value.Encode(s); err != nil {
				return nil, err
			}
			add(c, entry{scalar(name), &value})
		}
	}
	return c, nil
}

// schema is a JSON schema, in the order of the source.
type schema struct {
	Description   string    `yaml:"description,omitempty"`
	Ref           string    `yaml:"$ref,omitempty"`
	OneOf         []*schema `yaml:"oneOf,omitempty"`
	AllOf         []*schema `yaml:"allOf,omitempty"`
	Enum          []any     `yaml:"enum,omitempty,flow"`
	Type          any       `yaml:"type,omitempty,flow"`
	MinLength     int       `yaml:"minLength,omitempty"`
	MaxLength     int       `yaml:"maxLength,omitempty"`
	Minimum       *int      `yaml:"minimum,omitempty"`
	Maximum       uint64    `yaml:"maximum,omitempty"`
	MaxItems      int       `yaml:"maxItems,omitempty"`
	UniqueItems   bool      `yaml:"uniqueItems,omitempty"`
	PropertyNames *struct {
		Pattern string `yaml:"pattern"`
	} `yaml:"propertyNames,omitempty"`
	AdditionalProperties  *schema `yaml:"additionalProperties,omitempty"`
	Items                 *schema `yaml:"items,omitempty"`
	UnevaluatedProperties *bool   `yaml:"unevaluatedProperties,omitempty"`
}

func reference(name string) string { return refPrefix + "schemas/" + name }

// orNull are the types of a member that may be unset.
func orNull(kind string) any { return []string{kind, "null"} }

// settingOf returns what registrations, patches and answers have in common of a field.
func settingOf(f *catalog.Field) (string, *schema) {
	s := &schema{Description: f.Doc}
	if !f.Dynamo {
		s.Description += " Left out of answers while it is unset."
	}
	s.Description = wrap(s.Description)
	number := func(most uint64) { s.Type, s.Minimum, s.Maximum = orNull("integer"), new(int), most }
	switch f.Of.(type) {
	case catalog.Pointer[string]:
		if f.Words == nil {
			s.Type, s.MaxLength = orNull("string"), limit(f, f.MaxBytes)
			break
		}
		for _, word := range f.Words {
			s.Enum = append(s.Enum, word)
		}
		s.Enum = append(s.Enum, nil)
	case catalog.Pointer[bool]:
		s.Type = orNull("boolean")
	case catalog.Pointer[uint32]:
		number(math.MaxUint32)
	case catalog.Pointer[uint64]:
		number(math.MaxUint64)
	case catalog.Pointer[float32]:
		s.Type = orNull("number")
	case catalog.Pointer[catalog.LoadMetrics]:
		s.Ref = reference("LoadMetrics")
	default:
		return "", nil
	}
	return f.Name, s
}

// limit returns a limit of a field, which the description has of members that Dynamo does not have.
func limit(f *catalog.Field, most int) int {
	if f.Dynamo {
		return 0
	}
	return most
}

// collectionOf returns the schema of a list or a map, nil for other fields.
func collectionOf(f *catalog.Field) *schema {
	s := &schema{Description: wrap(f.Doc)}
	text := &schema{Type: "string", MaxLength: limit(f, f.MaxBytes)}
	switch f.Of.(type) {
	case catalog.List:
		s.Type, s.Items, s.MaxItems = "array", text, limit(f, f.MaxEntries)
		if text.MaxLength > 0 {
			text.MinLength = 1
		}
	case catalog.Map[uint32]:
		s.Type, s.AdditionalProperties = "object", text
		s.PropertyNames = &struct {
			Pattern string `yaml:"pattern"`
		}{"^(0|[1-9][0-9]*)$"}
	case catalog.Map[string]:
		s.Type, s.AdditionalProperties = "object", text
	default:
		return nil
	}
	return s
}

// componentOf names the component with the schema of a list or a map, such as RankEndpoints. Of Dynamo's,
// maps by rank share one; "": the field has none.
func componentOf(f *catalog.Field) string {
	_, byRank := f.Of.(catalog.Map[uint32])
	switch {
	case f.EngineOnly || collectionOf(f) == nil:
		return ""
	case f.Dynamo && byRank:
		return "Endpoints"
	case f.Dynamo:
		return ""
	}
	var name strings.Builder
	for part := range strings.SplitSeq(f.Name, "_") {
		name.WriteString(strings.ToUpper(part[:1]) + part[1:])
	}
	return name.String()
}

// givenOf returns what registrations and patches have of a list or a map.
func givenOf(f *catalog.Field, orNone bool) (string, *schema) {
	s, component := collectionOf(f), componentOf(f)
	switch {
	case s == nil || f.EngineOnly:
		return "", nil
	case component != "":
		s = &schema{Ref: reference(component)}
		if orNone {
			s = &schema{OneOf: []*schema{s, {Type: "null"}}}
		}
		if f.Dynamo {
			s.Description = wrap(f.Doc) // of the component it is that of other fields, too
		}
	case orNone:
		s.Type = orNull(s.Type.(string))
	}
	return f.Name, s
}

// shownOf returns what answers have of a field beside its setting.
func shownOf(f *catalog.Field) (string, *schema) {
	if _, is := f.Of.(catalog.Pointer[catalog.LoadMetrics]); is {
		return f.Name, &schema{AllOf: []*schema{{Ref: reference("LoadMetrics")}}, UnevaluatedProperties: new(bool)}
	}
	const unlessEmpty = "Only if not empty."
	_, isList := f.Of.(catalog.List)
	s, component := collectionOf(f), componentOf(f)
	switch {
	case s == nil:
		return "", nil
	case component != "":
		s = &schema{Description: unlessEmpty, Ref: reference(component)}
	case !f.Dynamo:
		s.Description = wrap(f.Doc + " " + unlessEmpty)
	case isList:
		s.UniqueItems = true // the catalog sorts sets
	}
	return f.Name, s
}

// wrap breaks a text into lines of at most 110 bytes, but for longer words.
func wrap(text string) string {
	const width = 110
	var b strings.Builder
	column := 0
	for i, word := range strings.Fields(text) {
		switch {
		case i == 0:
		case column+1+len(word) > width:
			b.WriteByte('\n')
			column = 0
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += len(word)
	}
	return b.String()
}
