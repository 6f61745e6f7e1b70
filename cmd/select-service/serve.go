package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"runtime/debug"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/select-service/select-service/internal/admission"
	"github.com/select-service/select-service/internal/config"
	"github.com/select-service/select-service/internal/contract"
	"github.com/select-service/select-service/internal/httpapi"
	"github.com/select-service/select-service/internal/metrics"
	"github.com/select-service/select-service/internal/service"
	"github.com/select-service/select-service/internal/workersfile"
	"github.com/select-service/select-service/internal/zmqsock"
)

// gcPercent lets the heap grow to five times what is live before the collector
// runs. The index is not on the heap, so what is live is a few MiB, and the
// default would collect after every few MiB of requests. GOGC overrides it.
const gcPercent = 400

// serve runs the service until ctx ends. Listeners are bound first; then
// sockets, streams, peers and HTTP come up in this order and go down in the
// reverse one. workers is the content of the workers file, nil for none.
func serve(ctx context.Context, conf config.Config, workers *workersfile.File, getenv func(string) string, stderr io.Writer) error {
	if getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	log := logger(conf.Log, stderr)
	for _, w := range conf.Warnings() {
		log.Warn().Msg(w)
	}
	logThresholds(conf.Overload, log)
	listeners, err := listen(ctx, conf)
	if err != nil {
		return err
	}
	hub := zmqsock.New(zmqsock.DefaultOptions())
	others := newReplicas(conf.Replicas, hub)
	svc := service.New(serviceConfig(conf, others, listeners), hub, log)

	base := context.WithoutCancel(ctx)
	sockets, closeSockets := context.WithCancel(base)
	work, stopWork := context.WithCancel(base)
	g, failed := errgroup.WithContext(ctx) // the first part to fail stops the rest
	g.Go(func() error { return hub.Run(sockets) })
	if err := others.open(svc, log); err != nil {
		listeners.close()
		others.close()
		closeSockets()
		stopWork()
		return errors.Join(err, g.Wait())
	}
	g.Go(func() error {
		defer closeSockets()
		defer others.close()
		return svc.Run(work)
	})
	file := newFollower(conf.Workers, workers, svc, log)
	g.Go(func() error { return file.run(work) })
	listeners.serve(g, handlers(conf, svc, file, log), log)
	g.Go(func() error {
		defer stopWork()
		<-failed.Done()
		log.Info().Msg("stopping")
		svc.Close()
		return listeners.shutdown(base)
	})
	err = g.Wait()
	log.Info().Err(err).Msg("stopped")
	return err
}

// handlers makes the handler of a contract. The requests of all of them are in
// the metrics of the selection's; without those nobody counts.
func handlers(conf config.Config, svc *service.Service, file *follower, log zerolog.Logger) func(contract string) http.Handler {
	requests := metrics.NewRequests()
	gather := func(opt metrics.Options) metrics.Sources { return file.metrics(opt, svc.Metrics) }
	return func(contract string) http.Handler {
		opt := httpapi.Options{Log: log, Contract: contractOf(conf)}
		if !conf.SlotsOnly {
			opt.Requests = requests.Listener(contract)
		}
		switch contract {
		case slotsContract:
			return httpapi.NewSlots(svc, opt)
		case conductorContract:
			return httpapi.NewConductor(svc.Conductor(), opt)
		}
		opt.Metrics = metrics.New(version(), gather, requests, metrics.Options{DynamoAliases: conf.Metrics.DynamoAliases}).Handler()
		opt.RetryAfter = conf.Overload.RetryAfter
		return httpapi.New(svc, svc.Conductor(), opt)
	}
}

func serviceConfig(conf config.Config, others replicas, listeners faces) service.Config {
	order, _ := admission.ParseOrder(conf.Queue.Order) // config has checked it
	c := service.Config{
		Contract:            contractOf(conf),
		Weights:             conf.Router,
		Admission:           admission.Config{Threshold: conf.Queue.Threshold, Order: order, File: conf.Queue.Policy},
		KVEvents:            conf.KVEvents.Enabled && !conf.SlotsOnly,
		WorkersFile:         conf.Workers.File,
		ApproximateTTL:      conf.KVEvents.ApproximateTTL,
		OverlapRefresh:      conf.Queue.OverlapRefreshAfter,
		Overload:            conf.Overload.Thresholds,
		SessionTTL:          conf.Selections.SessionTTL,
		Kept:                conf.Selections.Kept,
		DecodeBusy:          conf.Selections.DecodeBusy,
		PrefillBusy:         conf.Selections.PrefillBusy,
		ReservationLifetime: conf.Reservations.Lifetime,
		Threads:             conf.KVEvents.Threads,
	}
	if c.Weights.PrefixOnly = c.Contract == contract.V16; !c.Weights.PrefixOnly {
		c.Weights.ActiveRequests = 0 // a term of 1.6
	}
	url := conf.Server.AdvertiseURL
	if url == "" {
		url = listeners.baseURL(conf.Server.Listen)
	}
	others.configure(&c, url)
	return c
}

// contractOf is the contract that the service follows.
func contractOf(conf config.Config) contract.Version {
	if conf.Server.Contract == config.Contract16 {
		return contract.V16
	}
	return contract.V13
}

func logger(conf config.Log, w io.Writer) zerolog.Logger {
	level, err := zerolog.ParseLevel(conf.Level)
	if err != nil {
		level = zerolog.InfoLevel // config has checked it
	}
	if conf.Format == "console" {
		w = zerolog.ConsoleWriter{Out: w, TimeFormat: time.RFC3339, NoColor: !isTerminal(w)}
	}
	return zerolog.New(w).Level(level).With().Timestamp().Logger()
}

// isTerminal tells a terminal, or another character device, from a file, a pipe
// and a buffer.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// logThresholds says from which load on requests are refused, if from any.
func logThresholds(o config.Overload, log zerolog.Logger) {
	if !o.Thresholds.Any() {
		return
	}
	line := log.Info().EmbedObject(service.LoggedThresholds(o.Thresholds))
	if o.RetryAfter > 0 {
		line.Int64("retry_after_secs", int64(o.RetryAfter/time.Second))
	}
	line.Msg("busy thresholds are set")
}
