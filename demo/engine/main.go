// Command sim-engine plays inference engines: each has a block cache, a prefill
// and a decode rate, publishes its KV events as vLLM does, and answers requests
// after the time that its model needs. See docs/demo.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/pflag"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "sim-engine:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	conf := defaults()
	flags := conf.flags()
	flags.SetOutput(stdout)
	switch err := flags.Parse(args); {
	case errors.Is(err, pflag.ErrHelp):
		return nil
	case err != nil:
		return err
	}
	if err := conf.validate(); err != nil {
		return err
	}
	return serve(ctx, conf, stdout)
}
