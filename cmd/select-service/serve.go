package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/select-service/select-service/internal/config"
	"github.com/select-service/select-service/internal/httpapi"
	"github.com/select-service/select-service/internal/metrics"
	"github.com/select-service/select-service/internal/service"
	"github.com/select-service/select-service/internal/zmqsock"
	"github.com/select-service/select-service/pkg/admission"
)

// grace is how long requests under way have to finish after the signal to stop.
// The whole stop may take five seconds; the sockets need some of them.
const grace = 4 * time.Second

// gcPercent lets the heap grow to five times what is live before the collector
// runs. The index is not on the heap, so what is live is a few MiB, and the
// default would collect after every few MiB of requests. GOGC overrides it.
const gcPercent = 400

// serve runs the service until ctx ends: sockets, streams, HTTP come up in this
// order and go down in the reverse one.
func serve(ctx context.Context, conf config.Config, getenv func(string) string, stderr io.Writer) error {
	if getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	log := logger(conf.Log, stderr)
	for _, w := range conf.Warnings() {
		log.Warn().Msg(w)
	}
	hub := zmqsock.New(zmqsock.DefaultOptions())
	svc := service.New(serviceConfig(conf), hub, log)
	handler := httpapi.New(svc, httpapi.Options{Log: log, Metrics: metrics.New(version(), svc.Metrics()).Handler()})
	srv := httpapi.NewServer(handler, log)
	ln, err := net.Listen("tcp", conf.Server.Address())
	if err != nil {
		return fmt.Errorf("listen on %s: %w", conf.Server.Address(), err)
	}
	log.Info().Str("version", version()).Stringer("address", ln.Addr()).Int("pid", os.Getpid()).Msg("listening")

	base := context.WithoutCancel(ctx)
	sockets, closeSockets := context.WithCancel(base)
	work, stopWork := context.WithCancel(base)
	g, failed := errgroup.WithContext(ctx) // the first part to fail stops the rest
	g.Go(func() error { return hub.Run(sockets) })
	g.Go(func() error {
		defer closeSockets()
		return svc.Run(work)
	})
	g.Go(func() error {
		if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	g.Go(func() error {
		defer stopWork()
		<-failed.Done()
		log.Info().Msg("stopping")
		svc.Close()
		return shutdown(base, srv)
	})
	err = g.Wait()
	log.Info().Err(err).Msg("stopped")
	return err
}

// shutdown lets requests under way finish, but not for longer than grace.
func shutdown(ctx context.Context, srv *http.Server) error {
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	if err := srv.Shutdown(ctx); err != nil {
		return srv.Close()
	}
	return nil
}

func serviceConfig(conf config.Config) service.Config {
	return service.Config{
		Weights:        conf.Router,
		Admission:      admission.Config{Threshold: conf.Queue.Threshold, File: conf.Queue.Policy},
		KVEvents:       conf.KVEvents.Enabled,
		OverlapRefresh: conf.Queue.OverlapRefreshAfter,
		Threads:        conf.KVEvents.Threads,
	}
}

func logger(conf config.Log, w io.Writer) zerolog.Logger {
	level, err := zerolog.ParseLevel(conf.Level)
	if err != nil {
		level = zerolog.InfoLevel // config has checked it
	}
	if conf.Format == "console" {
		w = zerolog.ConsoleWriter{Out: w, TimeFormat: time.RFC3339}
	}
	return zerolog.New(w).Level(level).With().Timestamp().Logger()
}
