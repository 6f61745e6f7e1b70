package config

import (
	"errors"
	"fmt"
	"strings"
)

// commandLine is the parsed command line. The standard flag packages stop at the
// first fault; ours are all reported together (decision D13).
type commandLine struct {
	action     Action
	configFile string
	given      []givenFlag
	faults     []error
}

type givenFlag struct {
	option option
	text   string
}

// actionFlag takes no value.
type actionFlag struct {
	name   string
	action Action
	help   string
}

var actionFlags = []actionFlag{
	{"check-config", CheckConfig, "Check the configuration and exit: 0 if it is valid, else 2 with every fault."},
	{"print-config", PrintConfig, "Print the effective configuration as YAML and exit."},
	{"version", Version, "Print the version and exit."},
	{"help", Help, "Print this text and exit."},
}

const configFlag = "config"

// parseArgs reads the arguments after the subcommand, as --name=value or --name value. A
// boolean flag takes a value only after "=". If a flag is given twice the last value counts,
// unless the option repeats (option.repeats).
func (c *command) parseArgs(args []string) commandLine {
	var line commandLine
	for len(args) > 0 {
		arg := args[0]
		args = args[1:]
		if arg == "-h" {
			arg = "--help"
		}
		body, ok := strings.CutPrefix(arg, "--")
		if !ok || body == "" {
			line.faults = append(line.faults, fmt.Errorf("unexpected argument %q", arg))
			continue
		}
		name, value, hasValue := strings.Cut(body, "=")
		kind := c.lookupFlag(name)
		switch {
		case kind == nil:
			line.faults = append(line.faults, fmt.Errorf("--%s: unknown flag", name))
			continue
		case hasValue && kind.action != Run:
			line.faults = append(line.faults, fmt.Errorf("--%s: takes no value", name))
			continue
		case hasValue:
		case kind.bare:
			value = "true"
		case len(args) == 0 || strings.HasPrefix(args[0], "--"):
			line.faults = append(line.faults, fmt.Errorf("--%s: %w", name, errNoValue))
			continue
		default:
			value, args = args[0], args[1:]
		}
		line.take(*kind, value)
	}
	return line
}

var errNoValue = errors.New("needs a value")

// flagKind is the meaning of a flag: an action, the configuration file, or an option.
type flagKind struct {
	action Action
	option *option
	bare   bool // may stand without a value
}

func (c *command) lookupFlag(name string) *flagKind {
	for _, a := range c.actions {
		if a.name == name {
			return &flagKind{action: a.action, bare: true}
		}
	}
	if name == configFlag && c.file {
		return &flagKind{}
	}
	for i := range c.options {
		if o := &c.options[i]; o.flag == name && name != "" {
			return &flagKind{option: o, bare: o.hint == ""}
		}
	}
	return nil
}

func (line *commandLine) take(kind flagKind, text string) {
	switch {
	case kind.action != Run:
		line.action = max(line.action, kind.action)
	case kind.option != nil:
		if kind.option.repeats {
			for i, g := range line.given {
				if g.option.flag == kind.option.flag {
					line.given[i].text += "," + text
					return
				}
			}
		}
		line.given = append(line.given, givenFlag{option: *kind.option, text: text})
	default:
		line.configFile = text
	}
}
