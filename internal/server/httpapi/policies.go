package httpapi

import (
	"encoding/json"
	"net/http"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/codec/bodyscan"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/server/access"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/selector/ttft"
)

// policyTable has the policies that choose ranks.
type policyTable interface {
	// Policies lists the policies of the scopes that match.
	Policies(catalog.ScopeFilter) []selection.ScopePolicy
	// SetPolicies makes all scopes choose by a section worker_selection of a policy file, as JSON; nil:
	// by the policies of the configuration.
	SetPolicies(section []byte) (selection.PolicyChange, error)
}

type policyRoutes struct {
	svc policyTable
	d   dialect
}

func (r policyRoutes) addTo(e router) {
	const path = "/policies"
	e.get(access.Read, path, e.api.listing(r.list))
	set := newBody(policyShape, nil, nil)
	set.limit = maxPolicies
	e.add(http.MethodPut, access.Operate, path, withBody(e.api, set, r.set))
	e.add(http.MethodDelete, access.Operate, path, e.api.serve(r.clear))
}

// maxPolicies is the longest body of PUT /policies, in bytes.
const maxPolicies = 64 << 10

// policyBody is the body of PUT /policies. section is a part of the request's text.
type policyBody struct{ section []byte }

var policyShape = bodyscan.NewObject(
	required("worker_selection", func(b *policyBody) *[]byte { return &b.section }, func(s *bodyscan.Scanner) []byte {
		section := s.Value()
		if s.Err() == nil && !json.Valid(section) { // msgpack
			s.Fail("must be JSON")
		}
		return section
	}),
)

func (r policyRoutes) set(c request, b *policyBody, out []byte) (int, []byte, error) {
	return r.change(c, b.section, out)
}

func (r policyRoutes) clear(c request, out []byte) (int, []byte, error) {
	return r.change(c, nil, out)
}

func (r policyRoutes) change(c request, section, out []byte) (int, []byte, error) {
	change, err := r.svc.SetPolicies(section)
	c.about(changedPolicies(change))
	if err != nil {
		return 0, nil, err
	}
	out = append(out, '{')
	out = r.list(catalog.ScopeFilter{}, appendKey(out, "policies"))
	return http.StatusOK, append(appendBehind(out, change.Behind), '}'), nil
}

// changedPolicies is a change of the policies in an audit line.
type changedPolicies selection.PolicyChange

// maxChanged is how many changes of policies an audit line names.
const maxChanged = 32

func (p changedPolicies) describe(e *zerolog.Event) {
	if p.Section != "" {
		e.Str("worker_selection", p.Section)
	}
	if len(p.Changed) == 0 {
		return
	}
	names := make([]string, 0, maxChanged)
	for _, name := range p.Changed[:min(len(p.Changed), maxChanged)] {
		names = append(names, catalog.Clip(name))
	}
	e.Int("changed", len(p.Changed)).Strs("changes", names)
}

func (r policyRoutes) list(f catalog.ScopeFilter, out []byte) []byte {
	return appendList(out, r.svc.Policies(f), r.d.appendScopePolicy)
}

func (d dialect) appendScopePolicy(out []byte, p selection.ScopePolicy) []byte {
	out = append(out, '{')
	out = d.appendScope(out, p.Scope)
	out = appendStringField(out, "policy", p.Name)
	out = appendStringField(out, "type", p.Type)
	out = appendStringField(out, "decided_by", string(p.DecidedBy))
	out = appendList(appendKey(out, "shadow"), p.Shadow, appendString)
	out = appendKey(out, "learned")
	if p.Learned == nil {
		out = append(out, "null"...)
	} else {
		out = appendLearned(out, p.Learned)
	}
	return append(out, '}')
}

func appendLearned(out []byte, l *selection.LearnedPrefills) []byte {
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
	out = appendFloatField(out, "attended_seconds", l.PerAttended)
	out = appendFloatField(out, "answer_tokens", l.Output)
	out = appendFloatField(out, "arrivals_per_second", l.Flow.Arrivals)
	out = appendFloatField(out, "booked_seconds_per_second", l.Flow.Work)
	out = appendCalibration(appendKey(out, "calibration"), l)
	out = appendList(appendKey(out, "ranks"), l.Ranks, appendRankQueue)
	out = appendList(appendKey(out, "guard_rails"), l.Rails, appendRail)
	return append(out, '}')
}

// appendCalibration appends how far predicted times to first token are off.
func appendCalibration(out []byte, l *selection.LearnedPrefills) []byte {
	out = append(out, '{')
	out = appendUintField(out, "samples", l.Calibration.Samples)
	out = appendFloatField(out, "q50", l.Calibration.Q50)
	out = appendFloatField(out, "q90", l.Calibration.Q90)
	if l.Compared.Predictions > 0 {
		out = appendFloatField(out, "held", l.Compared.Held)
	} else {
		out = appendNull(out, "held")
	}
	out = appendList(appendKey(out, "deciles"), l.Compared.Deciles, func(out []byte, d ttft.Decile) []byte {
		out = appendFloatField(append(out, '{'), "predicted_seconds", d.Predicted)
		return append(appendFloatField(out, "observed_seconds", d.Observed), '}')
	})
	return append(out, '}')
}

func appendRankQueue(out []byte, r selection.RankQueue) []byte {
	out = append(out, '{')
	out = appendRank(out, r.Rank)
	out = appendFloatField(out, "time_ratio", r.Queue.Speed)
	out = appendUintField(out, "prefills", r.Queue.Prefills)
	out = appendFloatField(out, "wait_seconds", r.Wait)
	if r.PerOutput > 0 {
		out = appendFloatField(out, "output_token_seconds", r.PerOutput)
	} else {
		out = appendNull(out, "output_token_seconds")
	}
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
