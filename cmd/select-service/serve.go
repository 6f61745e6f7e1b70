package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/select-service/select-service/internal/config"
	"github.com/select-service/select-service/internal/engines/describe"
	"github.com/select-service/select-service/internal/engines/reports"
	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/policies"
	"github.com/select-service/select-service/internal/selection/scopes"
	"github.com/select-service/select-service/internal/selection/waitqueue"
	"github.com/select-service/select-service/internal/telemetry"
	"github.com/select-service/select-service/internal/telemetry/logwriter"
	"github.com/select-service/select-service/internal/telemetry/tracing"
	"github.com/select-service/select-service/internal/transport/zmqsock"
	"github.com/select-service/select-service/internal/workers"
	"github.com/select-service/select-service/internal/workers/workersfile"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/memory"
	"github.com/select-service/select-service/pkg/reservations"
)

// serve runs the service until ctx ends or a part of it fails.
func serve(ctx context.Context, conf config.Config, read files, getenv func(string) string, stderr io.Writer) error {
	out := logwriter.New(stderr)
	defer out.Close()
	log := logger(conf.Log, out, isTerminal(stderr))
	for _, w := range conf.Warnings() {
		log.Warn().Msg(w)
	}
	logPolicy(conf.WorkerSelection, log)
	logThresholds(conf.Overload, log)
	warnOfFiles(conf, log)
	warnOfPublisher(conf, log)
	mem := newMemory(conf.Limits, getenv, log)
	mem.apply(getenv)
	tracer, err := tracing.New(ctx, tracing.Options{Endpoint: conf.Traces.Endpoint, Version: version(), Getenv: getenv, Log: log})
	if err != nil {
		return fmt.Errorf("traces: %w", err)
	}
	defer closeTracer(context.WithoutCancel(ctx), tracer, log)

	// Build. The ports come first: one that is taken must fail the start.
	bound, err := listen(ctx, conf, read.certificates)
	if err != nil {
		return err
	}
	defer bound.close()
	picks, err := listenPicker(ctx, conf, read.certificates)
	if err != nil {
		return err
	}
	defer picks.close()
	data, err := openData(conf.Data)
	if err != nil {
		return err
	}
	defer data.Close()
	limits := socketOptions(conf, mem.budget, log)
	hub := zmqsock.New(limits)
	streams, runSockets := newStreams(hub, limits, log)
	var svc *node.Service
	if conf.Server.AdvertiseURL == "" {
		conf.Server.AdvertiseURL = read.cluster().advertise(conf)
	}
	joined, err := joinFleet(conf, baseURL(conf, bound), read.fleet, mem.budget, log)
	if err != nil {
		return err
	}
	others := newReplicas(conf, joined, hub, read, func() []string { return svc.UseCases.Peers() })
	access := read.engineAccess(conf.Access.Endpoints())
	engines := describe.New(describe.Options{Access: access, Log: log})
	defer engines.Close()
	var found *workers.Manager
	settings := serviceConfig(conf, others, bound, mem.budget)
	settings.Tracer = tracer
	if !conf.SlotsOnly {
		settings.Ask = engines.Describe
	}
	settings.Scrape = access
	settings.Described = func() { found.Heard() }
	var named []catalog.Scope
	for _, d := range read.discoveries {
		settings.Discovers, named = append(settings.Discovers, d.kind()), append(named, d.models()...)
	}
	if c := read.cluster(); c != nil && c.peers != "" {
		settings.Recovery.Find = func(ctx context.Context) []string { return c.pods.ServingPeers(ctx) }
	}
	svc = node.New(settings, streams, log)
	kept := data
	if joined != nil {
		kept = nil // the other replicas have the state, see cacheFile
	}
	state := svc.KeepState(kept, conf.Data.SnapshotInterval)
	var file *workersfile.Watcher
	var sources []workers.Source
	if read.workers != nil {
		file = workersfile.NewWatcher(conf.Workers.File, read.workers, log)
		sources = append(sources, joined.File(file, svc.Catalog().CountSchedulable))
	}
	for _, d := range read.discoveries {
		sources = append(sources, d.source(sourceParts{conf: conf, svc: svc, budget: mem.budget, getenv: getenv, log: log}))
	}
	if read.engines != nil {
		sources = append(sources, read.engines)
	}
	found = workers.NewManager(svc.UseCases.ReplaceWorkers, svc.UseCases.Unasked, sources...)
	picks.build(conf, svc, found.Listed, named, access, engines.Length, read.tokens, mem.budget, tracer, log)
	operators := newOperators(conf, svc, joined, others, picks, mem.budget)

	// Start: sockets, replicas, the service, its workers, HTTP. The first part to
	// fail stops the rest.
	base := context.WithoutCancel(ctx)
	sockets, closeSockets := context.WithCancel(base)
	defer closeSockets()
	work, stopWork := context.WithCancel(base)
	defer stopWork()
	parts, stopping := errgroup.WithContext(ctx)
	parts.Go(func() error { return runSockets(sockets) })
	if err := others.open(svc, log); err != nil {
		others.close()
		closeSockets()
		return errors.Join(err, parts.Wait())
	}
	state.Restore()
	meeting, leave := context.WithCancel(base)
	defer leave()
	parts.Go(func() error { return joined.Run(meeting) })
	serviceEnded := start(parts, func() error { return svc.Run(work) })
	parts.Go(func() error { return joined.Share(work) })
	parts.Go(func() error { return mem.keep(work) })
	parts.Go(func() error { return operators.History.Run(work) })
	parts.Go(func() error { return operators.Doctor.Run(work) })
	sourcesEnded := start(parts, func() error { return found.Run(work) })
	snapshots, stopSnapshots := context.WithCancel(base)
	defer stopSnapshots()
	stateEnded := start(parts, func() error { return state.Run(snapshots) })
	read.follow(work, parts, log, file)
	open := newConnections(conf.Limits, mem.budget, log)
	picks.serve(work, parts, open, log)
	routes := handlers{
		conf: conf, svc: svc, operators: operators, sources: found, fleet: joined, guard: read.tokens,
		budget: mem.budget, tracer: tracer, log: log,
		collectors: append(append(picks.collectors(), collectorsOf(sources)...), tracer, open, state.Collector(),
			telemetry.Memory{Budget: mem.budget}, telemetry.WorkersFile{Watcher: file},
			telemetry.Sockets{Refused: hub.Refused, Behind: others.behind()},
			telemetry.Process{LogLinesDropped: out.Dropped, Certificate: read.certificates, PeerCertificate: read.peers}),
	}
	bound.serve(parts, routes.build(stopping.Done()), open, log) //nolint:contextcheck // requests have contexts of their own

	// Stop in the reverse order: no new work, requests under way, HTTP, the last
	// snapshot, the service and its streams, replicas, sockets.
	<-stopping.Done()
	log.Info().Msg("stopping")
	picks.stop(base, ctx.Err() != nil)
	svc.Close()
	defer time.AfterFunc(snapshotGrace, stopSnapshots).Stop()
	shutdownErr := bound.shutdown(base, open)
	stopSnapshots()
	<-stateEnded
	stopWork()
	<-sourcesEnded
	<-serviceEnded
	leave()
	others.close()
	closeSockets()
	err = cmp.Or(parts.Wait(), shutdownErr)
	log.Info().Err(err).Msg("stopped")
	return err
}

