// Command kv-publish is a KV event publisher to try things with: events come in
// as JSON over HTTP and leave as an engine's or a cache daemon's would, numbered
// msgpack messages on a ZMQ PUB socket, with a replay endpoint beside it.
//
//	kv-publish --port 5500 rank0 store
//
// opens a publisher for each name and prints its endpoints as shell variables,
// rank0_events=tcp://127.0.0.1:… and rank0_replay=…. The body of POST /rank0 is
// published as one message: an array is a batch of events, whose time is now and
// which leaves the data parallel rank to the registration; an object is sent
// bare. docs/reference/conductor.md is a session with it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil && !errors.Is(err, pflag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "kv-publish:", err)
		os.Exit(1)
	}
}

// grace is how long a request that is being answered may hold up the end.
const grace = time.Second

func run(ctx context.Context, args []string, stdout io.Writer) (err error) {
	flags := pflag.NewFlagSet("kv-publish", pflag.ContinueOnError)
	port := flags.Uint16("port", 5500, "HTTP port on 127.0.0.1 that takes events")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if err := checkNames(flags.Args()); err != nil {
		return err
	}
	// The port is taken first: who sees the endpoints can send at once.
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(*port))))
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	var lines strings.Builder
	for _, name := range flags.Args() {
		s, failed := openStream()
		if failed != nil {
			return errors.Join(failed, ln.Close())
		}
		defer func() { err = errors.Join(err, s.Close()) }()
		fmt.Fprintf(&lines, "%s_events=%s\n%s_replay=%s\n", name, s.Events(), name, s.Replay())
		mux.Handle("POST /"+name, s)
	}
	if _, err := io.WriteString(stdout, lines.String()); err != nil { // all or nothing: a reader may be polling
		return errors.Join(err, ln.Close())
	}
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: grace}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	return srv.Shutdown(ctx)
}

var shellName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// checkNames refuses what a shell could not read back.
func checkNames(names []string) error {
	if len(names) == 0 {
		return errors.New("name at least one publisher")
	}
	seen := make(map[string]bool)
	for _, name := range names {
		if !shellName.MatchString(name) || seen[name] {
			return fmt.Errorf("publisher %q: names are different words of letters, digits and _", name)
		}
		seen[name] = true
	}
	return nil
}
