package config

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/select-service/select-service/internal/codec/redact"
)

// WriteYAML writes the effective configuration in the syntax of the file; Load
// reads it back to the same values, but for the credentials of URLs, which are left out.
func (c Config) WriteYAML(w io.Writer) error {
	root := &yaml.Node{Kind: yaml.MappingNode}
	for _, g := range groups {
		section := &yaml.Node{Kind: yaml.MappingNode}
		for _, o := range inGroup(g.name) {
			var key, val yaml.Node
			key.SetString(strings.TrimPrefix(o.key, g.name+"."))
			if err := val.Encode(o.bind(&c).show()); err != nil {
				return fmt.Errorf("encode %s: %w", o.key, err)
			}
			if o.key != keyGatewayModels { // an @ begins a tenant there
				hideCredentials(&val)
			}
			section.Content = append(section.Content, &key, &val)
		}
		var name yaml.Node
		name.SetString(g.name)
		root.Content = append(root.Content, &name, section)
	}
	enc := yaml.NewEncoder(w)
	enc.SetIndent(2)
	if err := enc.Encode(root); err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	return enc.Close()
}

// hideCredentials leaves the credentials of URLs out of all texts of a value.
func hideCredentials(n *yaml.Node) {
	if n.Kind == yaml.ScalarNode {
		n.Value = redact.URLs(n.Value)
	}
	for _, member := range n.Content {
		hideCredentials(member)
	}
}

// deciding are the options, or the beginnings of their keys, that decide where requests go, and
// whether they wait or are refused.
var deciding = []string{"server.contract", "router.", "queue.", "overload.", "engines.warmup", "engines.stalled_after"}

// Rules returns the settings that decide where requests go, and whether they wait or are refused, as a
// text. It is the same for replicas that decide alike, whatever their files are called.
func (c Config) Rules() string {
	var b strings.Builder
	for _, o := range options {
		if o.key != keyPolicy && slices.ContainsFunc(deciding, func(key string) bool { return strings.HasPrefix(o.key, key) }) {
			fmt.Fprintf(&b, "%s: %v\n", o.key, o.bind(&c).show())
		}
	}
	if c.Fronts() {
		fmt.Fprintf(&b, "served: %v\n", c.Gateway.Models) // these scopes have another built-in policy
	}
	return b.String() + c.policyText
}

// WriteHelp writes what the command that the configuration is for does, and the options that
// most need: at most 24 lines of 80 columns.
func (c Config) WriteHelp(w io.Writer) error {
	_, err := io.WriteString(w, c.command().help())
	return err
}

// WriteHelpAll writes the whole help text of the command that the configuration is for: each
// flag with its default, its other names and when to change it.
func (c Config) WriteHelpAll(w io.Writer) error {
	_, err := io.WriteString(w, c.command().helpAll())
	return err
}

func (c Config) command() *command {
	if c.SlotsOnly {
		return slotTracker
	}
	return selection
}

// screen is a help text of one screen.
type screen struct {
	head    string
	options []screenLine
	foot    string
}

// screenLine is an option in a line of its own.
type screenLine struct{ flag, help string }

func (c *command) help() string {
	var b strings.Builder
	b.WriteString(c.screen.head)
	defaults := c.defaults()
	for _, line := range c.screen.options {
		name, help := "--"+line.flag, line.help
		if o := c.lookupFlag(line.flag).option; o == nil {
			name += " FILE" // of the configuration
		} else {
			name += " " + o.hint
			if shown := showText(o.bind(&defaults).show()); shown != "none" && shown != "0" {
				help += " (default " + shown + ")"
			}
		}
		fmt.Fprintf(&b, "  %-*s %s\n", screenColumn, name, help)
	}
	b.WriteString(c.screen.foot)
	return b.String()
}

// screenColumn is the width of a flag and its placeholder in a help text of one screen.
const screenColumn = 34

var helpScreen = screen{
	head: `Usage: select-service [flags]
       select-service slots [flags]     the slot tracker alone: slots --help
       select-service token new FLAGS   a token and its entry for --tokens-file

Chooses the worker for each LLM request by cached KV blocks and load, and keeps
account of the load that it has handed out.

`,
	options: []screenLine{
		{"port", "port of the HTTP listener"},
		{"listen", "its address"},
		{"workers-file", "the workers; without it PUT /workers"},
		{"router-queue-threshold", "hold requests above this prefill load"},
		{"gateway-port", "endpoint picker for Envoy; 9002 is usual"},
		{"proxy-port", "proxy to engines; 8080 is usual"},
		{"replica-sync-port", "share reservations with replicas"},
		{"replica-sync-peers", "the other replicas"},
		{"indexer-peers", "whose index is read at start"},
		{"tokens-file", "who may do what; without it anybody all"},
		{configFlag, "all settings, as YAML"},
	},
	foot: `
--help-all has every option, its environment variable, default and use.
--check-config shows all faults, --print-config what is in effect.
`,
}

