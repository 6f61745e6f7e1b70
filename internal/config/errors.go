package config

import (
	"errors"
	"fmt"
	"strings"
)

// InvalidError is a configuration with at least one fault; the process exits
// with ExitCode. Every fault starts with the name under which the bad value was
// given: a flag, an environment variable, or a key of the file with its line.
type InvalidError struct {
	Faults []error
}

// ExitCode is the status of a process that refuses its configuration.
const ExitCode = 2

// Error is one line for a single fault, else one indented line for each.
func (e *InvalidError) Error() string {
	if len(e.Faults) == 1 {
		return "invalid configuration: " + e.Faults[0].Error()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "invalid configuration, %d faults:", len(e.Faults))
	for _, fault := range e.Faults {
		b.WriteString("\n  " + fault.Error())
	}
	return b.String()
}

// Unwrap gives errors.Is and errors.As access to every fault.
func (e *InvalidError) Unwrap() []error { return e.Faults }

// invalid is nil where there are no faults.
func invalid(faults []error) error {
	if len(faults) == 0 {
		return nil
	}
	return &InvalidError{Faults: faults}
}

// named puts name before every error that err joins: a list of peers has one
// fault per bad peer.
func named(name string, err error) []error {
	var joined interface{ Unwrap() []error }
	if !errors.As(err, &joined) {
		return []error{about(name, err)}
	}
	var faults []error
	for _, e := range joined.Unwrap() {
		faults = append(faults, about(name, e))
	}
	return faults
}

// about makes one sentence of a name and what it must be, as Dynamo's frontend
// has it.
func about(name string, err error) error {
	if _, ok := errors.AsType[mustBeError](err); ok {
		return fmt.Errorf("%s %w", name, err)
	}
	return fmt.Errorf("%s: %w", name, err)
}