// snapshotGrace is how long the last snapshot waits for requests under way. Requests of dead
// clients would take all of grace and leave it no time.
const snapshotGrace = grace / 3

// lastSpans is how long the last spans may take to be sent.
const lastSpans = time.Second

// closeTracer sends the last spans.
func closeTracer(ctx context.Context, t *tracing.Tracer, log zerolog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, lastSpans)
	defer cancel()
	if err := t.Close(ctx); err != nil {
		log.Warn().Err(err).Msg("spans not sent")
	}
}

// start runs a part in its group, and returns a channel that is closed when the part ends.
func start(parts *errgroup.Group, run func() error) <-chan struct{} {
	ended := make(chan struct{})
	parts.Go(func() error {
		defer close(ended)
		return run()
	})
	return ended
}

// subscribersPerPeer is how many connections to our publisher are allowed per peer that may be
// followed. It is above 1 because Dynamo's routers follow without being followed.
const subscribersPerPeer = 4

// socketOptions returns the limits of the ZMQ sockets.
func socketOptions(conf config.Config, budget *memory.Budget, log zerolog.Logger) zmqsock.Options {
	opt := zmqsock.DefaultOptions()
	opt.Endpoints = conf.Access.Endpoints()
	opt.Streams, opt.Replay = budget.Account(memory.Streams), budget.Account(memory.Replay)
	opt.Replication = budget.Account(memory.Replication)
	opt.Subscribers = subscribersPerPeer * conf.Limits.MaxPeers
	opt.Fault = func(endpoint string, err error) {
		log.Warn().Str("endpoint", catalog.Clip(endpoint)).Err(err).Msg("zmq connection refused or given up")
	}
	return opt
}

// homeTTL is how long the ranks of soft sessions and of groups are known, 0 if they are not.
func homeTTL(conf config.Config) time.Duration {
	if !conf.KeepsHomes() {
		return 0
	}
	return config.HomeTTL
}

