package config

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/select-service/select-service/pkg/selector"
)

// value is one setting bound to its field. All sources use the same syntax.
type value interface {
	set(text string) error // on an error the field keeps its value
	show() any             // the field in the syntax of the file; nil is unset
	pointer() any          // the field itself
}

// typed is the value of a field of type T.
type typed[T any] struct {
	field  *T
	parse  func(string) (T, error) // with every check
	render func(T) any             // nil: as it is
}

func (t typed[T]) set(text string) error {
	parsed, err := t.parse(text)
	if err == nil {
		*t.field = parsed
	}
	return err
}

func (t typed[T]) show() any {
	if t.render == nil {
		return *t.field
	}
	return t.render(*t.field)
}

func (t typed[T]) pointer() any { return t.field }

// checked is parse for what check accepts.
func checked[T any](parse func(string) (T, error), check func(T) error) func(string) (T, error) {
	return func(text string) (T, error) {
		v, err := parse(text)
		if err == nil {
			err = check(v)
		}
		return v, err
	}
}

// orNil shows the zero value as unset.
func orNil[T comparable](v T) any {
	if v == *new(T) {
		return nil
	}
	return v
}

func boolean(field *bool) value { return typed[bool]{field: field, parse: parseBool} }

// parseBool reads Dynamo's spelling: any case, no trimming.
func parseBool(text string) (bool, error) {
	switch strings.ToLower(text) {
	case "true", "1", "yes", "on":
		return true, nil
	case "false", "0", "no", "off":
		return false, nil
	}
	return false, fmt.Errorf("%q is not a boolean (true, 1, yes, on, false, 0, no, off)", text)
}

// number is a finite decimal of at least 0.
func number(field *float64) value {
	return typed[float64]{field: field, parse: checked(parseFloat, upTo(math.MaxFloat64))}
}

// fraction is a decimal from 0 to 1.
func fraction(field *float64) value {
	return typed[float64]{field: field, parse: checked(parseFloat, upTo(1))}
}

// optionalNumber is a number of at least 0, or "none".
func optionalNumber(field **float64) value {
	return optional(field, checked(parseFloat, upTo(math.MaxFloat64)))
}

// optional is a value that parse reads, or "none". With "none" a flag can switch off what the
// environment or the file has set.
func optional[T any](field **T, parse func(string) (T, error)) typed[*T] {
	return typed[*T]{
		field: field,
		parse: func(text string) (*T, error) {
			if strings.EqualFold(text, "none") {
				return nil, nil
			}
			v, err := parse(text)
			return &v, err
		},
		render: func(v *T) any {
			if v == nil {
				return nil
			}
			return *v
		},
	}
}

// The thresholds of the overload guard are numbers or "none". Their errors use the
// words of Dynamo's frontend.

// share is a decimal from 0 to 1, or "none".
func share(field **float64) value {
	return optional(field, checked(parseReal, mustBe("between 0.0 and 1.0", upTo(1))))
}

// multiple is a finite decimal of at least 0 (a multiple of a limit), or "none".
func multiple(field **float64) value {
	return optional(field, checked(parseReal, mustBe("a finite value >= 0", upTo(math.MaxFloat64))))
}

// count is a whole number of 64 bits, or "none".
func count(field **uint64) value { return optional(field, parseCount) }

// mustBeError says what a value must be. It follows the name of the setting in messages.
type mustBeError string

func (e mustBeError) Error() string { return "must be " + string(e) }

func mustBe(what string, check func(float64) error) func(float64) error {
	return func(v float64) error {
		if check(v) != nil {
			return mustBeError(fmt.Sprintf("%s, got %v", what, v))
		}
		return nil
	}
}

func parseCount(text string) (uint64, error) {
	v, err := strconv.ParseUint(text, 10, 64)
	switch {
	case err == nil:
		return v, nil
	case errors.Is(err, strconv.ErrRange):
		return 0, fmt.Errorf("%s is not in [0, %d]", text, uint64(math.MaxUint64))
	case strings.HasPrefix(text, "-") && isCount(text[1:]):
		return 0, mustBeError(">= 0, got " + text)
	}
	return 0, fmt.Errorf("%q is not a whole number", text)
}

// isCount reports whether a text is a whole number of any size.
func isCount(text string) bool {
	_, err := strconv.ParseUint(text, 10, 64)
	return err == nil || errors.Is(err, strconv.ErrRange)
}

// parseFloat reads a finite decimal. Go's hexadecimal floats and digit separators
// are not in Dynamo's syntax.
func parseFloat(text string) (float64, error) {
	v, err := parseReal(text)
	if err == nil && (math.IsInf(v, 0) || math.IsNaN(v)) {
		return 0, fmt.Errorf("%q is not a finite number", text)
	}
	return v, err
}

