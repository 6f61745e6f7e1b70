package conformance

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// checkAll compares single places of a value and describes every difference.
func checkAll(checks map[string]any, v any) []string {
	var faults []string
	for _, text := range slices.Sorted(maps.Keys(checks)) {
		got, err := get(v, text)
		if err != nil {
			faults = append(faults, err.Error())
		} else if fault := compare(checks[text], got); fault != "" {
			faults = append(faults, text+": "+fault)
		}
	}
	return faults
}

// compare describes how got fails want, "" if it does not: a value, or one of
// {len}, {gte}, {lte}, {absent}, {absent_or}, {has}, {lacks}.
func compare(want, got any) string {
	op, arg := operator(want)
	var ok bool
	var wanted string
	_, isMissing := got.(missing)
	switch op {
	case "absent":
		ok, wanted = isMissing, "nothing there"
	case "absent_or":
		ok, wanted = isMissing || same(arg, got), "nothing or "+show(arg, 150)
	case "len":
		ok, wanted = same(arg, length(got)), "length "+show(arg, 150)
	case "gte", "lte":
		ok, wanted = ordered(op, arg, got), op+" "+show(arg, 150)
	case "has", "lacks":
		ok, wanted = !isMissing && contains(got, arg) == (op == "has"), "it to have "+show(arg, 150)
		if op == "lacks" {
			wanted = "it to lack " + show(arg, 150)
		}
	default:
		ok, wanted = !isMissing && same(want, got), show(want, 150)
	}
	switch {
	case ok:
		return ""
	case isMissing:
		return "want " + wanted + ", got nothing"
	}
	return fmt.Sprintf("want %s, got %s", wanted, show(got, 150))
}

var operators = []string{"absent", "absent_or", "len", "gte", "lte", "has", "lacks"}

func operator(want any) (op string, arg any) {
	object, _ := want.(map[string]any)
	if len(object) != 1 {
		return "", nil
	}
	for k, v := range object {
		if slices.Contains(operators, k) {
			return k, v
		}
	}
	return "", nil
}

// length is nil for what has none.
func length(v any) any {
	switch v := v.(type) {
	case string:
		return number(utf8.RuneCountInString(v))
	case []any:
		return number(len(v))
	case map[string]any:
		return number(len(v))
	}
	return missing{}
}

func number(n int) json.Number { return json.Number(fmt.Sprint(n)) }

func ordered(op string, want, got any) bool {
	w, okW := want.(json.Number)
	g, okG := got.(json.Number)
	if !okW || !okG {
		return false
	}
	x, errX := g.Float64()
	y, errY := w.Float64()
	if errX != nil || errY != nil {
		return false
	}
	if op == "gte" {
		return x >= y
	}
	return x <= y
}

// contains looks for an item of a list, a key of an object, a part of a text.
func contains(v, part any) bool {
	text, isText := part.(string)
	switch v := v.(type) {
	case []any:
		return slices.ContainsFunc(v, func(x any) bool { return same(part, x) })
	case map[string]any:
		_, ok := v[text]
		return ok && isText
	case string:
		return isText && strings.Contains(v, text)
	}
	return false
}
