package config

import (
	"cmp"
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
	{"help", Help, "Print the options that most need and exit."},
	{"help-all", HelpAll, "Print this text, with every option, and exit."},
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
			line.faults = append(line.faults, c.unknownFlag(name))
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

// unknownFlag is the fault of a flag that the command does not have. It names the nearest one
// that it has if that is near: a slip of the fingers, not another word.
func (c *command) unknownFlag(name string) error {
	if err := removedBy(name, func(o removedOption) string { return o.flag }); err != nil {
		return fault("--"+name, err)
	}
	nearest, distance := "", min(maxSlips, len(name)/3)+1
	for _, flag := range c.flags() {
		if d := editDistance(name, flag, distance-1); d < distance {
			nearest, distance = flag, d
		}
	}
	if nearest == "" {
		return fmt.Errorf("--%s: unknown flag", name)
	}
	return fmt.Errorf("--%s: unknown flag, did you mean --%s?", name, nearest)
}

// maxSlips is the most edits between an unknown flag and the one that is suggested for it.
const maxSlips = 3

// flags are the names of all flags of the command, those that name a file or an action too.
func (c *command) flags() []string {
	var names []string
	for _, o := range c.options {
		if o.flag != "" {
			names = append(names, o.flag)
		}
	}
	if c.file {
		names = append(names, configFlag)
	}
	for _, a := range c.actions {
		names = append(names, a.name)
	}
	return names
}

// editDistance is the number of bytes inserted, deleted, replaced or swapped with their neighbour
// that turn a into b (optimal string alignment), or a number above limit if there are more.
func editDistance(a, b string, limit int) int {
	if max(len(a)-len(b), len(b)-len(a)) > limit {
		return limit + 1
	}
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before, last, row = last, row, before
		row[0] = i + 1
		for j := range len(b) {
			replaced := last[j]
			if a[i] != b[j] {
				replaced++
			}
			row[j+1] = min(replaced, last[j+1]+1, row[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
	}
	return row[len(b)]
}

func (line *commandLine) take(kind flagKind, text string) {
	switch {
	case kind.action != Run:
		line.action = max(line.action, kind.action)
	case kind.option != nil:
		if kind.option.repeats {
			for i, g := range line.given {
				if g.option.flag == kind.option.flag {
					line.given[i].text += cmp.Or(kind.option.separator, ",") + text
					return
				}
			}
		}
		line.given = append(line.given, givenFlag{option: *kind.option, text: text})
	default:
		line.configFile = text
	}
}