var slotsHelpScreen = screen{
	head: `Usage: select-service slots [flags]

Runs the slot tracker alone: active-load accounting for prompts that others
route.

`,
	options: []screenLine{
		{"port", "port of the HTTP listener"},
		{"replica-sync-bind", "share reservations with replicas"},
		{"replica-sync-advertise", "this replica's endpoint as they name it"},
		{"replica-sync-peers", "the other replicas"},
		{"tokens-file", "who may do what; without it anybody all"},
		{"data-dir", "state on disk, read at start"},
		{"max-memory", "by default 3/4 of the memory there is"},
	},
	foot: `
slots --help-all has every option, its environment variable, default and use.
`,
}

func (c *command) helpAll() string {
	var b strings.Builder
	b.WriteString(c.head)
	defaults := c.defaults()
	for _, g := range groups {
		title := "\n" + g.title + ":\n"
		var inFile []string
		for _, o := range c.options {
			switch {
			case !strings.HasPrefix(o.key, g.name+"."):
				continue
			case o.flag == "" && c.file:
				inFile = append(inFile, strings.Join(append([]string{o.key}, o.env...), " = "))
				continue
			case o.flag == "":
				continue
			}
			b.WriteString(title)
			title = "" // once
			helpEntry(&b, "--"+o.flag, o.hint, o.help)
			fmt.Fprintf(&b, "        default %s; environment %s",
				showText(o.bind(&defaults).show()), strings.Join(o.env, ", then "))
			if c.file {
				b.WriteString("; file " + o.key)
			}
			b.WriteString("\n")
		}
		if len(inFile) > 0 {
			helpEntry(&b, "Keys of the file that have no flag, some with a variable of Dynamo's:", "", strings.Join(inFile, ", ")+". "+exampleHas)
		}
	}
	b.WriteString("\nConfiguration:\n")
	if c.file {
		helpEntry(&b, "--"+configFlag, "FILE", "A configuration file (YAML). "+exampleHas)
		fmt.Fprintf(&b, "        default none; environment %s\n", envConfig)
	}
	for _, a := range c.actions {
		helpEntry(&b, "--"+a.name, "", a.help)
	}
	b.WriteString("\nEnvironment only:\n")
	var inert []string
	for _, o := range c.options {
		switch {
		case o.inert:
			inert = append(inert, o.env...)
		case o.flag == "" && (o.key == "" || !c.file):
			helpEntry(&b, strings.Join(o.env, ", "), "", o.help)
		}
	}
	if len(inert) > 0 {
		helpEntry(&b, "Of Dynamo's router, checked, without effect in this service:", "", strings.Join(inert, ", "))
	}
	return b.String()
}

const helpHead = `Usage: select-service [flags]
       select-service slots [flags]
       select-service token new --name NAME --roles ROLE,...

Chooses the worker for each LLM request by cached KV blocks and load, and keeps
account of the load that it has handed out. The subcommand slots runs the slot
tracker alone; it has few flags, see select-service slots --help. The subcommand
token new makes a token and its entry for --tokens-file.

A flag goes before the environment, the environment before the file, the file
before the default. An empty value counts as not given. Every bad value is
refused at start, all in one message. Booleans: true, 1, yes, on, false, 0, no,
off; a flag alone means true.
`

const slotsHelpHead = `Usage: select-service slots [flags]

Runs the slot tracker alone: active-load accounting for prompts that others
route.

A flag goes before the environment, the environment before the default. An empty
value counts as not given. Every bad value is refused at start, all in one
message.
`

// exampleHas ends the texts about the file.
const exampleHas = "Every key is explained in configs/select-service.yaml."

const helpWidth = 78

// helpEntry writes a name and its text, wrapped and indented by eight.
func helpEntry(b *strings.Builder, name, hint, help string) {
	b.WriteString("  " + strings.TrimSpace(name+" "+hint) + "\n")
	const indent = "       "
	column := len(indent)
	b.WriteString(indent)
	for word := range strings.FieldsSeq(help) {
		if column+1+len(word) > helpWidth {
			b.WriteString("\n" + indent)
			column = len(indent)
		}
		b.WriteString(" " + word)
		column += 1 + len(word)
	}
	b.WriteString("\n")
}

// showText is a value in the help text.
func showText(shown any) string {
	switch v := shown.(type) {
	case nil:
		return "none"
	case string:
		return cmp.Or(v, "none")
	case []string:
		if len(v) == 0 {
			return "none"
		}
		return strings.Join(v, ",")
	}
	return fmt.Sprint(shown)
}

func inGroup(name string) []option {
	var members []option
	for _, o := range options {
		if strings.HasPrefix(o.key, name+".") {
			members = append(members, o)
		}
	}
	return members
}
