package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// table is an answer as rows, for people.
type table struct {
	columns []string
	wide    int // so many of the last columns are shown by -o wide only
	rows    [][]string
	names   []string // of the rows, for -o name; nil: they have none
	// continues: the table goes on after another one with the same columns, which are not written again.
	continues bool
}

func (t *table) add(cells ...any) {
	row := make([]string, len(cells))
	for i, c := range cells {
		row[i] = printable(fmt.Sprint(c))
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
		return writeEscaped(a.out, bytes.NewReader(append(text, '\n')), escapeJSON)
	case "yaml":
		return writeYAML(a.out, data)
	case "name":
		if t.names == nil && len(t.rows) > 0 {
			return usageError{fmt.Errorf("the rows of this answer have no names; use -o table, json or yaml")}
		}
		for _, name := range t.names {
			if _, err := fmt.Fprintln(a.out, printable(name)); err != nil {
				return err
			}
		}
		return nil
	}
	return t.write(a.out, a.options.format == "wide", a.painted)
}

// forPeople reports whether answers are written as tables, beside which there may be sentences.
func (a *app) forPeople() bool { return a.options.format == "table" || a.options.format == "wide" }

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
	var document yaml.Node
	if err := document.Encode(numbers(generic)); err != nil {
		return fmt.Errorf("write YAML: %w", err)
	}
	quoteOdd(&document)
	text, err = yaml.Marshal(&document)
	if err != nil {
		return fmt.Errorf("write YAML: %w", err)
	}
	return writeEscaped(out, bytes.NewReader(text), escapeYAML)
}

// quoteOdd puts double quotes around the texts that a line cannot show as they are: only these may have escape
// sequences.
func quoteOdd(n *yaml.Node) {
	if n.Kind == yaml.ScalarNode && strings.ContainsFunc(n.Value, func(r rune) bool { return !isShown(r) }) {
		n.Style = yaml.DoubleQuotedStyle
	}
	for _, member := range n.Content {
		quoteOdd(member)
	}
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

// write writes the rows below each other's columns. A last cell may be as long as it likes.
func (t *table) write(out io.Writer, wide bool, paint func(cell string) string) error {
	shown := len(t.columns)
	if !wide {
		shown -= t.wide
	}
	const gap = 2
	widths := make([]int, shown)
	lines := append([][]string{t.columns}, t.rows...)
	for i, cells := range lines {
		lines[i] = cells[:min(shown, len(cells))]
		for c := range len(lines[i]) - 1 {
			widths[c] = max(widths[c], utf8.RuneCountInString(cells[c])+gap)
		}
	}
	var text strings.Builder
	if t.continues {
		lines = lines[1:]
	}
	for _, cells := range lines {
		for c, cell := range cells {
			text.WriteString(paint(cell))
			if c < len(cells)-1 {
				text.WriteString(strings.Repeat(" ", widths[c]-utf8.RuneCountInString(cell)))
			}
		}
		text.WriteByte('\n')
	}
	if _, err := io.WriteString(out, text.String()); err != nil {
		return fmt.Errorf("write the table: %w", err)
	}
	return nil
}

// The colours of a terminal.
const (
	red    = "\x1b[31m"
	yellow = "\x1b[33m"
	plain  = "\x1b[0m"
)

// colours are those of words that an operator looks for.
var colours = map[string]string{
	"stalled": red, "silent": red, "incomplete": red, "stale": red, "differ": red, "ERROR": red,
	"draining": yellow, "overloaded": yellow, "replaying": yellow, "WARNING": yellow,
}

// painted returns a cell in its colour, if it has one and the output shows it.
func (a *app) painted(cell string) string {
	if colour := colours[cell]; a.colours && colour != "" {
		return colour + cell + plain
	}
	return cell
}

// value is what a pointer points to, "" for nil.
func value[T any](p *T) string {
	if p == nil {
		return ""
	}
	return fmt.Sprint(*p)
}
