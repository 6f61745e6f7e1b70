package config

import (
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v3"
)

// WriteYAML writes the effective configuration in the syntax of the file; Load
// reads it back to the same values.
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

// WriteHelp writes the help text of the command that the configuration is for:
// each flag with its default, its other names and when to change it.
func (c Config) WriteHelp(w io.Writer) error {
	cmd := selection
	if c.SlotsOnly {
		cmd = slotTracker
	}
	_, err := io.WriteString(w, cmd.help())
	return err
}

func (c *command) help() string {
	var b strings.Builder
	b.WriteString(c.head)
	defaults := c.defaults()
	for _, g := range groups {
		title := "\n" + g.title + ":\n"
		for _, o := range c.options {
			if o.flag == "" || !strings.HasPrefix(o.key, g.name+".") {
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
	}
	b.WriteString("\nConfiguration:\n")
	if c.file {
		helpEntry(&b, "--"+configFlag, "FILE", "Configuration file (YAML); every key is explained in configs/select-service.yaml.")
		fmt.Fprintf(&b, "        default none; environment %s\n", envConfig)
	}
	for _, a := range c.actions {
		helpEntry(&b, "--"+a.name, "", a.help)
	}
	b.WriteString("\nEnvironment only:\n")
	for _, o := range c.options {
		if o.flag == "" {
			helpEntry(&b, strings.Join(o.env, ", "), "", o.help)
		}
	}
	return b.String()
}

const helpHead = `Usage: select-service [flags]
       select-service slots [flags]
       select-service token new --name NAME --roles ROLE,...
       select-service curve new [FILE]

Chooses the worker for each LLM request by cached KV blocks and load, and keeps
account of the load that it has handed out. The subcommand slots runs the slot
tracker alone; it has few flags, see select-service slots --help. The subcommand
token new makes a token and its entry for --tokens-file, curve new a key pair
for the CURVE files.

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
