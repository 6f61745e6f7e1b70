package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/select-service/select-service/internal/codec/redact"
	"github.com/select-service/select-service/pkg/client"
)

// Exit codes.
const (
	exitOK = iota
	exitFailed
	exitUsage
	exitNotReady
	exitFinding
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// app is one call of the program.
type app struct {
	in       io.Reader
	out, err io.Writer
	terminal bool // out is one, or ends in one
	colours  bool // out shows them
	options  options
	service  *client.Client
}

// offline marks the commands that ask no service, in their annotations.
const offline = "offline"

// usageError is a mistake in the command line.
type usageError struct{ error }

func run(ctx context.Context, args []string, in io.Reader, out, errs io.Writer) int {
	a := &app{in: in, out: out, err: errs, terminal: isTerminal(out)}
	a.colours = a.terminal && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	return a.run(ctx, args)
}

// run runs a command line and returns the exit code.
func (a *app) run(ctx context.Context, args []string) int {
	errs := a.err
	root := a.root() //nolint:contextcheck // commands have the context of ExecuteContext
	root.SetArgs(args)
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(errs)
	cmd, err := root.ExecuteContextC(ctx)
	if a.service != nil {
		_ = a.service.Close() // it is idle
	}
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, new(usageError)), strings.HasPrefix(err.Error(), "required flag(s)"): // cobra has no type for that
		fmt.Fprintf(errs, "selectctl: %s\nsee '%s --help'\n", printable(redact.URLs(err.Error())), cmd.CommandPath())
		return exitUsage
	case errors.Is(err, errNotReady):
		fmt.Fprintln(errs, "selectctl:", err)
		return exitNotReady
	case errors.Is(err, errFindings): // they are written
		return exitFinding
	case errors.Is(err, context.Canceled) && ctx.Err() != nil:
		fmt.Fprintln(errs, "selectctl: interrupted")
		return exitFailed
	}
	fmt.Fprintln(errs, "selectctl:", advise(err, a.options.URL))
	return exitFailed
}

// advise adds to an error what its reader can do about it.
func advise(err error, url string) string {
	text := printable(redact.URLs(err.Error()))
	failed, ok := errors.AsType[*client.Error](err)
	lookup, isLookup := errors.AsType[*net.DNSError](err)
	_, isCertificate := errors.AsType[*tls.CertificateVerificationError](err)
	switch {
	case ok && failed.Status == http.StatusUnauthorized:
		return text + "\nthe service wants a token: --token-file FILE, or SELECT_SERVICE_TOKEN"
	case ok && failed.Status == http.StatusForbidden:
		return text + "\nthe token's role does not allow this: docs/run/access.md has the roles"
	case ok && failed.Reason == "no_tokenizer":
		return text + "\nwithout one a prompt has to be given as --tokens"
	case isLookup && lookup.IsNotFound:
		return text + "\nthere is no such host: is --url right?"
	case isCertificate:
		return text + "\nits certificate is not trusted: --ca FILE has its authorities, and --url one of its names"
	case !ok && (errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, os.ErrNotExist) && strings.HasPrefix(url, "unix:")):
		return text + "\nnothing listens there: is the service running, and is --url right?"
	}
	return text
}

const long = `selectctl shows what a running select-service knows and why it chose as it did,
and changes its workers and thresholds.

Where the service is: --url, else $SELECT_SERVICE_URL, else the context (--context,
else current_context) of ~/.config/selectctl/config.yaml, else http://127.0.0.1:8092.

Exit codes: 0 done, 1 failed, 2 wrong command line, 3 the service is not ready,
4 the doctor has a finding.`

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use: "selectctl", Short: "look at a running select-service, and operate it", Long: long,
		Annotations:  map[string]string{offline: "it shows its help"},
		SilenceUsage: true, SilenceErrors: true, Version: version(), Args: cobra.ArbitraryArgs,
		SuggestionsMinimumDistance: 2,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case cmd.Name() == "help", cmd.Name() == cobra.ShellCompRequestCmd, cmd.Name() == cobra.ShellCompNoDescRequestCmd,
				cmd.Parent() != nil && cmd.Parent().Name() == "completion":
				return nil
			}
			if err := a.options.check(); err != nil || cmd.Annotations[offline] != "" {
				return err
			}
			return a.connect(cmd)
		},
	}
	root.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		text := fmt.Sprintf("there is no command %q", args[0])
		if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
			text += "; did you mean " + strings.Join(near, " or ") + "?"
		}
		return usageError{errors.New(text)}
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	a.options.register(root.PersistentFlags())
	root.AddCommand(a.status(), a.top(), a.workers(), a.overlap(), a.explain(), a.decisions(), a.sessions(), a.replicas(), a.prefixes(), a.doctor(), a.thresholds(), a.dump(), a.token(), a.bench(), a.trace())
	for _, cmd := range root.Commands() {
		checkArgs(cmd)
	}
	return root
}

// checkArgs has errors about arguments counted as mistakes in the command line.
func checkArgs(cmd *cobra.Command) {
	check := cmd.Args
	if check == nil {
		check = cobra.NoArgs
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return usageError{err}
		}
		return nil
	}
	for _, sub := range cmd.Commands() {
		checkArgs(sub)
	}
	if cmd.HasSubCommands() && cmd.RunE == nil {
		cmd.RunE = func(cmd *cobra.Command, _ []string) error {
			return usageError{fmt.Errorf("%s needs a subcommand", cmd.CommandPath())}
		}
	}
}
