package config

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// The thresholds of an overload, each a number or "none". What their values must
// be is said in the words of Dynamo's frontend.

// share is a decimal from 0 to 1.
func share(field **float64) value {
	return optional(field, parseReal, mustBe("between 0.0 and 1.0", upTo(1)))
}

// multiple is a finite decimal of at least 0.
func multiple(field **float64) value {
	return optional(field, parseReal, mustBe("a finite value >= 0", upTo(math.MaxFloat64)))
}

// count is a whole number of 64 bits.
func count(field **uint64) value { return optional(field, parseCount, nil) }

// mustBeError says what a value must be, to follow the name of the setting.
type mustBeError string

func (e mustBeError) Error() string { return "must be " + string(e) }

func mustBe(what string, verify func(float64) error) func(float64) error {
	return func(v float64) error {
		if verify(v) != nil {
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

// isCount tells whether a text is a whole number of any size.
func isCount(text string) bool {
	_, err := strconv.ParseUint(text, 10, 64)
	return err == nil || errors.Is(err, strconv.ErrRange)
}