// parseReal is parseFloat that also accepts NaN and infinity, and reads numbers that are too
// large as infinity. The value is checked later.
func parseReal(text string) (float64, error) {
	v, err := strconv.ParseFloat(text, 64)
	switch {
	case err != nil && !errors.Is(err, strconv.ErrRange), strings.ContainsAny(text, "xX_"):
		return 0, fmt.Errorf("%q is not a number", text)
	case v == 0:
		return 0, nil // -0, too
	}
	return v, nil
}

// upTo accepts values in [0, high], so neither NaN nor infinity.
func upTo(high float64) func(float64) error {
	return func(v float64) error { return selector.CheckWeight(v, high) }
}

// integer is a whole number from low to high.
func integer[T ~int | ~uint16 | ~uint32 | ~uint64](field *T, low, high T) value {
	return typed[T]{field: field, parse: func(text string) (T, error) { return parseInteger(text, low, high) }}
}

func parseInteger[T ~int | ~uint16 | ~uint32 | ~uint64](text string, low, high T) (T, error) {
	v, err := strconv.ParseInt(text, 10, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return 0, fmt.Errorf("%q is not a whole number", text)
	}
	if err != nil || v < int64(low) || v > int64(high) {
		return 0, fmt.Errorf("%s is not in [%d, %d]", text, low, high) // the text as given
	}
	return T(v), nil
}

// memory is a number of bytes, at least minMemory, with or without a binary unit; 0
// is unset.
func memory(field *int64) value {
	v := size(field)
	v.parse = checked(v.parse, func(n int64) error {
		if n != 0 && n < minMemory {
			return fmt.Errorf("%s is less than %s", showBytes(n), showBytes(minMemory))
		}
		return nil
	})
	v.render = func(n int64) any {
		if n == 0 {
			return nil
		}
		return showBytes(n)
	}
	return v
}

// size is a number of bytes, also in KiB, MiB or GiB.
func size(field *int64) typed[int64] {
	return typed[int64]{field: field, parse: parseBytes, render: func(n int64) any { return showBytes(n) }}
}

// byteUnits are the binary units, the largest first.
var byteUnits = []struct {
	name  string
	shift int
}{{"GiB", 30}, {"MiB", 20}, {"KiB", 10}}

func parseBytes(text string) (int64, error) {
	number, shift := text, 0
	for _, u := range byteUnits {
		if head, ok := strings.CutSuffix(text, u.name); ok {
			number, shift = strings.TrimSpace(head), u.shift
			break
		}
	}
	n, err := strconv.ParseUint(number, 10, 63-shift)
	if err != nil {
		return 0, fmt.Errorf("%q is not a number of bytes such as 512MiB", text)
	}
	return int64(n) << shift, nil
}

// showBytes formats n for parseBytes, in the largest unit that is exact.
func showBytes(n int64) string {
	for _, u := range byteUnits {
		if n != 0 && n%(1<<u.shift) == 0 {
			return strconv.FormatInt(n>>u.shift, 10) + u.name
		}
	}
	return strconv.FormatInt(n, 10)
}

// text is any string, empty for none.
func text(field *string) value {
	return checkedText(field, func(s string) (string, error) { return s, nil })
}

// checkedText is a text that parse accepts and may normalise; empty is none.
func checkedText(field *string, parse func(string) (string, error)) value {
	return typed[string]{field: field, parse: parse, render: orNil[string]}
}

// choice is one of a few words, in lower case.
func choice(field *string, words ...string) value {
	return typed[string]{field: field, parse: oneOf(words...)}
}

// named is one of a few values, each given by its name.
func named[T fmt.Stringer](field *T, values ...T) value {
	return typed[T]{
		field: field,
		parse: func(text string) (T, error) {
			var names []string
			for _, v := range values {
				if names = append(names, v.String()); v.String() == text {
					return v, nil
				}
			}
			_, err := oneOf(names...)(text)
			return values[0], err
		},
		render: func(v T) any { return v.String() },
	}
}

// oneOf accepts one of a few words.
func oneOf(words ...string) func(string) (string, error) {
	return func(s string) (string, error) {
		if !slices.Contains(words, s) {
			return "", fmt.Errorf("%q is not one of %s", s, strings.Join(words, ", "))
		}
		return s, nil
	}
}

// list is a comma-separated list without empty elements and duplicates.
func list[T comparable](field *[]T, element func(string) (T, error)) value {
	return separated(field, ",", element)
}

// separated is a list with another separator. Every bad element is a fault of its own.
func separated[T comparable](field *[]T, by string, element func(string) (T, error)) typed[[]T] {
	return typed[[]T]{
		field: field,
		parse: func(s string) ([]T, error) {
			var items []T
			var faults []error
			for text := range strings.SplitSeq(s, by) {
				if text = strings.TrimSpace(text); text == "" {
					continue
				}
				item, err := element(text)
				switch {
				case err != nil:
					faults = append(faults, err)
				case !slices.Contains(items, item):
					items = append(items, item)
				}
			}
			return items, errors.Join(faults...)
		},
		render: func(items []T) any {
			texts := make([]string, len(items)) // "[]", not "null"
			for i, item := range items {
				texts[i] = fmt.Sprint(item)
			}
			return texts
		},
	}
}
