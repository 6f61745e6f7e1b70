package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/select-service/select-service/demo/sim/node"
	"github.com/select-service/select-service/demo/sim/openai"
	"github.com/select-service/select-service/test/helpers/kvpub"
)

// serve runs all engines until ctx ends or one fails. It prints a line for each engine (number,
// URL, event endpoints of its ranks), and "ready" when all listen.
func serve(ctx context.Context, conf config, stdout io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	for i := range conf.engines {
		line, err := start(ctx, g, conf, i)
		if err != nil {
			cancel()
			return errors.Join(fmt.Errorf("engine %d: %w", i+1, err), g.Wait())
		}
		fmt.Fprintf(stdout, "engine %d %s\n", i+1, line)
	}
	fmt.Fprintln(stdout, "ready")
	return g.Wait()
}

// start runs engine i in g and returns its line of serve's output.
func start(ctx context.Context, g *errgroup.Group, conf config, i int) (string, error) {
	port := conf.port
	if port > 0 {
		port += i
	}
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", net.JoinHostPort(conf.listen, strconv.Itoa(port)))
	if err != nil {
		return "", err
	}
	ranks := make([]*node.Node, conf.ranks)
	events, replay := make([]string, conf.ranks), make([]string, conf.ranks)
	for rank := range ranks {
		n, err := node.New(options(conf, i, rank))
		if err != nil {
			return "", errors.Join(err, ln.Close())
		}
		g.Go(func() error { return n.Run(ctx) })
		info := n.Info()
		ranks[rank], events[rank], replay[rank] = n, info.KVEventsEndpoint, info.ReplayEndpoint
	}
	api := openai.New(openai.Options{Model: conf.model, Adapters: conf.adapters, Render: conf.render, Ranks: ranks, Pairing: conf.pairing(i)})
	// An engine that is frozen (SIGSTOP) for a while answers what came meanwhile, as real engines do, which have no such timeout.
	srv := &http.Server{Handler: api.Handler(), ReadHeaderTimeout: time.Hour, Protocols: new(http.Protocols)}
	srv.Protocols.SetHTTP1(true)
	srv.Protocols.SetUnencryptedHTTP2(true)
	g.Go(func() error {
		if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	g.Go(func() error {
		<-ctx.Done()
		return srv.Close() // answers take as long as the model: don't wait for them
	})
	return fmt.Sprintf("http://%s events %s replay %s", ln.Addr(), strings.Join(events, ","), strings.Join(replay, ",")), nil
}

func options(conf config, i, rank int) node.Options {
	events := 0
	if conf.eventsPort > 0 {
		events = conf.eventsPort + 2*(i*conf.ranks+rank)
	}
	return node.Options{
		Engine:  conf.of(i),
		Speedup: conf.speedup,
		Rank:    uint32(rank),
		NewSeed: func() uint64 {
			if conf.hashSeed != 0 {
				return conf.hashSeed
			}
			return rand.Uint64()
		},
		Publisher: func() (node.Publisher, error) {
			return kvpub.Open(kvpub.Options{Bind: conf.listen, Port: events, Topic: conf.topic})
		},
	}
}