// frontSessions says how firmly sessions of requests through the gateway and the proxy stay together.
func frontSessions(conf config.Gateway) selection.SessionMode {
	return map[string]selection.SessionMode{
		config.SessionsSoft: selection.SoftSessions, config.SessionsHard: selection.HardSessions, config.SessionsOff: selection.LooseSessions,
	}[conf.SessionAffinity]
}

func serviceConfig(conf config.Config, others replicas, bound listeners, budget *memory.Budget) node.Config {
	c := node.Config{
		Memory:   budget,
		Contract: conf.Server.Contract,
		KVEvents: conf.KVEvents.Enabled && !conf.SlotsOnly,
		Threads:  conf.KVEvents.Threads,
		Selection: selection.Config{
			Weights:       conf.Weights(),
			SessionTTL:    conf.Selections.SessionTTL,
			SessionGroups: conf.Selections.Groups != nil && *conf.Selections.Groups,
			HomeTTL:       homeTTL(conf),
			FrontSessions: frontSessions(conf.Gateway),
			FrontGroups:   conf.FrontGroups(),
			Owners:        conf.Fronts(),
			Pending:       conf.Selections.Pending,
			DecodeBusy:    conf.Selections.DecodeBusy,
			PrefillBusy:   conf.Selections.PrefillBusy,
			DecisionBytes: int64(conf.Selections.DecisionBytes),
			IgnoreTargets: !conf.Selections.RequestTargets,
			Fetch:         conf.Selections.Fetch,
			Overload:      conf.Overload.Thresholds,
		},
		Scopes: scopes.Settings{
			Policies:    conf.WorkerSelection.Policies,
			Admission:   conf.Queue.Config,
			HybridExact: conf.KVEvents.HybridExact,
			WatchStored: conf.Fronts(),
			Queues:      waitqueue.Config{OverlapRefresh: conf.Queue.OverlapRefreshAfter},
		},
		Predictions: node.Predictions{
			ApproximateTTL: conf.KVEvents.ApproximateTTL,
			ApproximateLRU: conf.KVEvents.ApproximatePolicy == config.PolicyLRU,
			PredictedTTL:   conf.KVEvents.PredictedTTL,
		},
		Reports:   reports.Config{TTL: reports.DefaultTTL, StalledAfter: cmp.Or(conf.Engines.StalledAfter, -1)},
		Given:     workers.Given{File: conf.Workers.File, List: len(conf.Workers.Engines) > 0},
		Endpoints: conf.Access.Endpoints(),
		Limits:    conf.Limits.Catalog,
		Reservations: reservations.Limits{
			Reservations: conf.Limits.MaxReservations, Blocks: contract.MaxReservationBlocks, Memory: budget.Account(memory.Ledger),
		},
		ReservationLifetime: conf.Reservations.Lifetime,
	}
	if share := conf.Engines.WarmupShare; share != nil {
		c.Selection.WarmupShare = *share
	}
	others.configure(&c, conf, baseURL(conf, bound))
	return c
}

// baseURL returns the base URL of this process for other replicas.
func baseURL(conf config.Config, bound listeners) string {
	return cmp.Or(conf.Server.AdvertiseURL, bound.baseURL(conf.Server.Host()))
}

// logger returns a logger that writes to w. The format for people has colours if w is a terminal.
func logger(conf config.Log, w io.Writer, terminal bool) zerolog.Logger {
	if conf.Format == "console" {
		w = zerolog.ConsoleWriter{Out: w, TimeFormat: time.RFC3339, NoColor: !terminal}
	}
	return zerolog.New(w).Level(conf.Level).With().Timestamp().Logger()
}

// isTerminal reports whether w is a terminal or another character device.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// logPolicy logs which policy decides where no policy file names one, and why, unless that is what the contract says.
func logPolicy(w config.WorkerSelection, log zerolog.Logger) {
	s := w.Policies.Settings()
	policy, why := policies.PredictedTTFT, policies.ByFront
	switch {
	case s.Name != "" || s.Type != "":
		policy, why = cmp.Or(s.Name, s.Type), policies.ByOption
	case s.Served == nil:
		return
	case s.Weight != "":
		policy, why = policies.BuiltIn, policies.ByWeight
	}
	if why == policies.ByWeight {
		log = log.With().Str("weight", s.Weight).Logger()
	}
	log.Info().Str("policy", policy).Str("decided_by", string(why)).Msg("selection policy where no policy file names one")
}

// logThresholds logs the load above which requests are refused, if there is one.
func logThresholds(o config.Overload, log zerolog.Logger) {
	if !o.Thresholds.Any() {
		return
	}
	line := log.Info().EmbedObject(selection.LoggedThresholds(o.Thresholds))
	if o.RetryAfter != nil && *o.RetryAfter > 0 {
		line.Int64("retry_after_secs", int64(*o.RetryAfter/time.Second))
	}
	line.Msg("busy thresholds are set")
}
