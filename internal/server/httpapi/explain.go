package httpapi

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
)

// explainer explains choices, hypothetical and past ones. It must not keep the request after
// the call.
type explainer interface {
	Explain(ctx context.Context, req *selection.SelectRequest) (*selection.Explanation, error)
	Decisions(own catalog.ScopeFilter, limit int) []selection.Decision
	// IgnoresTargets is as in workerSelector.
	IgnoresTargets() bool
}

type explainRoutes struct {
	svc explainer
	d   dialect
}

func (r explainRoutes) explain(c request, b *selectBody, out []byte) (int, []byte, error) {
	b.session.fill(&b.req)
	if err := b.wants.set(&b.req, r.svc); err != nil {
		return 0, nil, err
	}
	b.req.Dialect = contract.Version(r.d)
	b.req.Advisory = b.advisory
	if r.d == dialect16 {
		b.req.Hint = selection.HintInAnswer // as a booking has it
	}
	b.req.Trace = c.span
	x, err := r.svc.Explain(c.Request.Context(), &b.req)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, r.d.appendExplanation(out, x), nil
}

// maxDecisions bounds an answer of /decisions.
const maxDecisions = 1000

func (r explainRoutes) decisions(c request, f catalog.ScopeFilter, out []byte) ([]byte, error) {
	limit, err := queryUint(c.Request, "limit", 1, maxDecisions, maxDecisions)
	if err != nil {
		return nil, err
	}
	reasons, err := queryBool(c.Request, "reasons", true)
	if err != nil {
		return nil, err
	}
	at, err := queryValue(c.Request, "time")
	if err != nil {
		return nil, err
	}
	list := r.svc.Decisions(f, int(limit))
	if at != nil {
		list = slices.DeleteFunc(list, func(x selection.Decision) bool { return timeText(x.At) != *at })
	}
	explain := (*selection.Decision).Explain
	if !reasons {
		explain = (*selection.Decision).Outline
	}
	return appendList(out, list, func(out []byte, x selection.Decision) []byte { return r.d.appendDecision(out, &x, explain(&x)) }), nil
}

func (d dialect) appendDecision(out []byte, x *selection.Decision, why *selection.Explanation) []byte {
	out = appendTime(append(out, '{'), "time", x.At)
	out = d.appendScope(out, x.Scope())
	if x.SelectionID != "" {
		out = appendStringField(out, "selection_id", x.SelectionID)
	}
	if x.ReservationID != "" {
		out = appendStringField(out, "reservation_id", x.ReservationID)
	}
	if x.TraceID != "" {
		out = appendStringField(out, "trace_id", x.TraceID)
	}
	out = appendBoolField(out, "reserved", x.Reserved)
	out = appendUintField(out, "cached_blocks", x.Cached)
	out = appendUintField(out, "cached_blocks_foregone", x.MostCached-min(x.MostCached, x.Cached))
	out = appendFloatField(out, "predicted_ttft_seconds", x.PredictedTTFT)
	out = append(appendKey(out, "outcome"), '{')
	out = appendSeconds(out, "ttft_seconds", x.Outcome.TTFT)
	out = appendSeconds(out, "freed_after_seconds", x.Outcome.Freed)
	out = append(appendStringField(out, "state", outcomeState(x)), '}')
	return append(appendReasons(out, why), '}')
}

// outcomeState returns the name of a decision's outcome.
func outcomeState(x *selection.Decision) string {
	switch {
	case x.Outcome.Freed != 0:
		return "freed"
	case x.Outcome.Gone:
		return "gone"
	case x.Outcome.TTFT != 0:
		return "decoding"
	case x.Reserved:
		return "prefilling"
	}
	return "selected"
}

// appendSeconds appends a duration in seconds, null for 0.
func appendSeconds(out []byte, name string, d time.Duration) []byte {
	if d == 0 {
		return appendNull(out, name)
	}
	return appendFloatField(out, name, d.Seconds())
}

func (d dialect) appendExplanation(out []byte, x *selection.Explanation) []byte {
	out = append(out, '{')
	out = d.appendScope(out, x.Scope)
	return append(appendReasons(out, x), '}')
}

