package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"go.yaml.in/yaml/v3"
)

// table is an answer as rows, for people.
type table struct {
	columns []string
	wide    int // so many of the last columns are shown by -o wide only
	rows    [][]string
	names   []string // of the rows, for -o name; nil: they have none
}

func (t *table) add(cells ...any) {
	row := make([]string, len(cells))
	for i, c := range cells {
		row[i] = fmt.Sprint(c)
		if row[i] == "" {
			row[i] = "-"
		}
	}
	t.rows = append(t.rows, row)
}

// show writes an answer in the format that was asked for: data as JSON or YAML with the members of the
// API, else the table.
func (a *app) show(data any, t *table) error {
	switch a.options.format {
	case "json":
		text, err := json.MarshalIndent(data, "", "  ")
		if err != nil {
			return fmt.Errorf("write JSON: %w", err)
		}
		_, err = fmt.Fprintf(a.out, "%s\n", text)
		return err
	case "yaml":
		return writeYAML(a.out, data)
	case "name":
		if t.names == nil && len(t.rows) > 0 {
			return usageError{fmt.Errorf("the rows of this answer have no names; use -o table, json or yaml")}
		}
		for _, name := range t.names {
			if _, err := fmt.Fprintln(a.out, name); err != nil {
				return err
			}
		}
		return nil
	}
	return t.write(a.out, a.options.format == "wide")
}

// writeYAML writes the members of data's JSON, in alphabetical order.
func writeYAML(out io.Writer, data any) error {
	text, err := json.Marshal(data)
	if err != nil {
		return fmt.Errorf("write YAML: %w", err)
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber() // ids have up to 64 bits
	var generic any
	if err := decoder.Decode(&generic); err != nil {
		return fmt.Errorf("write YAML: %w", err)
	}
	text, err = yaml.Marshal(numbers(generic))
	if err != nil {
		return fmt.Errorf("write YAML: %w", err)
	}
	_, err = out.Write(text)
	return err
}

// numbers returns v with its JSON numbers as YAML scalars of the same text.
func numbers(v any) any {
	switch v := v.(type) {
	case json.Number:
		return &yaml.Node{Kind: yaml.ScalarNode, Value: v.String()}
	case []any:
		for i := range v {
			v[i] = numbers(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = numbers(v[k])
		}
	}
	return v
}

func (t *table) write(out io.Writer, wide bool) error {
	shown := len(t.columns)
	if !wide {
		shown -= t.wide
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	line := func(cells []string) {
		fmt.Fprintln(w, strings.Join(cells[:min(shown, len(cells))], "\t")) // Flush has the error
	}
	line(t.columns)
	for _, row := range t.rows {
		line(row)
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("write the table: %w", err)
	}
	return nil
}

// value is what a pointer points to, "" for nil.
func value[T any](p *T) string {
	if p == nil {
		return ""
	}
	return fmt.Sprint(*p)
}
