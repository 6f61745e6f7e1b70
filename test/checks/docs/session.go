package docs

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/google/go-cmp/cmp"
)

// step is a block of shell commands and the JSON values that it prints.
type step struct {
	line   int // of its first command in the page
	script string
	want   []any // nil: its output does not matter
}

// session returns the sh blocks of a Markdown page in order. A json block belongs
// to the sh block before it; other blocks are for reading only.
func session(page string) ([]step, error) {
	var (
		steps    []step
		open     string // language of the block that is being read, "" outside
		body     strings.Builder
		start    int
		answered = true // the latest step has its json block, or there is none yet
	)
	for i, line := range strings.Split(page, "\n") {
		fence, isFence := strings.CutPrefix(line, "```")
		switch {
		case !isFence:
			if open != "" {
				body.WriteString(line + "\n")
			}
		case open == "":
			if open = fence; open == "" {
				open = "text"
			}
			start = i + 2
			body.Reset()
		default:
			switch open {
			case "sh":
				steps = append(steps, step{line: start, script: body.String()})
				answered = false
			case "json":
				if answered {
					return nil, fmt.Errorf("line %d: a json block without sh block before it", start)
				}
				values, err := values(body.String())
				if err != nil {
					return nil, fmt.Errorf("line %d: %w", start, err)
				}
				steps[len(steps)-1].want, answered = values, true
			}
			open = ""
		}
	}
	if open != "" {
		return nil, fmt.Errorf("line %d: block without end", start)
	}
	return steps, nil
}

// values decodes JSON values one after the other. Numbers keep all their digits.
func values(text string) ([]any, error) {
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	all := []any{}
	for {
		var v any
		switch err := dec.Decode(&v); {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, fmt.Errorf("JSON value %d: %w", len(all)+1, err)
		}
		all = append(all, v)
	}
}

// anything, as a string in a page's JSON, stands for any value.
const anything = "…"

// difference compares the output of a step with its JSON by value; "" is none.
func (s step) difference(output string) (string, error) {
	if s.want == nil {
		return "", nil
	}
	got, err := values(output)
	if err != nil {
		return "", fmt.Errorf("%w in %q", err, output)
	}
	wildcard := cmp.FilterValues(func(a, b any) bool { return a == anything || b == anything }, cmp.Ignore())
	return cmp.Diff(s.want, got, wildcard), nil
}
