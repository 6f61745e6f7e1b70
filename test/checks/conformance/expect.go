package conformance

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Expect is what an answer has to be. JSON (or Text) is compared as a whole;
// Ignore and Unordered name places by path; Assert compares single places with
// a value or an operator; Match holds a regular expression for a text at a
// place; each of Lines has to match one line of a text.
type Expect struct {
	Status     any               `json:"status"` // or a list of statuses
	JSON       json.RawMessage   `json:"json"`
	Text       *string           `json:"text"`
	IgnoreText bool              `json:"ignore_text"`
	Ignore     []string          `json:"ignore"`
	Unordered  []string          `json:"unordered"`
	Assert     map[string]any    `json:"assert"`
	Match      map[string]string `json:"match"`
	Lines      []string          `json:"lines"`
}

// answer is a response with the placeholders put back.
type answer struct {
	status int
	isJSON bool
	value  any    // if isJSON
	text   string // else
}

func (a answer) String() string {
	if a.isJSON {
		return show(a.value, 300)
	}
	return show(a.text, 300)
}

// get returns the value at a path, missing from an answer that is not JSON.
func (a answer) get(text string) (any, error) {
	if !a.isJSON {
		return missing{}, nil
	}
	return get(a.value, text)
}

// check describes every way in which the answer is not as expected.
func (e *Expect) check(a answer) []string {
	if !e.statusIs(a.status) {
		return []string{fmt.Sprintf("status: want %v, got %d: %v", e.Status, a.status, a)}
	}
	faults := e.checkWhole(a)
	if e.Assert != nil {
		v := a.value
		if !a.isJSON {
			v = missing{}
		}
		faults = append(faults, checkAll(e.Assert, v)...)
	}
	for _, pattern := range e.Lines {
		if !a.hasLine(pattern) {
			faults = append(faults, "no line matches "+pattern)
		}
	}
	for _, text := range slices.Sorted(maps.Keys(e.Match)) {
		got, err := a.get(text)
		if err != nil {
			faults = append(faults, err.Error())
		} else if s, ok := got.(string); !ok || !fullMatch(e.Match[text], s) {
			faults = append(faults, fmt.Sprintf("%s: want text that matches %s, got %s", text, e.Match[text], show(got, 150)))
		}
	}
	return faults
}

func (e *Expect) statusIs(status int) bool {
	if list, ok := e.Status.([]any); ok {
		return slices.ContainsFunc(list, func(s any) bool { return same(s, number(status)) })
	}
	return same(e.Status, number(status))
}

func (e *Expect) checkWhole(a answer) []string {
	switch {
	case e.JSON != nil:
		return e.checkJSON(a)
	case e.Text == nil || e.IgnoreText:
		return nil
	case a.isJSON:
		return []string{fmt.Sprintf("want the text %q, got JSON %v", *e.Text, a)}
	case *e.Text != a.text:
		return []string{fmt.Sprintf("want the text %q, got %v", *e.Text, a)}
	}
	return nil
}

func (e *Expect) checkJSON(a answer) []string {
	if !a.isJSON {
		return []string{fmt.Sprintf("want JSON, got the text %v", a)}
	}
	want, err := parse(e.JSON)
	if err != nil {
		return []string{err.Error()}
	}
	want, errWant := normalise(want, e.Ignore, e.Unordered)
	got, errGot := normalise(a.value, e.Ignore, e.Unordered)
	switch {
	case errWant != nil:
		return []string{errWant.Error()}
	case errGot != nil:
		return []string{errGot.Error()}
	}
	if d := diff(want, got, "$"); d != "" {
		return []string{d}
	}
	return nil
}

func (a answer) hasLine(pattern string) bool {
	return !a.isJSON && slices.ContainsFunc(strings.Split(a.text, "\n"), func(line string) bool {
		return fullMatch(pattern, strings.TrimSuffix(line, "\r"))
	})
}

var lookahead = regexp.MustCompile(`\(\?=([^()]*)\)`)

// fullMatch matches the whole of s. Go has no lookahead, by which a scenario asks
// for labels in any order: what stands in one has to follow what stands before it,
// as the rest of the pattern has to.
func fullMatch(pattern, s string) bool {
	rest := lookahead.ReplaceAllLiteralString(pattern, "")
	matches := func(pattern string) bool {
		re, err := regexp.Compile(`^(?:` + pattern + `)$`)
		return err == nil && re.MatchString(s)
	}
	for _, at := range lookahead.FindAllStringSubmatchIndex(pattern, -1) {
		before := lookahead.ReplaceAllLiteralString(pattern[:at[0]], "")
		if !matches(before + pattern[at[2]:at[3]] + "(?s:.*)") {
			return false
		}
	}
	return matches(rest)
}