// appendReasons appends the members of an explanation except its scope.
func appendReasons(out []byte, x *selection.Explanation) []byte {
	out = appendStringField(out, "policy", x.Policy)
	if x.Type != "" {
		out = appendStringField(out, "policy_type", x.Type)
	}
	out = appendStringField(out, "decided_by", string(x.DecidedBy))
	out = appendUintField(out, "isl_tokens", x.Size.Tokens)
	out = appendUintField(out, "block_size", x.Size.BlockSize)
	out = appendFloatField(out, "temperature", x.Temperature)
	if x.Chosen != nil {
		out = append(appendKey(out, "chosen"), '{')
		out = append(appendRankHeader(appendRank(out, *x.Chosen), x.ChosenHeader), '}')
	} else {
		out = appendNull(out, "chosen")
	}
	if x.Warmup {
		out = appendBoolField(out, "warmup", true)
	}
	if x.Refusal != "" {
		out = appendStringField(out, "refusal", x.Refusal)
	}
	if t := x.Target; t != nil {
		out = append(appendKey(out, "target"), '{')
		out = appendBoolField(out, "predictable", t.OnlyQueued == "")
		if t.OnlyQueued != "" {
			out = appendStringField(out, "why_not", t.OnlyQueued)
		} else {
			out = appendUintField(out, "holding", uint64(t.Holding))
			out = appendFloatField(out, "predicted_ttft_seconds", t.Predicted)
			out = appendFloatField(out, "within_seconds", t.Within)
			out = appendFloatField(out, "margin", t.Margin)
			if t.Probe {
				out = appendBoolField(out, "probe", true)
			}
			if t.WouldRefuse {
				out = appendBoolField(out, "would_refuse", true)
			}
		}
		out = append(out, '}')
	}
	if x.Session != "" {
		out = appendStringField(out, "session", x.Session)
	}
	if x.Group != "" {
		out = appendStringField(out, "group", x.Group)
	}
	if x.Home != nil {
		out = append(appendRank(append(appendKey(out, "home"), '{'), *x.Home), '}')
	}
	if x.MovedBecause != "" {
		out = appendStringField(out, "moved_because", x.MovedBecause)
	}
	out = appendList(appendKey(out, "candidates"), x.Candidates, appendCandidate)
	out = appendList(appendKey(out, "excluded"), x.Excluded, func(out []byte, e selection.ExcludedRank) []byte {
		out = appendRank(append(out, '{'), e.Rank)
		return append(appendStringField(out, "reason", string(e.Why)), '}')
	})
	return appendList(appendKey(out, "shadows"), x.Shadows, func(out []byte, s selection.ShadowChoice) []byte {
		out = appendStringField(append(out, '{'), "policy", s.Policy)
		out = appendRank(out, s.Rank)
		out = appendBoolField(out, "same", s.Same)
		out = appendFloatField(out, "cost_foregone", s.CostForegone)
		return append(appendFloatField(out, "ttft_foregone_seconds", s.TTFTForegone), '}')
	})
}

// appendRankHeader appends how the engine is told a rank, if that is known.
func appendRankHeader(out []byte, h selection.RankHeader) []byte {
	if h.Form == "" {
		return out
	}
	return appendUintField(appendStringField(out, "rank_header", h.Form), "local_dp_rank", h.Local)
}

func appendCandidate(out []byte, r selection.ExplainedRank) []byte {
	out = appendRank(append(out, '{'), r.Rank)
	out = appendRankHeader(out, r.Header)
	out = appendFloatField(out, "cost", r.Cost)
	out = appendStringField(out, "unit", r.Unit)
	out = append(appendKey(out, "terms"), '{')
	out = appendFloatField(out, "wait", r.Wait)
	out = appendFloatField(out, "prefill", r.Prefill)
	out = appendFloatField(out, "delay", r.Delay)
	out = appendFloatField(out, "decode", r.Decode)
	out = appendFloatField(out, "answer", r.Answer)
	out = append(appendFloatField(out, "taint", r.Taint), '}')
	out = append(appendKey(out, "cached_tokens"), '{')
	out = appendUintField(out, "device", r.Device)
	out = appendUintField(out, "host", r.Host)
	out = append(appendUintField(out, "disk", r.Disk), '}')
	out = appendUintField(out, "uncached_tokens", r.Uncached)
	out = appendUintField(out, "active_requests", r.Requests)
	if r.Foreign != (reservations.Foreign{}) {
		out = appendForeign(out, r.Foreign)
	}
	out = appendFloatField(out, "predicted_wait_seconds", r.Predicted.Wait)
	out = appendFloatField(out, "predicted_prefill_seconds", r.Predicted.Prefill)
	out = appendFloatField(out, "predicted_delay_seconds", r.Predicted.Delay)
	out = appendFloatField(out, "speed_factor", r.Speed)
	if r.PerOutput > 0 {
		out = appendFloatField(out, "output_token_seconds", r.PerOutput)
	}
	if r.Fetch.Takes {
		out = appendFetch(out, &r.Fetch)
	}
	return append(appendStringField(out, "source", string(r.Source)), '}')
}

// appendFetch appends what a candidate would fetch.
func appendFetch(out []byte, f *selection.PricedFetch) []byte {
	out = append(appendKey(out, "fetch"), '{')
	out = appendStringField(out, "result", f.Result.String())
	if f.Tokens > 0 {
		out = append(appendRank(append(appendKey(out, "from"), '{'), f.Source), '}')
		out = appendUintField(out, "tokens", f.Tokens)
		out = appendFloatField(out, "predicted_seconds", f.Time)
		out = appendFloatField(out, "saves_seconds", f.Saves)
	}
	return append(out, '}')
}
