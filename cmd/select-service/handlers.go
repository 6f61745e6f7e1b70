package main

import (
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/config"
	"github.com/select-service/select-service/internal/fleet"
	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/server/access"
	"github.com/select-service/select-service/internal/server/httpapi"
	"github.com/select-service/select-service/internal/server/ui"
	"github.com/select-service/select-service/internal/telemetry"
	"github.com/select-service/select-service/internal/telemetry/tracing"
	"github.com/select-service/select-service/internal/workers"
	"github.com/select-service/select-service/pkg/memory"
)

// handlers is what the handlers of the listeners are made of.
type handlers struct {
	conf       config.Config
	svc        *node.Service
	operators  httpapi.Operators
	sources    *workers.Manager
	fleet      *fleet.Member // nil: of no fleet
	guard      *access.Guard // nil: callers need no token
	budget     *memory.Budget
	tracer     *tracing.Tracer
	log        zerolog.Logger
	collectors []prometheus.Collector // of metrics, beside those of requests, service and fleet
}

// build returns a function that creates the handler of a listener. The handlers share the memory
// of requests and, but for the slot tracker alone, which has no metrics, one count of them.
// Requests that wait for memory end when stopping is closed.
func (h handlers) build(stopping <-chan struct{}) func(*listener) http.Handler {
	limits, aliases := h.conf.Limits, h.conf.Metrics.DynamoAliases
	requests := telemetry.NewRequests()
	scanned := httpapi.NewScanned(limits.ScanCache, h.budget.Account(memory.Scanned))
	collectors := append(h.svc.Collectors(aliases), h.collectors...)
	collectors = append(append(collectors, requests, telemetry.Scanned{Cache: scanned}), h.fleet.Collectors()...)
	if aliases {
		collectors = append(collectors, telemetry.DynamoIndexerRequests{Requests: requests})
	}
	shared := httpapi.Options{
		Log: h.log, Tracer: h.tracer, Access: h.guard, Contract: h.conf.Server.Contract, Named: h.svc.Catalog().Named, MaxWorkers: limits.Catalog.Workers,
		Memory:    httpapi.NewMemory(h.budget, stopping, scanned),
		Dumps:     httpapi.NewReaders(contract.LimitDumpReaders, httpapi.MaxDumpReaders, h.budget.Account(memory.Snapshots)),
		Snapshots: httpapi.NewReaders(contract.LimitSnapshotReaders, max(httpapi.MaxSnapshotReaders, limits.MaxPeers), h.budget.Account(memory.Snapshots)),
	}
	var page *ui.Page
	if at := h.conf.Server.UI; at != "" {
		page = ui.New(strings.TrimSuffix(at, "/"))
	}
	return func(l *listener) http.Handler {
		opt := shared
		opt.Hosts, opt.Part = hostsOf(h.conf, l), partOf(h.conf, l.contract)
		if !h.conf.SlotsOnly {
			opt.Requests = requests.Listener(l.contract)
		}
		switch {
		case l.contract == slotsContract, l.contract == adminContract && h.conf.SlotsOnly:
			return httpapi.NewSlots(&h.svc.UseCases, opt)
		case l.contract == conductorContract:
			return httpapi.NewConductor(h.svc.Conductor(), opt)
		case l.contract == debugContract:
			return httpapi.NewDebug(opt)
		}
		opt.Metrics = telemetry.Handler(version(), h.tracer != nil, collectors...)
		if after := h.conf.Overload.RetryAfter; after != nil {
			opt.RetryAfter = *after
		}
		opt.Sources, opt.Fleet, opt.Page, opt.Operators = h.sources, h.fleet, page, h.operators
		return httpapi.New(&h.svc.UseCases, h.svc.Conductor(), opt)
	}
}
