package conformance

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
)

// A value is what a JSON document decodes to: nil, bool, string, json.Number,
// []any or map[string]any.

// tolerance is how far two numbers may lie apart, absolutely and relatively,
// unless both are integers.
const tolerance = 1e-9

// parse decodes one JSON document.
func parse(text []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, err
	}
	if dec.More() {
		return nil, fmt.Errorf("bytes after the JSON value at %d", dec.InputOffset())
	}
	return v, nil
}

// show renders a value for a message, at most limit bytes of it.
func show(v any, limit int) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err.Error()
	}
	text := strings.TrimSuffix(b.String(), "\n")
	if len(text) > limit {
		text = text[:limit] + "…"
	}
	return text
}

// clone copies a value, so that it can be edited.
func clone(v any) any {
	switch v := v.(type) {
	case []any:
		c := make([]any, len(v))
		for i, x := range v {
			c[i] = clone(x)
		}
		return c
	case map[string]any:
		c := make(map[string]any, len(v))
		for k, x := range v {
			c[k] = clone(x)
		}
		return c
	}
	return v
}

func isInteger(n json.Number) bool { return !strings.ContainsAny(string(n), ".eE") }

func sameNumber(a, b json.Number) bool {
	if isInteger(a) && isInteger(b) {
		x, okX := new(big.Int).SetString(string(a), 10)
		y, okY := new(big.Int).SetString(string(b), 10)
		return okX && okY && x.Cmp(y) == 0
	}
	x, errX := a.Float64()
	y, errY := b.Float64()
	if errX != nil || errY != nil {
		return false
	}
	return math.Abs(x-y) <= max(tolerance*max(math.Abs(x), math.Abs(y)), tolerance)
}

// same reports whether two values are equal: integers exactly, other numbers
// within the tolerance.
func same(a, b any) bool {
	switch a := a.(type) {
	case json.Number:
		b, ok := b.(json.Number)
		return ok && sameNumber(a, b)
	case []any:
		b, ok := b.([]any)
		return ok && slices.EqualFunc(a, b, same)
	case map[string]any:
		b, ok := b.(map[string]any)
		return ok && maps.EqualFunc(a, b, same)
	}
	switch b.(type) {
	case []any, map[string]any:
		return false
	}
	return a == b
}

// diff describes the first difference between two values, "" if they are the
// same. path is where they are.
func diff(want, got any, path string) string {
	switch want := want.(type) {
	case map[string]any:
		if got, ok := got.(map[string]any); ok {
			return diffObjects(want, got, path)
		}
	case []any:
		if got, ok := got.([]any); ok {
			return diffArrays(want, got, path)
		}
	}
	if same(want, got) {
		return ""
	}
	return fmt.Sprintf("%s: want %s, got %s", path, show(want, 200), show(got, 200))
}

func diffObjects(want, got map[string]any, path string) string {
	for _, k := range slices.Sorted(maps.Keys(want)) {
		g, ok := got[k]
		if !ok {
			return fmt.Sprintf("%s.%s: missing, want %s", path, k, show(want[k], 120))
		}
		if d := diff(want[k], g, path+"."+k); d != "" {
			return d
		}
	}
	for _, k := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[k]; !ok {
			return fmt.Sprintf("%s.%s: unexpected %s", path, k, show(got[k], 120))
		}
	}
	return ""
}

func diffArrays(want, got []any, path string) string {
	if len(want) != len(got) {
		return fmt.Sprintf("%s: want %d items, got %d: %s", path, len(want), len(got), show(got, 200))
	}
	for i := range want {
		if d := diff(want[i], got[i], fmt.Sprintf("%s[%d]", path, i)); d != "" {
			return d
		}
	}
	return ""
}

// canonical is a text by which equal values are sorted to the same place: 2 and
// 2.0 have the same.
func canonical(v any) string {
	switch v := v.(type) {
	case json.Number:
		f, err := v.Float64()
		if err == nil && !isInteger(v) && f == math.Trunc(f) && math.Abs(f) < 1e15 {
			return strconv.FormatInt(int64(f), 10)
		}
		return string(v)
	case []any:
		parts := make([]string, len(v))
		for i, x := range v {
			parts[i] = canonical(x)
		}
		return "[" + strings.Join(parts, ",") + "]"
	case map[string]any:
		var b strings.Builder
		for _, k := range slices.Sorted(maps.Keys(v)) {
			fmt.Fprintf(&b, "%q:%s,", k, canonical(v[k]))
		}
		return "{" + b.String() + "}"
	}
	return show(v, math.MaxInt)
}

// ignored takes the place of a value that is not compared; it has to be there.
const ignored = "<ignored>"

// normalise replaces the ignored places of a value and sorts its unordered
// lists. The value itself is left as it is.
func normalise(v any, ignore, unordered []string) (any, error) {
	v = clone(v)
	for _, text := range ignore {
		p, err := parsePath(text)
		if err != nil {
			return nil, err
		}
		v = p.edit(v, func(any) any { return ignored })
	}
	paths := make([]path, len(unordered))
	for i, text := range unordered {
		p, err := parsePath(text)
		if err != nil {
			return nil, err
		}
		paths[i] = p
	}
	// Deepest first: the outer list is sorted by inner lists in their final order.
	slices.SortStableFunc(paths, func(a, b path) int { return len(b) - len(a) })
	for _, p := range paths {
		v = p.edit(v, sorted)
	}
	return v, nil
}

func sorted(v any) any {
	list, ok := v.([]any)
	if !ok {
		return v
	}
	return slices.SortedStableFunc(slices.Values(list), func(a, b any) int {
		return strings.Compare(canonical(a), canonical(b))
	})
}
