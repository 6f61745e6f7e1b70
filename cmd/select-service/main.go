// Command select-service decides which LLM worker gets the next request.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/codec/redact"
	"github.com/select-service/select-service/internal/config"
	"github.com/select-service/select-service/internal/telemetry/logwriter"
)

func main() {
	// A closed terminal, or a log whose reader has gone, does not end the service.
	signal.Ignore(syscall.SIGHUP, syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	stderr := detachStderr()
	err := run(ctx, os.Args[1:], os.Getenv, os.Stdout, stderr)
	last := logwriter.New(stderr)
	code := status(err, last)
	last.Close()
	os.Exit(code)
}

// status reports an error, if there is one, and returns the process's exit status.
func status(err error, stderr io.Writer) int {
	if err == nil {
		return 0
	}
	fmt.Fprintln(stderr, "select-service:", redact.URLs(err.Error()))
	var invalid *config.InvalidError
	if errors.As(err, &invalid) {
		return config.ExitCode
	}
	return 1
}

// run executes the action of the command line; serving lasts until ctx ends.
func run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) error {
	if len(args) > 0 && args[0] == tokenCommand {
		return newToken(args[1:], stdout)
	}
	conf, err := config.Load(args, getenv, os.ReadFile)
	if err != nil {
		return err
	}
	switch conf.Action {
	case config.Help:
		return conf.WriteHelp(stdout)
	case config.HelpAll:
		return conf.WriteHelpAll(stdout)
	case config.Version:
		_, err = fmt.Fprintln(stdout, "select-service", version())
		return err
	case config.PrintConfig:
		return conf.WriteYAML(stdout)
	case config.CheckConfig:
		for _, w := range conf.Warnings() {
			fmt.Fprintln(stderr, "warning:", redact.URLs(w))
		}
		if _, err := readFiles(conf); err != nil {
			return err
		}
		if _, err := readDiscoveries(conf, getenv, true); err != nil {
			return err
		}
		m := newMemory(conf.Limits, getenv, zerolog.Nop())
		_, err = fmt.Fprintf(stdout, "configuration is valid\nmemory limit %d bytes (%s)\n", m.budget.Total(), m.source)
		return err
	}
	read, err := readFiles(conf)
	if err != nil {
		return err
	}
	if read.discoveries, err = readDiscoveries(conf, getenv, false); err != nil {
		return err
	}
	return serve(ctx, conf, read, getenv, stderr)
}

// release is set by the build (-ldflags "-X main.release=…").
var release string

// version returns the name of the build: its revision, and the transport of engines' streams if
// that is not our own.
func version() string { return revision() + transport() }

// revision returns the release, else the module version or the commit.
func revision() string {
	if release != "" {
		return release
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && info.Main.Version == "(devel)" {
			return "devel-" + s.Value[:min(12, len(s.Value))]
		}
	}
	return info.Main.Version
}
