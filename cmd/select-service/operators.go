package main

import (
	"time"

	"github.com/select-service/select-service/internal/config"
	"github.com/select-service/select-service/internal/fleet"
	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/server/doctor"
	"github.com/select-service/select-service/internal/server/httpapi"
	"github.com/select-service/select-service/internal/server/ranks"
	"github.com/select-service/select-service/internal/server/replicastatus"
	"github.com/select-service/select-service/pkg/memory"
)

// newOperators returns what operators are shown of the service. History and doctor have to be run.
func newOperators(conf config.Config, svc *node.Service, joined *fleet.Member, others replicas, picks *endpointPicker, budget *memory.Budget) httpapi.Operators {
	parts := svc.Parts()
	view := ranks.New(parts, httpapi.AppendRank, time.Now)
	peers := replicastatus.New(replicastatus.Config{
		Process: parts.Process, Version: version(), Contract: conf.Server.Contract.String(), Settings: conf.Rules(),
	}, svc.UseCases, parts.Replica, others.announced(), time.Now)
	if joined != nil {
		joined.Attach(svc.UseCases, answers(svc, peers.Status))
	}
	var gateway doctor.Gateway
	if picks.metrics != nil {
		gateway = picks.metrics
	}
	operators := httpapi.Operators{
		Ranks: view, History: ranks.NewHistory(view, historyLimit(budget)), Prefixes: ranks.NewPrefixes(parts, time.Now), Replicas: peers,
		Doctor: doctor.New(parts, peers, gateway, time.Now),
	}
	if picks.prompts != nil {
		operators.Prompts = picks.prompts
	}
	return operators
}

// historyLimit returns the bytes that the history of the fleet may take: all that it ever takes,
// or a small part of a small budget. It is not one of the budget's accounts, which leave that part free.
func historyLimit(b *memory.Budget) int64 {
	if total := b.Total(); total > 0 {
		return total / 32
	}
	return ranks.MaxHistory
}
