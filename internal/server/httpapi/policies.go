package httpapi

import (
	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/selector/ttft"
)

type policyReader interface {
	// Policies lists the policies of the scopes that match.
	Policies(catalog.ScopeFilter) []node.ScopePolicy
}

type policyRoutes struct {
	svc policyReader
	d   dialect
}

func (r policyRoutes) list(f catalog.ScopeFilter, out []byte) []byte {
	return appendList(out, r.svc.Policies(f), r.d.appendScopePolicy)
}

func (d dialect) appendScopePolicy(out []byte, p node.ScopePolicy) []byte {
	out = append(out, '{')
	out = d.appendScope(out, p.Scope)
	out = appendStringField(out, "policy", p.Name)
	out = appendStringField(out, "type", p.Type)
	out = appendList(appendKey(out, "shadow"), p.Shadow, appendString)
	out = appendKey(out, "learned")
	if p.Learned == nil {
		out = append(out, "null"...)
	} else {
		out = appendLearned(out, p.Learned)
	}
	return append(out, '}')
}

func appendLearned(out []byte, l *node.LearnedPrefills) []byte {
	source := "default"
	if l.Learned {
		source = "learned"
	}
	out = append(out, '{')
	out = appendStringField(out, "source", source)
	out = appendUintField(out, "samples", l.Samples)
	out = appendFloatField(out, "base_seconds", l.Base)
	out = appendFloatField(out, "token_seconds", l.PerToken)
	out = appendFloatField(out, "context_seconds", l.PerContext)
	out = appendFloatField(out, "arrivals_per_second", l.Flow.Arrivals)
	out = appendFloatField(out, "booked_seconds_per_second", l.Flow.Work)
	out = appendList(appendKey(out, "ranks"), l.Ranks, appendRankQueue)
	out = appendList(appendKey(out, "guard_rails"), l.Rails, appendRail)
	return append(out, '}')
}

func appendRankQueue(out []byte, r node.RankQueue) []byte {
	out = append(out, '{')
	out = appendRank(out, r.Rank)
	out = appendFloatField(out, "time_ratio", r.Queue.Speed)
	out = appendUintField(out, "prefills", r.Queue.Prefills)
	out = appendFloatField(out, "wait_seconds", r.Wait)
	return append(out, '}')
}

func appendRail(out []byte, r ttft.RailState) []byte {
	out = append(out, '{')
	out = appendStringField(out, "name", r.Rail.String())
	out = appendBoolField(out, "engaged", r.Engaged)
	out = appendList(appendKey(out, "ranks"), r.Ranks, func(out []byte, rank catalog.Rank) []byte {
		return append(appendRank(append(out, '{'), rank), '}')
	})
	out = appendUintField(out, "engagements", r.Engagements)
	return append(out, '}')
}
