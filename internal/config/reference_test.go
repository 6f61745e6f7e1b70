package config

import (
	"cmp"
	"fmt"
	"strings"
)

// Reference is docs/reference/configuration.md, made from the table of options.
func Reference() string {
	var b strings.Builder
	b.WriteString(referenceHead)
	defaults := Default()
	for _, g := range groups {
		fmt.Fprintf(&b, "\n## %s\n\nSection `%s` of the file.\n\n| Key | Flag and environment | Default | Meaning |\n|---|---|---|---|\n",
			g.title, g.name)
		for _, o := range inGroup(g.name) {
			names := "none"
			if all := o.names(); len(all) > 0 {
				names = "`" + strings.Join(all, "`<br>`") + "`"
			}
			switch o.slots {
			case asFlag:
				names += "<br>slots: `--" + cmp.Or(o.slotsFlag, o.flag) + "`"
			case asVariable:
				names += "<br>slots: environment"
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n",
				strings.TrimPrefix(o.key, g.name+"."), names, showText(o.bind(&defaults).show()), cell(o.help))
		}
	}
	b.WriteString("\n## Removed\n\nRefused at start, with the reason.\n\n| Key | Flag and environment | Reason |\n|---|---|---|\n")
	for _, o := range removedOptions {
		key := "none"
		if o.key != "" {
			key = "`" + o.key + "`"
		}
		fmt.Fprintf(&b, "| %s | `--%s`<br>`%s` | %s |\n", key, o.flag, variable(o.flag), cell(o.err.Error()))
	}
	b.WriteString("\n## Environment only\n\nVariables of Dynamo's router that a shared environment may have.\n\n| Environment | Meaning |\n|---|---|\n")
	inert := ""
	for _, o := range options {
		switch {
		case o.inert:
			inert += ", `" + strings.Join(o.env, "`, `") + "`"
		case o.key == "":
			fmt.Fprintf(&b, "| `%s` | %s |\n", strings.Join(o.env, "`, `"), cell(o.help))
		}
	}
	fmt.Fprintf(&b, "| %s | Checked, without effect in this service. |\n", strings.TrimPrefix(inert, ", "))
	return b.String()
}

// names are the flag and the variables of an option.
func (o option) names() []string {
	if o.flag == "" {
		return o.env
	}
	return append([]string{"--" + o.flag}, o.env...)
}

// ShippedFile is configs/select-service.yaml: what is printed of the defaults, with the table of options as comments.
func ShippedFile() string {
	var printed, b strings.Builder
	_ = Default().WriteYAML(&printed) // a strings.Builder takes everything
	b.WriteString(shippedHead)
	byKey, group := optionsByKey(), ""
	for line := range strings.Lines(printed.String()) {
		key, _, _ := strings.Cut(strings.TrimSpace(line), ":")
		if !strings.HasPrefix(line, " ") {
			group = key
			for _, g := range groups {
				if g.name == group {
					comment(&b, "", g.title+".")
				}
			}
		} else if o, ok := byKey[group+"."+key]; ok {
			comment(&b, "  ", o.help, strings.Join(o.names(), ", "))
		}
		b.WriteString(strings.Replace(line, ": null\n", ":\n", 1))
	}
	return b.String()
}

// comment writes an empty line and texts, each from a line of its own on, as comments.
func comment(b *strings.Builder, indent string, texts ...string) {
	b.WriteString("\n")
	for _, text := range texts {
		line := ""
		for word := range strings.FieldsSeq(text) {
			if line != "" && len(indent+"# "+line+" "+word) > 100 {
				fmt.Fprintf(b, "%s# %s\n", indent, line)
				line = ""
			}
			line = strings.TrimSpace(line + " " + word)
		}
		if line != "" {
			fmt.Fprintf(b, "%s# %s\n", indent, line)
		}
	}
}

const shippedHead = `# Configuration of select-service: every key with its default.
# Generated from internal/config/options.go by "go generate ./internal/config". Do not edit.
#
#   select-service --config configs/select-service.yaml
#
# A flag overrides the environment, the environment this file, this file the default. A key without a
# value is the same as no key. Unknown keys and bad values stop the start, all in one message. Try a
# file with --check-config, and see what is in effect with --print-config.
`

// cell is a text in a cell of a table.
func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }

const referenceHead = `# Configuration

<!-- Generated from internal/config/options.go by "go generate ./internal/config". Do not edit. -->

A flag overrides the environment, the environment the file, the file the default. An empty value counts
as not given. Of several environment variables the first that is set counts. Every bad value is refused
at start, all in one message; ` + "`--check-config`" + ` only checks, ` + "`--print-config`" + ` prints what is in effect.
` + "`--help`" + ` shows the options that most need, ` + "`--help-all`" + ` every one; an unknown flag is refused with the nearest known one.
` + "`--config FILE`" + ` (` + "`" + envConfig + "`" + `) names the file;
[configs/select-service.yaml](../../configs/select-service.yaml) is one with every default.
A setting without a flag is a key of the file; some have a variable of Dynamo's. Durations are numbers with units, such as 30s or
1h30m. A number without a unit has that of the key's or the variable's name, else it is in seconds. Booleans: true, 1, yes, on, false, 0, no, off; a flag alone means true.

` + "`select-service slots`" + ` runs the slot tracker alone. It reads no file and has the settings that say *slots*,
with that flag or with the environment variable alone.
`
