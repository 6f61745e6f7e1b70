package config

import (
	"errors"
	"fmt"
	"strings"

	"github.com/select-service/select-service/internal/codec/redact"
	"github.com/select-service/select-service/internal/selection/policies"
)

const envConfig = "SELECT_SERVICE_CONFIG"

// Load reads the configuration from the command line (without the program's
// name), the environment and the files that they name. It returns an
// *InvalidError with every fault of every source, or a valid configuration.
// With the actions Help, HelpAll and Version only the command line is read.
// The subcommand "slots" reads no file.
func Load(args []string, getenv func(string) string, readFile func(string) ([]byte, error)) (Config, error) {
	cmd, args := commandOf(args)
	line := cmd.parseArgs(args)
	conf := cmd.defaults()
	conf.Action = line.action
	if line.action >= Version {
		return conf, nil
	}
	l := loader{
		command:  cmd,
		conf:     conf,
		source:   make(map[string]string),
		bad:      make(map[string]bool),
		faults:   line.faults,
		readFile: readFile,
	}
	if cmd.file {
		l.applyFile(configPath(line, getenv))
	}
	l.applyEnvironment(getenv)
	l.applyFlags(line.given)
	l.takeModelName()
	l.takePeerPort()
	weight := l.givenWeight()
	l.readPolicy()
	l.checkConflicts()
	l.resolvePolicies(weight)
	l.warnQueue()
	l.warnContract()
	if err := invalid(l.faults); err != nil {
		return Config{}, err
	}
	return l.conf, nil
}

// loader collects values, weakest source first, and the faults of all sources.
type loader struct {
	command  *command
	conf     Config
	source   map[string]string // key → the strongest name that gave it a text
	bad      map[string]bool   // keys with a bad text from any source
	faults   []error
	readFile func(string) ([]byte, error)

	selection    *policies.Section // of the policy file; nil: none
	badSelection bool              // it has faults
}

// apply sets the option from one source; faults call it name.
func (l *loader) apply(o option, name, text string) {
	if text == "" {
		return
	}
	l.source[o.key] = name
	if err := o.bind(&l.conf).set(text); err != nil {
		l.faults = append(l.faults, faultsOf(name, err)...)
		l.bad[o.key] = true
		return
	}
	switch {
	case o.deprecated != "":
		l.note("%s is deprecated, set %s", name, o.deprecated)
	case o.inert:
		l.note("%s has no effect in this service", name)
	}
}

// checkOverridden checks a text that a stronger source overrides.
func (l *loader) checkOverridden(o option, name, text string) {
	if text == "" {
		return
	}
	scratch := l.command.defaults()
	if err := o.bind(&scratch).set(text); err != nil {
		l.faults = append(l.faults, faultsOf(name, err)...)
	}
}

func (l *loader) note(format string, args ...any) {
	l.conf.notes = append(l.conf.notes, fmt.Sprintf(format, args...))
}

func (l *loader) applyEnvironment(getenv func(string) string) {
	for _, o := range l.command.options {
		set := l.apply
		for _, name := range o.env {
			text := getenv(name)
			if isServiceLink(name, text) {
				continue
			}
			set(o, name, text)
			if text != "" {
				set = l.checkOverridden // the first name counts; the others must still be valid
			}
		}
	}
	for _, o := range removedOptions {
		if name := variable(o.flag); (l.command == selection || o.slots) && getenv(name) != "" {
			l.faults = append(l.faults, fault(name, o.err))
		}
	}
}

// isServiceLink recognises variables that Kubernetes sets in every pod of a namespace with a
// Service named "select-service" or "select-service-slots", such as
// SELECT_SERVICE_PORT=tcp://10.0.0.1:8092. They are not configuration, so they are no bad ports.
func isServiceLink(name, text string) bool {
	return strings.HasSuffix(name, "_PORT") && strings.HasPrefix(text, "tcp://")
}

func (l *loader) applyFlags(given []givenFlag) {
	for _, g := range given {
		l.apply(g.option, "--"+g.option.flag, g.text)
	}
}

// InvalidError is a configuration with at least one fault; the process exits
// with ExitCode. Every fault starts with the name under which the bad value was
// given: a flag, an environment variable, or a key of the file with its line.
type InvalidError struct {
	Faults []error
}

// ExitCode is the status of a process that refuses its configuration.
const ExitCode = 2

// Error returns one line for a single fault, else an indented line for each. Faults name bad values, but not the
// credentials of URLs.
func (e *InvalidError) Error() string {
	if len(e.Faults) == 1 {
		return "invalid configuration: " + redact.URLs(e.Faults[0].Error())
	}
	var b strings.Builder
	fmt.Fprintf(&b, "invalid configuration, %d faults:", len(e.Faults))
	for _, fault := range e.Faults {
		b.WriteString("\n  " + redact.URLs(fault.Error()))
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

// faultsOf puts name before every error that err joins: a list of peers has one
// fault per bad peer.
func faultsOf(name string, err error) []error {
	var joined interface{ Unwrap() []error }
	if !errors.As(err, &joined) {
		return []error{fault(name, err)}
	}
	var faults []error
	for _, e := range joined.Unwrap() {
		faults = append(faults, fault(name, e))
	}
	return faults
}

// fault joins a setting's name and its error to one sentence, in the form of Dynamo's frontend.
func fault(name string, err error) error {
	if _, ok := errors.AsType[mustBeError](err); ok {
		return fmt.Errorf("%s %w", name, err)
	}
	return fmt.Errorf("%s: %w", name, err)
}
