package httpapi

import (
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/fairness"
	"github.com/select-service/select-service/internal/server/access"
	"github.com/select-service/select-service/pkg/catalog"
)

// consumerLister lists who uses the engines.
type consumerLister interface {
	Fairness(q *selection.FairnessQuery) selection.FairnessList
}

type fairnessRoutes struct {
	svc consumerLister
	d   dialect
}

func (r fairnessRoutes) addTo(to router) {
	to.get(access.Read, "/fairness", to.api.narrowed(r.list))
}

// How many consumers are listed.
const (
	maxConsumers     = 1000
	defaultConsumers = 100
)

func (r fairnessRoutes) list(c request, f catalog.ScopeFilter, out []byte) ([]byte, error) {
	limit, err := queryUint(c.Request, "limit", 1, maxConsumers, defaultConsumers)
	if err != nil {
		return nil, err
	}
	by, err := queryValue(c.Request, "by")
	if err != nil {
		return nil, err
	}
	if by != nil && *by != "tenant" && *by != "program" {
		return nil, badRequest(queryPrefix + "by: expected `tenant` or `program`")
	}
	l := r.svc.Fairness(&selection.FairnessQuery{Of: f, Programs: by != nil && *by == "program", Limit: int(limit)})
	out = appendList(appendKey(append(out, '{'), "consumers"), l.Consumers, r.d.appendConsumer)
	out = appendUintField(out, "total", uint64(l.Total))
	out = appendList(appendKey(out, "classes"), l.Classes, r.d.appendFairClass)
	return append(out, '}'), nil
}

func (d dialect) appendConsumer(out []byte, c selection.Consumer) []byte {
	out = d.appendScope(append(out, '{'), c.Scope)
	out = appendStringField(out, "policy_class", c.PolicyClass)
	out = appendStringField(out, "tenant", catalog.Clip(c.Tenant))
	if c.Program != "" {
		out = appendStringField(out, "program", catalog.Clip(c.Program))
	}
	out = appendFloatField(out, "engine_seconds", c.Seconds)
	out = appendFloatField(out, "share", c.Share)
	out = appendFloatField(out, "weight", c.Weight)
	out = appendUintField(out, "running", uint64(c.Running))
	out = appendUintField(out, "queued", uint64(c.Waiting))
	for o, n := range c.Outcomes {
		out = appendUintField(out, fairness.Outcome(o).String(), n)
	}
	return append(out, '}')
}

func (d dialect) appendFairClass(out []byte, c selection.FairClass) []byte {
	out = d.appendScope(append(out, '{'), c.Scope)
	out = appendStringField(out, "policy_class", c.PolicyClass)
	by := "tenant"
	if c.Rules.By == fairness.Program {
		by = "program"
	}
	out = appendStringField(out, "by", by)
	out = appendFloatField(out, "half_life_seconds", c.Rules.HalfLife)
	out = appendUintField(out, "active_tenants", uint64(c.Tenants))
	out = appendUintField(out, "active_programs", uint64(c.Programs))
	out = appendFloatField(out, "jain_tenants", c.OfTenants)
	out = appendFloatField(out, "jain_programs", c.OfPrograms)
	return append(out, '}')
}
