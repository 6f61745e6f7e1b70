// Package config turns flags, environment, file and defaults into one checked
// Config, or into one error that names every bad setting by the name under
// which it was given.
//
// A flag overrides the environment, the environment the file, the file the
// default. An empty text is "not given" in every source: launch templates leave
// flags and variables empty. A bad value is refused even where a stronger source
// overrides it. The table in options.go is the only list of settings: flags,
// variables, file keys, --help, --print-config, docs/reference/configuration.md and configs/select-service.yaml follow it.
package config
